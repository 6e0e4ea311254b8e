"""Pages that people write and of which a part is made: it stands between two comments."""

END = "<!-- end -->"


def begin(part: str) -> str:
    """The comment above a part."""
    return f"<!-- {part}: made by docs/make.py -->"


def put(page: str, parts: dict[str, str]) -> str:
    """The page with each of its parts made anew.

    Raises:
        ValueError: the page has no place for a part.
    """
    for part, text in parts.items():
        before, mark, rest = page.partition(begin(part))
        _, end, after = rest.partition(END)
        if not end:
            raise ValueError(f"no place for {part!r}: it goes between {begin(part)} and {END}")
        page = f"{before}{mark}\n\n{text.strip()}\n\n{end}{after}"
    return page
