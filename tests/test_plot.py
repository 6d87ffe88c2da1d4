"""Pictures as facts: values stand at their places, and all words inside the picture, however long."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from builders import refuses

from leakscope.core.errors import ArgumentError
from leakscope.report import plot
from leakscope.report.plot.frame import Axis, Scale, categories, frame, linear, width, wrap
from leakscope.report.plot.panel import Mark

LONG = "a name that nobody would give to a column " * 4 + "x" * 90 + " 漢字" * 30
WHISKERS = [(0.6, 0.55, 0.65), (0.7, 0.66, 0.74), (0.8, 0.75, 0.85)]
MARKS = [
    Mark(0.6, 0.9, f"left: {LONG}", 1, up=(0.85, 0.95), words="left", number=1),
    Mark(0.9, 0.1, "right: 0.1", 2, False, across=(0.8, 1.0), up=(0, 0.2), words="right", number=2),
]
PICTURES = {
    "roc": lambda: plot.roc(
        [(0, 0), (0.01, 0.3), (1, 1)], marks=[(0.01, (0.3, 0.2, 0.4), LONG)], title="t", hits=LONG
    ),
    "rounds": lambda: plot.rounds(WHISKERS, WHISKERS, title="t"),
    "frontier": lambda: plot.frontier(MARKS, goal=0.1, percent=True, axis=LONG, title="t")[0],
    "histogram": lambda: plot.histogram(
        [-1e9, 0, 1e9], ([0.5, 0.5], [0.1, 0.9]), names=(LONG, "b"), span=(-1e9, 1e9), title="t"
    ),
    "epsilons": lambda: plot.epsilons(
        [
            ([f"{10**i:,}", "0.1"], [(0, 1, True, 0.0, "none"), (3, 4, True, 10.0**i, LONG)], 7.0)
            for i in range(9)
        ],
        heads=("a clip", "a noise that has a long name"),
        limit="no more can be certified",
        title="t",
    ),
}


@pytest.mark.parametrize("log", [False, True])
def test_a_scale_maps_its_ends_and_keeps_what_is_outside_at_them(log):
    scale = Scale(0.01, 100, 10, 210, log)
    assert [scale(v) for v in (0.01, 100, 0, -5, math.inf)] == pytest.approx([10, 210, 10, 10, 210])
    assert scale(1) == pytest.approx(110 if log else 11.98, abs=0.01)
    refuses(ArgumentError, "value must be a number, got nan", scale, math.nan)


@pytest.mark.parametrize("ends", [(1, 1), (2, 1), (0, math.inf), (math.nan, 1)])
def test_an_axis_without_length_is_refused(ends):
    refuses(ArgumentError, "ends of an axis", Axis, *ends)
    with pytest.raises(ArgumentError):
        Axis(0.0, 1.0, log=True)


@pytest.mark.parametrize("ends", [(0, 1), (-9.3, 1.5), (0.896, 0.9041), (-1e-9, 3e-9), (4, 1e7), (0.5, 1e12)])
def test_ticks_are_round_rising_and_inside(ends):
    axis = linear(ends, "t")
    values = [value for value, _ in axis.ticks]
    assert 3 <= len(values) <= 7
    assert values == sorted(set(values))
    assert all(ends[0] - 1e-9 * (ends[1] - ends[0]) <= value <= ends[1] * (1 + 1e-9) for value in values)
    assert [float(word.replace("−", "-")) for _, word in axis.ticks] == pytest.approx(values)
    expected = ["0%", "20%", "40%", "60%", "80%", "100%"]
    assert [word for _, word in linear((0, 1), "t", percent=True).ticks] == expected


def test_categories_stand_in_the_middle_of_equal_places():
    x = frame(categories(["a", "b", "c"]), linear((0, 1), "t"), wide=300).x
    assert [x(i) - x.start for i in range(3)] == [50, 150, 250]


def test_wrapped_words_keep_every_letter_and_their_room():
    for room in (30, 90, 400):
        lines = wrap(LONG, room)
        assert "".join("".join(lines).split()) == "".join(LONG.split())
        assert max(map(width, lines)) <= room


@pytest.mark.parametrize("name", PICTURES)
def test_all_words_are_inside_the_picture(name):
    svg = PICTURES[name]()
    wide, high = map(float, re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups())
    texts = re.findall(
        r'<text (class="tip" )?x="([-\d.]+)" y="([-\d.]+)"(?: text-anchor="(\w+)")?>([^<]*)<', svg
    )
    assert len(texts) == svg.count("<text") > 5
    for tip, x, y, anchor, words in texts:
        share = {"end": 1, "middle": 0.5}.get("end" if tip else anchor, 0)
        left = float(x) - share * width(words)
        assert left >= 0, words
        assert left + width(words) <= wide, words
        assert 10 <= float(y) <= high - 3, words


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_has_a_name_and_each_mark_words_and_the_focus_and_it_is_always_the_same(name):
    svg = PICTURES[name]()
    assert re.match(
        r'<svg class="chart" viewBox="[^"]*" role="img" data-figure="\w+"><title>t</title><desc>[^<]+</desc>',
        svg,
    )
    groups = re.findall(r"<g.*?</g>", svg, re.S)
    assert len(groups) >= 1
    for group in groups:
        assert re.match(r'<g class="point" tabindex="0"><title>[^<]+</title>', group)
        assert 'class="tip"' in group
    assert "…" not in svg
    assert PICTURES[name]() == svg


def test_a_strip_has_its_words_and_a_tick_at_a_bound_that_rules_something_out():
    name = {"span": (-0.5, 1.0), "tip": "<sex>: 0.7"}
    free, tight, vacuous = (plot.strip((0.7, 0.6, 0.8), bound=bound, **name) for bound in (None, 0.9, 0.9999))
    assert free == vacuous
    assert re.match(
        r'<svg class="strip point" [^>]*tabindex="0" role="img"><title>&lt;sex&gt;: 0.7</title><desc>', free
    )
    (place,) = re.findall(r'<line x1="([\d.]+)%" x2="[\d.]+%" y1="2" y2="26" class="bound"/>', tight)
    assert float(place) == pytest.approx(2 + 96 * (0.9 + 0.5) / 1.5, abs=0.01)
    assert re.findall(r">([^<]+)</text>", plot.scale((-0.5, 1.0))) == [
        "−0.5", "0 guessing", "0.5", "1 certain",
    ]  # fmt: skip


def test_words_do_not_stand_on_the_title_of_the_axis():
    """The words of a mark share the last line with the title where both have room, else they come below."""
    short, long = (
        plot.roc([], marks=[(0.1, (0.3, 0.2, 0.4), tip)], title="t") for tip in ("short", LONG[:50])
    )
    base = {words: float(y) for y, words in re.findall(r'y="([\d.]+)"[^>]*>([^<]+)</text>', short + long)}
    assert base["short"] == base["false alarms (log scale)"] == base[LONG[:50].strip()] - 16


def test_words_that_do_not_fit_beside_a_mark_become_numbers():
    wanted = {"goal": 0.1, "percent": False, "axis": "task AUROC", "title": "t"}
    chart, numbered = plot.frontier(MARKS, **wanted)
    assert numbered == []
    assert ">left</text>" in chart
    crowd = [
        replace(MARKS[0], words=f"a defense with a long name {number}", number=number)
        for number in range(1, 7)
    ]
    chart, numbered = plot.frontier(crowd, **wanted)
    assert len(numbered) >= 4
    assert all(f">{number}</text>" in chart for number in numbered)


def test_of_very_many_marks_none_takes_the_focus_but_all_have_words():
    chart, _ = plot.frontier(MARKS * 60, goal=0.1, percent=False, axis="a", title="t")
    assert 'tabindex="0"' not in chart
    assert chart.count("<g><title>") == 120


def test_more_than_a_few_values_below_do_not_overlap():
    svg = plot.rounds(WHISKERS * 40, WHISKERS * 40, title="t")
    words = re.findall(r'x="([\d.]+)" y="[\d.]+" text-anchor="middle">(\d+)<', svg)
    assert words[0][1] == "1"
    for (ax, a), (bx, b) in pairwise(words):
        assert float(ax) + width(a) / 2 < float(bx) - width(b) / 2
