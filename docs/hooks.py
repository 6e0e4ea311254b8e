"""Hooks that mkdocs calls when it builds the site; `making/site.py` does their work."""

from making import site
from making.reference import reference
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Folders of the navigation become their pages."""
    config.nav = site.navigation(config.nav or [], [*site.sources().values(), *reference()])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Pages that lie outside docs, those of notebooks, and the reference, which lies nowhere."""
    for source, place in site.ELSEWHERE.items():
        files.append(File.generated(config, place, abs_src_path=str(site.ROOT / source)))
    for source in (source for source in site.sources() if source.endswith(".ipynb")):
        files.append(File.generated(config, site.sources()[source], content=site.text(source)))
    for place, text in reference().items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Links lead to pages of the site."""
    places = site.sources()
    written = {place: source for source, place in places.items()}
    source = written.get(page.file.src_uri)
    return markdown if source is None else site.rewritten(markdown, source, places)
