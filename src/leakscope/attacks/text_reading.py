"""Which words at which places are one text: candidates, and how likely each is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakscope.attacks.text_release import ReleasedLayers
from leakscope.attacks.text_search import Grid, cost, costs_at, improve, solve_shares, weigh_places
from leakscope.attacks.words import Space

if TYPE_CHECKING:
    from leakscope.attacks.texts import TextSpace


class TextReading:
    """Candidates of one search, and how likely each is at its place."""

    def __init__(self, attack: TextSpace, left: int, grid: Grid, concentration: Tensor) -> None:
        self.attack, self.left = attack, left
        self.grid, self.concentration = grid, concentration
        self.fine = grid.sketch(attack.sketch)

    @staticmethod
    def of(
        attack: TextSpace, released: ReleasedLayers, left: int, tokens: Tensor, space: Space, matrix: Tensor
    ) -> TextReading:
        """Of ``left`` texts: from the ``tokens`` that are found, the space of what the attention gives, and
        the ``matrix`` of what it takes."""
        attention, additive = released.attention, released.additive
        assert attention is not None
        assert additive is not None
        missing = ~torch.isin(torch.arange(released.seen.shape[1] + 1), tokens[:, 1])
        tokens = tokens[tokens[:, 1] < int(missing.nonzero()[0, 0])]
        some, row = tokens[:, 0].unique(return_inverse=True)
        places = int(tokens[-1, 1]) + 1 if len(tokens) else 1
        own = replace(additive.take(some), places=additive.places[:places].double())
        query, key, value = attention.heads_of(released.double, own.vectors()[row, tokens[:, 1]])
        beyond = space.beyond.unflatten(0, (attention.heads, -1))
        outside = torch.einsum("chw,hwk->hck", value, beyond).float()
        worth = weigh_places(own, matrix, own.scale is not None, attack.lasso)
        weight = worth[row, tokens[:, 1]].clamp(min=attack.faint * float(worth.max()))
        grid = Grid(tokens[:, 0], tokens[:, 1], query.float(), key.float(), outside, weight)
        return TextReading(attack, left, grid, weight / worth.sum(1)[row])

    def read(self) -> Tensor | None:
        """One text whose words see nothing outside the space; None: none was found."""
        few = self._few()
        open_places = torch.bincount(self.grid.place)[self.grid.place] > 1
        order = torch.where(open_places, self.concentration, 0.0).argsort(descending=True)
        for anchor in order[: self.attack.anchors * self.left].tolist():
            for length in self._lengths():
                if length > int(self.grid.place[anchor]):
                    text = self._from(anchor, length, few)
                    if text is not None:
                        return self.grid.word[text]
        return None

    def rivals(self, text: Tensor) -> list[Tensor]:
        """For every place the text with the word there that fits best beside its own."""
        found, rows = [], []
        for p, word in enumerate(text.tolist()):
            rows.append(int(((self.grid.place == p) & (self.grid.word == word)).nonzero()[0, 0]))
        chosen = torch.tensor(rows)
        for p in range(len(text)):
            others = ((self.grid.place == p) & (self.grid.word != text[p])).nonzero()[:, 0]
            if len(others):
                other = text.clone()
                other[p] = self.grid.word[others[costs_at(self.fine, chosen, p, others).argmin()]]
                found.append(other)
        return found

    def _few(self) -> Tensor:
        """The likeliest candidates at every place."""
        grid, most = self.grid, self.attack.choices * self.left
        kept = torch.zeros(len(grid.word), dtype=torch.bool)
        for values, count in ((grid.worth, most), (self.concentration, self.left)):
            for p in range(grid.places):
                own = (grid.place == p).nonzero()[:, 0]
                kept[own[values[own].argsort(descending=True)[:count]]] = True
        return kept

    def _lengths(self) -> list[int]:
        """How long a text may be, the likeliest first: where a word ends all of the longest, so far as it
        goes; else from the longest down."""
        grid, last = self.grid, self.grid.places - 1
        end = grid.word[grid.place == last]
        if len(end) > 1 or last == 0:
            return list(range(last + 1, max(0, last + 1 - self.attack.anchors), -1))
        own = (grid.word == end[0]).nonzero()[:, 0]
        own = own[grid.worth[own].argsort(descending=True)][: 2 * self.left]
        own = own[grid.worth[own] > self.attack.ends * grid.worth[own].max()]
        return [int(p) + 1 for p in grid.place[own]]

    def _from(self, anchor: int, length: int, few: Tensor) -> Tensor | None:
        """The candidates of one text of this length with this word at its place, if there is one."""
        kept = few.clone()
        kept[anchor] = True
        rows = (kept & (self.grid.place < length)).nonzero()[:, 0]
        grid, whole = self.grid.take(rows), self.fine.before(length)
        shares = grid.worth / torch.zeros(grid.places).index_add(0, grid.place, grid.worth)[grid.place]
        queries = [int((rows == anchor).nonzero()[0, 0])]
        single = torch.bincount(grid.place)[grid.place] == 1
        for step in range(self.attack.rounds):
            shares = solve_shares(grid, queries, shares, rounds=self.attack.rounds, steps=self.attack.steps)
            best = grid.likeliest(shares)
            sure = best[shares[best].argsort(descending=True)].tolist()
            queries += [i for i in sure if i not in queries and not single[i]][: 2**step]
        text = improve(grid.sketch(self.attack.sketch), grid.likeliest(shares), sweeps=self.attack.sweeps)
        text = improve(whole, rows[text], sweeps=self.attack.sweeps)
        typical = float(whole.value.square().sum((0, 2)).mean()) * length
        return text if cost(whole, text) < self.attack.rounding * typical else None
