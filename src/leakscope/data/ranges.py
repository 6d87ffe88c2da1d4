"""Numbers as ranges, so that a secret that is a number can be guessed: the adversary names a range.

The edges are part of the question, not of what the adversary learned: all seeds and both sides of a game
have the same. They are declared, or quantiles of the whole table, rounded so that they name nobody's value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, DataError
from leakscope.data.files import Array, absent

RANGES = 5  # into which a secret that is a number is cut unless told otherwise
MOST = 20  # ranges of one number
MOVED = 0.02  # of the records that rounding an edge may take from one range into another
UNKNOWN = "?"  # where there is no number
Bins = Mapping[str, int | Sequence[float]]


def cut(numbers: Array, bins: int | Sequence[float] | None, who: str) -> tuple[Tensor, tuple[str, ...]]:
    """Codes and names of the ranges that numbers lie in: as many quantile ranges as ``bins`` says, or those
    between the edges that it lists; None: as usual. An edge belongs to the range above it, and what is no
    number is the last."""
    known = numbers[~np.isnan(numbers)].astype(np.float64)
    if not np.isfinite(known).all():
        raise DataError(f"{who} must be finite, and it holds infinite numbers; remove them.")
    edges = _declared(bins, who) if isinstance(bins, Sequence) else _quantiles(known, bins, who)
    names = _names(edges)
    codes = np.searchsorted(edges, numbers.astype(np.float64), side="right")
    codes[np.isnan(numbers)] = len(names)
    counts = np.bincount(codes, minlength=len(names))
    if empty := [name for name, count in zip(names, counts, strict=False) if not count]:
        raise DataError(
            f"{who} must have records in every range, and {empty[0]!r} has none; change its edges."
        )
    names += (UNKNOWN,) * (len(counts) > len(names))
    return torch.from_numpy(codes.astype(np.int64)), names


def _declared(edges: Sequence[float], who: str) -> list[float]:
    found = [float(edge) for edge in edges]
    if not 1 <= len(found) < MOST or not np.isfinite(found).all() or sorted(set(found)) != found:
        raise DataError(
            f"--bins of {who} must be 1 to {MOST - 1} edges that grow, got {found}; give some like 30,50,70."
        )
    return found


def _quantiles(known: Array, bins: int | None, who: str) -> list[float]:
    count = RANGES if bins is None else bins
    if not 2 <= count <= MOST:
        raise DataError(
            f"--bins of {who} must be 2 to {MOST} ranges, got {count}; give so many, or edges like 30,50,70."
        )
    distinct = len(np.unique(known))
    shares = np.arange(1, count) / count
    exact = np.quantile(known, shares, method="higher") if distinct else np.zeros(0)
    exact = np.unique(exact[exact > known.min()]) if distinct else exact
    if len(exact) + 1 < (count if bins is not None else 2):
        raise DataError(
            f"{who} cannot be cut into {count} ranges of as many records each: it has {distinct} distinct "
            f"values, and some are too frequent; ask for fewer ranges, or give edges."
        )
    wanted = _shares(known, exact)
    for digits in range(2, 7):
        rounded = [float(f"{edge:.{digits}g}") for edge in exact]
        shares = _shares(known, rounded)
        if sorted(set(rounded)) == rounded and (shares > 0).all() and np.abs(shares - wanted).max() <= MOVED:
            return rounded
    return [float(edge) for edge in exact]


def _shares(known: Array, edges: Sequence[float] | Array) -> Array:
    """Of the numbers, in each range."""
    inside = np.searchsorted(np.asarray(edges), known, side="right")
    return np.bincount(inside, minlength=len(edges) + 1) / len(known)


def _names(edges: Sequence[float]) -> tuple[str, ...]:
    said = [f"{edge:.6g}" for edge in edges]
    between = [f"{low} to {high}" for low, high in pairwise(said)]
    return (f"below {said[0]}", *between, f"{said[-1]} or more")


def with_ranges(records: Dataset, bins: Bins) -> Dataset:
    """The records with private columns that are ranges of these numbers among their inputs."""
    places = {column.name: column for column in records.columns}
    for name, wanted in bins.items():
        if name not in places:
            raise absent(name, list(places), where=records.name, kind="column")
        place = places[name]
        if place.values or not records.x.is_floating_point():
            raise DataError(
                f"--bins is for numbers, and column {name!r} of {records.name} holds categories; leave "
                f"--bins {name} out."
            )
        codes, names = cut(records.x[:, place.start].numpy(), wanted, f"column {name!r}")
        records = replace(
            records,
            private={**records.private, name: codes},
            values={**records.values, name: names},
            ordered=records.ordered | ({name} if UNKNOWN not in names else set()),
        )
    return records


def stray_bins(bins: Bins, marked: Sequence[str]) -> list[str]:
    """Why there are no ranges of what is neither the label nor a secret."""
    return [
        f"--bins is for the label and the secrets, and {name!r} is neither; leave --bins {name} out, or "
        f"name it by --secret."
        for name in bins
        if name not in marked
    ]


def list_bins(pairs: Sequence[str] | Bins) -> dict[str, int | list[float]]:
    """``age=5`` or ``age=30,50,70``, as they are typed, by column."""
    if isinstance(pairs, Mapping):
        return {name: one if isinstance(one, int) else list(one) for name, one in pairs.items()}
    found: dict[str, int | list[float]] = {}
    for pair in pairs:
        name, _, text = pair.rpartition("=")
        try:
            found[name] = int(text) if text.isdigit() else [float(edge) for edge in text.split(",") if edge]
        except ValueError:
            name = ""
        if not name:
            raise ArgumentError(
                f"--bins must be a column with a number of ranges, or with edges, such as age=5 or "
                f"age=30,50,70, got {pair!r}."
            )
    return found
