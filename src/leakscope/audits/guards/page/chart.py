"""Charts of guards: what each buys and costs, information against lambda, and maps of representations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from leakscope.audits.guards.page.measures import Scatter, TriedAverage
from leakscope.audits.guards.page.pages import GuardPage, GuardSetting
from leakscope.report.pages import interval, percent
from leakscope.report.pages import number as number_text
from leakscope.report.plot import cloud
from leakscope.report.plot.frame import Axis, frame, linear
from leakscope.report.plot.panel import Curve, Mark, Panel, draw
from leakscope.results.averages import Average

AXES = {"auroc": "AUROC", "success": "success rate", "ssim": "SSIM", "mse": "mean squared error"}


def rows(page: GuardPage) -> list[tuple[int, str, TriedAverage]]:
    """Guards, then what needs none: the number, the words and the numbers of each."""
    start = len(page.settings)
    guards = [(one.number, one.label, found.tried) for one, found in page.judged]
    return guards + [(start + i, one.name, one.tried) for i, one in enumerate(page.baselines, start=1)]


def marks(page: GuardPage) -> list[tuple[Mark, str]]:
    """The `rows` that have a place, each with the kind of guard; hollow is what needs none, of shape 0 no
    guard at all."""
    settings, found = {one.number: one for one in page.settings}, []
    for number, label, tried in rows(page):
        attack, worth, one = tried.attack(page.measure), tried.accuracy, settings.get(number)
        none = one is None and page.free is not None and page.free.name == label
        shape = one.family + 1 if one else 0 if none else number - len(settings)
        words, kind = (one.strength, one.kind) if one else (label, "")
        if attack and worth:
            tip = f"{words}: {interval(attack, number_text)}, {percent(worth.value)}"
            place = attack.value, worth.value, tip, shape, bool(one) or none
            sides = (attack.low, attack.high), (worth.low, worth.high)
            found.append((Mark(*place, *sides, words=words, number=number), kind))
    return found


def trade_off(page: GuardPage, title: str) -> tuple[str, list[tuple[Mark, str]]]:
    """Task accuracy against the strongest fresh attack, and the marks for whose words there was no room."""
    every = marks(page)
    points = [mark for mark, _ in every]
    least, most = ([v] if v is not None else [] for v in (page.guessing, page.majority))
    attacks = [end for mark in points for end in mark.across or ()]
    worths = [end for mark in points for end in mark.up or ()]
    across = linear(attacks + least, f"{AXES[page.measure]} of the strongest fresh attack", pad=0.06)
    up = linear(worths + most, "task accuracy", pad=0.06, percent=True, grid=True)
    majority = "always the most common label"
    curves = [Curve([(across.low, v), (across.high, v)], "chance", majority) for v in most]
    curves += [Curve([(v, up.low), (v, up.high)], "chance", "guessing") for v in least]
    for family in page.families:
        numbers = [one.number for one in family if one.lam is not None]
        joined = [(mark.x, mark.y) for mark in points if mark.number in numbers]
        curves += [Curve(joined)] if len(joined) > 1 else []
    panel = Panel(frame(across, up, tall=284), points, curves)
    desc = "Task accuracy against what the strongest fresh attacker tells; the upper left is ideal. "
    numbered = panel.words()[1]
    unnamed = [(mark, kind) for mark, kind in every if mark.number in numbered]
    return draw([panel], title, desc + "Data below."), unnamed


def information(family: Sequence[tuple[GuardSetting, Mapping[str, Average]]], title: str) -> str:
    """I(u; r) in nats against lambda, one shape for each estimator."""
    lams = [one.lam or 0.0 for one, _ in family]
    ends = [end for _, found in family for a in found.values() for end in (a.low, a.high)]
    across = Axis(min(lams) - 0.04, max(lams) + 0.04, tuple((lam, f"{lam:g}") for lam in lams), "λ")
    curves, points = [], []
    for place, name in enumerate(dict.fromkeys(name for _, found in family for name in found)):
        known = [(one, found[name]) for one, found in family if name in found]
        curves.append(Curve([(one.lam or 0.0, average.value) for one, average in known]))
        for one, a in known:
            tip = f"{name}, {one.strength}: {interval(a, number_text)} nats"
            points.append(Mark(one.lam or 0.0, a.value, tip, place + 1, not place, up=(a.low, a.high)))
    panel = Panel(frame(across, linear([0.0, *ends], "nats", pad=0.06, grid=True)), points, curves)
    desc = "Estimated information about the secret in the representation, by lambda. Data below."
    return draw([panel], title, desc)


def scatter(one: Scatter, title: str) -> str:
    """Representations in two dimensions, or three in isometric projection, a kind of spot for each value."""
    groups: list[list[tuple[float, float]]] = [[] for _ in one.values]
    for (x, y, *z), code in zip(one.points, one.codes, strict=True):
        groups[code].append(((x - y) * math.cos(math.pi / 6), (x + y) / 2 - z[0]) if z else (x, y))
    how = " in three dimensions, seen from above a corner" if len(one.points[0]) == 3 else ""
    desc = f"{len(one.points)} representations by t-SNE{how}; distances between groups mean little."
    return cloud(groups, title=title, desc=desc)
