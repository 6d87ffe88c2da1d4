"""Who holds which records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, DataError, require
from leakscope.core.rng import integer

FEWEST = 40  # records of a site that is cut into members and non-members


def shards(
    data: Dataset,
    clients: int,
    rng: torch.Generator,
    *,
    how: Literal["iid", "dirichlet", "user"] = "iid",
    alpha: float = 0.5,
    column: str | None = None,
    size: int | None = None,
) -> tuple[Dataset, ...]:
    """The records of every client, disjoint.

    "iid": at random, as many for each. "dirichlet": every label's records (of a number, each quarter's) in
    shares drawn from Dirichlet(``alpha``, ..., ``alpha``); the larger alpha, the more alike the clients (Hsu
    et al., 2019).
    "user": whole people, the values of the private ``column``, as many for each. ``size`` limits the
    records to ``clients`` times as many, drawn at random; left out: all.
    """
    require(clients >= 1, "shards.clients", "at least 1", clients)
    require(how in ("iid", "dirichlet", "user"), "shards.how", "iid, dirichlet or user", how)
    require(0 < alpha < float("inf"), "shards.alpha", "positive and finite", alpha)
    require(size is None or size >= 1, "shards.size", "None or at least 1", size)
    if (column is not None) != (how == "user"):
        raise ArgumentError(
            f'shards.column must name the people\'s private column for how="user" and be None otherwise, got '
            f"{column!r} for how={how!r}."
        )
    if column is not None:
        require(size is None, 'shards.size for how="user"', "None, as people are dealt whole", size)
        dealt = _people(data, clients, column, rng)
    else:
        wanted = clients * size if size is not None else len(data)
        if not clients <= wanted <= len(data):
            raise DataError(
                f"{data.name}: you asked for {clients} clients of {size or 'at least 1'} records each, and "
                f"there are {len(data)}; ask for fewer clients or smaller shards."
            )
        rows = torch.randperm(len(data), generator=rng)[:wanted]
        dealt = _uneven(data, rows, clients, alpha, rng) if how == "dirichlet" else rows.tensor_split(clients)
    return tuple(data.take(rows) for rows in dealt)


def cut_parts(
    data: Dataset, sizes: Sequence[int], rng: torch.Generator, *, person: str | None = None
) -> list[Dataset]:
    """Records drawn at random into parts of these ``sizes``, and the rest; whole people where the private
    column ``person`` says whose each is: then sizes are met as nearly as people allow."""
    ends = torch.tensor([*sizes, len(data) - sum(sizes)]).cumsum(0).double()
    codes = torch.arange(len(data)) if person is None else data.secret(person)
    people, whose, counts = codes.unique(return_inverse=True, return_counts=True)
    order = torch.randperm(len(people), generator=rng)
    middle = counts[order].cumsum(0) - (counts[order] + 1) / 2  # of each one's places in a row of all records
    parts = torch.searchsorted(ends, middle, right=True)[order.argsort()][whose]
    rows = order if person is None else torch.arange(len(data))
    found = [data.take(rows[parts[rows] == part]) for part in range(len(ends))]
    if not all(map(len, found)):
        raise DataError(
            f"{data.name}: a site of {len(data)} records must have people for {len(ends)} parts, each person "
            f"whole, and {person!r} has {len(people)} there; leave the site out, or join it with another.",
            public="a site has too few people to be cut, each person whole; leave it out, or join it with "
            "another.",
        )
    return found


def cut_sites(
    data: Dataset, column: str, *, fewest: int = FEWEST, person: str | None = None
) -> list[tuple[str, Dataset]]:
    """The records of every value of a private ``column`` that has any, under its name: each site a client.
    Nobody of the private column ``person`` may be at two."""
    codes = data.secret(column)
    parts = [(name, (codes == i).nonzero()[:, 0]) for i, name in enumerate(data.value_names(column))]
    parts = [(name, rows) for name, rows in parts if len(rows)]
    if len(parts) < 2:
        raise DataError(
            f"{data.name}: {column!r} must have at least 2 sites, and every record has the same; name "
            f"another column."
        )
    if small := [(name, len(rows)) for name, rows in parts if len(rows) < fewest]:
        counts = ", ".join(f"{name!r} has {count}" for name, count in small[:8])
        raise DataError(
            f"{data.name}: every site of {column!r} must have at least {fewest} different records, and "
            f"{counts}{' and so on' if len(small) > 8 else ''}; leave such sites out, or join them.",
            public=f"every site of {column!r} must have at least {fewest} different records, and "
            f"{len(small)} of {len(parts)} have fewer; leave such sites out, or join them.",
        )
    if person is not None:
        pairs = torch.stack([data.secret(person), codes], 1).unique(dim=0)
        if several := int((pairs[:, 0].unique(return_counts=True)[1] > 1).sum()):
            raise DataError(
                f"{data.name}: everybody of {person!r} must be at one site of {column!r}, and {several} are "
                f"at more; leave them out, or leave --person out.",
                public=f"everybody of {person!r} must be at one site of {column!r}, and some are at more; "
                f"leave them out, or leave --person out.",
            )
    return [(name, data.take(rows)) for name, rows in parts]


def _people(data: Dataset, clients: int, column: str, rng: torch.Generator) -> Sequence[Tensor]:
    codes = data.secret(column)
    people = codes.unique()
    if len(people) < clients:
        raise DataError(
            f"{data.name}: you asked for {clients} clients, and {column!r} has {len(people)} values; ask "
            f"for at most as many clients."
        )
    people = people[torch.randperm(len(people), generator=rng)]
    return [torch.isin(codes, part).nonzero()[:, 0] for part in people.tensor_split(clients)]


def _uneven(
    data: Dataset, rows: Tensor, clients: int, alpha: float, rng: torch.Generator
) -> Sequence[Tensor]:
    draws = np.random.default_rng(integer(rng))
    dealt: list[list[Tensor]] = [[] for _ in range(clients)]
    labels = data.strata[rows]
    for label in labels.unique():
        of_label = rows[labels == label]
        ends = np.cumsum(draws.dirichlet(np.full(clients, alpha)))[:-1] * len(of_label)
        for own, part in zip(dealt, of_label.tensor_split(np.rint(ends).astype(int).tolist()), strict=True):
            own.append(part)
    found = [torch.cat(own) for own in dealt]
    if empty := [c for c, part in enumerate(found) if len(part) == 0]:
        raise DataError(
            f"{data.name}: client {empty[0]} was dealt no record with shards.alpha {alpha}; raise alpha, ask "
            f"for fewer clients, or give more records."
        )
    return found
