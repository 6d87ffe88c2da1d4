"""Audits of a mechanism as a page tells of them: what was certified and what is promised, by attribute."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from leakscope.audits.mechanism.brief import brief
from leakscope.audits.mechanism.found import Certified
from leakscope.core.nouns import Estimate
from leakscope.report import plot
from leakscope.report.pages import certified, fill, percent, plural, significant, small
from leakscope.results.averages import Average
from leakscope.results.cell import group_by, stable, words
from leakscope.results.chapter import Chapter, Verdict
from leakscope.results.kind import Runs, by_cell
from leakscope.results.result import Result

FIGURES = 12  # histograms, at most
BINS = 60  # of a histogram, at most
EPSILONS = ("certified", "gaussian", "exact", "classical")  # in the order of their marks


@dataclass(frozen=True)
class Ledger(Runs[Certified]):
    """One audit over its seeds. Of every number it shows the one that claims least: the smallest certified
    epsilon, the largest promise."""

    @property
    def first(self) -> Certified:
        return self.founds[0]

    @property
    def attribute(self) -> str:
        return self.first.attribute if self.founds else str(self.cell.game.get("attribute", "?"))

    def certified(self, name: str) -> Average:
        """The epsilon that every seed certifies (``low``), of at most ``high`` that could have been."""
        each: list[Estimate] = [getattr(one, name) for one in self.founds]
        value, low, high = (min(getattr(e, end) for e in each) for end in ("value", "low", "high"))
        return Average(value, low, high, each[0].level, each[0].n, len(each), None, each[0].method)

    def largest(self, name: str) -> float | None:
        values = [value for one in self.founds if (value := getattr(one, name)) is not None]
        return max(values) if len(values) == len(self.founds) else None

    @property
    def record(self) -> str:
        """How the record was come by, in one word."""
        return "crafted" if self.first.crafted else "sampled"

    @property
    def values(self) -> tuple[str, str]:
        """What the attribute is under either hypothesis."""
        names = self.first.values
        return (names[0], names[1]) if len(names) == 2 else ("one value", "another")

    @property
    def setting(self) -> tuple[float, float, float]:
        return self.first.clip, self.first.std, float(self.first.trials)

    @property
    def bins(self) -> list[tuple[float, float, float, float]]:
        """(from, to, how often under either hypothesis), neighbours joined where there are too many."""
        table = self.first.histogram
        edges, h0, h1 = table.edges, table.h0, table.h1
        every = max(1, math.ceil(len(h0) / BINS))
        starts = range(0, len(h0), every)
        ends = [min(i + every, len(h0)) for i in starts]
        return [(edges[i], edges[j], sum(h0[i:j]), sum(h1[i:j])) for i, j in zip(starts, ends, strict=True)]

    @property
    def exceeds(self) -> bool:
        """Whether more is certified than the guarantee allows."""
        return any(max(one.certified.low, one.gaussian.low) > one.exact for one in self.founds)

    @property
    def order(self) -> tuple[object, ...]:
        if not self.founds:
            return (True, stable(self.cell.described))
        clip, std, trials = self.setting
        kind = self.first.statistic, self.first.delta
        return False, kind, -clip / std, clip, trials, not self.first.crafted, stable(self.cell.described)


@dataclass(frozen=True)
class Attribute:
    """The audits of one attribute, from the least noise to the most; those that failed come last."""

    name: str
    data: str
    audits: tuple[Ledger, ...]

    @property
    def measured(self) -> list[Ledger]:
        return [audit for audit in self.audits if audit.founds]

    @property
    def charts(self) -> list[list[Ledger]]:
        """What one chart of epsilon can hold: one statistic, one delta, at least two audits."""
        groups = group_by(self.measured, lambda one: (one.first.statistic, one.first.delta))
        return [group for group in groups.values() if len(group) > 1]

    @property
    def settings(self) -> list[list[Ledger]]:
        """Records put to the same test side by side: most of them, then most certified, first."""
        groups = group_by(self.measured, lambda one: (one.first.statistic, one.first.delta, one.setting))
        return sorted(groups.values(), key=lambda group: (-len(group), -max(map(_epsilon, group))))


def _epsilon(audit: Ledger) -> float:
    return audit.certified("certified").low if audit.founds else -1.0


def group_attributes(results: Iterable[Result[Certified]]) -> list[Attribute]:
    """Audits by attribute, the one with the largest certified epsilon first."""
    ledgers = sorted((Ledger(tuple(runs)) for runs in by_cell(results)), key=lambda one: one.order)
    groups = group_by(ledgers, lambda one: (one.attribute, one.cell.source))
    made = [Attribute(name, data, tuple(group)) for (name, data), group in groups.items()]
    return sorted(made, key=lambda a: (-max(_epsilon(audit) for audit in a.audits), a.name, a.data))


def describe(audit: Ledger) -> str:
    """What one audit certifies, in one or two sentences."""
    if not audit.founds:
        return f"It is not known what one step tells about {audit.attribute}: the audit failed."
    first, bound = audit.first, audit.certified("certified")
    level = percent(bound.level, 0)
    head = f"From {first.trials:,} noisy gradients of one {audit.record} record an auditor certifies"
    if bound.low > 0:
        seeds = f", with each of {bound.seeds} seeds" if bound.seeds > 1 else ""
        claim = (
            f"{head} that one step is NOT better than (epsilon = {certified(bound.low)}, delta = "
            f"{small(first.delta)})-private for {audit.attribute}, at {level} confidence{seeds}."
        )
    else:
        seeds = f", with at least one of {bound.seeds} seeds" if bound.seeds > 1 else ""
        claim = (
            f"{head} nothing about {audit.attribute}: no epsilon above 0 at delta = {small(first.delta)}, at "
            f"{level} confidence{seeds}. That does not show that the step is private."
        )
    return f"{claim} The mechanism's own guarantee is {significant(audit.largest('exact'))}."


def judge(attribute: Attribute) -> Verdict:
    """The answer about one attribute: the audit that certifies most. An epsilon has no band of severity: what
    is certified above 0 is a leak, and nothing certified is no all-clear."""
    audit = max(attribute.audits, key=_epsilon)
    bound = audit.certified("certified") if audit.founds else None
    lost = sum(not one.founds for one in attribute.audits)
    return Verdict(
        severity="failed" if bound is None else "certified" if bound.low > 0 else "inconclusive",
        about=f"{attribute.name}, in one step",
        data=attribute.data,
        sentence=describe(audit),
        notes=(f"{plural(lost, 'more audit')} failed.",) if lost and bound else (),
        anchor="dp",
        order=bound.low if bound else 0.0,
        attack=f"{audit.first.statistic}, {audit.record} record" if audit.founds else "",
        measure="epsilon",
        average=bound,
        defense=words(audit.cell.defense or {}),
    )


RULES = {
    "certified": "an epsilon above 0 is certified for one step; you decide how much is too much",
    "inconclusive": "nothing is certified, which does not show that the step is private",
    "failed": "there is no measurement, so nothing can be said",
}


def tell(results: Sequence[Result[Certified]]) -> Chapter:
    """What was certified, attribute by attribute."""
    attributes = group_attributes(results)
    audits = [audit for attribute in attributes for audit in attribute.audits]
    failed = sum(not audit.founds for audit in audits)
    lead = f"{plural(len(audits), 'audit')} of differential privacy, attribute by attribute"
    body = fill(
        "mechanism/page.html",
        attributes=attributes,
        histograms=_shown(attributes),
        added=any(audit.founds and audit.largest("exact_added") for audit in audits),
        describe=describe,
        histogram=_histogram,
        epsilons=_epsilons,
    )
    verdicts = tuple(judge(attribute) for attribute in attributes)
    crafted = any(audit.founds and audit.first.crafted for audit in audits)
    promises = [audit.largest("exact") for audit in audits if audit.founds]
    promised = max((value for value in promises if value is not None), default=None)
    return Chapter(
        lead=lead + (f"; {plural(failed, 'audit')} failed." if failed else "."),
        verdicts=verdicts,
        body=body,
        rules=("Differential privacy: by what is certified", RULES),
        assumed=fill("mechanism/assumed.html", crafted=crafted),
        limits=(
            "A certified epsilon is a lower bound for the records that were audited. Another record, or more "
            "trials, may show more. The true epsilon lies between this bound and the guarantee.",
        ),
        settings=len(audits),
        brief=brief([attribute.name for attribute in attributes], verdicts, promised, crafted),
    )


def _shown(attributes: Sequence[Attribute]) -> dict[int, list[list[Ledger]]]:
    """The audits whose histograms are drawn, by the place of their attribute: of each the ones that
    certify most, as many as there is room for."""
    turns = [
        (j, i, group) for i, attribute in enumerate(attributes) for j, group in enumerate(attribute.settings)
    ]
    kept: dict[int, list[list[Ledger]]] = {}
    for _, i, group in sorted(turns, key=lambda turn: turn[:2]):
        if sum(len(g) for groups in kept.values() for g in groups) + len(group) <= FIGURES:
            kept.setdefault(i, []).append(group)
    return kept


def _histogram(audit: Ledger, group: Sequence[Ledger], title: str) -> Markup:
    """On the axis that all records of the group share."""
    span = min(one.bins[0][0] for one in group), max(one.bins[-1][1] for one in group)
    table = audit.bins
    zero, one = ([row[k] / sum(row[k] for row in table) for row in table] for k in (2, 3))
    edges = [table[0][0], *(row[1] for row in table)]
    return Markup(plot.histogram(edges, (zero, one), names=audit.values, span=span, title=title))


def _epsilons(group: Sequence[Ledger], title: str) -> Markup:
    """Paper 000, figure 9: what was certified and what theory says, against clip and noise."""
    several = len({audit.setting[2] for audit in group}) > 1
    columns: dict[tuple[float, ...], tuple[list[str], list[tuple[int, int, bool, float, str]], float | None]]
    columns = {}
    for audit in group:
        labels = [f"{value:,g}" for value in audit.setting[: 3 if several else 2]]
        most = min(one.saturation for one in audit.founds)
        _, points, _ = columns.setdefault(audit.setting, (labels, [], most))
        for place, name in enumerate(EPSILONS):
            measured = place < 2
            value = audit.certified(name).low if measured else audit.largest(name)
            filled = not measured or audit.first.crafted
            word = "any" if name == "certified" else name
            tip = f"clip {labels[0]}, noise {labels[1]}, {word}{', ' + audit.record if measured else ''}"
            if value is not None:
                point = place, place + 1, filled, value, f"{tip}: {significant(value)}"
                if measured or point not in points:
                    points.append(point)
    limit = "any: the most that so many trials certify"
    heads = ("clip", "noise", "trials")[: 3 if several else 2]
    return Markup(plot.epsilons(list(columns.values()), heads=heads, limit=limit, title=title))
