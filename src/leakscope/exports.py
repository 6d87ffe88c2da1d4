"""The numbers of results for other programs: `results.csv` and `results.json`, a row for every cell, seed
and measure.

Both hold aggregates only: no record, no picture, no score of a person. Errors stand in them as they were
told. The JSON is described by `results.schema.json`. What was found round by round, and curves, stay in the
files of the results.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from leakscope import store
from leakscope.averages import Json, finite
from leakscope.plan import WORDS
from leakscope.sections import words
from leakscope.summary import source, stable

FORMAT = 1  # of both files: a change of meaning changes it
CHANCE = {"advantage": 0.0, "auroc": 0.5, "information": 0.0}  # by guessing alone
FORMULAS = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")  # how what a spreadsheet runs begins
TOLD = ("MembershipAudit", "RecordingAudit")  # whose attacks are not told of a defense


@dataclass(frozen=True)
class Number:
    """One measure of one cell and seed, or the error that it failed with.

    ``cell`` is the same for every seed of a cell, ``key`` is the name of one result. ``about`` says what is
    measured: leakage, utility, a baseline that needs no defense, a bound that holds for every adversary, a
    protection that was tried, or a diagnostic. ``part`` tells apart what one result measures several times:
    attacks, layers, heads. ``guessing`` is what the measure is without any release."""

    key: str
    id: str
    cell: str
    data: str
    game: str
    secret: str
    attack: str
    defense: str
    adaptive: bool | None  # None: there is no defense to know of
    seed: int
    about: str = "leakage"
    part: str = ""
    measure: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    level: float | None = None
    n: int | None = None
    method: str = ""
    guessing: float | None = None
    error: str = ""


COLUMNS = tuple(field.name for field in fields(Number))


def numbers(result: Json) -> list[Number]:
    """Every number of one result, or its error."""
    cell = result["cell"]
    game = cell.get("game") or {}
    shield = _shield(cell)
    meaning = {key: value for key, value in cell.items() if key not in WORDS}
    about = Number(
        key=str(result["key"]),
        id=str(cell.get("id") or ""),
        cell=hashlib.sha256(stable(meaning).encode()).hexdigest()[:16],
        data=source(cell),
        game=str(game.get("name", "")),
        secret=_asked(game),
        attack=words(cell.get("attack") or {}),
        defense=shield,
        adaptive=_aware(cell) if shield else None,
        seed=int(result["seed"]),
    )
    if result.get("error"):
        return [replace(about, error=str(result["error"]))]
    kind = next((kind for kind in _READERS if result.get(kind)), None)
    found = list(_READERS[kind](about, result)) if kind else []
    return found or [replace(about, error="no finite number")]


def as_csv(found: Iterable[Number]) -> str:
    """A table with a head. Text that a spreadsheet would run as a formula is set off by an apostrophe."""
    held = io.StringIO()
    table = csv.writer(held)
    table.writerow(COLUMNS)
    for number in found:
        table.writerow([harmless(value) for value in asdict(number).values()])
    return held.getvalue()


def harmless(value: object) -> object:
    """A value as a cell of a spreadsheet: never a formula, and true and false in small letters."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}" if isinstance(value, str) and value.lstrip(" ").startswith(FORMULAS) else value


def as_json(found: Iterable[Number], *, title: str) -> str:
    """A document that `results.schema.json` describes."""
    document = {"format": FORMAT, "title": title, "numbers": [asdict(number) for number in found]}
    return json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def write(folder: Path, results: Sequence[Json], *, title: str) -> None:
    """Both files, beside the results they are of."""
    found = [number for result in results for number in numbers(result)]
    store.write(folder / "results.csv", as_csv(found))
    store.write(folder / "results.json", as_json(found, title=title))


def _shield(cell: Json) -> str:
    """The defenses in place, in words."""
    game = cell.get("game") or {}
    virtual = game.get("virtual") or 1
    parts = [words(table) for table in (cell.get("defense"), game.get("upload"), game.get("guard")) if table]
    return " + ".join(parts + ([f"{virtual} virtual clients"] if virtual != 1 else []))


def _aware(cell: Json) -> bool:
    """Whether the adversary knows of the defense; whoever attacks a guard, or audits a mechanism, does."""
    game = cell.get("game") or {}
    if game.get("name") in TOLD:
        return False
    return game.get("name") in ("GuardAudit", "LayerAudit", "AttributeAudit") or bool(cell.get("adaptive"))


def _asked(game: Json) -> str:
    """The secret that a plan names."""
    if game.get("name") in TOLD:
        return "membership"
    guard = game.get("guard") or {}
    named = (game.get(key) for key in ("secret", "column", "user", "attribute"))
    several = ", ".join(str(name) for name in game.get("secrets") or ())
    return str(
        next((name for name in named if name), several or guard.get("column") or guard.get("secret", ""))
    )


def _measured(
    about: Number, table: Json | None, guessing: Mapping[str, float | None] | None = None
) -> Iterator[Number]:
    """A row for every finite estimate of a table."""
    for name, estimate in (table or {}).items():
        if isinstance(estimate, Mapping) and finite(estimate):
            measure = "success" if name == "success_rate" else str(name)
            yield replace(
                about,
                measure=measure,
                value=float(estimate["value"]),
                low=float(estimate["low"]),
                high=float(estimate["high"]),
                level=float(estimate.get("level", 0.95)),
                n=int(estimate["n"]) if estimate.get("n") is not None else None,
                method=str(estimate.get("method", "")),
                guessing={**CHANCE, **(guessing or {})}.get(measure, _rare(measure)),
            )


def _rare(measure: str) -> float | None:
    """What guessing finds at a rate of false alarms; of a likelihood ratio, 1."""
    if measure.startswith("plr_at_"):
        return 1.0
    kept = measure.startswith(("tpr_at_", "conformal_"))
    return round(float(measure.rpartition("_")[2].rstrip("%")) / 100, 12) if kept else None


def _plain(about: Number, measure: str, value: object) -> Iterator[Number]:
    """A number that has no interval, because it is computed and not estimated."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        yield replace(about, measure=measure, value=float(value), method="computed")


def _worth(about: Number, utility: Json | None) -> Iterator[Number]:
    table = utility or {}
    majority = table.get("majority")
    yield from _measured(replace(about, about="utility"), table, {"accuracy": majority})


def _game(about: Number, result: Json) -> Iterator[Number]:
    secret, limits = result.get("secret") or {}, result.get("bounds") or {}
    about = replace(about, secret=str(secret.get("column") or about.secret))
    yield from _measured(about, result.get("estimates"), {"success": result.get("guessing")})
    yield from _measured(about, {"information": limits.get("information")})
    bound = replace(about, about="bound")
    for name in ("advantage_bound", "accuracy_bound", "information_bound"):
        yield from _plain(bound, name, limits.get(name))
    promise = result.get("guarantee") or {}
    for name in ("run", "step", "delta"):
        yield from _plain(bound, f"guarantee_{name}", promise.get(name))
    yield from _worth(about, result.get("utility"))


def _audit(about: Number, result: Json) -> Iterator[Number]:
    """Certified: at least ``low``. An attack never shows how large an epsilon is at most: no ``high``."""
    audit = result["audit"]
    about = replace(
        about, secret=str(audit.get("attribute") or about.secret), attack=str(audit.get("statistic", ""))
    )
    for name in ("any", "gaussian"):
        for number in _measured(about, {f"epsilon_{name}": audit.get(name)}):
            yield replace(number, high=None, guessing=0.0)
    for name in ("exact", "exact_added", "classical", "delta"):
        yield from _plain(
            replace(about, about="bound"), f"epsilon_{name}" if name != "delta" else name, audit.get(name)
        )
    for name in ("point", "saturation", "distance"):
        yield from _plain(replace(about, about="diagnostic"), name, audit.get(name))


def _federation(about: Number, result: Json) -> Iterator[Number]:
    for entry in result["membership"].get("attacks") or ():
        name = str(entry.get("attack", ""))
        yield from _measured(replace(about, attack=name, part=name), entry.get("estimates"))
    yield from _worth(about, result.get("utility"))


def _layers(about: Number, result: Json) -> Iterator[Number]:
    found = result["localisation"]
    for row in found.get("latent") or ():
        one = replace(about, secret=str(row.get("secret", "")))
        for name, risk in {"all layers": row.get("together"), **(row.get("layers") or {})}.items():
            yield from _measured(replace(one, part=str(name)), risk)
        yield from _measured(replace(one, about="baseline", part="counts of labels"), row.get("labels"))
        aside = replace(one, about="diagnostic")
        for name, table in (row.get("subspace") or {}).items():
            yield from _measured(replace(aside, part=str(name)), {"subspace_distance": table.get("distance")})
        for name, table in (row.get("two_sample") or {}).items():
            yield from _measured(
                replace(aside, part=str(name)), {"two_sample_log_ratio": table.get("log_ratio")}
            )
    rebuilt = found.get("original") or {}
    inputs = replace(about, secret="the inputs", attack=str(rebuilt.get("attack") or about.attack))
    for name, table in (rebuilt.get("sets") or {}).items():
        yield from _measured(replace(inputs, part=str(name)), table)
    yield from _layer_studies(about, found)
    yield from _worth(about, result.get("utility"))


def _layer_studies(about: Number, found: Json) -> Iterator[Number]:
    """Of a model's layers: what was tried to protect them, and what was measured without an attack."""
    tried: Counter[tuple[str, str]] = Counter()  # noise of several strengths is told apart by its turn
    for row in found.get("protection") or ():
        layers = ", ".join(str(name) for name in row.get("layers") or ())
        secret, part = str(row.get("secret", "")), f"{row.get('measure', '')} {layers}".strip()
        tried[secret, part] += 1
        turn = f" ({tried[secret, part]})" if tried[secret, part] > 1 else ""
        taken = replace(about, about="protection", secret=secret, part=part + turn)
        yield from _measured(taken, row)
        yield from _plain(taken, "noise_std", row.get("std"))
    aside = replace(about, about="diagnostic")
    for norm, layers in (found.get("sensitivity") or {}).items():
        for name, estimate in layers.items():
            yield from _measured(replace(aside, part=str(name)), {f"sensitivity_{norm}": estimate})
    for target, layers in (found.get("mutual") or {}).items():
        for name, estimate in layers.items():
            yield from _measured(replace(aside, part=str(name)), {f"information_{target}": estimate})


def _guard(about: Number, result: Json) -> Iterator[Number]:
    for row in result["guarding"].get("judged") or ():
        one = replace(about, secret=str(row.get("column") or row.get("secret") or about.secret))
        yield from _attacked(one, row.get("attacks"))
        yield from _attacked(one, row.get("single"), "single records, ")
        stale = [row["stale"]] if row.get("stale") else []
        yield from _attacked(replace(one, about="diagnostic"), stale)
        yield from _heads(replace(one, about="utility"), row.get("utility"))
        for plain in row.get("baselines") or ():
            name = str(plain.get("baseline", ""))
            yield from _attacked(replace(one, about="baseline"), plain.get("attacks"), f"{name}, ")
            yield from _heads(replace(one, about="baseline"), plain.get("utility"), f"{name}, ")
        promise, aside = row.get("guarantee") or {}, replace(one, about="diagnostic")
        yield from _plain(replace(one, about="bound"), "accuracy_bound", promise.get("bound"))
        yield from _measured(aside, {"conditional_entropy": promise.get("entropy")})
        for name, estimate in (row.get("information") or {}).items():
            yield from _measured(replace(aside, part=str(name)), {"information": estimate})


def _attacked(about: Number, entries: Iterable[Json] | None, before: str = "") -> Iterator[Number]:
    for entry in entries or ():
        draws = f", {entry['queries']} draws averaged" if entry.get("queries", 1) != 1 else ""
        one = replace(
            about, attack=str(entry.get("attack", "")), part=f"{before}{entry.get('name', '')}{draws}"
        )
        yield from _measured(one, entry.get("estimates"), {"success": entry.get("guessing")})


def _heads(about: Number, utility: Json | None, before: str = "") -> Iterator[Number]:
    table = utility or {}
    for name in ("fresh", "own"):
        one = replace(about, part=f"{before}{name} head")
        yield from _measured(one, table.get(name), {"accuracy": table.get("majority")})


_READERS = {
    "estimates": _game,
    "audit": _audit,
    "membership": _federation,
    "localisation": _layers,
    "guarding": _guard,
}
