"""The gallery's page shows the reports that its own commands make."""

import re
import tomllib
from pathlib import Path

import pytest

from simulations.config.run_config import parse_config

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def gallery(module_of):
    return module_of("making.gallery")


def test_the_page_shows_each_report_below_its_command(gallery):
    page = gallery.page()
    for one in gallery.SHOWN:
        (part,) = re.findall(rf"^## {one.title}\n(.*?)(?=^## )", page, re.DOTALL | re.MULTILINE)
        assert f"```\nuserdp {one.command}\n```" in part
        assert part.count(f'"{one.name}.html"') == 2  # a link, and the report in a frame
        config = (one.after or one.command).split()[1]
        assert config == gallery.COMMUTE.name or (ROOT / config).is_file()


def test_the_table_is_as_the_file_beside_it_declares(gallery):
    raw = tomllib.loads(gallery.COMMUTE.read_text(encoding="utf-8"))
    assert parse_config(raw).data.kind == "table"
    declared, trips = raw["data"], gallery.trips()
    assert set(trips) == {declared["user"], declared["target"], *declared["features"], *declared["categorical"]}
    assert trips[declared["user"]].nunique() == declared["all_users"]
    assert set(trips[declared["target"]]) == set(declared["target_levels"])
    assert all(trips[name].between(*edges).all() for name, edges in declared["ranges"].items())
    assert all(set(trips[name]) == set(levels) for name, levels in declared["categorical"].items())


@pytest.mark.slow
@pytest.mark.long
def test_reports_are_made_once_and_name_no_place_on_the_machine(gallery, tmp_path, monkeypatch):
    assert gallery.make(tmp_path)
    for one in gallery.SHOWN:
        report = (tmp_path / f"{one.name}.html").read_text(encoding="utf-8")
        assert ("<svg" in report) == (one.name != "card")
        assert f'class="verdict {"bad" if one.name == "card" else "good"}"' in report  # simulated noise
        assert not re.search(r"(?<![.\w])/\w+/[\w/-]+", re.sub(r"<svg.*?</svg>|</\w+>", "", report, flags=re.DOTALL))
    assert not gallery.make(tmp_path)  # nothing changed
    monkeypatch.setattr(gallery, "SHOWN", ())
    (tmp_path / ".made").write_text("of former code", encoding="utf-8")
    assert gallery.make(tmp_path)
