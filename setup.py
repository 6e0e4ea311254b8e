"""What an index shows of the project: README.md, with links and the picture that lead to the repository.

A workflow of GitHub names the repository and the commit in its environment. Elsewhere the links stay as they are.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from setuptools import setup


def description(text: str, environment: Mapping[str, str]) -> str:
    """Return a page whose links to files of the repository are absolute, if the environment names the repository."""
    if not (repository := environment.get("GITHUB_REPOSITORY")):
        return text
    commit = environment.get("GITHUB_SHA", "HEAD")
    shown = f"https://raw.githubusercontent.com/{repository}/{commit}/"
    read = f"https://github.com/{repository}/blob/{commit}/"
    text = re.sub(r"(!\[[^\]]*\]\()(?![a-z]+:)", rf"\1{shown}", text)
    return re.sub(r"((?<!!)\[[^\]]*\]\()(?![a-z]+:|#)", rf"\1{read}", text)


if __name__ == "__main__":
    setup(
        long_description=description(Path(__file__).with_name("README.md").read_text(encoding="utf-8"), os.environ),
        long_description_content_type="text/markdown",
    )
