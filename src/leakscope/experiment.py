"""One cell, one seed: split, train the victim, play, measure. A result is a plain dictionary."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import torch
from torch import nn

from leakscope import data as sources
from leakscope import judged
from leakscope.channels import GradientChannel
from leakscope.core import Defense, Estimate, Game, Knowledge, Params, Transcript, behind
from leakscope.dataset import Dataset
from leakscope.defenses.dpsgd import DPSGD
from leakscope.errors import DataError
from leakscope.games import Distribution, UserInference
from leakscope.guarding import GuardAudit
from leakscope.localisation import LayerAudit
from leakscope.measures.shuffled import shuffled
from leakscope.measures.success import advantage, auroc, guessing, roc, success_rate, tpr_at_fpr
from leakscope.measures.utility import accuracy, majority, task_auroc
from leakscope.membership import RecordingAudit
from leakscope.membership.simulated import audited
from leakscope.models import build, parameters
from leakscope.plan import FORMAT, Cell, architecture, audits, construct, federated, guards, localises
from leakscope.referee import play
from leakscope.rng import seeded
from leakscope.training import fit, logits

Watch = Callable[[int, int], None]  # (done, of)


@dataclass(frozen=True, eq=False)
class Parts:
    """The records of a cell and a seed, split."""

    records: Dataset
    train: Dataset
    test: Dataset
    public: Dataset


@dataclass(frozen=True, eq=False)
class Setting(Parts):
    """What a cell and a seed play with: the split records, the game on the private ones and the
    adversary's game on the public ones."""

    game: Game
    rehearsal: Game


@dataclass(frozen=True, eq=False)
class Victim:
    """A model trained under its defense, and its parameters after every round."""

    model: nn.Module
    defense: Defense
    history: tuple[Params, ...]


def dataset(table: dict[str, Any]) -> Dataset:
    """The records a plan's ``data`` table names: a known name, ``csv`` or ``npz`` with a path; the
    columns in ``without`` are taken out of the inputs. ``by`` names the column whose values are split
    in place of records, such as a patient's number; ``train`` and ``public`` then count people."""
    options = {key: value for key, value in table.items() if key not in ("name", "without", "by", "sha256")}
    name = table["name"]
    if "sha256" in table and sources.files.sha256(table.get("path", "")) != table["sha256"]:
        raise DataError(f"{table.get('path')} has changed since the plan was written; audit it anew.")
    if name == "csv":
        records = sources.from_csv(**options)
    elif name == "npz":
        records = sources.from_npz(**options)
    else:
        records = sources.load(name, **options)
    return records.without(*table["without"]) if table.get("without") else records


def _split(cell: Cell, seed: int, records: Dataset | None) -> Parts:
    """By record, or, where the game is about people or the data says whose a record is, by person. Public
    records are balanced over the secret; those of a guard are drawn as they come, so that the guard learns
    from the population that it is used on, and is judged on it."""
    records = dataset(cell.data) if records is None else records
    game, playable = cell.game, records
    if game.get("user"):  # only those who can give two batches are split (paper 000, 5.1.4)
        playable = records.frequent(game["user"], 2 * game.get("batch", UserInference.batch))
    people = game.get("user") or game.get("people") or cell.data.get("by")
    secret = next((game[key] for key in ("secret", "column", "attribute") if game.get(key)), None)
    secret = next(iter(game.get("secrets", ())), secret)
    train, test, public = playable.split(
        seeded(seed, "split"),
        secret=None if people or guards(cell) else secret,
        by=people,
        train=cell.train,
        public=cell.public,
        standardise=not (guards(cell) or (localises(cell) and records.x.dim() == 4)),  # pictures: 0 to 1
    )
    return Parts(records, train, test, public)


def prepare(cell: Cell, seed: int, *, records: Dataset | None = None, trusted: Iterable[str] = ()) -> Setting:
    """Load and split the records and build the game on each part; nothing is trained yet."""
    parts = _split(cell, seed, records)
    game = construct(cell.game, "game", trusted=trusted, data=parts.train)
    return Setting(parts.records, parts.train, parts.test, parts.public, game, game.on(parts.public))


def layered(cell: Cell, seed: int, records: Dataset, *, trusted: Iterable[str] = ()) -> None:
    """Refuse an audit of layers that its records or its model cannot give; nothing is trained."""
    audit: LayerAudit = construct(cell.game, "audit", trusted=trusted)
    parts = _split(cell, seed, records)
    model = build(architecture(cell.model, trusted=trusted), parts.train, seeded(seed, "model"))
    audit.check(parts.train, parts.public, model)


def _victim(cell: Cell, seed: int, train: Dataset, trusted: Iterable[str]) -> Victim:
    defense = construct(cell.defense, "defense", trusted=trusted) if cell.defense else Defense()
    return _trained(cell, seed, train, trusted, defense)


def _trained(cell: Cell, seed: int, train: Dataset, trusted: Iterable[str], defense: Defense) -> Victim:
    model = build(architecture(cell.model, trusted=trusted), train, seeded(seed, "model"), defense=defense)
    history = fit(
        model,
        train,
        rounds=cell.rounds,
        rng=seeded(seed, "training"),
        rate=cell.training.rate,
        batch=cell.training.batch,
        defense=defense,
    )
    return Victim(model, defense, history)


def run(
    cell: Cell,
    seed: int,
    *,
    records: Dataset | None = None,
    trusted: Iterable[str] = (),
    watch: Watch | None = None,
) -> dict[str, Any]:
    """The result of one cell with one seed: of a game, or of an audit of DP-SGD's step or a federation.
    ``watch`` is told how far a long training has come."""
    start = time.perf_counter()
    if federated(cell):
        found = _federation(cell, seed, records, trusted)
        return found | {"seconds": round(time.perf_counter() - start, 2)}
    if guards(cell):
        found = _guarded(cell, seed, records, trusted, watch)
        return found | {"seconds": round(time.perf_counter() - start, 2)}
    parts = (
        _split(cell, seed, records) if audits(cell) else prepare(cell, seed, records=records, trusted=trusted)
    )
    victim = _victim(cell, seed, parts.train, trusted)
    if localises(cell):
        found = _localised(cell, seed, parts, victim, trusted)
    elif isinstance(parts, Setting):
        found = _played(cell, seed, parts, victim, trusted)
    else:
        found = _audited(cell, seed, parts, victim, trusted)
    return {
        "format": FORMAT,
        "key": cell.key(seed),
        "seed": seed,
        "cell": cell.described,
        **found,
        "data": _sizes(parts) | {"digest": parts.records.digest},
        "model": {"name": cell.model["name"], "parameters": _size(victim.model)},
        "versions": versions(),
        "seconds": round(time.perf_counter() - start, 2),
    }


def _guarded(
    cell: Cell, seed: int, records: Dataset | None, trusted: Iterable[str], watch: Watch | None
) -> dict[str, Any]:
    """What a guard's representations are worth, and what is found in them."""
    audit: GuardAudit = construct(cell.game, "audit", trusted=trusted)
    given = dataset(cell.data) if records is None else records
    members = any(secret == "membership" for secret, _, _ in audit.asked())
    used = given.distinct() if members else given  # none is member and non-member at once
    parts = _split(cell, seed, used)
    found = audit.run(
        parts.train,
        parts.test,
        parts.public,
        trials=cell.trials,
        rehearsals=cell.rehearsals,
        seed=seed,
        progress=(lambda epoch, epochs, _: watch(epoch + 1, epochs)) if watch else None,
    )
    return {
        "format": FORMAT,
        "key": cell.key(seed),
        "seed": seed,
        "cell": cell.described,
        "guarding": found | {"guard": cell.game["guard"]},
        "data": _sizes(parts) | {"digest": given.digest},
        "versions": versions(),
    }


def _federation(cell: Cell, seed: int, records: Dataset | None, trusted: Iterable[str]) -> dict[str, Any]:
    """What the updates of a federation, trained for it or recorded, tell about who was trained on."""
    audit = construct(cell.game, "audit", trusted=trusted)
    records = dataset(cell.data) if records is None else records
    built = architecture(cell.model, trusted=trusted)
    if isinstance(audit, RecordingAudit):
        model = build(built, records, seeded(seed, "model"))
        found = audit.run(model, records, trials=cell.trials, seed=seed)
    else:
        defense = construct(cell.defense, "defense", trusted=trusted) if cell.defense else Defense()
        found, model = audited(
            audit,
            built,
            records,
            rounds=cell.rounds,
            observed=cell.observed,
            defense=defense,
            trials=cell.trials,
            seed=seed,
        )
    return {
        "format": FORMAT,
        "key": cell.key(seed),
        "seed": seed,
        "cell": cell.described,
        **found,
        "guarantee": _promise(audit, cell.rounds, model),
        "data": {
            "name": records.name,
            "label": records.label,
            "records": len(records),
            "inputs": records.x[0].numel(),
            "classes": records.classes,
            "digest": records.digest,
        },
        "model": {"name": cell.model["name"], "parameters": _size(model)},
        "versions": versions(),
    }


def _promise(audit: Any, rounds: int, model: nn.Module) -> dict[str, Any] | None:
    """What the filter that a federation's clients run says of an upload, and of one in every round; nothing
    where something of the model passes it by."""
    filtered: Defense | None = getattr(audit, "upload", None)
    if filtered is None or not _covered(model):
        return None
    return judged.guaranteed(filtered, records=1, batch=1, rounds=rounds, entries=_size(model))


def _covered(model: nn.Module) -> bool:
    """Whether all that is sent of a model goes through a filter: numbers without a shape and running
    statistics do not."""
    statistics = any(buffer.is_floating_point() for buffer in model.buffers())
    return not statistics and all(tensor.dim() for tensor in parameters(model).values())


def _played(
    cell: Cell, seed: int, setting: Setting, victim: Victim, trusted: Iterable[str]
) -> dict[str, Any]:
    """What the adversary learned from the observed rounds, beside what the model is worth."""
    channel = GradientChannel(victim.model, tuple(victim.history[i] for i in cell.observed), victim.defense)
    channel = channel.prepared(setting.rehearsal, seeded(seed, "defense"))
    belief = channel if cell.adaptive else channel.undefended()
    knowledge = Knowledge(setting.rehearsal, belief, cell.rehearsals, setting.game.chances)
    attack = construct(cell.attack, "attack", trusted=trusted)
    transcript = play(setting.game, channel, attack, knowledge, trials=cell.trials, rng=seeded(seed, "play"))
    return {
        "secret": _secret(setting),
        **measure(transcript),
        "selfcheck": shuffled(transcript, drawn=True, rng=seeded(seed, "shuffle")),
        "bounds": judged.bounded(transcript, channel, behind(setting.game)),
        "guarantee": judged.guaranteed(
            victim.defense,
            records=len(setting.train),
            batch=cell.training.batch,
            rounds=cell.rounds,
            entries=_size(victim.model),
        )
        if _covered(victim.model)
        else None,
        "utility": _worth(victim, setting.test),
    }


def _worth(victim: Victim, test: Dataset) -> dict[str, Any]:
    """What the trained model is worth on records nobody trained on."""
    predicted = logits(victim.model, victim.history[-1], test)
    return {
        "accuracy": asdict(accuracy(predicted, test.y)),
        "auroc": asdict(task_auroc(predicted, test.y)),
        "majority": majority(test.y),
    }


def _localised(cell: Cell, seed: int, parts: Parts, victim: Victim, trusted: Iterable[str]) -> dict[str, Any]:
    """What each layer gives away; the victim is trained again under every protection that is tried."""
    audit: LayerAudit = construct(cell.game, "audit", trusted=trusted)

    def under(defense: Defense) -> tuple[GradientChannel, Estimate]:
        same = defense == victim.defense
        trained = victim if same else _trained(cell, seed, parts.train, trusted, defense)
        rounds = tuple(trained.history[i] for i in cell.observed)
        worth = accuracy(logits(trained.model, trained.history[-1], parts.test), parts.test.y)
        return GradientChannel(trained.model, rounds, defense), worth

    found = audit.run(
        parts.train,
        parts.public,
        under,
        victim.defense,
        rehearsals=cell.rehearsals,
        trials=cell.trials,
        seed=seed,
    )
    return {"localisation": found, "utility": _worth(victim, parts.test)}


def _audited(cell: Cell, seed: int, parts: Parts, victim: Victim, trusted: Iterable[str]) -> dict[str, Any]:
    """What DP-SGD's step at the model after the last round gives away about one attribute."""
    audit = construct(cell.game, "audit", trusted=trusted)
    defense = victim.defense
    assert isinstance(defense, DPSGD)  # checked with the plan
    crafted = audit.record(
        victim.model, victim.history[-1], parts.train, clip=defense.clip, rng=seeded(seed, "canary")
    )
    found = judged.played(audit, crafted, defense, trials=cell.trials, rng=seeded(seed, "play"))
    return {"audit": found | {"values": list(parts.train.value_names(audit.attribute))}}


def measure(transcript: Transcript) -> dict[str, Any]:
    """Everything a report says about one transcript."""
    rounds = 0 if transcript.rounds is None else len(transcript.rounds)
    return {
        "estimates": _named(
            success=success_rate(transcript),
            advantage=advantage(transcript),
            auroc=auroc(transcript),
            **{"tpr_at_1%": tpr_at_fpr(transcript), "tpr_at_0.1%": tpr_at_fpr(transcript, fpr=0.001)},
        ),
        "guessing": guessing(transcript),
        "rounds": [
            {"single": _brief(transcript.single(i)), "accumulated": _brief(transcript.after(i + 1))}
            for i in range(rounds)
        ],
        "roc": [list(point) for point in roc(transcript)],
    }


def _brief(transcript: Transcript) -> dict[str, Any]:
    return _named(success=success_rate(transcript), advantage=advantage(transcript), auroc=auroc(transcript))


def _named(**estimates: Estimate) -> dict[str, Any]:
    return {name: asdict(estimate) for name, estimate in estimates.items()}


def _secret(setting: Setting) -> dict[str, Any]:
    game: Any = setting.game
    column: str = getattr(game, "secret", "") or getattr(game, "column", "") or getattr(game, "user", "")
    if isinstance(game, Distribution):
        values = [game.trait]
    elif isinstance(game, UserInference):
        values = [f"candidate {i + 1}" for i in range(game.candidates)]
    else:
        values = list(setting.train.value_names(column))
    chances = [float(chance) for chance in game.chances]
    return {"kind": game.kind, "column": column, "values": values, "chances": chances, "batch": game.batch}


def _sizes(parts: Parts) -> dict[str, Any]:
    train, test, public = parts.train, parts.test, parts.public
    return {
        "name": train.name,
        "label": train.label,
        "records": len(train) + len(test) + len(public),
        "train": len(train),
        "test": len(test),
        "public": len(public),
        "inputs": train.x[0].numel(),
        "classes": train.classes,
    }


def _size(model: nn.Module) -> int:
    return sum(tensor.numel() for tensor in parameters(model).values())


def versions() -> dict[str, str]:
    """What ran."""
    return {
        "leakscope": version("leakscope"),
        "torch": torch.__version__,
        "scikit-learn": version("scikit-learn"),
        "numpy": version("numpy"),
        "python": platform.python_version(),
    }
