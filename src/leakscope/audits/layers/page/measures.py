"""What was measured layer by layer (paper 001, Mo et al.), each number over its seeds. Layers go by their
place, such as ``layer 1``; ``titles`` say what they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, TypeVar

from leakscope.audits.layers import found as kept
from leakscope.audits.layers.found import WHOLE, Amount, Correlation, LayersFound, Picture
from leakscope.core.nouns import Estimate
from leakscope.results.averages import Average, average, average_free, mean
from leakscope.results.cell import group_by
from leakscope.results.scores import FrozenModel, TaskScore, average_task, tells

Layer = kept.Layer
Risk = Amount[Average]
Leak = kept.Leak[Average]
Latent = kept.Latent[Average]
Rebuilt = kept.Rebuilt[Average]
Original = kept.Original[Average]
T = TypeVar("T")
M = TypeVar("M", bound=FrozenModel)


@dataclass(frozen=True)
class ProtectionAverage:
    """One measure that was taken, and what an audit of it found."""

    measure: kept.Measure
    secret: str
    layers: str  # in words: "layers 1 + 2"; empty: nothing was done
    title: str  # and what they are
    stds: tuple[float, ...]
    parameters: int
    risk: Risk
    advantage: Average
    task: TaskScore[Average]
    auroc: Average | None = None

    @property
    def clear(self) -> bool:
        """Whether nothing is found, by any measure; a ranking that nobody measured clears nothing."""
        ranks = self.auroc is None or tells(self.auroc.low, self.auroc.high)
        return not (self.risk.shown or self.advantage.low > 0 or ranks)

    @property
    def std(self) -> str:
        low, high = (f"{pick(self.stds):.3g}" if self.stds else "" for pick in (min, max))
        return low if low == high else f"{low} to {high}"

    @property
    def label(self) -> str:
        return {
            "none": "nothing",
            "keep local": f"keep {self.layers} local",
            "freeze": f"freeze {self.layers}",
            "noise": f"noise of std {self.std} on {self.layers}",
        }[self.measure]

    @property
    def seeds(self) -> int:
        return self.worth.seeds

    @property
    def worth(self) -> Average:
        assert self.task.main is not None
        return self.task.main


@dataclass(frozen=True)
class LayersAverage:
    """All of one audit."""

    layers: tuple[Layer, ...] = ()
    own: tuple[str, ...] = ()  # names in the model
    titles: Mapping[str, str] = field(default_factory=dict)  # of layers, and of those looked at together
    latent: tuple[Latent, ...] = ()
    original: Original | None = None
    sensitivity: Mapping[str, Mapping[str, Average]] = field(default_factory=dict)
    protection: tuple[ProtectionAverage, ...] = ()
    correlations: tuple[Correlation, ...] = ()
    pictures: tuple[tuple[str, Picture], ...] = ()  # with the layers that each was rebuilt from
    trend: Mapping[str, float] = field(default_factory=dict)  # share of the most, smoothed over layers
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # from where to where in the model

    @property
    def names(self) -> list[str]:
        return [layer.name for layer in self.layers]


def summarise(runs: Sequence[LayersFound]) -> LayersAverage:
    """What every seed of a cell found, as one: the model, its layers and the secrets are the same."""
    if not runs:
        return LayersAverage()
    first = runs[0]
    places = {layer.name: i for i, layer in enumerate(first.layers)}
    sets = {one.name: one.layers for one in first.original.sets} if first.original else {}
    groups = {(layer.name,) for layer in first.layers} | set(sets.values())
    groups |= {leak.layers for latent in first.latent for leak in latent.layers.values()}
    return LayersAverage(
        layers=tuple(one.model_copy(update={"name": first.label((one.name,))}) for one in first.layers),
        own=tuple(layer.name for layer in first.layers),
        titles={first.label(group): first.title(group) for group in groups} | {WHOLE: WHOLE},
        latent=tuple(_latent(first, rows) for rows in zip(*(run.latent for run in runs), strict=True)),
        original=_original(first, [run.original for run in runs if run.original]),
        sensitivity=_sensitivity(runs),
        protection=tuple(_protections(runs)),
        correlations=tuple(  # the mean, and the limits that claim least
            _over_seeds(Correlation, rows) for rows in zip(*(run.correlations for run in runs), strict=False)
        ),
        pictures=tuple(
            (first.label(sets[one.set]) if one.set in sets else WHOLE, one) for one in first.pictures
        ),
        trend={
            first.label(first.latent[0].layers[key].layers): mean([run.trend[key] for run in runs])
            for key in first.trend
        },
        spans={first.label(group): (places[group[0]], places[group[-1]]) for group in groups},
    )


OVER: Mapping[str, Callable[[Any], Any]] = {  # seeds: how each field is told; any other is that of the first
    **dict.fromkeys(("information", "distance", "log_ratio", "ssim"), average_free),
    **dict.fromkeys(("auroc", "advantage", "recovered"), average),
    **dict.fromkeys(("most", "normalised", "null_mean", "null_sd", "trivial_ssim", "r"), mean),
    **dict.fromkeys(("p", "rank", "high"), max),
    "low": min,
    "failures": sum,
    "family": lambda families: "; ".join(dict.fromkeys(families)),
}


def _over_seeds(into: type[M], runs: Sequence[FrozenModel], **given: object) -> M:
    """One of its kind for all seeds, but for what is ``given``."""
    fields = [name for name in into.model_fields if name not in given]
    told = {name: OVER.get(name, itemgetter(0))([getattr(run, name) for run in runs]) for name in fields}
    return into.model_validate(told | given)


def _shared(tables: Sequence[Mapping[str, T]]) -> Iterator[tuple[str, list[T]]]:
    """What every seed has under the same key."""
    for key in tables[0]:
        if all(key in table for table in tables):
            yield key, [table[key] for table in tables]


def _latent(model: LayersFound, runs: Sequence[kept.Latent[Estimate]]) -> Latent:
    labels = {key: model.label(leak.layers) for key, leak in runs[0].layers.items()}
    known = {layer.name for layer in model.layers}  # a layer of several matrices has a distance for each
    return _over_seeds(
        Latent,
        runs,
        layers={
            labels[key]: _over_seeds(Leak, leaks, name=labels[key])
            for key, leaks in _shared([run.layers for run in runs])
        },
        together=_over_seeds(Leak, [run.together for run in runs]),
        labels=_over_seeds(Leak, [run.labels for run in runs]),
        subspace={
            model.label((key,)): _over_seeds(kept.SubspaceGap[Average], rows)
            for key, rows in _shared([run.subspace for run in runs])
            if key in known
        },
        two_sample={
            labels[key]: _over_seeds(kept.SampleRatio[Average], rows)
            for key, rows in _shared([run.two_sample for run in runs])
        },
    )


def _original(model: LayersFound, runs: Sequence[kept.Original[Estimate]]) -> Original | None:
    if not runs:
        return None
    sets = [
        _over_seeds(
            Rebuilt,
            rows,
            name=model.label(rows[0].layers),
            layers=tuple(model.label((layer,)) for layer in rows[0].layers),
        )
        for rows in zip(*(run.sets for run in runs), strict=True)
    ]
    return _over_seeds(
        Original, runs, sets=tuple(sets), whole=_over_seeds(Rebuilt, [run.whole for run in runs])
    )


def _sensitivity(runs: Sequence[LayersFound]) -> dict[str, dict[str, Average]]:
    return {
        norm: {runs[0].label((key,)): average_free(estimates) for key, estimates in _shared(tables)}
        for norm, tables in _shared([run.sensitivity for run in runs])
    }


def _protections(runs: Sequence[LayersFound]) -> Iterator[ProtectionAverage]:
    """Each measure over the seeds that took it: strengths and layers may follow from what a seed found."""
    every = (row for run in runs for row in run.protection)
    for (measure, names), rows in group_by(every, lambda row: (row.measure, row.layers)).items():
        areas = [row.auroc for row in rows if row.auroc]
        yield ProtectionAverage(
            measure=measure,
            secret=rows[0].secret,
            layers=runs[0].label(names) if names else "",
            title=runs[0].title(names) if names else "",
            stds=tuple(row.std for row in rows if row.std is not None),
            parameters=sum(layer.parameters for layer in runs[0].layers if layer.name in names),
            risk=Risk(information=average_free([row.information for row in rows])),
            advantage=average([row.advantage for row in rows]),
            task=average_task(rows),
            auroc=average(areas) if len(areas) == len(rows) else None,
        )
