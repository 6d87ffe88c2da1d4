"""A federation trained for its audit: dealt, trained, recorded, and attacked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from torch import nn

from leakscope.core import Attack, Defense, Params
from leakscope.dataset import Dataset, joined
from leakscope.defenses.training import MixupMMD
from leakscope.errors import ArgumentError, DataError, require
from leakscope.measures.utility import accuracy, majority
from leakscope.membership.judged import Roster, Seen, Watched, judged, sizes
from leakscope.models import Architecture, build
from leakscope.recording import Recorder, Recording
from leakscope.rng import seeded
from leakscope.training import Local, federate, logits, shards


@dataclass(frozen=True)
class MembershipAudit:
    """How well the updates of a federation tell who was trained on, client by client (paper 002).

    ``clients`` hold ``size`` records each, dealt ``how`` `training.shards` does, and train as ``local``
    says; the ``attacks`` are tried on ``scored`` of them (None: all). Of the records nobody trains on,
    ``known`` are the adversary's own, ``held`` set the thresholds, ``validation`` are the clients' for a
    defense that needs some, and the rest are judged. ``seen`` and ``centred`` are `RecordedChannel`'s;
    the rest is `training.federate`'s.
    """

    attacks: tuple[Attack, ...]
    local: Local
    clients: int = 10
    size: int = 300
    scored: int | None = None
    known: int = 600
    held: int = 400
    validation: int = 0
    how: Literal["iid", "dirichlet", "user"] = "iid"
    alpha: float = 0.5
    column: str | None = None
    seen: Seen = "uploads"
    centred: bool = False
    fraction: float = 1.0
    weighted: bool = True
    server_rate: float = 1.0
    upload: Defense | None = None
    virtual: int = 1
    repartition: bool = False

    kind = "membership"

    def __post_init__(self) -> None:
        require(len(self.attacks) > 0, "MembershipAudit.attacks", "at least one", self.attacks)
        for name in ("clients", "size", "known", "held"):
            require(getattr(self, name) >= 1, f"MembershipAudit.{name}", "at least 1", getattr(self, name))
        require(self.validation >= 0, "MembershipAudit.validation", "at least 0", self.validation)
        scored = self.clients if self.scored is None else self.scored
        require(1 <= scored <= self.clients, "MembershipAudit.scored", "from 1 to all clients", scored)


def roster(audit: MembershipAudit, data: Dataset, rng: torch.Generator) -> Roster:
    """The records dealt, repetitions left out, scaled by the members' statistics."""
    data = data.distinct()
    apart = audit.known + audit.held + audit.validation
    if audit.how == "user":
        private, rest = _people_apart(data, audit, rng)
    else:
        order = torch.randperm(len(data), generator=rng)
        wanted = audit.clients * audit.size
        private, rest = data.take(order[:wanted]), data.take(order[wanted:])
        if len(private) < wanted or len(rest) < apart + 2:
            raise DataError(
                f"{data.name}: {audit.clients} clients of {audit.size} records and {apart} records of "
                f"nobody leave {len(data) - wanted - apart} of {len(data)} different records to judge; ask "
                f"for fewer."
            )
    size = None if audit.how == "user" else audit.size
    members = shards(
        private, audit.clients, rng, how=audit.how, alpha=audit.alpha, column=audit.column, size=size
    )
    cuts = rest.take(torch.randperm(len(rest), generator=rng))
    sizes = (audit.known, audit.held, audit.validation, len(rest) - apart)
    known, held, validation, others = (
        cuts.take(part).standardised(private) for part in torch.arange(len(rest)).split(sizes)
    )
    scaled = tuple(member.standardised(private) for member in members)
    return Roster(scaled, known, held, others, validation if audit.validation else None)


def _people_apart(data: Dataset, audit: MembershipAudit, rng: torch.Generator) -> tuple[Dataset, Dataset]:
    """Whole people are members or not; as many as it takes for the non-members, and two judged, are not."""
    if audit.column is None:
        raise ArgumentError("MembershipAudit.column must name the column of people where how is 'user'.")
    codes = data.secret(audit.column)
    people = codes.unique()
    people = people[torch.randperm(len(people), generator=rng)]
    counts = torch.bincount(codes)[people].cumsum(0)
    apart = audit.known + audit.held + audit.validation + audit.size
    cut = int((counts < apart).sum()) + 1
    if len(people) - cut < audit.clients:
        raise DataError(
            f"{data.name}: {apart} records of nobody take {cut} of the {len(people)} values of "
            f"{audit.column!r} and leave fewer than {audit.clients} for the clients; ask for fewer."
        )
    outside = torch.isin(codes, people[:cut])
    return data.take((~outside).nonzero()[:, 0]), data.take(outside.nonzero()[:, 0])


@contextmanager
def recorded(
    audit: MembershipAudit,
    model: nn.Module,
    who: Roster,
    *,
    rounds: int,
    observed: Sequence[int],
    defense: Defense,
    rng: torch.Generator,
) -> Iterator[tuple[Recording, tuple[Params, ...]]]:
    """The federation, trained: what was observed of it as a recording that goes with the block."""
    if isinstance(defense, MixupMMD) and defense.held is None:
        defense = replace(defense, held=who.validation)
    with TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder) / "run", model, model_name=type(model).__name__)
        scored = audit.clients if audit.seen == "sum" else audit.scored or audit.clients
        history = federate(
            model,
            who.members,
            rounds=rounds,
            rng=rng,
            local=audit.local,
            fraction=audit.fraction,
            weighted=audit.weighted,
            server_rate=audit.server_rate,
            defense=defense,
            upload=audit.upload,
            virtual=audit.virtual,
            repartition=audit.repartition,
            recorder=_Observer(recorder, frozenset(observed), scored),
        )
        yield Recording(Path(folder) / "run"), history


@dataclass(frozen=True, eq=False)
class _Observer:
    """Records what is observed, and nothing else: the chosen rounds and what they lead to."""

    recorder: Recorder
    rounds: frozenset[int]
    clients: int

    def global_model(self, r: int, params: Params) -> None:
        if r in self.rounds or r - 1 in self.rounds:
            self.recorder.global_model(r, params)

    def update(
        self, r: int, client: int, params: Params, *, samples: int, rate: float | None, steps: int | None
    ) -> None:
        if r in self.rounds and client < self.clients:
            self.recorder.update(r, client, params, samples=samples, rate=rate, steps=steps)


def audited(
    audit: MembershipAudit,
    architecture: Architecture,
    data: Dataset,
    *,
    rounds: int,
    observed: Sequence[int],
    defense: Defense,
    trials: int,
    seed: int,
) -> tuple[dict[str, Any], nn.Module]:
    """What the attacks found of a federation that was trained for it, and what it learned itself."""
    who = roster(audit, data, seeded(seed, "split"))
    model = build(architecture, who.members[0], seeded(seed, "model"), defense=defense)
    federation = recorded(
        audit, model, who, rounds=rounds, observed=observed, defense=defense, rng=seeded(seed, "training")
    )
    with federation as (recording, history):
        count = audit.clients if audit.seen != "uploads" else audit.scored or audit.clients
        watched = Watched(
            recording,
            evaluated(model, history),
            tuple(str(c) for c in range(count)),
            tuple(observed) if audit.seen == "broadcast" else (),  # no other uploads are recorded
            audit.seen,
            audit.centred,
        )
        found = judged(audit.attacks, watched, who, trials=trials, seed=seed)
    trained = joined(who.members)
    utility = {
        "accuracy": asdict(accuracy(logits(model, history[-1], who.others), who.others.y)),
        "trained": asdict(accuracy(logits(model, history[-1], trained), trained.y)),
        "majority": majority(who.others.y),
    }
    return {"membership": {"attacks": found} | sizes(who, watched), "utility": utility}, model


def evaluated(model: nn.Module, history: Sequence[Params]) -> nn.Module:
    """The model as candidates are passed through it: in evaluation mode, with the last statistics."""
    still = deepcopy(model).eval()
    still.load_state_dict({**still.state_dict(), **history[-1]})
    return still
