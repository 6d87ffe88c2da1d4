"""What is measured of games about clients: of each, and of all together."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from leakscope.audits.membership.found import Client, ClientGame
from leakscope.core.basis import Mean
from leakscope.core.nouns import Estimate, Transcript
from leakscope.measures.membership import conformal, plr_at_fpr
from leakscope.measures.success import auroc, tpr_at_fpr
from leakscope.results.scores import Scores

RATES = (0.01, 0.05, 0.1)  # nominal false positive rates at which the conformal test is judged
FURTHER = (0.025, 0.04, 0.1)  # false positive rates at which the likelihood ratio is measured if asked for


def measure_games(
    games: Sequence[tuple[str | None, Transcript]],
) -> tuple[Scores[Estimate], Scores[float], tuple[Client, ...]]:
    """What was found in games about clients: the means over them, their standard deviations, and each."""
    found = [
        ClientGame(
            members=int((transcript.secrets == 1).sum()),
            judged=int((transcript.secrets == 0).sum()),
            scores=score(transcript),
        )
        for _, transcript in games
    ]
    return average_games([name for name, _ in games], found)


def average_games(
    names: Sequence[str | None], games: Sequence[ClientGame]
) -> tuple[Scores[Estimate], Scores[float], tuple[Client, ...]]:
    """Of the measures that every game allows."""
    tables = [game.scores.table for game in games]
    every = [name for name in tables[0] if all(name in table for table in tables)]
    tables = [{name: table[name] for name in every} for table in tables]
    each = {name: [table[name] for table in tables] for name in every}
    spreads = {
        name: statistics.stdev(estimate.value for estimate in found) if len(found) > 1 else 0.0
        for name, found in each.items()
    }
    clients = tuple(
        Client(
            name=name,
            members=game.members,
            judged=game.judged,
            scores=Scores[Estimate].model_validate(table),
        )
        for name, game, table in zip(names, games, tables, strict=True)
        if name is not None
    )
    means = {name: _mean(found) for name, found in each.items()}
    return Scores[Estimate].model_validate(means), Scores[float].model_validate(spreads), clients


def score(transcript: Transcript, rates: Iterable[float] = ()) -> Scores[Estimate]:
    """All measures, and the likelihood ratio at further false positive ``rates``."""
    measures = _measures(len(transcript.null) if transcript.null is not None else 0)
    measures |= {f"plr_at_{100 * rate:g}%": partial(plr_at_fpr, fpr=rate) for rate in rates}
    return Scores[Estimate].model_validate({name: take(transcript) for name, take in measures.items()})


def _measures(held: int) -> dict[str, Callable[[Transcript], Estimate]]:
    """What is measured, by name; the tests at rates that so many held-out records can keep."""
    measures: dict[str, Callable[[Transcript], Estimate]] = {
        "plr_at_1%": plr_at_fpr,
        "plr_at_2%": partial(plr_at_fpr, fpr=0.02),
        "plr_at_5%": partial(plr_at_fpr, fpr=0.05),
        "auroc": auroc,
        "tpr_at_1%": tpr_at_fpr,
        "tpr_at_0.1%": partial(tpr_at_fpr, fpr=0.001),
    }
    for rate in RATES:
        if held >= round(1 / rate) - 1:
            measures[f"conformal_fpr_at_{rate:.0%}"] = partial(_conformal, fpr=rate, part=0)
            measures[f"conformal_tpr_at_{rate:.0%}"] = partial(_conformal, fpr=rate, part=1)
    return measures


def mean_roc(curves: Sequence[Sequence[tuple[float, float]]]) -> tuple[tuple[float, float], ...]:
    """The mean over clients of the hits within each rate; where they share their non-members their grids are
    the same, and nothing is said of others."""
    hits = [[tpr for _, tpr in curve] for curve in curves]
    rates = [fpr for fpr, _ in curves[0]]
    if any([fpr for fpr, _ in curve] != rates for curve in curves):
        return ()
    return tuple((fpr, statistics.fmean(at)) for fpr, at in zip(rates, zip(*hits, strict=True), strict=True))


def _conformal(transcript: Transcript, *, fpr: float, part: int) -> Estimate:
    return conformal(transcript, fpr=fpr)[part]


def _mean(found: Sequence[Estimate]) -> Estimate:
    """The mean over clients. They share a global model and its non-members, so that their spread says
    little: the interval's ends are the means of the clients' own."""
    if len(found) == 1:
        return found[0]
    value, low, high = (
        sum(getattr(estimate, part) for estimate in found) / len(found) for part in ("value", "low", "high")
    )
    parts = tuple(estimate.basis for estimate in found if estimate.basis and estimate.basis.kind != "mean")
    basis = Mean(value, found[0].n, parts) if len(parts) == len(found) else None
    method = f"{found[0].method}, mean of {len(found)} clients"
    return replace(found[0], value=value, low=low, high=high, method=method, basis=basis)
