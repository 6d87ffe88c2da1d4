"""Games about a federation: who was trained on (paper 002), and what the clients' records share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from leakscope.core.dataset import Batch, Dataset, joined
from leakscope.core.errors import ArgumentError, DataError, require
from leakscope.core.nouns import Channel, Game, View


@dataclass(frozen=True, eq=False)
class Membership:
    """Tell whether a record was among those a client trained on.

    Half of the candidates are drawn from the client's records ``members`` and half from ``others`` that no
    client had, each at most once: of fewer than that, all. The adversary is given them, in any order and
    without what is private of them (view.public "candidates", rows (t, 1)).
    ``held`` are further non-members, which are scored like candidates and set the threshold; their
    secret is dealt as -1, and they count in no measure of success.
    """

    members: Dataset
    others: Dataset
    held: Dataset | None = None

    kind = "membership"
    batch = 1

    def __post_init__(self) -> None:
        names = ("members", "others", "held")
        parts = [self.members, self.others, *([self.held] if self.held is not None else [])]
        for name, part in zip(names, parts, strict=False):
            if part.x.shape[1:] != self.others.x.shape[1:]:
                raise DataError(
                    f"Membership.{name} must be as wide as the others, got records of shape "
                    f"{tuple(part.x.shape[1:])} and {tuple(self.others.x.shape[1:])}; encode both alike."
                )
        seen: dict[str, tuple[str, int]] = {}
        for name, part in zip(names, parts, strict=False):
            for i, key in enumerate(part.hashes):
                if seen.setdefault(key, (name, i))[0] != name:
                    other, j = seen[key]
                    raise DataError(
                        f"record {j} of Membership.{other} is also record {i} of Membership.{name}, and no "
                        f"member is a non-member; leave it out of one (Dataset.distinct drops such records)."
                    )

    @property
    def chances(self) -> Tensor:
        return torch.full((2,), 0.5, dtype=torch.float64)

    def on(self, data: Dataset) -> Membership:
        """What the adversary has of its own: records that are no members, and no others."""
        return Membership(data.take(torch.arange(0)), data)

    def deal(self, channel: Channel, trials: int, rng: torch.Generator) -> tuple[View, Tensor]:
        require(trials >= 2, "Membership.deal: trials", "at least 2", trials)
        shares = (min(trials // 2, len(self.members)), min(trials - trials // 2, len(self.others)))
        if len(self.members) == 0:
            shares = (0, min(trials, len(self.others)))
        parts = [
            part.take(torch.randperm(len(part), generator=rng)[:n])
            for part, n in zip((self.members, self.others), shares, strict=True)
        ]
        secrets = torch.tensor([1, 0]).repeat_interleave(torch.tensor(shares))
        if self.held is not None:
            parts.append(self.held)
            secrets = torch.cat([secrets, torch.full((len(self.held),), -1)])
        order = torch.randperm(len(secrets), generator=rng)
        dealt, secrets = replace(joined(parts).take(order), private={}), secrets[order]
        batch = Batch(dealt, torch.arange(len(dealt))[:, None])
        return View(channel(batch, secrets, rng), {"candidates": batch}), secrets


@dataclass(frozen=True, eq=False)
class Around:
    """A game that deals another ``game`` in its own way, and leaves the rest to it."""

    game: Game

    @property
    def batch(self) -> int:
        return self.game.batch

    @property
    def chances(self) -> Tensor:
        return self.game.chances

    def on(self, data: Dataset) -> Game:
        return self.game.on(data)


@dataclass(frozen=True, eq=False)
class Clients(Around):
    """Tell the secret of every client of a recording: its updates are the trials of a game.

    ``game`` says what is asked (`Inference`, `Distribution`, `UserInference`) and is what the adversary
    rehearses on public records; ``secrets`` hold the truth, one for each client of the `RecordedChannel`;
    ``shown`` is what else the adversary is given of each (`UserInference`: candidates and people).
    """

    secrets: tuple[int, ...]
    shown: Mapping[str, Tensor | Batch] = field(default_factory=dict)

    def __post_init__(self) -> None:
        m = len(self.game.chances)
        require(len(self.secrets) > 0, "Clients.secrets", "one for each client", self.secrets)
        require(all(0 <= s < m for s in self.secrets), "Clients.secrets", f"from 0 to {m - 1}", self.secrets)

    @property
    def kind(self) -> str:
        """What the papers call it."""
        return str(getattr(self.game, "kind", "secret"))

    def deal(self, channel: Channel, trials: int, rng: torch.Generator) -> tuple[View, Tensor]:
        if trials != len(self.secrets):
            raise ArgumentError(
                f"Clients.deal: trials must be the number of clients, {len(self.secrets)}, got {trials}; a "
                f"recording holds no more."
            )
        secrets = torch.tensor(self.secrets)
        data: Dataset | None = getattr(self.game, "data", None)
        assert data is not None
        batch = Batch(data, torch.zeros(trials, 0, dtype=torch.long))  # whose records are not known here
        return View(channel(batch, secrets, rng), self.shown), secrets
