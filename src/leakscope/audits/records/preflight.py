"""Which numbers of records can be read out of a release, before anything is trained: a rehearsal of the
attack on records of one's own, at the model as it starts, and what closes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from leakscope.attacks.recovery import Recovery
from leakscope.attacks.row_space import RowSpace
from leakscope.core.dataset import Dataset
from leakscope.core.errors import require
from leakscope.core.nouns import Defense, Knowledge, View
from leakscope.core.rng import seeded
from leakscope.defenses.gradient import HalfPrecision, Pruning, Sign
from leakscope.games import Reconstruction
from leakscope.games.channels import GradientChannel, Summed, UpdateChannel
from leakscope.measures.records import match, transcribe
from leakscope.models import layers_of, parameters
from leakscope.training import Local

HALF = 0.5  # of records that come back, from which a number of them is called recoverable
TRIES = 4  # releases that are rehearsed for each number of records
CHANGES: Mapping[
    str, Defense
] = {  # of what is sent, that are rehearsed for the largest number of records of which some are read
    "bfloat16": HalfPrecision("bfloat16"),
    "float16": HalfPrecision("float16"),
    "90% of entries pruned": Pruning(0.9),
    "99% of entries pruned": Pruning(0.99),
    "signs alone": Sign(),
}


@dataclass(frozen=True)
class Foreseen:
    """What a rehearsal of releases of so many ``records`` says: the ``share`` that came back, the median
    ``rank`` of the first layer, ``searched``: whether the search went through all branches in every release,
    and ``noise``: the standard deviation of noise on every entry that would drown the weakest direction."""

    records: int
    share: float
    rank: float
    searched: bool
    noise: float

    @property
    def recoverable(self) -> bool:
        return self.share >= HALF

    @property
    def reason(self) -> str:
        """In words."""
        if self.share > 0:
            return "recoverable" if self.recoverable else "read in part"
        if self.rank < self.records:
            return "not read: the first layer's rank is below the number of records"
        if not self.searched:
            return "not read: the search stops at its bound"
        return "not read: rounding hides the records"


@dataclass(frozen=True)
class Preflight:
    """What is foreseen for every number of records, the smallest first, of a first layer of so many
    ``units``; ``uploads``: after local training, else gradients. ``changed``: the share that came back of the
    largest number of records of which some are read, with each of the changes to what is sent."""

    sizes: tuple[Foreseen, ...]
    units: int
    uploads: bool
    changed: tuple[tuple[str, float], ...] = ()

    @property
    def lines(self) -> list[str]:
        """In words, for people."""
        kind = "upload" if self.uploads else "gradient"
        told = [
            f"{one.records} records behind one {kind}: {one.reason} ({one.share:.0%} came back in rehearsal, "
            f"rank {one.rank:g})."
            for one in self.sizes
        ]
        return [
            *told,
            *self._closes(),
            "Nothing was trained: measure it by the same command without --preflight.",
        ]

    def _closes(self) -> list[str]:
        """What would close it, as far as algebra says."""
        read = [one for one in self.sizes if one.share > 0]
        if not read:
            return ["No number of records that was tried is read; that does not show that none can be."]
        most = read[-1]
        beyond = [one.records for one in self.sizes if one.records > most.records]
        batch = (
            f"{beyond[0]} records behind each" if beyond else f"more than {most.records} records behind each"
        )
        return [
            f"What stops this attack on {most.records} records; another may go on, so measure it before you "
            f"rely on it:",
            f"- far fewer than {most.records} units in the first layer, which has {self.units}: not all can "
            f"then be read;",
            f"- {batch};",
            f"- noise of a standard deviation of {most.noise:.2g} or more on every entry: the weakest "
            "records go first, and ten times as much hides most;",
            "- the first layer kept local: this attack reads no other.",
            f"Of {most.records} records so many came back in rehearsal, with what is sent changed: "
            + "; ".join(f"{name}, {share:.0%}" for name, share in self.changed)
            + ".",
            "Not known: Adam in place of SGD, whose uploads this attack does not read. --attack SpanMatching "
            "reads those of few steps.",
        ]


def foresee(
    model: nn.Module,
    public: Dataset,
    batches: Sequence[int],
    *,
    local: Local | None = None,
    clients: int = 1,
    attack: RowSpace | None = None,
    seed: int = 0,
) -> Preflight:
    """A rehearsal with public records alone, at the model's own weights."""
    require(len(batches) > 0, "foresee.batches", "at least one", batches)
    rounds, attack = (parameters(model),), attack or RowSpace()

    def rehearse(batch: int, defense: Defense) -> tuple[Recovery, float]:
        """What came of some releases, and the share of records that came back."""
        alone = GradientChannel(model, rounds, defense)
        if local is not None:
            alone = UpdateChannel(model, rounds, defense, local=local)
        channel = Summed(alone, clients) if clients > 1 else alone
        game = Reconstruction(public, batch=batch * clients, labels=False)
        rng = seeded(seed, "preflight", batch)
        view, secrets = game.deal(channel, TRIES, rng)
        found = attack.recover(Knowledge(game, channel), View(view.releases), rng)
        right = match(transcribe(secrets, found.records, found.status), public).exact
        return found, float(right.double().mean())

    shape = rounds[0][f"{next(iter(layers_of(model)))}.weight"].shape
    sizes = []
    for batch in sorted(set(batches)):
        found, share = rehearse(batch, Defense())
        sizes.append(
            Foreseen(
                records=batch * clients,
                share=share,
                rank=float(found.ranks.double().median()),
                searched=not bool((found.stopped | (found.free > 0)).any()),
                noise=_drowning(found, sum(side**0.5 for side in shape)),
            )
        )
    read = [one.records for one in sizes if one.share > 0]
    changes: Mapping[str, Defense] = CHANGES if read else {}
    changed = tuple((name, rehearse(read[-1] // clients, change)[1]) for name, change in changes.items())
    return Preflight(tuple(sizes), shape[0], local is not None, changed)


def _drowning(found: Recovery, edge: float) -> float:
    """The deviation whose largest singular value is the smallest that a release has, by the Bai-Yin edge."""
    return float(found.weakest.median()) / edge if bool((found.ranks > 0).any()) else 0.0


def list_public(records: Dataset, most: int = 2_000, seed: int = 0) -> Dataset:
    """Some records, scaled by themselves: those that a preflight rehearses with."""
    rows = torch.randperm(len(records), generator=seeded(seed, "preflight"))[:most]
    some = records.take(rows)
    return some.standardised(some)
