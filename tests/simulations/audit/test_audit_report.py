"""The page of an audit: what it tells, for any finding; no strategy is run."""

import json
import re
from dataclasses import replace

import numpy as np
from examples import GUARANTEE, changed
from typer.testing import CliRunner

from simulations import cli
from simulations.audit.command import Done, Wanted, leave, show_audits
from simulations.audit.finding import Audit
from simulations.config.run_config import parse_config
from simulations.reports.explain import chance, shown
from userdp.audit.trade_off import Approximate, Gaussian

ALARMS = np.linspace(0, 1, 11)
FOUND = Audit(
    strategy="dp_fed_sgd",
    guarantee=GUARANTEE,
    attack="7 canaries at the edge, each against its negative",
    bound="Gaussian",
    canaries=7,
    users=32,
    rounds=3,
    runs=900,
    guesses=3150,
    correct=1980,
    confidence=0.95,
    mu=0.41,
    exact=None,
    measured=1.37,
    false_positives=ALARMS,
    false_negatives=1 - ALARMS,
)
ONE_RUN = replace(
    FOUND, bound="one run", mu=None, runs=1, false_positives=np.empty(0), false_negatives=np.empty(0), measured=0.3
)


def page_of(directory, *found, wanted=None, refusals=None):
    """(the page without needless white space, what audit.json holds)."""
    directory.mkdir(exist_ok=True)
    wanted = Wanted(everything=len(found) != 1) if wanted is None else wanted
    values = leave(directory, parse_config(changed(name="attacked", seed=11)), wanted, found, refusals or {})
    assert json.loads((directory / "audit.json").read_text()) == values
    return " ".join((directory / "report.html").read_text().split()), values


def test_the_page_tells_claim_measurement_confidence_canaries_runs_versions_and_seed(tmp_path):
    page, values = page_of(tmp_path, FOUND)
    told = [shown(2.0), shown(1.37), chance(0.95), FOUND.attack, "900", "of 3 rounds", "32 users", "seed is 11"]
    told += ["The claim stands", f"Measured: at least {shown(1.37)}, with confidence", "1,980 of 3,150 guesses"]
    told += [chance(1980 / 3150), "n is public", "nodes clip as requested", "&lt;everybody&gt;"]
    told += [f"{package} {number}" for package, number in values["versions"].items()]
    told += ["userdp audit config.toml --runs 1000 --confidence 0.95"]
    # Epsilon as the success of attacks.
    claim = Gaussian.of(2.0, 1e-5)
    assert values["claimed_mu"] == claim.mu
    for law in (claim, Gaussian(0.41)):
        for probability in (law.membership_accuracy, *(law.guess_success(rate) for rate in (0.01, 0.1, 0.5))):
            told += [f'<td class="number">{chance(probability)}</td>']
    assert [words for words in told if words not in page] == []


def test_the_page_is_complete_in_itself_and_shows_the_trade_off(tmp_path):
    page, _ = page_of(tmp_path, FOUND)
    assert "<script" not in page
    assert not re.search(r"""(?:src|href|action)\s*=\s*["']?[^"'#]|url\(["']?[^"'#]|@import""", page)
    assert page.count("<svg") == page.count("</svg>") == 1
    for line in ("claimed", "not refuted", "blind", "measured", "false positives", "false negatives"):
        assert f">{line}</text>" in page
    assert {path.name for path in tmp_path.glob("trade-off.*")} == {f"trade-off.{end}" for end in ("csv", "svg", "png")}


def test_the_page_of_one_run_has_no_curve_of_measured_errors(tmp_path):
    page, _ = page_of(tmp_path, ONE_RUN, wanted=Wanted(one_run=True, canaries=7))
    assert ">measured</text>" not in page
    assert "All data are synthetic" not in page
    assert "The users are those of the file." in page
    assert "userdp audit config.toml --one-run --canaries 7" in page
    assert chance(Approximate(0.3, 1e-5).membership_accuracy) in page
    assert not (tmp_path / "trade-off.csv").exists()


def test_what_a_discrete_outcome_costs_exactly_is_told_where_there_is_one(tmp_path):
    assert "exactly" not in page_of(tmp_path / "none", FOUND)[0]
    assert f"costs epsilon = {shown(0.625)}, exactly" in page_of(tmp_path / "one", replace(FOUND, exact=0.625))[0]


def test_a_refuted_claim_is_named_first(tmp_path):
    page, _ = page_of(tmp_path, FOUND, replace(FOUND, strategy="leaky", measured=2.1), refusals={"shy": "has <no> way"})
    assert page.index("Refuted: leaky") < page.index("Claimed and measured")
    assert page.count("<strong>refuted</strong>") == page.count("<strong>stands</strong>") == 1
    assert "<strong>shy:</strong> has &lt;no&gt; way" in page
    assert "all lines together hold" in page


def test_the_terminal_shows_what_claims_rest_on(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "10000")
    for found in ([FOUND], [FOUND, replace(FOUND, strategy="another")]):
        show_audits(Done({}, found, {}, tmp_path))
        printed = capsys.readouterr().out
        assert [one for one in GUARANTEE.assumptions if f"assuming: {one}" not in printed] == []


def test_a_page_of_refusals_alone_claims_nothing(tmp_path):
    page, _ = page_of(tmp_path, refusals={"shy": "has no way"})
    assert "Nothing could be audited" in page
    assert "stand" not in page


def test_report_writes_the_page_anew_from_the_files(tmp_path):
    page_of(tmp_path, FOUND)
    before = (tmp_path / "report.html").read_text()
    (tmp_path / "report.html").unlink()
    done = CliRunner().invoke(cli.app, ["report", str(tmp_path)])
    assert done.exit_code == 0, done.stderr
    assert (tmp_path / "report.html").read_text() == before
