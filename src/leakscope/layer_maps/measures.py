"""What was measured layer by layer (paper 001, Mo et al.), each number over its seeds."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from leakscope.averages import Average, Json, average, finite, mean

WHOLE = "all layers"  # the set that is no part of any order among layers
NORMS = ("F", "1", "inf", "relative")
BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")


@dataclass(frozen=True)
class Layer:
    name: str
    parameters: int
    kind: str


@dataclass(frozen=True)
class Risk:
    """What one view, of a layer or of several, gives away about a secret."""

    information: Average  # nats; may be found negative
    auroc: Average | None = None
    advantage: Average | None = None
    family: str = ""

    @property
    def floored(self) -> float:
        """Information cannot be negative: an adversary may ignore what it sees."""
        return max(0.0, self.information.value)

    @property
    def shown(self) -> bool:
        """Whether it gives away anything, by the lower limit."""
        return self.information.low > 0

    @property
    def told(self) -> bool:
        """As `shown`, or by the lower limit of the advantage."""
        return self.shown or (self.advantage is not None and self.advantage.low > 0)


@dataclass(frozen=True)
class Distance:
    """Between the subspaces of gradients with and without a secret, beside its null; the largest p."""

    distance: Average
    normalised: float | None
    rank: str
    null_mean: float | None
    null_sd: float | None
    p: float | None


@dataclass(frozen=True)
class Ratio:
    """A two-sample statistic over its null, as a logarithm; the largest p over seeds."""

    log_ratio: Average
    p: float | None


@dataclass(frozen=True)
class Latent:
    """One secret that no layer is trained for. ``most`` nats are certainty."""

    secret: str
    values: tuple[str, ...]
    most: float
    layers: Mapping[str, Risk]
    together: Risk | None
    labels: Risk | None  # what the counts of the task's labels give alone
    subspace: Mapping[str, Distance]
    two_sample: Mapping[str, Ratio]


@dataclass(frozen=True)
class Rebuilt:
    """What the gradients of a set of layers give away of the inputs themselves, above a trivial guess."""

    name: str
    layers: tuple[str, ...]
    risk: Risk
    ssim: Average | None
    recovered: Average | None
    failures: int


@dataclass(frozen=True)
class Original:
    """Reconstruction from sets of layers. ``most`` nats are the inputs without a flaw."""

    sets: tuple[Rebuilt, ...]
    whole: Rebuilt | None
    trivial_ssim: float | None
    most: float
    images: int
    attack: str


@dataclass(frozen=True)
class Protection:
    """One measure that was taken, and what an audit of it found for each secret."""

    measure: str
    layers: tuple[str, ...]
    stds: tuple[float, ...]
    parameters: int
    risks: Mapping[str, Risk]
    accuracy: Average | None

    @property
    def std(self) -> str:
        low, high = (f"{pick(self.stds):.3g}" if self.stds else "" for pick in (min, max))
        return low if low == high else f"{low} to {high}"

    @property
    def label(self) -> str:
        names = ", ".join(self.layers)
        if self.measure == "none":
            return "nothing"
        if self.measure == "noise":
            return f"noise of std {self.std} on {names}" if self.stds else f"noise on {names}"
        return f"keep {names} local" if self.measure == "keep local" else f"{self.measure} {names}"

    @property
    def seeds(self) -> int:
        return min((risk.information.seeds for risk in self.risks.values()), default=0)


@dataclass(frozen=True)
class Correlation:
    """Between two measures over layers; over seeds the mean, and the limits that claim least."""

    measure: str
    other: str
    r: float
    low: float
    high: float
    p: float | None
    n: int
    note: str


@dataclass(frozen=True)
class Picture:
    original: str  # base64 of a PNG
    reconstruction: str
    ssim: float | None
    name: str


@dataclass(frozen=True)
class Measured:
    """All of one audit."""

    layers: tuple[Layer, ...] = ()
    latent: tuple[Latent, ...] = ()
    original: Original | None = None
    sensitivity: Mapping[str, Mapping[str, Average]] = field(default_factory=dict)
    protection: tuple[Protection, ...] = ()
    correlations: tuple[Correlation, ...] = ()
    pictures: tuple[Picture, ...] = ()
    trend: Mapping[str, float] = field(default_factory=dict)  # share of the most, smoothed over layers

    @property
    def names(self) -> list[str]:
        return [layer.name for layer in self.layers]

    def columns(self, name: str) -> tuple[int, int] | None:
        """Where a layer stands in the model, or from where to where neighbours joined by + do."""
        parts = [name] if name in self.names else name.split("+")
        places = [self.names.index(part) for part in parts if part in self.names]
        return (min(places), max(places)) if len(places) == len(parts) else None


def measured(tables: Sequence[Json]) -> Measured:
    """The "localisation" entries of a cell's runs, as one."""
    if not tables:
        return Measured()
    layers = tuple(
        Layer(str(layer["name"]), int(layer.get("parameters") or 0), str(layer.get("kind") or "other"))
        for layer in tables[0].get("layers") or ()
    )
    names = [layer.name for layer in layers]
    return Measured(
        layers=layers,
        latent=tuple(_latents(tables, names)),
        original=_original([table.get("original") or {} for table in tables]),
        sensitivity=_sensitivity([table.get("sensitivity") or {} for table in tables], names),
        protection=tuple(_protections(tables, layers)),
        correlations=tuple(_correlations(tables)),
        pictures=tuple(_pictures(tables[0].get("pictures") or ())),  # of one seed
        trend=_trend([table.get("trend") or {} for table in tables]),
    )


def _trend(tables: Sequence[Json]) -> dict[str, float]:
    found = {str(name): _number(tables, name) for name in tables[0]}
    return {name: value for name, value in found.items() if value is not None}


def _latents(tables: Sequence[Json], names: Sequence[str]) -> Iterator[Latent]:
    """The secrets that every seed has in numbers."""
    for first in tables[0].get("latent") or ():
        same = [
            entry
            for table in tables
            for entry in table.get("latent") or ()
            if entry.get("secret") == first.get("secret")
        ]
        most = _number(same, "most")
        layers = _risks([entry.get("layers") or {} for entry in same])
        joined = [name for name in layers if name not in names]
        if len(same) == len(tables) and layers and most and most > 0:
            yield Latent(
                secret=str(first.get("secret")),
                values=tuple(str(value) for value in first.get("values") or ()),
                most=most,
                layers=layers,
                together=_risk([entry.get("together") for entry in same]),
                labels=_risk([entry.get("labels") for entry in same]),
                subspace=_distances([entry.get("subspace") or {} for entry in same], [*names, *joined]),
                two_sample=_ratios([entry.get("two_sample") or {} for entry in same], [*names, *joined]),
            )


def _risks(tables: Sequence[Json]) -> dict[str, Risk]:
    """By layer, or by the names of neighbours that were looked at together."""
    found = {str(name): _risk([table.get(name) for table in tables]) for name in tables[0]}
    return {name: risk for name, risk in found.items() if risk}


def _risk(tables: Sequence[Json | None]) -> Risk | None:
    whole = [table or {} for table in tables]
    information = _average(whole, "information", free=True)
    if information is None:
        return None
    families = dict.fromkeys(str(table["family"]) for table in whole if table.get("family"))
    return Risk(information, _average(whole, "auroc"), _average(whole, "advantage"), "; ".join(families))


def _distances(tables: Sequence[Json], names: Sequence[str]) -> dict[str, Distance]:
    found = {}
    for name in names:
        same = [table.get(name) or {} for table in tables]
        distance = _average(same, "distance", free=True)
        if distance:
            ranks = sorted({int(table["rank"]) for table in same if table.get("rank") is not None})
            found[name] = Distance(
                distance=distance,
                normalised=_number(same, "normalised"),
                rank="–".join(str(rank) for rank in dict.fromkeys(ranks[:1] + ranks[-1:])),
                null_mean=_number(same, "null_mean"),
                null_sd=_number(same, "null_sd"),
                p=_largest(same, "p"),
            )
    return found


def _ratios(tables: Sequence[Json], names: Sequence[str]) -> dict[str, Ratio]:
    found = {}
    for name in names:
        same = [table.get(name) or {} for table in tables]
        ratio = _average(same, "log_ratio", free=True)
        if ratio:
            found[name] = Ratio(ratio, _largest(same, "p"))
    return found


def _original(tables: Sequence[Json]) -> Original | None:
    most = _number(tables, "most")
    sets = [rebuilt for name in tables[0].get("sets") or () if (rebuilt := _rebuilt(tables, str(name)))]
    if not sets or not most or most <= 0:
        return None
    return Original(
        sets=tuple(one for one in sets if one.name != WHOLE),
        whole=next((one for one in sets if one.name == WHOLE), None),
        trivial_ssim=_number(tables, "trivial_ssim"),
        most=most,
        images=int(tables[0].get("images") or 0),
        attack=str(tables[0].get("attack") or ""),
    )


def _rebuilt(tables: Sequence[Json], name: str) -> Rebuilt | None:
    same = [(table.get("sets") or {}).get(name) or {} for table in tables]
    risk = _risk(same)
    if risk is None:
        return None
    return Rebuilt(
        name=name,
        layers=tuple(str(layer) for layer in same[0].get("layers") or ()),
        risk=risk,
        ssim=_average(same, "ssim", free=True),
        recovered=_average(same, "recovered"),
        failures=sum(int(table.get("failures") or 0) for table in same),
    )


def _sensitivity(tables: Sequence[Json], names: Sequence[str]) -> dict[str, dict[str, Average]]:
    found = {}
    for norm in NORMS:
        same = [table.get(norm) or {} for table in tables]
        layers = {name: mean for name in names if (mean := _average(same, name, free=True))}
        if layers:
            found[norm] = layers
    return found


def _protections(tables: Sequence[Json], layers: Sequence[Layer]) -> Iterator[Protection]:
    """Each measure over the seeds that took it: strengths and layers may follow from what a seed found."""
    groups: dict[tuple[str, tuple[str, ...], int], dict[str, list[Json]]] = {}
    for table in tables:
        counts: dict[tuple[str, tuple[str, ...], str], int] = {}
        for entry in table.get("protection") or ():
            names = tuple(str(name) for name in entry.get("layers") or ())
            kind, secret = str(entry.get("measure")), str(entry.get("secret"))
            place = counts[kind, names, secret] = counts.get((kind, names, secret), -1) + 1
            groups.setdefault((kind, names, place), {}).setdefault(secret, []).append(entry)
    sizes = {layer.name: layer.parameters for layer in layers}
    for (kind, names, _), secrets in groups.items():
        found = {secret: _risk(entries) for secret, entries in secrets.items()}
        first = next(iter(secrets.values()))
        if any(found.values()):
            yield Protection(
                measure=kind,
                layers=names,
                stds=tuple(float(entry["std"]) for entry in first if entry.get("std") is not None),
                parameters=sum(sizes.get(name, 0) for name in names),
                risks={secret: risk for secret, risk in found.items() if risk},
                accuracy=_average(first, "accuracy"),
            )


def _correlations(tables: Sequence[Json]) -> Iterator[Correlation]:
    lists = [list(table.get("correlations") or ()) for table in tables]
    for same in zip(*lists, strict=False):
        r, lows, highs = _number(same, "r"), _numbers(same, "low"), _numbers(same, "high")
        if r is not None:
            yield Correlation(
                measure=str(same[0].get("measure")),
                other=str(same[0].get("with")),
                r=r,
                low=min(lows, default=-1.0),
                high=max(highs, default=1.0),
                p=_largest(same, "p"),
                n=int(same[0].get("n") or 0),
                note=str(same[0].get("note") or ""),
            )


def _pictures(entries: Sequence[Json]) -> Iterator[Picture]:
    for entry in entries:
        pair = [str(entry.get(key) or "") for key in ("original", "reconstruction")]
        if all(BASE64.fullmatch(text) for text in pair):
            yield Picture(pair[0], pair[1], _number([entry], "ssim"), str(entry.get("set") or ""))


def _average(tables: Sequence[Json], name: str, *, free: bool = False) -> Average | None:
    """Over seeds, if all have it; ``free`` to leave 0 to 1."""
    found = [table.get(name) for table in tables]
    if not found or not all(finite(estimate) for estimate in found):
        return None
    given = [estimate for estimate in found if estimate]
    return average(given, least=-math.inf, most=math.inf) if free else average(given)


def _numbers(tables: Sequence[Json], name: str) -> list[float]:
    """One for every seed; empty unless all have it."""
    found = [value for table in tables if isinstance(value := table.get(name), int | float)]
    return [float(v) for v in found] if len(found) == len(tables) and all(map(math.isfinite, found)) else []


def _number(tables: Sequence[Json], name: str) -> float | None:
    found = _numbers(tables, name)
    return mean(found) if found else None


def _largest(tables: Sequence[Json], name: str) -> float | None:
    return max(_numbers(tables, name), default=None)
