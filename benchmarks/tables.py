"""Writes docs/results.md and docs/speed.md from the files in benchmarks/results: no figure in them is typed by hand.

python benchmarks/tables.py
"""

import accuracy_page
import speed_page
from pages import ROOT

PAGES = {"results.md": accuracy_page.page, "speed.md": speed_page.page}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (ROOT / "docs" / name).write_text(page(), encoding="utf-8")
