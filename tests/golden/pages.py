"""The golden pages: what the report says of the folders of format1/. Run this to write them again.

python tests/golden/pages.py
"""

from __future__ import annotations

from pathlib import Path

from leakscope.report.page import quote_plan, render
from leakscope.results import store
from leakscope.results.cell import plan_of

HERE = Path(__file__).parent
FOLDERS = sorted((HERE / "format1").iterdir())


def draw_page(folder: Path) -> str:
    """From the folder's files alone, hence the same on every machine."""
    text = store.plan(folder)
    plan = plan_of(text)
    wanted = len(store.asked(plan))
    return render(store.results(folder), plan=quote_plan(text), title=plan.name, wanted=wanted)


def golden(folder: Path) -> Path:
    return HERE / "pages" / f"{folder.name}.html"


if __name__ == "__main__":
    for folder in FOLDERS:
        golden(folder).parent.mkdir(exist_ok=True)
        golden(folder).write_text(draw_page(folder), encoding="utf-8")
