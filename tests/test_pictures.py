"""The figures of the papers' pages: drawn from what is recorded, or with a reason why not."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from pathlib import Path

import pytest

from leakscope.core.errors import DataError
from leakscope.run import measured, published

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
MOST = 60_000  # bytes of one file
NUMBERS = sorted(published.documents())


@pytest.fixture(scope="module")
def pictures():
    """The hook that draws them, beside the one that fills tables, as the site's builder has them."""
    before = [*sys.path]
    sys.path.insert(0, str(DOCS))
    try:
        spec = importlib.util.spec_from_file_location("pictures", DOCS / "pictures.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = before
    return module


def page(number: str) -> str:
    return (DOCS / "papers" / f"{number}.md").read_text(encoding="utf-8")


def marks(text: str) -> set[str]:
    """The figures that have a picture, a chart or a table."""
    return set(re.findall(r"<!-- (?:picture|tradeoff|layers|recorded|table) \S+ ([^\s:]+)", text))


@pytest.mark.parametrize("number", NUMBERS)
def test_every_figure_is_drawn_on_its_page_or_has_a_reason(number, pictures):
    drawn, listed = set(pictures.DRAWN.findall(page(number))), set()
    for one in pictures.printed_figures():
        if one["paper"] == number:
            listed.add("fig" + one["figure"].removeprefix("Figure "))
            assert set(one["drawn"].split()) <= drawn, one
            assert one["drawn"] or one["why"], one
    assert {figure for figure in published.figures(number) if figure.startswith("fig")} <= listed
    assert f"<!-- figures {number} -->" in page(number)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_pages_charts_are_drawn_whole(number, pictures):
    made = pictures.filled(page(number))
    assert not pictures.DRAWN.sub("", made).count("<!-- figures")
    assert "<!-- tradeoff" not in made
    assert "<!-- layers" not in made
    assert "<!-- recorded" not in made
    for figure in re.findall(r"<figure .*?</figure>", made, re.DOTALL):
        assert "\n" not in figure  # else it is read as Markdown
        assert "nan" not in figure
        assert figure.count("<svg") == figure.count("</svg>")


def test_what_is_not_recorded_is_not_drawn(pictures):
    for mark in (
        "<!-- tradeoff 004 table2: utility; luck -->",
        "<!-- tradeoff 004 table99: utility; strongest success_rate -->",
        "<!-- layers 001 fig5: luck -->",
        "<!-- layers 001 fig99: information -->",
        "<!-- recorded 003 fig99 -->",
        "<!-- recorded 002 fig8 -->",
    ):
        with pytest.raises(DataError):
            pictures.filled(mark)


def test_a_trade_off_shows_every_cell_with_the_papers_value(pictures):
    made = pictures.tradeoff("004", "table2", "utility", "strongest success_rate")
    cells = [cell for cell in published.cells("004").values() if "table2" in cell.figure]
    for cell in cells:
        assert f"{cell.id}: " in made
        printed = {"utility", "strongest success_rate"} <= set(cell.published)
        assert (f"{cell.id}, the paper: " in made) == printed


def test_a_chart_of_layers_shows_each_layer_and_secret_once(pictures):
    made = pictures.layers("001", "fig5", "information")
    measures = measured.load("001")["celeba-lenet"].measures
    for name in (name for name in measures if name.endswith(" information")):
        value = measures[name]
        tip = f"{name.removesuffix(' information')}: "
        assert tip + pictures.tables.interval(value.value, value.low, value.high) in made
    assert pictures._view("Male all layers") == ("Male", "all layers")
    assert pictures._view("all layers") == ("", "all layers")
    assert pictures._view("Male conv1") == ("Male", "conv1")
    assert pictures._view("conv1+conv2") == ("", "conv1+conv2")


def test_what_is_recorded_is_small_and_says_what_it_is_of(pictures):
    files = {path.name for path in pictures.FOLDER.iterdir()} - {"index.json"}
    assert {one["file"] for entry in pictures.index().values() for one in entry["panels"]} == files
    for name, entry in pictures.index().items():
        number, _ = name.split()
        assert set(entry["cells"]) <= set(published.cells(number))
        assert f"<!-- recorded {name} -->" in page(number)
    for name in files:
        assert (pictures.FOLDER / name).stat().st_size <= MOST, name
        assert name.endswith((".svg", ".png"))
    assert not [path for path in published.FOLDER.rglob("*") if path.suffix in (".svg", ".png")]


def test_images_are_of_cifar10_alone(pictures):
    """No face, no scan and no private record is ever in a picture."""
    for name, entry in pictures.index().items():
        if any(one["file"].endswith(".png") for one in entry["panels"]):
            known = published.cells(name.split()[0])
            data = [known[cell].data for cell in entry["cells"]] or [{"name": entry["data"]}]
            assert all(one == {"name": "cifar10"} for one in data)


def test_the_images_are_those_that_somebody_looked_at():
    """No person is in them; whoever records others looks at them, and changes this."""
    seen = {"001-rebuilt-0.png": "0903a428081fc809", "003-fig9-0.png": "cc8e80c0c3f4a695"}
    for name, digest in seen.items():
        content = (measured.CHECKOUT / "pictures" / name).read_bytes()
        assert hashlib.sha256(content).hexdigest()[:16] == digest


def test_a_picture_of_changed_settings_is_called_old(pictures, monkeypatch):
    (name, entry), *_ = [item for item in pictures.index().items() if item[1]["cells"]]
    number, figure = name.split()
    assert not pictures.is_stale(number, entry)
    old = {**entry, "cells": dict.fromkeys(entry["cells"], "0" * 16)}
    monkeypatch.setattr(pictures, "index", lambda: {name: old})
    assert measured.CHANGED in pictures.recorded(number, figure)
