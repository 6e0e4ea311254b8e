"""docs/account.md: its commands and its program run as written, and its numbers are those of the code."""

import re
import shlex
from pathlib import Path

import pytest
from examples import call
from helpers_accounts import promise

from simulations.audit.one_run import _REHEARSALS
from userdp.accounting import Price, Total
from userdp.errors import BadInput

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "account.md").read_text(encoding="utf-8")
SMALL = ("--set", "data.users=400", "--set", "data.dimension=3", "--anyway")


@pytest.mark.usefixtures("accounts")
def test_the_commands_and_the_program_of_the_page_run_as_written(tmp_path, monkeypatch, capsys):
    commands = re.findall(r"^userdp (.+)$", PAGE.partition("### A database that was restored")[0], re.MULTILINE)
    assert len(commands) == 6
    for command in commands:
        words = shlex.split(command)
        done = call(*words, *((*SMALL, "--output", tmp_path) if words[0] == "run" else ()))
        assert done.exit_code == 0, done.output
    monkeypatch.chdir(tmp_path)
    Path("registry-2026.json").write_text(done.stdout)
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    exec(compile(program, "docs/account.md", "exec"), {})
    theirs, ours = map(float, capsys.readouterr().out.split())
    assert theirs == pytest.approx(ours, rel=1e-3)
    assert ours > 0


def test_the_numbers_of_the_page_are_those_of_the_code():
    (total, runs) = re.search(r"total of \(4, 1e-6\) holds (\d+) runs of \(1, (1e-6)\)", PAGE).groups()
    assert (total, runs) == ("12", "1e-6")
    spent = Price.sum([Total(4.0, 1e-6).charged(Price(), [promise(1.0, 1e-6)])] * 12)
    assert spent.within(Total(4.0, 1e-6).limits)
    with pytest.raises(BadInput):
        Total(4.0, 1e-6).charged(spent, [promise(1.0, 1e-6)])
    assert _REHEARSALS == 4
    assert "the audited run and four rehearsals" in PAGE
