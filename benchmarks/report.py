"""How large the report of 50 cells is, and how soon a browser shows it.

    python benchmarks/report.py

Fifty cells with three seeds each. The page should be below 300 KB, and its first content on screen within 1
second of navigation, by Chromium's own first-contentful-paint; the median of nine loads counts. Needs a
Chromium.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from chromium import Chromium, program
from test_report import grid

from leakscope import report

LOADS = 9


def main() -> None:
    html = report.render(grid(50), plan="", title="Fifty cells")
    print(f"size         {len(html.encode()) / 1000:.0f} KB (at most 300)")
    path = program()
    if path is None:
        print("first paint  not measured: no Chromium is installed here")
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        page = Path(folder) / "report.html"
        page.write_text(html, encoding="utf-8")
        with Chromium(path, Path(folder) / "profile") as browser:
            paints = []
            for _ in range(LOADS):
                with browser.page(page) as tab:
                    paints.append(tab.first_paint)
    middle, slowest = statistics.median(paints), max(paints)
    print(f"first paint  {middle:.0f} ms, slowest of {LOADS} {slowest:.0f} ms (at most 1000)")


if __name__ == "__main__":
    main()
