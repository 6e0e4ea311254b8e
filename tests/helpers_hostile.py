"""Replies that are damaged or written by somebody who means harm, for the tests of who reads them."""

import numpy as np
from flwr.app import Array, MetricRecord, RecordDict

_TYPES = ["<f8", ">f8", "<f4", "<i8", "|u1", "|O", "<c16", "<U1", "<M8[s]", "|V8", "<f16", "|b1"]
_TYPES += ["<f8,<i4", "f8f8f8", "9"]
DESCRIPTIONS = [*map(repr, _TYPES), "[('a', '<f8')]", "('<f8', (2,))", "None", "[]", "''", "{'names': ['a']}"]
"""The types of numbers that a header may name."""

SHAPES = ["(2,4)", "(1,4)", "(4,)", "(8,)", "()", "(2,)", "(3,)", "(4,2)", "(2,400000000000)", "(-2,-4)", "(True,4)"]
SHAPES += ["(2,0)", "(0,)", "[2,4]", "2", "(2.0,4)"]
SHAPES += [f"({10**400},)", "(1,) * 99", "(2, 4L)"]
"""The shapes that it may name."""

TEXTS = ["(" * 150, "((" * 90 + "))" * 90, "-" * 3000 + "1", "[" * 60 + "]" * 60, "{", "'", '"""', "1_0", "\\", "\x00"]
TEXTS += ["{}", "{'shape': ()}", "{1: {2: 3}}", "lambda: 0", "é", "# nothing", "1e999", "0x" + "f" * 3000, "{" * 100]
"""Texts that may stand in place of a header."""

COUNTS = [-1, 10**18, 2**63 - 1, 0.5, 1.0, float("nan"), float("inf"), [], [1], [0.0]]
"""Values that may stand in place of a count."""


def npy_head(text: str, length: int = 118, version: bytes = b"\x01\x00") -> bytes:
    """The beginning of a file of numpy's format: magic, version, the length of the header, and the header."""
    return b"\x93NUMPY" + version + length.to_bytes(2, "little") + text.encode("latin1").ljust(length - 1) + b"\n"


def damage(content: RecordDict, rng: np.random.Generator) -> None:
    """Change a reply somewhere, as a bad disk, a bad programmer or a bad person would."""
    name = str(rng.choice([name for name in content if name != "facts"]))
    key = str(rng.choice(list(content[name])))
    match int(rng.integers(10)):
        case 0:
            content["facts"] = MetricRecord({key: COUNTS[rng.integers(len(COUNTS))] for key in content["facts"]})
        case 1:
            changes = [lambda: content[name].pop(key), lambda: content.pop(str(rng.choice(list(content))))]
            changes[rng.integers(2)]()
        case _:
            content[name][key] = damaged(content[name][key], rng)


def damaged(array: Array, rng: np.random.Generator) -> Array:
    data, fields = bytearray(array.data), {"dtype": array.dtype, "shape": array.shape, "stype": array.stype}
    start = 10 + int.from_bytes(data[8:10], "little")
    match int(rng.integers(8)):
        case 0 | 1:  # bits of the header
            for at in rng.integers(0, start, rng.integers(1, 9)):
                data[at] ^= 1 << int(rng.integers(8))
        case 2 | 3 if len(data) > start:  # bits of a number or two
            for at in rng.integers(start, len(data), rng.integers(1, 3)):
                data[at] ^= 1 << int(rng.integers(8))
        case 4:
            data = data[: rng.integers(len(data))]
        case 5:
            files = [b"PK\x03\x04" + data, b"PK\x05\x06" + bytes(18), b"\x80\x04N.", data + rng.bytes(8)]
            data = files[rng.integers(4)]
        case 6:
            head = f"{{'descr': {rng.choice(DESCRIPTIONS)}, 'fortran_order': False, 'shape': {rng.choice(SHAPES)}, }}"
            text = [head, str(rng.choice(TEXTS))][rng.integers(2)]
            data = npy_head(text, len(text) + 1, bytes([rng.integers(1, 4), 0])) + data[start:]
        case _:
            fields |= [{"dtype": "float32"}, {"shape": (10**9,)}, {"shape": (0,)}, {"stype": "pickle"}][rng.integers(4)]
    return Array(data=bytes(data), **fields)
