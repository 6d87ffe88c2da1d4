"""Whole texts from one gradient, each with its proof, and the words of those that are not found.

Words come from the embedding or from the first attention's space (`words`). Which of them are one text, and
in which order, says the space of what the first attention gives (`text_search`). A text is proven by the
layers that follow: what they take of a true text lies in the spaces of their gradients, and what they take
of any text that differs in a word, in the order of two, or in its length does not. Its own gradient is then
taken away, and the search goes on in what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call

from leakscope.attacks.closed_form import SeenLayer
from leakscope.attacks.first_attention import Additive, FirstAttention, inputs_of
from leakscope.attacks.text_search import Grid, cost, costs_at, improve, solve_shares, weigh_places
from leakscope.attacks.words import (
    FoundWords,
    Space,
    embedding_of,
    moved_words,
    needed_groups,
    released_matrix,
    spanned_words,
)
from leakscope.core.errors import POSITIVE, ArgumentError, at_least, check, require
from leakscope.core.nouns import CERTIFIED, NOT_FOUND, PLAUSIBLE, Guess, Knowledge, Params, View
from leakscope.core.rng import integer
from leakscope.core.task import is_number
from leakscope.games.channels import GradientChannel, Summed, Through, UpdateChannel
from leakscope.gradients.capture import record_losses
from leakscope.training.local import Local

WHO = "TextSpace"
LAYERS = 3  # linear layers after the first attention's that a text must fit
PASSES = 16  # roundings of a pass through the layers, up to which it gives the same again
SKETCH = 64  # directions outside the space along which texts are improved


@dataclass(frozen=True, eq=False)
class TextRecovery:
    """What came of every trial: texts (t, k, length), the words of those that were not found laid into their
    rows in no order; the status (t, k) of each; the words of each trial; and whether the search for texts was
    stopped (t,) before all were found, so that what was not found may still be there."""

    texts: Tensor
    status: Tensor
    words: tuple[FoundWords, ...]
    stopped: Tensor


@dataclass(frozen=True)
class TextSpace:
    """The words, and then the whole texts, that the spaces of a transformer's gradient hold, proven.

    A word is found if its vector at some place is less than ``z`` deviations of rounding and noise from the
    space of the first attention, and less than ``far`` of its length; it is certified if the space ends in a
    ``gap`` and the other words do not span it (``close``). Of a trained embedding, it is certified if its row
    moved. A text is searched for from at most ``anchors`` words for each text, among ``choices`` times as
    many words at each place as there are texts, and certified if the layers that follow prove it. ``lasso``,
    ``rounds``, ``steps`` and ``sweeps`` bound the search; ``whole``: texts are searched for. Vectors are
    known up to ``rounding`` of their length. The adversary knows the model, its vocabulary, how many texts
    there are and how local training goes; of several rounds the first is read. A model that drops at random
    is refused."""

    whole: bool = True
    z: float = 4.0
    far: float = 0.1
    rounding: float = 1e-6
    gap: float = 3.0
    close: float = 1e-3
    anchors: int = 6
    choices: int = 2
    lasso: int = 200
    rounds: int = 4
    steps: int = 60
    sweeps: int = 8

    def __post_init__(self) -> None:
        check(self, z=POSITIVE, far=POSITIVE, rounding=POSITIVE, gap=POSITIVE, close=POSITIVE)
        check(self, anchors=at_least(1), choices=at_least(1), lasso=at_least(1), rounds=at_least(1))
        check(self, steps=at_least(1), sweeps=at_least(1))

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        certify = self.certify(knowledge, rng)
        return lambda view: certify(view)[0]

    def certify(self, knowledge: Knowledge, rng: torch.Generator) -> Callable[[View], tuple[Tensor, Tensor]]:
        seed = integer(rng)

        def said(view: View) -> tuple[Tensor, Tensor]:
            found = self.recover(knowledge, view, torch.Generator().manual_seed(seed))
            return found.texts, found.status

        return said

    def recover(self, knowledge: Knowledge, view: View, rng: torch.Generator) -> TextRecovery:
        """What came of every trial."""
        seen = SeenLayer.of(knowledge, view, updates=True)
        t, k, length = seen.trials, *seen.shape
        texts, status = torch.zeros(t, k, length, dtype=torch.int64), torch.full((t, k), NOT_FOUND)
        stopped, words = torch.ones(t, dtype=torch.bool), [FoundWords.none() for _ in range(t)]
        if seen.rounds:
            released = ReleasedLayers.of(seen, knowledge, length)
            for i in range(t):
                search = _Search(self, released, i)
                words[i] = search.words
                found = search.texts() if self.whole else []
                for j, (text, sure) in enumerate(found):
                    texts[i, j, : len(text)] = text
                    status[i, j] = CERTIFIED if sure else PLAUSIBLE
                stopped[i] = len(found) < k
                rest = words[i].words
                rest = rest[~torch.isin(rest, texts[i, : len(found)])]
                room = texts[i, len(found) :].view(-1)
                room[: len(rest)] = rest[: len(room)]
        return TextRecovery(texts, status, tuple(words), stopped)


@dataclass(frozen=True, eq=False)
class ReleasedLayers:
    """What is seen of a model of texts: its first attention, if it has one, what that takes of all words, the
    embedding's weight, if it is released, the channel that is believed in, its local training (None:
    gradients) and steps, and the precision."""

    seen: SeenLayer
    channel: GradientChannel
    attention: FirstAttention | None
    additive: Additive | None
    embedding: str | None
    local: Local | None
    steps: int
    eps: float

    @staticmethod
    def of(seen: SeenLayer, knowledge: Knowledge, length: int) -> ReleasedLayers:
        channel = knowledge.channel
        while isinstance(channel, Through | Summed):
            channel = channel.channel
        assert isinstance(channel, GradientChannel)  # of no other is a round seen
        local = channel.local if isinstance(channel, UpdateChannel) else None
        data = seen.game.data
        text = data.x.dim() == 2 and data.x.dtype == torch.int64 and len(data.columns) == 1
        require(text, f"{WHO}: the records", "texts, whose words are numbered", f"{data.x.dtype}")
        words, (params, layers) = len(data.columns[0].values), seen.rounds[0]
        for name, tensor in layers.items():
            finite = bool(tensor.isfinite().all())
            require(finite, f"{WHO}: the released layer {name!r}", "finite", "nan or inf")
        embedding, additive = embedding_of(seen.model, layers, words), None
        attention = FirstAttention.find(seen.model)
        if attention is not None and not any(name in layers for name in attention.inside):
            attention = None
        if attention is None and embedding is None:
            raise ArgumentError(
                f"{WHO} reads the words' embedding, or queries, keys and values of a first attention as "
                f"torch or BERT have it, and none is released by {type(seen.model).__name__}; what later "
                f"layers alone tell of texts is not known."
            )
        if local is not None and local.optimiser != "sgd" and embedding is None:
            raise ArgumentError(
                f"{WHO} reads uploads of SGD, whose steps are sums of gradients, got Local.optimiser = "
                f"{local.optimiser!r}; what such uploads give away is not known."
            )
        if attention is not None:
            additive = attention.additive(params, words, length, WHO)
        steps = 0 if local is None else local.steps_of(seen.game.batch)
        eps = torch.finfo(next(iter(layers.values())).dtype).eps
        return ReleasedLayers(seen, channel, attention, additive, embedding, local, steps, eps)

    @property
    def params(self) -> Params:
        return self.seen.rounds[0][0]

    def matrix(self, names: tuple[str, ...], trial: int) -> tuple[Tensor, float]:
        """Weights of the first round that take the same vectors, and their floor."""
        params, layers = self.seen.rounds[0]
        return released_matrix(params, layers, names, trial, self.local, self.steps, self.eps)

    @cached_property
    def double(self) -> Params:
        return {n: p.double() if p.is_floating_point() else p for n, p in self.params.items()}

    def has(self, name: str) -> bool:
        return name in self.seen.rounds[0][1]


class _Search:
    """The search behind one release; what is left of the released matrices shrinks with every text found."""

    def __init__(self, attack: TextSpace, released: ReleasedLayers, trial: int) -> None:
        self.attack, self.released = attack, released
        self.left, self.length = released.seen.shape[0], released.seen.shape[1]
        self.matrices: dict[tuple[str, ...], tuple[Tensor, float]] = {}
        self.spaces: dict[tuple[str, ...], Space] = {}
        self.trial = trial
        self.words = self._find_words()
        self.tokens = self.words.tokens

    def _matrix(self, names: tuple[str, ...]) -> tuple[Tensor, float]:
        if names not in self.matrices:
            self.matrices[names] = self.released.matrix(names, self.trial)
        return self.matrices[names]

    def _space(self, names: tuple[str, ...]) -> Space:
        if names not in self.spaces:
            self.spaces[names] = Space.of(*self._matrix(names), self.left * self.length)
        return self.spaces[names]

    def _find_words(self) -> FoundWords:
        moved = self._moved()
        return moved.joined(self._spanned(moved.words if moved.through else None))

    def _moved(self) -> FoundWords:
        """What the embedding's rows tell: nothing under noise, which moves those of every word."""
        name, channel = self.released.embedding, self.released.channel
        if name is None or channel.adds_noise:
            return FoundWords.none()
        part = self.released.seen.model.get_submodule(name.removesuffix(".weight"))
        padded = not channel.defended and part.padding_idx is None
        rows, _ = self._matrix((name,))
        return moved_words(rows, self.left * self.length, defended=channel.defended, padded=padded)

    def _spanned(self, known: Tensor | None) -> FoundWords:
        """What the first attention's space holds."""
        attack, additive = self.attack, self.released.additive
        if self.released.attention is None or additive is None:
            return FoundWords.none()
        return spanned_words(
            self._space(self.released.attention.inside),
            additive,
            known,
            z=attack.z,
            far=attack.far,
            rounding=attack.rounding,
            gap=attack.gap,
            close=attack.close,
        )

    def texts(self) -> list[tuple[Tensor, bool]]:
        """The texts that are found, and whether each is proven."""
        attention, found = self.released.attention, list[tuple[Tensor, bool]]()
        if attention is None:
            return found
        while self.left and bool((self.tokens[:, 1] == 0).any()):
            only = self._only_text() if self.left == 1 else None
            if only is not None:
                return [*found, only]
            if self.released.local is not None or not self.released.has(attention.output):
                return found
            reading = _Reading.of(self)
            text = reading.read()
            if text is None:
                return found
            sure = self._prove(text, reading)
            found.append((text, sure))
            if not sure or not self._take_away(text):
                return found
            self.left -= 1
            self.tokens = self._spanned(self.words.words).tokens
        return found

    def _only_text(self) -> tuple[Tensor, bool] | None:
        """The text if there is one left, and one word for each place; proven if each is needed there."""
        words, places = self.tokens.T
        if not torch.equal(places, torch.arange(len(places))):
            return None
        assert self.released.attention is not None
        assert self.released.additive is not None
        space = self._space(self.released.attention.inside)
        some, row = words.unique(return_inverse=True)
        points = self.released.additive.take(some).vectors()[row, places] @ space.v
        sure = needed_groups(points, torch.arange(len(words)), space.rank, close=self.attack.close)
        return words, bool(sure.all()) and space.gap >= self.attack.gap and space.open

    # --- proofs

    def _prove(self, text: Tensor, reading: _Reading) -> bool:
        """Whether the layers that follow hold a text, and hold no text that differs from it in one word, in
        the order of two words, or by its last word."""
        spaces = self._layers_after(text)
        if not spaces or not bool(self._fits(text[None], spaces, torch.float64, self.attack.rounding)[0]):
            return False
        rivals = reading.rivals(text)
        for i in range(len(text) - 1):
            if text[i] != text[i + 1]:
                other = text.clone()
                other[i], other[i + 1] = text[i + 1], text[i]
                rivals.append(other)
        rivals.append(torch.cat([text[:-1], text.new_zeros(1)]))
        dtype = self.released.params[next(iter(spaces)) + ".weight"].dtype
        return not bool(self._fits(torch.stack(rivals), spaces, dtype, 100 * self.attack.rounding).any())

    def _layers_after(self, text: Tensor) -> dict[str, Space]:
        """The spaces of the first linear layers after the attention that a text reaches word by word."""
        attention, model = self.released.attention, self.released.seen.model
        assert attention is not None
        known = {*attention.inside, *attention.weights}
        linear = {
            name: part
            for name, part in model.named_modules()
            if isinstance(part, nn.Linear)
            and f"{name}.weight" not in known
            and self.released.has(f"{name}.weight")
        }
        taken = inputs_of(model, self.released.params, text[None], linear)
        spaces: dict[str, Space] = {}
        for name, vectors in taken.items():
            if vectors.dim() == 3 and len(spaces) < LAYERS:
                space = self._space((f"{name}.weight",))
                if space.open and space.gap >= self.attack.gap:
                    spaces[name] = space
        return spaces

    def _fits(self, texts: Tensor, spaces: dict[str, Space], dtype: torch.dtype, rounding: float) -> Tensor:
        """Which texts (n,) the spaces hold, all words of them."""
        model, params = self.released.seen.model, self.released.params
        params = self.released.double if dtype == torch.float64 else params
        taken = inputs_of(model, params, texts, {name: model.get_submodule(name) for name in spaces})
        held = torch.ones(len(texts), dtype=torch.bool)
        for name, space in spaces.items():
            score, _ = space.z(taken[name].flatten(0, 1).double(), rounding)
            held &= ((score < self.attack.z).view(texts.shape) | (texts == 0)).all(1)
        return held

    # --- what is left

    def _take_away(self, text: Tensor) -> bool:
        """Take a text's own gradient away, with the label with which the spaces shrink; False: none fits."""
        seen, attention = self.released.seen, self.released.attention
        assert attention is not None
        if is_number(seen.game.data.y):
            return False
        wanted = [name for names in self.matrices for name in names if self.released.has(name)]
        params = dict(self.released.params)
        params |= {name: params[name].detach().clone().requires_grad_() for name in wanted}
        rank = self._space((attention.output,)).rank
        with torch.enable_grad():
            logits = functional_call(seen.model, params, (text[None],))
            for label in range(seen.game.data.classes_for("this reconstruction")):
                loss = record_losses(seen.loss, logits, torch.tensor([label])).sum() / seen.shape[0]
                slopes = torch.autograd.grad(loss, [params[n] for n in wanted], retain_graph=True)
                own = {name: slope.double() for name, slope in zip(wanted, slopes, strict=True)}
                rest = {
                    names: self._without(names, torch.cat([own[n] for n in names if n in own]))
                    for names in self.matrices
                }
                after = Space.of(*rest[(attention.output,)], self.left * self.length)
                if after.rank == rank - len(text):
                    self.matrices, self.spaces = rest, {}
                    return True
        return False

    def _without(self, names: tuple[str, ...], own: Tensor) -> tuple[Tensor, float]:
        """What is left of a matrix, and its floor: what was taken away is not known better than the passes
        that computed it, here and there."""
        matrix, floor = self.matrices[names]
        left = PASSES * self.released.eps * float(torch.linalg.matrix_norm(own, 2))
        return matrix - own, max(floor, left)


class _Reading:
    """Candidates of one search, and how likely each is at its place."""

    def __init__(self, search: _Search, grid: Grid, concentration: Tensor) -> None:
        self.attack, self.left = search.attack, search.left
        self.grid, self.concentration = grid, concentration
        self.fine = grid.sketch(SKETCH)

    @staticmethod
    def of(search: _Search) -> _Reading:
        attention, additive = search.released.attention, search.released.additive
        assert attention is not None
        assert additive is not None
        tokens = search.tokens
        missing = ~torch.isin(torch.arange(search.length + 1), tokens[:, 1])
        tokens = tokens[tokens[:, 1] < int(missing.nonzero()[0, 0])]
        some, row = tokens[:, 0].unique(return_inverse=True)
        places = int(tokens[-1, 1]) + 1 if len(tokens) else 1
        own = replace(additive.take(some), places=additive.places[:places].double())
        query, key, value = attention.heads_of(search.released.double, own.vectors()[row, tokens[:, 1]])
        space = search._space((attention.output,))
        beyond = space.beyond.unflatten(0, (attention.heads, -1))
        outside = torch.einsum("chw,hwk->hck", value, beyond).float()
        matrix = search._matrix(attention.inside)[0]
        worth = weigh_places(own, matrix, own.scale is not None, search.attack.lasso)
        weight = worth[row, tokens[:, 1]].clamp(min=1e-6 * float(worth.max()))
        grid = Grid(tokens[:, 0], tokens[:, 1], query.float(), key.float(), outside, weight)
        return _Reading(search, grid, weight / worth.sum(1)[row])

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
        own = own[grid.worth[own] > 0.1 * grid.worth[own].max()]
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
        text = improve(grid.sketch(SKETCH), grid.likeliest(shares), sweeps=self.attack.sweeps)
        text = improve(whole, rows[text], sweeps=self.attack.sweeps)
        typical = float(whole.value.square().sum((0, 2)).mean()) * length
        return text if cost(whole, text) < self.attack.rounding * typical else None
