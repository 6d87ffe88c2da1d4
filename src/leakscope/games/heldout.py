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


def _first(codes: Tensor, share: float) -> Tensor:
    """Which records (n,) are among the first ``share`` of those of their value."""
    chosen = torch.zeros(len(codes), dtype=torch.bool)
    for code in codes.unique():
        rows = (codes == code).nonzero()[:, 0]
        chosen[rows[: round(share * len(rows))]] = True
    return chosen
