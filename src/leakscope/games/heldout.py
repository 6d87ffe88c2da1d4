"""Which public records an adversary learns from, and from which it learns how far to trust itself."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from leakscope.core.dataset import Dataset
from leakscope.core.errors import DataError
from leakscope.core.nouns import Knowledge

SHARES = (0.2, 0.35, 0.5)  # of the records of each value, held out: the first with which both can be played


def hold_out(knowledge: Knowledge, rng: torch.Generator) -> tuple[Knowledge, Knowledge]:
    """Knowledge to learn from, and knowledge of other records to be heard on.

    An attack is far surer of batches of records that it has learned from, even of batches that it never
    saw. Where there are too few records for two games, or where people are told apart and a person held
    out is one less to learn from, both are the same."""
    game = knowledge.game
    data, column = getattr(game, "data", None), getattr(game, "secret", None) or getattr(game, "column", None)
    few = min(knowledge.calibration, knowledge.trials)
    if few < 1 or not isinstance(data, Dataset) or not isinstance(column, str):
        return knowledge, replace(knowledge, trials=few)
    order = torch.randperm(len(data), generator=rng)
    codes = data.secret(column)[order]
    for share in SHARES:
        held = _first(codes, share)
        try:
            learned, heard = (game.on(data.take(order[rows].sort().values)) for rows in (~held, held))
        except DataError:
            continue
        return replace(knowledge, game=learned), replace(knowledge, game=heard, trials=few)
    return knowledge, replace(knowledge, trials=few)


def cut(knowledge: Knowledge, folds: int, rng: torch.Generator) -> list[Knowledge]:
    """Knowledge of disjoint public records, each part to deal its share of the rehearsals: as many ``folds``
    as can be played, by value of the secret or by person. Where not even two can be, two parts of the same
    records."""
    game, data, user = (
        knowledge.game,
        getattr(knowledge.game, "data", None),
        getattr(knowledge.game, "user", None),
    )
    column = user or getattr(game, "secret", None) or getattr(game, "column", None)
    if isinstance(data, Dataset) and isinstance(column, str):
        data = data.frequent(column, 2 * game.batch) if user else data  # who can be played
        codes = data.secret(column)
        places = _by_person(codes, rng) if user else _by_value(codes, rng)
        for n in range(folds, 1, -1):
            try:
                parts = [game.on(data.take((places % n == i).nonzero()[:, 0])) for i in range(n)]
            except DataError:
                continue
            return [replace(knowledge, game=part, trials=-(-knowledge.trials // n)) for part in parts]
    return [replace(knowledge, trials=-(-knowledge.trials // 2))] * 2


def _by_value(codes: Tensor, rng: torch.Generator) -> Tensor:
    """Places (n,) of records in random order, value by value, so that turns have as many of each."""
    order = torch.randperm(len(codes), generator=rng)
    order = order[codes[order].argsort(stable=True)]
    return order.argsort()


def _by_person(codes: Tensor, rng: torch.Generator) -> Tensor:
    """The place (n,) of each record's person in random order."""
    people, which = codes.unique(return_inverse=True)
    return torch.randperm(len(people), generator=rng)[which]


def _first(codes: Tensor, share: float) -> Tensor:
    """Which records (n,) are among the first ``share`` of those of their value."""
    chosen = torch.zeros(len(codes), dtype=torch.bool)
    for code in codes.unique():
        rows = (codes == code).nonzero()[:, 0]
        chosen[rows[: round(share * len(rows))]] = True
    return chosen
