"""What results on disk say about a secret: one reading for every attack of every cell and seed."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeGuard

from pydantic import ValidationError

from leakscope import store
from leakscope.core import Estimate
from leakscope.errors import PlanError
from leakscope.gating.evidence import Evidence, Stored, counted, curved, normal, ranked, stored
from leakscope.plan import Plan
from leakscope.sections import words
from leakscope.summary import source

EVERY = "*"
Json = Mapping[str, Any]
KINDS = {  # what a game may be called where its result is not there to say it
    "Inference": ("attribute", "property"),
    "AttributeAudit": ("attribute",),
    "Distribution": ("distribution",),
    "UserInference": ("user",),
    "MembershipAudit": ("membership",),
    "RecordingAudit": ("membership",),
    "LayerAudit": ("layers",),
    "GuardAudit": ("guard",),
}
MEASURED = ("membership", "audit", "localisation", "guarding", "estimates")


@dataclass(frozen=True)
class Reading:
    """What one attack on one cell and seed tells. ``secret`` is "*" where a failed cell does not say it.

    ``bounds`` hold for every adversary. ``promised`` is the (epsilon, delta) accounted for a whole
    training, ``step`` that of one step of it."""

    key: str
    seed: int
    kinds: tuple[str, ...]
    secret: str
    data: str
    shields: tuple[Json, ...]  # the defenses in place
    unprotected: bool  # known to have none
    adversaries: tuple[str, ...]
    attack: str = ""
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    bounds: Mapping[str, float] = field(default_factory=dict)
    promised: tuple[float, float] | None = None
    step: tuple[float, float] | None = None
    failure: str = ""

    @property
    def defense(self) -> str:
        """In words."""
        shown = " + ".join(words(table) for table in self.shields)
        return shown or ("none" if self.unprotected else "not said")

    @property
    def adversary(self) -> str:
        return " or ".join(self.adversaries)


def results(folder: Path) -> list[Json]:
    """Every result of a folder, and one that says so for whatever its plan asks and nobody has run."""
    found = store.results(folder)
    try:
        document = tomllib.loads(store.plan(folder))
        defaults = document.pop("defaults", {})
        cells = [{**defaults, **cell} for cell in document.get("cell", ())]
        plan = Plan.model_validate({**document, "cell": cells})
    except (TypeError, ValueError, ValidationError):
        raise PlanError(
            f"the plan in {str(folder)!r} is none of ours; give a folder that an audit or a run wrote."
        ) from None
    asked = {cell.key(seed): (cell, seed) for cell in plan.cell for seed in plan.seeds}
    missing = [key for key in asked if key not in {result["key"] for result in found}]
    return found + [
        {"key": key, "seed": asked[key][1], "cell": asked[key][0].described, "error": "not run yet"}
        for key in missing
    ]


def readings(result: Json) -> list[Reading]:
    """Everything that one result says."""
    cell = _table(result.get("cell"))
    game = _table(cell.get("game"))
    told = tuple(_named((cell.get("defense"), game.get("upload"), game.get("guard"))))
    recorded = game.get("name") == "RecordingAudit"
    unprotected = not told and game.get("virtual", 1) == 1 and not recorded
    seed = result.get("seed")
    about = Reading(
        key=str(result.get("key", "")),
        seed=seed if isinstance(seed, int) else 0,
        kinds=KINDS.get(str(game.get("name")), (str(game.get("name")),)),
        secret=EVERY,
        data=source(cell | {"data": _table(cell.get("data"))}),
        shields=told,
        unprotected=unprotected,
        adversaries=("adaptive", "static") if unprotected else _adversary(cell, game),
    )
    kind = next((kind for kind in MEASURED if result.get(kind)), None)
    if result.get("error") or kind is None:
        reason = str(result.get("error") or "nothing was measured").rstrip(".")
        return [replace(about, secret=secret, failure=reason) for secret in _asked(game)]
    found = list(_READERS[kind](about, result))
    return found or [replace(about, failure="nothing was measured")]


def _accounted(promise: Json) -> Any:
    """What an accountant says of one record's privacy against whoever sees uploads; noise on a mean of
    clients says nothing of that."""
    told = promise.get("unit", "record") != "mean"
    return _promise(promise.get("run"), promise.get("delta")) if told else _promise(None, None)


def _game(about: Reading, result: Json) -> Iterator[Reading]:
    """A game on gradients."""
    secret, bounds = _table(result.get("secret")), _table(result.get("bounds"))
    promise = _table(result.get("guarantee"))
    attack = _table(_table(result.get("cell")).get("attack"))
    about = replace(
        about,
        kinds=(str(secret["kind"]),) if secret.get("kind") else about.kinds,
        secret=str(secret.get("column", EVERY)),
        attack=words(attack),
        bounds={
            name: float(bounds[f"{name}_bound"])
            for name in ("advantage", "information")
            if _finite(bounds.get(f"{name}_bound"))
        },
        promised=_accounted(promise),
    )
    two = len(secret.get("chances") or ()) == 2
    found = _evidence(result, roc=result.get("roc") if two else None)
    if (nats := _estimate(bounds.get("information"))) is not None:
        found["information"] = normal(nats)
    yield _whole(about, found, ("advantage", "auroc"))


def _audited(about: Reading, result: Json) -> Iterator[Reading]:
    """An attribute's epsilon in one step of DP-SGD: a lower limit that trials certify."""
    audit = _table(result.get("audit"))
    found: dict[str, Evidence] = {}
    certificate, delta = _estimate(audit.get("any")), audit.get("delta")
    if certificate is not None and _finite(delta):
        both = (certificate, _estimate(_table(audit.get("sure")).get("any")))
        ends = tuple((1 - one.level, one.low, None) for one in both if one is not None)
        found["epsilon"] = Stored(
            certificate.value, ends, certificate.n, certificate.method, delta=float(delta)
        )
    about = replace(
        about,
        secret=str(audit.get("attribute", EVERY)),
        attack=str(audit.get("statistic", "")),
        step=_promise(audit.get("exact"), delta),
    )
    yield _whole(about, found, ("epsilon",))


def _federation(about: Reading, result: Json) -> Iterator[Reading]:
    """Who was trained on, by every attack."""
    for entry in _rows(_table(result["membership"]).get("attacks")):
        alone = entry.get("clients") == 1  # a mean over clients has no count of its own
        found = _evidence(entry, roc=entry.get("roc") if alone else None)
        named = replace(about, secret="membership", attack=str(entry.get("attack", "")))
        yield _whole(named, found, ("auroc", "tpr_at_1%"))


def _layers(about: Reading, result: Json) -> Iterator[Reading]:
    """All layers at once, and each alone: whoever sees all may look at one."""
    about = replace(about, adversaries=("adaptive", "static") if about.unprotected else ("adaptive",))
    for row in _rows(_table(result["localisation"]).get("latent")):
        values = max(len(row.get("values") or ()), 1)
        entries = {"all layers": row.get("together"), **_table(row.get("layers"))}
        for name, entry in entries.items():
            table = _table(entry)
            found = _evidence({"estimates": table, "guessing": 1 / values, "sure": table.get("sure")})
            if (nats := _estimate(table.get("information"))) is not None:
                sure = _estimate(_table(table.get("sure")).get("information"))
                found["information"] = stored(nats, sure=sure)
            named = replace(about, secret=str(row.get("secret", EVERY)), attack=str(name))
            yield _whole(named, found, ("advantage", "auroc", "information"))


def _guarded(about: Reading, result: Json) -> Iterator[Reading]:
    """Attackers trained anew on a guard's representations, each record drawn once; and the one that the
    guard was trained against, who does not know the finished encoder."""
    for one in _rows(_table(result["guarding"]).get("judged")):
        secret = str(one.get("column") or one.get("secret") or EVERY)
        fresh = [entry for entry in _rows(one.get("attacks")) if entry.get("queries", 1) == 1]
        for entry, adversary in [*((e, "adaptive") for e in fresh), (one.get("stale"), "static")]:
            if not isinstance(entry, Mapping):
                continue
            named = replace(about, secret=secret, adversaries=(adversary,), attack=str(entry.get("name", "")))
            wanted = () if one.get("secret") == "reconstruction" else ("advantage", "auroc")
            yield _whole(named, _evidence(entry, roc=entry.get("roc")), wanted)


_READERS = {
    "estimates": _game,
    "audit": _audited,
    "membership": _federation,
    "localisation": _layers,
    "guarding": _guarded,
}


def _whole(reading: Reading, found: Mapping[str, Evidence], wanted: tuple[str, ...]) -> Reading:
    """The reading with its numbers; failed where one that it must have is not there."""
    lacking = [name for name in wanted if name not in found]
    reason = f"no finite {' and '.join(lacking)}" if lacking else ""
    return replace(reading, evidence=dict(found), failure=reason)


def _evidence(entry: Json, *, roc: object = None) -> dict[str, Evidence]:
    """The measures of one attack; under ``sure`` some of them at a higher level."""
    table, wide, found = _table(entry.get("estimates")), _table(entry.get("sure")), {}
    names = ("advantage", "auroc", "tpr_at_1%")
    gain, area, rare = (_estimate(table.get(name)) for name in names)
    sure = {name: _estimate(wide.get(name)) for name in names}
    rate, base = _estimate(table.get("success", table.get("success_rate"))), entry.get("guessing")
    if gain is not None:
        hits = round(rate.value * rate.n) if rate is not None else None
        base = float(base) if _finite(base) else 1.0
        found["advantage"] = counted(gain, base=base, hits=hits, sure=sure["advantage"])
    if area is not None:
        found["auroc"] = ranked(area, sure=sure["auroc"])
    if rare is not None:
        found["tpr_at_1%"] = curved(rare, roc, fpr=0.01, sure=sure["tpr_at_1%"])
    return found


def _estimate(table: object) -> Estimate | None:
    """A stored estimate, if it is one: finite, its ends in order, its level a level."""
    if not isinstance(table, Mapping) or not all(
        _finite(table.get(key)) for key in ("value", "low", "high", "level", "n")
    ):
        return None
    value, low, high, level = (float(table[key]) for key in ("value", "low", "high", "level"))
    if not (low <= high and 0 < level < 1 and table["n"] >= 1):
        return None
    return Estimate("", value, low, high, level, int(table["n"]), str(table.get("method", "")))


def _adversary(cell: Json, game: Json) -> tuple[str, ...]:
    """Attacks on a federation are not told of its defense; those on a guard are."""
    if game.get("name") in ("MembershipAudit", "RecordingAudit"):
        return ("static",)
    knows = game.get("name") in ("GuardAudit", "LayerAudit", "AttributeAudit") or bool(cell.get("adaptive"))
    return ("adaptive",) if knows else ("static",)


def _asked(game: Json) -> list[str]:
    """The secrets that a cell was to be about."""
    if game.get("name") in ("MembershipAudit", "RecordingAudit"):
        return ["membership"]
    guard = _table(game.get("guard"))
    sources = (game, guard, *_rows(guard.get("guards")))
    found = [str(t[k]) for t in sources for k in ("secret", "column", "user", "attribute") if t.get(k)]
    several = game.get("secrets")
    found += [str(name) for name in several] if isinstance(several, list | tuple) else []
    return found or [EVERY]


def _named(tables: tuple[object, ...]) -> Iterator[Json]:
    """Every defense among them, those inside others too."""
    for table in tables:
        if isinstance(table, Mapping) and table.get("name"):
            yield table
            inner = [table.get(key) for key in ("defenses", "guards")]
            yield from _named(tuple(one for part in inner if isinstance(part, list | tuple) for one in part))


def _promise(epsilon: object, delta: object) -> tuple[float, float] | None:
    return (float(epsilon), float(delta)) if _finite(epsilon) and _finite(delta) else None


def _finite(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _table(value: object) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _rows(value: object) -> list[Json]:
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list | tuple) else []
