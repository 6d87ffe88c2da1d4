"""How large the report of 50 cells is, and how soon a browser shows it.

    python benchmarks/report.py
    python benchmarks/report.py --cells 5000   # how long a results folder of so many cells takes

Fifty cells with three seeds each. The page should be below 300 KB, and its first content on screen within 1
second of navigation, by Chromium's own first-contentful-paint; the median of nine loads counts. Needs a
Chromium. The folder's cells are defenses of growing strength on a few measured games.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from builders import grid, keep
from chromium import Chromium, program

from leakscope.report import page as report

LOADS = 9


def measure_folder(cells: int) -> None:
    with tempfile.TemporaryDirectory() as parent:
        folder = keep(Path(parent) / "results", grid(cells))
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, "-m", "leakscope.cli", "report", str(folder)], check=True)
        seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"{cells} cells  {used:.1f} s of processor, {seconds:.1f} s in all")
        print(f"memory       {after.ru_maxrss / 1000:.0f} MB at most")
        for name in ("report.html", "results.csv", "results.json"):
            print(f"{name:12s} {(folder / name).stat().st_size / 1000:.0f} KB")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the report's size and speed.")
    parser.add_argument("--cells", type=int, help="measure a results folder of so many cells instead")
    cells = parser.parse_args().cells
    if cells:
        measure_folder(cells)
    else:
        measure_page()


def measure_page() -> None:
    html = report.render(grid(50, seeds=3), plan="", title="Fifty cells")
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
