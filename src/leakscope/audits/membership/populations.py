"""Records of nobody in their uses: the adversary's own, those that set thresholds, those that are judged."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from leakscope.audits.membership.judged import Roster
from leakscope.core.dataset import Dataset
from leakscope.core.errors import DataError

FEWEST = 20  # records of nobody that an audit needs


def deal_nobody(
    data: Dataset,
    members: Sequence[Dataset],
    rest: Tensor,
    *,
    known: float,
    held: float,
    rng: torch.Generator,
    site: str | None = None,
    names: Sequence[str] = (),
) -> Roster:
    """The clients' ``members``, and of the rows ``rest``, which are nobody's, so many shares for each use.
    Where the private column ``site`` says from where a record is, each client's non-members are those of its
    members' sites."""
    if site is None:
        own, thresholds, judged = _cut(
            rest, known, held, "candidates belong to no client of the recording", rng
        )
        return Roster(tuple(members), data.take(own), data.take(thresholds), data.take(judged))
    codes, called = data.secret(site), data.value_names(site)
    asked = [part.secret(site).unique().tolist() for part in members]
    words = "candidates of nobody are of {}={!r}, where members are from"
    cut = {
        code: _cut(rest[codes[rest] == code], known, held, words.format(site, called[code]), rng)
        for code in sorted({code for here in asked for code in here})
    }

    def gather(some: Collection[int], use: int) -> Dataset:
        return data.take(torch.cat([cut[code][use] for code in some]))

    return Roster(
        tuple(members),
        gather(cut, 0),
        gather(cut, 1),
        gather(cut, 2),
        apart=tuple((gather(here, 1), gather(here, 2)) for here in asked),
        names=tuple(names),
    )


def _cut(
    rest: Tensor, known: float, held: float, what: str, rng: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    rest = rest[torch.randperm(len(rest), generator=rng)]
    cuts = (int(known * len(rest)), int(held * len(rest)))
    if min(cuts) < 4 or len(rest) - sum(cuts) < 2:
        raise DataError(
            f"{len(rest)} {what}, and an audit needs at least {FEWEST} of them; add records that nobody "
            f"trained on."
        )
    own, thresholds, judged = rest.tensor_split([cuts[0], sum(cuts)])
    return own, thresholds, judged
