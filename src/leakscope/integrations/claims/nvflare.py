"""NVFlare's privacy filters in its own words (nvflare 2.9): PercentilePrivacy, SVTPrivacy, ExcludeVars."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import dp_accounting as dp  # type: ignore[import-untyped]
import torch
from torch import Tensor

from leakscope.audits.mechanism.duel import Duel
from leakscope.core.errors import LeakscopeError, at_least, or_none, refuse_all
from leakscope.defenses.deployed import PercentilePrivacy, SVTPrivacy
from leakscope.integrations.claims.answer import (
    METRICS,
    RECORD,
    SERVER,
    SIZE,
    Neighbours,
    Promise,
    Standing,
    Whose,
    is_number,
    setting,
    show,
)
from leakscope.measures.accounting import epsilon_of

SHAPES = "no parameter is a single number without a shape: NVFlare sends those as they are"
SLOW = 10  # numbers that could be drawn while one entry is filtered
VERSION = "NVFlare is 2.8 or newer: before, SVTPrivacy cuts values after the noise only, and no epsilon holds"
KINDS: tuple[str, ...] = ("WEIGHTS", "WEIGHT_DIFF")
UNCOUNTED = ("epsilon_threshold", "epsilon_query")


@dataclass(frozen=True)
class ExcludeVars:
    """The variables that are not sent; None or "" excludes nothing."""

    exclude_vars: str | tuple[str, ...] | None = None


Filter = PercentilePrivacy | SVTPrivacy | ExcludeVars
FILTERS: dict[str, type[Filter]] = {
    kind.__name__: kind for kind in (PercentilePrivacy, SVTPrivacy, ExcludeVars)
}


@dataclass(frozen=True)
class Filters:
    """The filters on what a client sends after training, in their order, for a model of ``entries``."""

    usual: ClassVar[tuple[Whose, Neighbours]] = ("upload", "replace")

    filters: tuple[Filter, ...] = setting(("filters", lambda value: True))
    entries: int = setting(at_least(1), "parameters")
    rounds: int | None = setting(or_none(at_least(1)), "num_rounds", default=None)
    elsewhere: tuple[str, ...] = setting(("names", lambda value: True), default=())
    kinds: tuple[str, ...] = setting(("names", lambda value: True), default=KINDS)

    @property
    def people(self) -> int | None:
        return None

    @property
    def sparse(self) -> tuple[SVTPrivacy, ...]:
        return tuple(one for one in self.filters if isinstance(one, SVTPrivacy))

    @property
    def promise(self) -> Promise | None:
        return Promise(self.sparse[0].epsilon, 0.0, *self.usual) if self.sparse else None

    def event(self) -> dp.DpEvent:
        """Of one upload, whatever is changed behind it. Filters around one with noise take nothing from it:
        it holds for any two updates, and what comes later works on what it sent."""
        found = [one.mechanism(1, self.entries) for one in self.sparse]
        events = [mechanism.event for mechanism in found if mechanism]
        if not events:
            return dp.NonPrivateDpEvent()
        return min(events, key=lambda event: epsilon_of(event, 0.0))

    def standings(self, delta: float | None) -> tuple[Standing, ...]:
        at, event = delta or 0.0, self.event()
        sent = f"results are of the kind {' or '.join(self.kinds)}: others pass SVTPrivacy as they are"
        only_if = (SHAPES, METRICS, sent, VERSION)
        how = "no filter adds noise"
        if self.sparse:
            one = self.sparse[0]
            wanted = min(math.ceil(self.entries * one.fraction), self.entries)
            how = (
                f"{wanted:,} values x noise_var {one.noise_var:.6g} = {wanted * one.noise_var:,.6g}, and the "
                f"choice of them {one.proven(self.entries) - wanted * one.noise_var:.4g} (NVFlare says "
                f"{one.epsilon:g}); together {show(one.proven(self.entries))} at delta 0"
            )
        rows = []
        for secure in (False, True):
            single = epsilon_of(event, at)
            said = how + ("; a sum hides more, but nothing more is proven" if secure else "")
            rows.append(Standing("upload", SERVER, single, single, at, said, only_if, secure))
            if self.rounds is not None:
                whole = epsilon_of(dp.SelfComposedDpEvent(event, self.rounds), at)
                said += f"; {self.rounds} rounds"
                rows += [
                    Standing(whose, SERVER, whole, whole, at, said, only_if, secure)
                    for whose in ("client", "record")
                ]
        return tuple(rows)

    def assumed(self) -> tuple[str, ...]:
        words = ["The filters run on every client, on the result of training, and nobody knows numpy's seed."]
        if self.rounds is None:
            words.append("The rounds are not given: nothing is said of all rounds. Give rounds.")
        return tuple(words)

    def idle(self) -> tuple[str, ...]:
        found = [f"{name} does not act on what clients send after training." for name in self.elsewhere]
        for one in self.filters:
            name = type(one).__name__
            if isinstance(one, PercentilePrivacy):
                found.append(f"{name} adds no noise: no epsilon holds at any percentile or gamma.")
            elif isinstance(one, ExcludeVars):
                what = "keeps the named variables back and" if one.exclude_vars else "excludes nothing, and"
                found.append(f"{name} {what} gives no epsilon to what is sent.")
            else:
                values = one.proven(self.entries) - one.epsilon
                if values > one.epsilon:
                    found.append(
                        f"epsilon {one.epsilon:g} of {name} is of the choice of values alone. The values "
                        f"themselves cost noise_var each."
                    )
        return tuple(found)

    def duel(self, row: Standing, neighbours: Neighbours) -> Duel | str:
        """Every entry beyond every cut, or the opposite: the choice tells nothing, each value its sign."""
        if row.whose == "record":
            return RECORD
        defenses = [one for one in self.filters if not isinstance(one, ExcludeVars)]
        cuts = [one.gamma for one in defenses]
        least, most = min(cuts, default=1.0), max(cuts, default=1.0)
        rounds = 1 if row.whose == "upload" else self.rounds or 1

        def send(bit: int, rng: torch.Generator) -> Tensor:
            layers = {"update": torch.full((1, self.entries), (2 * bit - 1) * 2 * most, dtype=torch.float64)}
            for one in defenses:
                layers = dict(one.release(layers, None, rng, batch=1))
            return layers["update"].clamp(-least, least).sum()

        def scores(bits: Tensor, rng: torch.Generator) -> Tensor:
            every = [[send(int(bit), rng) for _ in range(rounds)] for bit in bits]
            return torch.tensor([float(sum(sent)) for sent in every], dtype=torch.float64)

        canary = "an update beyond every cut, or the opposite one"
        return Duel(scores, SLOW * rounds * self.entries, False, canary)

    def nearest(self, promise: Promise) -> str:
        if not self.sparse:
            return (
                f"No setting of these filters has an epsilon. Add noise: {SVTPrivacy.__name__}, or clip the "
                f"update and add Gaussian noise."
            )
        one = self.sparse[0]
        times = 1 if promise.whose == "upload" else self.rounds or 1
        wanted = min(math.ceil(self.entries * one.fraction), self.entries)
        half = promise.epsilon / times / 2
        choice = one.proven(self.entries) - wanted * one.noise_var
        return (
            f"{SVTPrivacy.__name__}(fraction={one.fraction:g}, epsilon={one.epsilon * half / choice:.3g}, "
            f"epsilon_release={half:.3g}, gamma={one.gamma:g}) spends half on the choice, half on the "
            f"values: epsilon {show(promise.epsilon)} of the {promise.whose} is then true, with noise of "
            f"scale {2 * one.gamma * wanted / half:.3g} on values of at most {one.gamma:g}."
        )


def build_filter(name: str, given: Any, entries: Any) -> Filter:
    """A filter from the arguments of NVFlare's own; what is not known is refused."""
    module, _, last = name.rpartition(".")
    kind = FILTERS.get(last)
    if kind is None or module.split(".")[0] not in ("", "nvflare"):
        raise LeakscopeError(f"the filter {name!r} is not known; known are NVFlare's {', '.join(FILTERS)}.")
    if not isinstance(given, Mapping):
        raise LeakscopeError(
            f"args of {kind.__name__} must be a table of its arguments, got {reprlib.repr(given)}."
        )
    values = {key: value for key, value in given.items() if key != "data_kinds" and value is not None}
    uncounted = [key for key in UNCOUNTED if values.get(key) is not None]
    if uncounted:
        raise LeakscopeError(
            f"{', '.join(uncounted)} of {kind.__name__} cannot be accounted for; leave it out."
        )
    release = values.pop("epsilon_release", None)
    if release is not None:
        counted = [release, entries, values.get("fraction", SVTPrivacy.fraction)]
        if not all(is_number(value) and value > 0 for value in counted):
            raise LeakscopeError(
                f"epsilon_release must be a number above 0 and needs entries and fraction, got {counted}."
            )
        release, entries, fraction = counted
        values["noise_var"] = release / min(math.ceil(entries * fraction), entries)
    if kind is ExcludeVars and isinstance(values.get("exclude_vars"), list):
        values["exclude_vars"] = tuple(values["exclude_vars"])
    known = {field.name: field.default for field in fields(kind) if field.name not in ("steps", "version")}
    bad = [
        f"{kind.__name__} has no {name}; it has {', '.join(known)}." for name in values if name not in known
    ]
    bad += [
        f"{kind.__name__}.{name} must be a {word}, got {reprlib.repr(values[name])}."
        for name, default in known.items()
        for word, fits in ((f"number, {SIZE}", is_number), ("switch", lambda value: isinstance(value, bool)))
        if name in values and fits(default) and not fits(values[name])
    ]
    refuse_all(bad, kind.__name__)
    return kind(**values)
