"""The README's picture: the chart of a run's report that has training without privacy, as a file of its own.

userdp run simulations/configs/insteval.toml && python docs/make_picture.py runs/insteval-dp_fed_sgd-seed0
"""

import argparse
import re
from pathlib import Path

SIZE = (520, 320)
PAPER, INK = "#ffffff", "#1f2328"


def main() -> None:
    """Take the chart out of report.html, and give it the size and colours that a page would have given it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_directory", type=Path)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("insteval.svg"))
    arguments = parser.parse_args()
    page = (arguments.run_directory / "report.html").read_text(encoding="utf-8")
    charts = [chart for chart in re.findall(r"<svg\b.*?</svg>", page, flags=re.DOTALL) if "without privacy" in chart]
    if not charts:
        raise SystemExit(f"{arguments.run_directory} holds a report without such a chart")
    width, height = SIZE
    attributes = f'xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" color="{INK}"'
    svg = charts[0].replace("<svg", f"<svg {attributes}", 1)
    svg = svg.replace(">", f'>\n<rect width="100%" height="100%" fill="{PAPER}"/>', 1)
    # Fonts of the machine that shows it, not of the one that drew it.
    svg = re.sub(r"font-family: [^;\"]*", "font-family: sans-serif", svg)
    arguments.output.write_text('<?xml version="1.0" encoding="utf-8"?>\n' + svg + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
