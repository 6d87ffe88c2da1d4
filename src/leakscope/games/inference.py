"""Who draws what: the unified inference game of paper 000 (definition 3.1) with its four secrets.

Every game draws one batch per trial before the first round and keeps it for all rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from leakscope.core.dataset import Batch, Dataset
from leakscope.core.errors import ArgumentError, DataError, require
from leakscope.core.nouns import Channel, View

Prior = Literal["empirical", "uniform"]


@dataclass(frozen=True, eq=False)
class Inference:
    """Tell which value of a private column a batch's records share.

    The column may stand inside ``x`` (attribute inference) or only beside it (property
    inference). ``known`` names columns of which the adversary is given the batch's mean
    (``"*"``: all but the secret); a batch of one is a partially known record.

    ``balanced`` gives every batch each label of the task (of a number, each quarter of its values) as often
    as its size allows, whatever the secret, so that labels cannot tell it (paper 001). ``others`` records of
    any value, the secret's or not, are mixed into every batch, as other clients' are by aggregation.
    """

    data: Dataset
    secret: str
    batch: int = 16
    prior: Prior = "empirical"
    known: tuple[str, ...] = ()
    balanced: bool = False
    others: int = 0

    def __post_init__(self) -> None:
        require(self.batch >= 1, "Inference.batch", "at least 1", self.batch)
        require(self.others >= 0, "Inference.others", "at least 0", self.others)
        require(self.prior in ("empirical", "uniform"), "Inference.prior", "empirical or uniform", self.prior)
        if self.secret in self.known:
            raise ArgumentError(
                f"Inference.known must not contain the secret, got {self.secret!r}; leave it out."
            )
        self._pools()
        self.data.positions(*self.known)

    @property
    def kind(self) -> str:
        """What the papers call it."""
        return "attribute" if self.data.has(self.secret) else "property"

    @property
    def chances(self) -> Tensor:
        counts = torch.bincount(
            self.data.secret(self.secret), minlength=len(self.data.value_names(self.secret))
        )
        if self.prior == "uniform":
            counts = (counts > 0).long()
        return counts.double() / counts.sum()

    def on(self, data: Dataset) -> Inference:
        return replace(self, data=data, prior="uniform")

    def deal(self, channel: Channel, trials: int, rng: torch.Generator) -> tuple[View, Tensor]:
        require(trials >= 1, "Inference.deal: trials", "at least 1", trials)
        secrets = torch.multinomial(self.chances, trials, replacement=True, generator=rng)
        rows = self._rows(secrets, rng)
        batch = Batch(self.data, rows)
        public = {"known": self._side_knowledge(rows)} if self.known else {}
        return View(channel(batch, secrets, rng), public), secrets

    def _pools(self) -> list[Tensor]:
        """The rows of every value of the secret; where batches are balanced, of every value and label."""
        groups = _groups(self.data, self.secret, self.batch)
        return _by_label(self.data, self.secret, groups) if self.balanced else groups

    def _rows(self, secrets: Tensor, rng: torch.Generator) -> Tensor:
        """(trials, batch + others), those that share the secret first."""
        pools = self._pools()
        labels = len(self.data.strata.unique()) if self.balanced else 1
        everyone = [torch.cat(pools[i::labels]) for i in range(labels)]
        own = _taking_turns(pools, secrets, self.batch, labels, rng)
        if not self.others:
            return own
        mixed = _taking_turns(everyone, torch.zeros_like(secrets), self.others, labels, rng)
        return torch.cat([own, mixed], dim=1)

    def _side_knowledge(self, rows: Tensor) -> Tensor:
        hidden = set(self.data.positions(self.secret).tolist()) if self.data.has(self.secret) else set()
        shown = [i for i in self.data.positions(*self.known).tolist() if i not in hidden]
        return self.data.x[:, shown][rows].mean(1)


@dataclass(frozen=True, eq=False)
class Distribution:
    """Tell in which of ``bins`` ranges the share of records with a property lies.

    Ranges {0}, (0, 1/(m-1)], ..., ((m-2)/(m-1), 1]; a range is drawn at equal odds, a share α
    uniformly inside it, and the batch holds ⌊αk⌋ records with the property by construction.
    ``value`` is the property: a value of ``column``; every other value lacks it.
    """

    data: Dataset
    column: str
    bins: int = 6
    batch: int = 128
    value: str | None = None

    def __post_init__(self) -> None:
        require(self.bins >= 3, "Distribution.bins", "at least 3", self.bins)
        require(
            self.batch >= self.bins - 1,
            "Distribution.batch",
            f"at least bins - 1 = {self.bins - 1}",
            self.batch,
        )
        self._pools()

    kind = "distribution"

    @property
    def names(self) -> tuple[str, ...]:
        """The value whose share is at stake, as results tell it."""
        place = self.data.value_names(self.column).index(self.trait)
        return (self.data.told_names(self.column)[place],)

    @property
    def trait(self) -> str:
        """The value whose share is at stake."""
        names = self.data.value_names(self.column)
        value = self.value if self.value is not None else names[-1]
        if value not in names:
            raise DataError(
                f"Distribution.value must be a value of {self.column!r}, got {value!r}; it has: "
                f"{', '.join(names)}."
            )
        return value

    @property
    def chances(self) -> Tensor:
        return torch.full((self.bins,), 1 / self.bins, dtype=torch.float64)

    def place(self, having: int, size: int) -> int:
        """The range of the share that ``having`` of ``size`` records make up."""
        return -(-having * (self.bins - 1) // size)

    def span(self, first: int, last: int) -> tuple[float, float]:
        """Between which shares ranges lie, from one to another."""
        return max(first - 1, 0) / (self.bins - 1), last / (self.bins - 1)

    def on(self, data: Dataset) -> Distribution:
        return replace(self, data=data)

    def deal(self, channel: Channel, trials: int, rng: torch.Generator) -> tuple[View, Tensor]:
        require(trials >= 1, "Distribution.deal: trials", "at least 1", trials)
        secrets = torch.randint(self.bins, (trials,), generator=rng)
        within = 1 - torch.rand(trials, generator=rng, dtype=torch.float64)  # (0, 1]
        share = torch.where(secrets > 0, (secrets - 1 + within) / (self.bins - 1), 0.0)
        count = (share * self.batch).floor().long()
        lacking, having = self._pools()
        rows = _draw([lacking], torch.zeros(trials, dtype=torch.long), self.batch, rng)
        with_property = _draw([having], torch.zeros(trials, dtype=torch.long), self.batch, rng)
        rows = torch.where(torch.arange(self.batch) < count[:, None], with_property, rows)
        return View(channel(Batch(self.data, rows), secrets, rng)), secrets

    def _pools(self) -> tuple[Tensor, Tensor]:
        having = self.data.secret(self.column) == self.data.value_names(self.column).index(self.trait)
        pools = (~having).nonzero()[:, 0], having.nonzero()[:, 0]
        for pool, words in zip(pools, ("without", "with"), strict=True):
            if len(pool) < 2:
                raise DataError(
                    f"{self.data.name}: {len(pool)} records {words} {self.column} = {self.trait!r}; "
                    f"Distribution needs at least 2 of each.",
                    public=f"too few records of this split are {words} the value of {self.column!r} that is "
                    f"asked for; choose another value.",
                )
        return pools


@dataclass(frozen=True, eq=False)
class UserInference:
    """Tell which of ``candidates`` people a batch belongs to, people never met before.

    The adversary is given one batch of other records of every candidate (view.public
    "candidates", rows (t, m, k), and "people", their identities (t, m)).
    """

    data: Dataset
    user: str
    candidates: int = 5
    batch: int = 8

    kind = "user"

    def __post_init__(self) -> None:
        require(self.candidates >= 2, "UserInference.candidates", "at least 2", self.candidates)
        require(self.batch >= 1, "UserInference.batch", "at least 1", self.batch)
        people = len(self._people())
        if people < self.candidates:
            raise DataError(
                f"{self.data.name}: {people} values of {self.user!r} have at least 2 x batch = "
                f"{2 * self.batch} records, and UserInference.candidates is {self.candidates}; lower batch "
                f"or candidates.",
                public=f"too few values of {self.user!r} have 2 x batch = {2 * self.batch} records in this "
                f"split; lower batch or candidates.",
            )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"candidate {i + 1}" for i in range(self.candidates))

    @property
    def chances(self) -> Tensor:
        return torch.full((self.candidates,), 1 / self.candidates, dtype=torch.float64)

    def on(self, data: Dataset) -> UserInference:
        return replace(self, data=data)

    def _people(self) -> list[Tensor]:
        codes = self.data.secret(self.user)
        groups = [(codes == code).nonzero()[:, 0] for code in codes.unique()]
        return [group for group in groups if len(group) >= 2 * self.batch]

    def deal(self, channel: Channel, trials: int, rng: torch.Generator) -> tuple[View, Tensor]:
        require(trials >= 1, "UserInference.deal: trials", "at least 1", trials)
        people, k, m = self._people(), self.batch, self.candidates
        secrets = torch.randint(m, (trials,), generator=rng)
        chosen = torch.rand(trials, len(people), generator=rng).argsort(1)[:, :m]
        rows = torch.empty(trials, m, 2 * k, dtype=torch.long)
        for i, group in enumerate(people):
            where = (chosen == i).nonzero(as_tuple=True)
            order = torch.rand(len(where[0]), len(group), generator=rng).argsort(1)[:, : 2 * k]
            rows[where] = group[order]  # 2k different records: k private, k others
        private = rows[torch.arange(trials), secrets, :k]
        identity = self.data.secret(self.user)[rows[:, :, 0]]
        true = identity[torch.arange(trials), secrets]
        public: dict[str, Tensor | Batch] = {
            "candidates": Batch(self.data, rows[:, :, k:]),
            "people": identity,
        }
        return View(channel(Batch(self.data, private), true, rng), public), secrets


def _groups(data: Dataset, secret: str, batch: int) -> list[Tensor]:
    """The rows of every value of a private column, at least 2k of each value that occurs."""
    codes, names = data.secret(secret), data.value_names(secret)
    groups = [(codes == code).nonzero()[:, 0] for code in range(len(names))]
    if sum(len(group) > 0 for group in groups) < 2:
        raise DataError(f"{data.name}: secret {secret!r} has one value only; there is nothing to infer.")
    for name, group in zip(names, groups, strict=True):
        if 0 < len(group) < 2 * batch:
            n, records = len(group), "1 record" if len(group) == 1 else f"{len(group)} records"
            lower = f"lower the batch size (--batch) to {n // 2} or less, " if n > 1 else ""
            raise DataError(
                f"{data.name}: {secret} = {name!r} has {records} in this split, "
                f"fewer than 2 x batch = {2 * batch}; {lower}merge rare values or give more records.",
                public=f"a value of {secret!r} has fewer than 2 x batch = {2 * batch} records in this split; "
                f"lower the batch size (--batch), merge rare values or give more records.",
            )
    return groups


def _by_label(data: Dataset, secret: str, groups: list[Tensor]) -> list[Tensor]:
    """Each group cut by the task's label, of a number by its quarter, labels running fastest; none may be
    empty."""
    strata, names = data.strata, data.value_names(secret)
    labels = strata.unique()
    for name, group in zip(names, groups, strict=True):
        lacking = [int(label) for label in labels if len(group) and not bool((strata[group] == label).any())]
        if lacking:
            raise DataError(
                f"{data.name}: no record in this split has {secret} = {name!r} and {data.label} "
                f"{lacking[0]}, so labels cannot be balanced against the secret; give more records, or leave "
                f"balanced out.",
                public=f"a value of {secret!r} occurs without one of the labels in this split, so labels "
                f"cannot be balanced against the secret; give more records, or leave balanced out.",
            )
    return [group[strata[group] == label] for group in groups for label in labels]


def _taking_turns(pools: list[Tensor], which: Tensor, k: int, labels: int, rng: torch.Generator) -> Tensor:
    """(trials, k) rows of the chosen values, the labels taking turns from one drawn at random."""
    if labels == 1:
        return _draw(pools, which, k, rng)
    turns = (torch.arange(k) + torch.randint(labels, (len(which), 1), generator=rng)) % labels
    return _draw(pools, (which[:, None] * labels + turns).flatten(), 1, rng).view(len(which), k)


def _draw(groups: list[Tensor], which: Tensor, k: int, rng: torch.Generator) -> Tensor:
    """(trials, k) rows drawn independently and uniformly, with replacement, from the chosen group."""
    rows = torch.empty(len(which), k, dtype=torch.long)
    for code, group in enumerate(groups):
        trials = (which == code).nonzero()[:, 0]
        if len(trials):
            rows[trials] = group[torch.randint(len(group), (len(trials), k), generator=rng)]
    return rows
