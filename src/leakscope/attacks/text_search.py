"""Which words, at which places, are one text: the search for texts whose attention lies in a released space.

The weight behind the heads takes o = Σ_j a_j v_j of every word of a text, where the attention a of a word
goes over all words of its own text and no other. So the o's of a true text lie in the row space of that
weight's gradient, and those of a mixture do not. A text is searched for from an anchor, a word at a place:
shares of all candidates at every place are solved for under the anchor's equations alone, then under those of
the words that have become sure, and the likeliest words are improved place by place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from leakscope.attacks.first_attention import Additive

RIDGE = 1e-2  # of the largest variance, below which directions of tokens' gradients are not blown up
SMALL = 1e-14  # of the same: there is nothing
POWER = 8  # steps that find the largest singular value


@dataclass(frozen=True, eq=False)
class Grid:
    """Candidates, sorted by ``place`` (c,): the ``word`` (c,) of each, queries and keys (c, heads, width),
    its value outside the released space (heads, c, k), of which true texts' sums are 0, and its ``worth``."""

    word: Tensor
    place: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    worth: Tensor

    @property
    def places(self) -> int:
        return int(self.place[-1]) + 1

    def take(self, rows: Tensor) -> Grid:
        parts = (self.word, self.place, self.query, self.key)
        word, place, query, key = (part[rows] for part in parts)
        return Grid(word, place, query, key, self.value[:, rows], self.worth[rows])

    def before(self, length: int) -> Grid:
        return self.take((self.place < length).nonzero()[:, 0])

    def sketch(self, size: int) -> Grid:
        """The same along so many directions of its own outside."""
        width = self.value.shape[2]
        if width <= size:
            return self
        rng = torch.Generator().manual_seed(1)
        drawn = torch.randn(width, size, generator=rng, dtype=self.value.dtype) / size**0.5
        return replace(self, value=self.value @ drawn)

    def likeliest(self, shares: Tensor) -> Tensor:
        """The candidate with the largest share at every place (p,)."""
        row, _, _ = self._layout
        return row.gather(1, self._table(shares, -1.0).argmax(1, keepdim=True))[:, 0]

    def project(self, shares: Tensor) -> Tensor:
        """The nearest shares that are not below 0 and have a sum of 1 at every place."""
        table = self._table(shares, -1e9)
        _, slots, counting = self._layout
        high = table.sort(1, descending=True)[0]
        over = (high.cumsum(1) - 1) / counting
        count = (high > over).sum(1, keepdim=True)
        return (table - over.gather(1, count - 1)).clamp(min=0).view(-1)[slots]

    def _table(self, values: Tensor, empty: float) -> Tensor:
        """Values (c,) with a row for every place."""
        row, slots, _ = self._layout
        table = torch.full(row.shape, empty, dtype=values.dtype)
        table.view(-1)[slots] = values
        return table

    @cached_property
    def _layout(self) -> tuple[Tensor, Tensor, Tensor]:
        """A row for every place: which candidate stands where, -1 where there is none; where (c,) each
        stands; and 1, 2 and so on for the columns."""
        counts = torch.bincount(self.place, minlength=self.places)
        slot = torch.arange(len(self.place)) - (counts.cumsum(0) - counts)[self.place]
        most = int(counts.max())
        row = torch.full((self.places, most), -1)
        row[self.place, slot] = torch.arange(len(self.place))
        return row, self.place * most + slot, torch.arange(1, most + 1)


def weigh_places(additive: Additive, matrix: Tensor, shift: bool, steps: int) -> Tensor:
    """How much (words, places) each word has at each place.

    The gradient is Σ d/s (word + place)' + Σ d shift', with the spread s, so it gives the sum of d/s over all
    times that a word occurs, and over all words at a place. Of all ways to share these sums out among words
    at places, that with the least sum of lengths is taken (a group lasso, by Douglas and Rachford)."""
    words, places = additive.parts()
    n, p = len(words), len(places)
    rows = torch.cat([words, places[1:], *([additive.shift[None]] if shift else [])])
    sums = torch.linalg.lstsq(rows.T, matrix.T, driver="gelsd").solution
    of_words, of_places = sums[:n], sums[n : n + p - 1]
    of_places = torch.cat([(of_words.sum(0) - of_places.sum(0))[None], of_places])
    both = torch.cat([of_words, of_places])
    values: Tensor
    values, axes = torch.linalg.eigh(both @ both.T)
    there = values > SMALL * values[-1]
    turned: Tensor = axes[:, there] * (values[there] / (values[there] + RIDGE * values[-1])).sqrt()
    a, b = turned[:n].float(), turned[n:].float()
    least = 0.3 * float(a.norm(dim=1).median())

    def fit(flow: Tensor) -> Tensor:
        flow = flow + (a - flow.sum(1))[:, None] / p
        return flow + (b - flow.sum(0))[None] / n

    state = fit(torch.zeros(n, p, a.shape[1]))
    found = state
    for _ in range(steps):
        near = fit(state)
        found = 2 * near - state
        found = found * (1 - least / found.norm(dim=2, keepdim=True).clamp(min=1e-12)).clamp(min=0)
        state = state + found - near
    shares: Tensor = found.norm(dim=2)
    return shares


def solve_shares(grid: Grid, queries: list[int], shares: Tensor, *, rounds: int, steps: int) -> Tensor:
    """The shares (c,) under which what the ``queries`` see lies in the space: what all words weigh is
    taken from the last round, and then it is a quadratic problem over shares of every place."""
    for _ in range(rounds):
        for i in queries:
            shares = torch.where(grid.place == grid.place[i], 0.0, shares)
            shares[i] = 1.0
        seen = torch.einsum("qhw,chw->qhc", grid.query[queries], grid.key).exp()
        total = (seen * shares).sum(2, keepdim=True)
        outside = torch.einsum("qhc,hck->qkc", seen / total, grid.value).flatten(0, 1)
        drawn = torch.ones(outside.shape[1])
        largest = 1.0
        for _ in range(POWER):
            drawn = outside.T @ (outside @ drawn)
            largest = float(drawn.norm())
            drawn = drawn / max(largest, torch.finfo(drawn.dtype).tiny)
        ahead, pace = shares, 1.0
        for _ in range(steps):
            slope = outside.T @ (outside @ ahead)
            found = grid.project(ahead - slope / (1.05 * largest))
            faster = (1 + (1 + 4 * pace**2) ** 0.5) / 2
            ahead, shares, pace = found + (pace - 1) / faster * (found - shares), found, faster
    return shares


def improve(grid: Grid, text: Tensor, *, sweeps: int) -> Tensor:
    """Candidates (p,), one for each place, of which none can be changed alone so that less of what their
    words see is outside the space."""
    text = text.clone()
    for _ in range(sweeps):
        changed = False
        for p in range(len(text)):
            own = (grid.place == p).nonzero()[:, 0]
            if len(own) > 1:
                best = own[costs_at(grid, text, p, own).argmin()]
                changed |= bool(best != text[p])
                text[p] = best
        if not changed:
            break
    return text


def costs_at(grid: Grid, text: Tensor, p: int, own: Tensor) -> Tensor:
    """How much (n,) is outside the space if candidates (n,) take place ``p`` of a text."""
    rest = text[torch.arange(len(text)) != p]
    q, k, v = grid.query[rest], grid.key[rest], grid.value[:, rest]
    old = torch.einsum("ihw,jhw->ihj", q, k).exp()
    new = torch.einsum("ihw,chw->ihc", q, grid.key[own]).exp()
    total = old.sum(2)[:, :, None] + new
    sums = torch.einsum("ihj,hjk->ihk", old, v)
    seen = torch.einsum("ihk,ihc->ick", sums, 1 / total)
    seen = seen + torch.einsum("ihc,hck->ick", new / total, grid.value[:, own])
    back = torch.einsum("chw,jhw->chj", grid.query[own], k).exp()
    self_ = (grid.query[own] * grid.key[own]).sum(2).exp()
    at = torch.einsum("chj,hjk->chk", back, v) + self_[:, :, None] * grid.value[:, own].transpose(0, 1)
    at = (at / (back.sum(2) + self_)[:, :, None]).sum(1)
    return seen.square().sum((0, 2)) + at.square().sum(1)


def cost(grid: Grid, text: Tensor) -> float:
    """How much of what the words of a text see is outside the space."""
    seen = torch.einsum("ihw,jhw->hij", grid.query[text], grid.key[text])
    return float(torch.einsum("hij,hjk->ik", seen.softmax(2), grid.value[:, text]).square().sum())
