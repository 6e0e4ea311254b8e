"""The site holds every page once, its links lead somewhere, and what it shows can be typed. Needs no site builder."""

import doctest
import importlib
import json
import posixpath
import re
import tomllib
from collections import Counter
from pathlib import Path

import made_pages
import pytest
import typer
import yaml
from typer.testing import CliRunner

from simulations.cli import app
from simulations.config.run_config import parse_config
from simulations.runs.build import make_plan
from strategies import STRATEGIES

ROOT = Path(__file__).resolve().parent.parent
made_pages.made()
PAGES = sorted(
    path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("docs/**/*.md"), *ROOT.glob("strategies/**/*.md")]
)
READERS = ["Analyst", "Engineer", "Researcher", "Operator", "Signatory"]
MADE = {"configuration.md", "what-leaves.md"}
PLACES = {"README.md": "index.md", "research/README.md": "research.md", "docs/own.md": "own.md"}
PLACES |= {"docs/papers/one.md": "papers/one.md"}


@pytest.fixture(scope="module")
def site(module_of):
    return module_of("making.site")


@pytest.fixture(scope="module")
def reference(module_of):
    return module_of("making.reference")


def listed(entries) -> list[str]:
    if isinstance(entries, str):
        return [entries]
    inside = entries.values() if isinstance(entries, dict) else entries
    return [page for entry in inside for page in listed(entry)]


def settings() -> dict:
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def test_the_navigation_has_every_page_once_and_no_other(site, reference):
    pages = [*site.sources().values(), *reference.reference()]
    shown = listed(site.navigation(settings()["nav"], pages))
    assert Counter(shown) == Counter(pages)
    assert {site.sources()[page] for page in PAGES} <= set(shown)


def readers() -> dict[str, list[str]]:
    """Reader -> pages in docs, in the order of the navigation, without folders and without pages that lie elsewhere."""
    groups = {title: inside for entry in settings()["nav"] for title, inside in entry.items() if title in READERS}
    return {
        reader: [page for page in listed([one for one in inside if "Measurements" not in one]) if page.endswith(".md")]
        for reader, inside in groups.items()
    }


def test_pages_stand_under_their_reader_and_each_ends_with_the_next():
    found = readers()
    assert [*found] == READERS
    for pages in found.values():
        for page, following in zip(pages, [*pages[1:], None], strict=True):
            last = (ROOT / "docs" / page).read_text(encoding="utf-8").rstrip().rpartition("\n\n")[2]
            link = re.fullmatch(r"Next: \[[^\]]+\]\(([\w-]+\.md)\)\.", last)
            assert link is not None, page
            assert link[1] in ([following] if following else [one for other in found.values() for one in other]), page


@pytest.mark.parametrize("page", [page for pages in readers().values() for page in pages])
def test_a_page_begins_with_an_example_or_a_table(page):
    first = "\n## ".join(re.split(r"\n## ", (ROOT / "docs" / page).read_text(encoding="utf-8"))[:2])
    assert re.search(r"^(```|\|---)", first, re.MULTILINE)


def test_what_pages_plan_of_the_shipped_files_can_be_planned():
    texts = [(ROOT / page).read_text(encoding="utf-8") for page in PAGES]
    lines = {line for text in texts for line in re.findall(r"^userdp (plan simulations/[^#\n]+)", text, re.MULTILINE)}
    assert len(lines) >= 2
    for line in sorted(lines):
        done = CliRunner().invoke(app, line.split())
        assert done.exit_code == 0, done.output
        assert "differential privacy" in " ".join(done.output.split())


def test_every_page_is_found_within_two_clicks_from_the_first(site):
    first = leads_to("README.md", site)
    reached = {"README.md"}.union(first, *(leads_to(page, site) for page in first))
    assert {*site.sources()} - reached == set()


QUESTIONS = {
    "How many people have this property?": ("docs/query.md", 'statistic = "count"'),
    "How do I train on my CSV file?": ("docs/train.md", "people.csv"),
    "What does epsilon mean for a person?": ("docs/meaning.md", "epsilon"),
    "Which strategy is best for my data?": (
        "docs/compare-strategies.md",
        "best for your kind of data",
    ),
    "Who has to be trusted?": ("docs/guarantees.md", "trusted"),
    "What may I publish of a run's folder?": ("docs/what-leaves.md", "may see"),
    "How do I keep many runs within one budget?": ("docs/account.md", "account create"),
    "How do I fine-tune a language model?": ("docs/language.md", "adapter"),
    "How do I run it at several hospitals?": ("docs/deployment.md", "silo"),
    "What happens if a machine dies during a run?": ("docs/resume.md", "resume"),
    "What does this setting do?": ("docs/configuration.md", "max_missing"),
    "How do I report a weakness?": ("SECURITY.md", "Report it in private"),
}
"""Question -> the page with its answer, and words of it."""


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_within_two_clicks_from_the_first_page(question, site):
    answer, words = QUESTIONS[question]
    assert words in site.text(answer)
    first = leads_to("README.md", site)
    assert answer in first or any(answer in leads_to(page, site) for page in first)


def leads_to(source: str, site) -> set[str]:
    """The pages that a page links to."""
    links = re.findall(r"\]\(([^)\s#]+)", site.text(source))
    found = {posixpath.normpath(posixpath.join(posixpath.dirname(source), link)) for link in links}
    return found & {*site.sources()}


def test_pages_have_at_most_45_000_words_without_what_is_made_whole():
    committed = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("*.ipynb")]
    words = {path.name: len(written(path).split()) for path in committed if path.name not in MADE}
    assert 40_000 < sum(words.values()) <= 45_000, words


def written(path: Path) -> str:
    """The text of a page; the prose of a notebook, whose code is code that tests run."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    return "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown")


def test_a_folder_of_the_navigation_stands_for_its_pages_the_readme_first(site):
    pages = ["a.md", "b/a.md", "b/README.md", "c/d.md"]
    opened = site.navigation(["a.md", {"Many": "b/"}, {"Deep": [{"Of": "c/"}]}], pages)
    assert opened == ["a.md", {"Many": ["b/README.md", "b/a.md"]}, {"Deep": [{"Of": ["c/d.md"]}]}]
    assert site.navigation([{"Tried": "one.ipynb"}], pages) == [{"Tried": "one.md"}]


def test_a_folder_whose_readme_has_headings_is_shown_in_their_order(site, tmp_path):
    (tmp_path / "docs" / "b").mkdir(parents=True)
    first = "## First\n\n| a | what |\n|---|---|\n| [z](z.md) | see [a](a.md) |\n| [c](c.md) | |\n"
    text = f"# B\n\n{first}\n## Then\n\n| [a](a.md) | |\n"
    (tmp_path / "docs" / "b" / "README.md").write_text(text, encoding="utf-8")
    pages = ["b/README.md", "b/a.md", "b/c.md", "b/other.md", "b/z.md"]
    (opened,) = site.navigation([{"Many": "b/"}], pages, tmp_path)
    assert opened == {"Many": ["b/README.md", "b/other.md", {"First": ["b/z.md", "b/c.md"]}, {"Then": ["b/a.md"]}]}


def test_a_newcomer_finds_every_strategy_in_a_chapter(module_of):
    found = module_of("making.chapters").chapters()
    titles = [chapter.title for chapter, _ in found]
    assert titles[:4] == ["Start here", "Clipping", "Robust means", "Samples"]
    assert "Others" not in titles
    assert sorted(name for _, members in found for name, _ in members) == sorted(STRATEGIES)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", STRATEGIES)
def test_the_example_on_the_page_of_a_strategy_can_be_planned(name, module_of):
    page = module_of("making.strategy_pages").page(name, STRATEGIES[name])
    (block,) = re.findall(r"^```toml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    planned = make_plan(parse_config(tomllib.loads(block)))
    assert planned.strategy == name
    assert planned.guarantee.holds == (name != "non_private")


def test_the_site_can_be_searched_as_files_and_asks_no_other_server():
    plugins = [one if isinstance(one, str) else next(iter(one)) for one in settings()["plugins"]]
    assert {"search", "offline"} <= set(plugins)
    assert all((ROOT / "docs" / style).is_file() for style in settings()["extra_css"])
    assert not settings()["theme"]["font"]
    # Browsers refuse workers in files; the plugin asks another server for what stands in, unless one is named.
    (stand_in,) = settings()["extra"]["polyfills"]
    assert "iframe-worker" in stand_in  # the name that the plugin looks for
    assert (ROOT / "docs" / stand_in).is_file()


@pytest.mark.parametrize(
    ("source", "text", "shown"),
    [
        ("README.md", "[own](docs/own.md#a-part)", "[own](own.md#a-part)"),
        ("docs/papers/one.md", "[own](../own.md)", "[own](../own.md)"),
        ("docs/papers/one.md", "[start](../../README.md)", "[start](../index.md)"),
        ("research/README.md", "[one](../docs/papers/one.md)", "[one](papers/one.md)"),
        ("docs/own.md", "[the run](../userdp/run.py)", "the run (`userdp/run.py`)"),
        ("docs/own.md", "[userdp/run.py](../userdp/run.py)", "`userdp/run.py`"),
        ("docs/own.md", "[elsewhere](https://example.org), [above](#above)", None),
        ("docs/own.md", "```\n[code](../userdp/run.py)\n```\n", None),
        ("README.md", "![alt](docs/drawn.svg)", "![alt](drawn.svg)"),
    ],
)
def test_links_lead_to_pages_and_what_is_no_page_is_a_path(site, tmp_path, source, text, shown):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "drawn.svg").touch()
    assert site.rewritten(text, source, PLACES, tmp_path) == (text if shown is None else shown)


def test_every_link_of_the_site_leads_to_a_page_or_a_file_of_it(site, reference):
    places = site.sources()
    there = {*places.values(), *reference.reference()}
    for source, place in places.items():
        text = site.rewritten(site.text(source), source, places)
        for link in re.findall(r"\]\(([^)\s#]+)", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(place), link))
            assert "://" in link or target in there or (ROOT / "docs" / target).is_file(), f"{source}: {link}"


def test_the_reference_has_every_public_face(reference):
    names = [place.removeprefix("api/").removesuffix(".md") for place in reference.reference()]
    assert {"userdp", "strategies", "simulations", "userdp.accounting"} <= set(names)
    assert all(importlib.import_module(name).__doc__ for name in names)


@pytest.mark.parametrize("package", ["userdp", "strategies", "simulations"])
def test_the_reference_shows_every_public_name_and_an_example_of_each_class(package, reference):
    page = reference.reference()[f"api/{package}.md"]
    module = importlib.import_module(package)
    assert reference.names(package) == module.__all__
    shown = re.findall(r"^::: (\S+)$", page, re.MULTILINE)[1:]
    assert [place.rpartition(".")[2] for place in shown] == module.__all__
    classes = {name for name in module.__all__ if isinstance(getattr(module, name), type)}
    _, own = reference.examples()[package]
    assert classes <= set(own) <= set(module.__all__)
    assert [name for name, example in own.items() if name.lower() not in example.lower()] == []


@pytest.mark.parametrize("package", ["userdp", "strategies", "simulations"])
def test_the_examples_of_the_reference_run(package, reference, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    begins, own = reference.examples()[package]
    wrong = []
    for name, example in own.items():
        found = doctest.DocTestParser().get_doctest(f"{begins}\n{example}\n", {}, name, None, 0)
        assert found.examples[-1].want, f"{package}.{name}: the example shows no result"
        doctest.DocTestRunner(verbose=False).run(found, out=wrong.append)
    assert not wrong, "".join(wrong)


def test_every_strategy_has_a_page_and_no_other_does():
    assert {path.stem for path in ROOT.glob("docs/strategy/*.md")} == {*STRATEGIES, "README"}


def test_pictures_have_words_for_who_does_not_see_them_and_are_all_shown():
    shown = [
        (words, posixpath.normpath(posixpath.join(posixpath.dirname(page), target)))
        for page in ["README.md", "research/README.md", *PAGES]
        for words, target in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", (ROOT / page).read_text(encoding="utf-8"))
    ]
    assert all(len(words) > 20 for words, _ in shown)
    assert {path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/pictures/*")} <= {file for _, file in shown}


@pytest.mark.parametrize("page", ["README.md", *PAGES])
def test_commands_on_pages_are_commands_that_there_are(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    commands = typer.main.get_command(app).commands
    for fence in re.findall(r"^```\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        for verb, rest in re.findall(r"^userdp (\w+)([^#\n]*)", fence, re.MULTILINE):
            command = commands[verb]
            if (below := getattr(command, "commands", None)) is not None:
                command = below[rest.split()[0]]
            known = {option for parameter in command.params for option in parameter.opts}
            assert not set(re.findall(r"(?<=\s)--[\w-]+", rest)) - known, f"userdp {verb}{rest}"


def test_pages_of_strategies_say_which_neighbours_a_setting_changes(module_of):
    pages = module_of("making.strategy_pages")
    amplified = pages.relations(STRATEGIES["dp_ftrl"])
    assert amplified == 'replacing one; adding or removing one with `sampling = "amplified"`'
    assert pages.relations(STRATEGIES["non_private"]) == "none"
    chosen = pages.relations(STRATEGIES["averaged_clipping"])
    assert chosen == 'adding or removing one; replacing one with `batches = "disjoint"` or `batches = "full"`'


def test_an_excerpt_is_what_stands_in_the_file(module_of):
    excerpts = module_of("making.excerpts")
    fence, *lines, end = excerpts.table().splitlines()
    assert (fence, lines[0], end) == ("```toml", "[data]", "```")
    assert "\n".join(lines) in (excerpts.CONFIGS / "robust-table.toml").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="begins with"):
        excerpts.excerpt("robust-table.toml", "[data]", "[nothing]")
