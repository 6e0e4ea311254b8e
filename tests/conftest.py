"""Settings that all tests share: one thread per process, draws of hypothesis, the cases to run, public data."""

import gc
import importlib
import logging
import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

# As many processes run tests as there are cores: threads of BLAS beside them would only wait for one another.
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

# No test enters anything into the accounts of whoever runs it: one that needs some asks for the fixture `accounts`.
os.environ["USERDP_ACCOUNTS"] = "sqlite:////dev/null/accounts.sqlite"

import selection  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

collect_ignore = ["lying_silo"]  # code of containers

# No case fails for its seconds, which say how busy the machine is. CI draws the same cases in every run.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("tests"), derandomize=True, database=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "tests")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--change``, for what a change has to run; see `selection`."""
    parser.addoption(
        "--change",
        metavar="SEED",
        help="of the slow tests, only those that changes since the last long run can reach, and of each at most "
        f"{selection.MOST} cases, drawn by SEED",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the slow cases of sweeps; with ``--change``, leave out the slow tests that a change need not run."""
    mark_sweeps(items)
    if seed := config.getoption("--change"):
        chosen = of_a_change(items, seed)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = [item for item in items if item in chosen]


def mark_sweeps(items: list[pytest.Item]) -> None:
    """Leave n cases of a test marked ``sweep(n)`` fast and mark the others slow, whatever else is collected.

    A checksum of their names chooses them: nearly the same ones when cases are added, others in each test.
    """
    sweeps: dict[tuple[Path, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sweep") and not item.get_closest_marker("slow"):
            sweeps[item.path, item.name.partition("[")[0]].append(item)
    for cases in sweeps.values():
        mark = cases[0].get_closest_marker("sweep")
        assert mark is not None
        for item in sorted(cases, key=lambda item: zlib.crc32(item.name.encode()))[mark.args[0] :]:
            item.add_marker(pytest.mark.slow)


def of_a_change(items: list[pytest.Item], seed: str) -> set[pytest.Item]:
    """The fast tests, and of the slow ones those that `selection` chooses."""
    changed = selection.since("slow tests")
    files = selection.noticing(changed)
    chosen, tests = set(), defaultdict(list)
    for item in items:
        file = item.path.relative_to(selection.ROOT).as_posix()
        if not item.get_closest_marker("slow"):
            chosen.add(item)
        elif files is not None and file not in files:
            continue
        elif (
            not item.get_closest_marker("long")
            or (files is not None and selection.touched(file, changed))
            or selection.by_lot(item.nodeid, seed)
        ):
            tests[item.nodeid.partition("[")[0]].append(item)
    for cases in tests.values():
        names = selection.drawn([item.name for item in cases], selection.MOST, seed)
        chosen.update(item for item in cases if item.name in names)
    return chosen


def pytest_make_parametrize_id(val: object) -> str | None:
    """Bytes in a case's name are their number: packed files hold the second, and workers must collect equal names."""
    return f"{len(val)} bytes" if isinstance(val, bytes) else None


def pytest_collection_finish() -> None:
    """Everything imported and collected lives to the end: the garbage collector need not look at it again and again."""
    gc.freeze()


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Commands and apps say on their own what is logged, and where: for their own process, not for the next test."""
    log = logging.getLogger("userdp")
    before = log.handlers[:], log.propagate, log.level, log.disabled
    yield
    log.handlers[:], log.propagate, log.disabled = before[0], before[1], before[3]
    log.setLevel(before[2])


@pytest.fixture
def accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of the test's own accounts, which runs find."""
    url = f"sqlite:///{tmp_path / 'accounts.sqlite'}"
    monkeypatch.setenv("USERDP_ACCOUNTS", url)
    return url


@pytest.fixture(scope="session")
def flower_identity() -> None:
    """Flower's messages can only be made inside a run; a grid sees to that."""
    from simulations.engines.grids import LocalGrid

    LocalGrid([]).close()


@pytest.fixture(scope="session")
def module_of() -> Iterator[Callable[[str], ModuleType]]:
    """Imports a module of docs, research or benchmarks by its name."""
    with pytest.MonkeyPatch.context() as patch:
        for folder in ("benchmarks", "research", "docs"):
            patch.syspath_prepend(str(selection.ROOT / folder))
        yield importlib.import_module


@pytest.fixture
def public_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts the public table of a page's example into a folder where the test then works; skips where it is not."""

    def put(name: str) -> Path:
        for folder in (os.environ.get("USERDP_DATA"), Path(__file__).resolve().parents[2] / "shared" / "data"):
            if folder and (Path(folder) / name).is_file():
                (tmp_path / name).symlink_to(Path(folder) / name)
                monkeypatch.chdir(tmp_path)
                return tmp_path / name
        pytest.skip(f"{name} is not in USERDP_DATA: the page with its example says where it is")

    return put


@pytest.fixture(scope="session")
def public_cache() -> Path:
    """A folder that holds the public data sets that can be fetched; skips where there is none."""
    from userdp.data.tables.public import PUBLIC_DATASETS

    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    for folder in (os.environ.get("USERDP_DATA"), beside):
        fetched = [entry for entry in PUBLIC_DATASETS.values() if entry.address]
        if folder and all((Path(folder) / entry.file).is_file() for entry in fetched):
            return Path(folder)
    pytest.skip(f"the public data sets are neither in USERDP_DATA nor in {beside}; fetch them to run this test")
