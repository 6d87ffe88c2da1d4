"""Whole texts from one gradient, each with its proof, and the words of those that are not found.

Words come from the embedding or from the first attention's space (`words`). Which of them are one text, and
in which order, says the space of what the first attention gives (`text_search`). A text is proven by the
layers that follow: what they take of a true text lies in the spaces of their gradients, and what they take
of any text that differs in a word, in the order of two, or in its length does not. Its own gradient is then
taken away, and the search goes on in what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from leakscope.attacks.closed_form import SeenLayer
from leakscope.attacks.first_attention import inputs_of
from leakscope.attacks.spans import largest
from leakscope.attacks.text_reading import TextReading
from leakscope.attacks.text_release import ReleasedLayers
from leakscope.attacks.words import (
    FoundWords,
    Space,
    moved_words,
    needed_groups,
    rank_of,
    spanned_words,
)
from leakscope.core.errors import POSITIVE, at_least, check
from leakscope.core.nouns import CERTIFIED, NOT_FOUND, PLAUSIBLE, Guess, Knowledge, Layers, View
from leakscope.core.rng import integer
from leakscope.core.task import is_number
from leakscope.gradients.capture import record_losses

WHO = "TextSpace"


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
    known up to ``rounding`` of their length. ``sketch``: directions outside the space along which texts are
    improved. A proof takes the first ``layers`` linear layers after the attention's; texts that differ must
    not fit even if vectors were known ``rival`` times worse. What is taken away of a found text is known up
    to ``passes`` roundings. A word that ends texts weighs at least ``ends`` of the heaviest where it does,
    and no word less than ``faint`` of it. The adversary knows the model, its vocabulary, how many texts
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
    sketch: int = 64
    layers: int = 3
    rival: float = 100.0
    passes: int = 16
    ends: float = 0.1
    faint: float = 1e-6

    def __post_init__(self) -> None:
        check(self, z=POSITIVE, far=POSITIVE, rounding=POSITIVE, gap=POSITIVE, close=POSITIVE)
        check(self, anchors=at_least(1), choices=at_least(1), lasso=at_least(1), rounds=at_least(1))
        check(self, steps=at_least(1), sweeps=at_least(1), sketch=at_least(1), layers=at_least(1))
        check(self, rival=POSITIVE, passes=at_least(1), ends=POSITIVE, faint=POSITIVE)

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
            released = ReleasedLayers.of(seen, knowledge, length, WHO)
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
        while self.left:
            only = self._only_text() if self.left == 1 else None
            if only is not None:
                return [*found, only]
            if self.released.local is not None or not self.released.has(attention.output):
                return found
            text, reading = self._read()
            if text is None or reading is None:
                return found
            sure = self._prove(text, reading)
            found.append((text, sure))
            if not sure or not self._take_away(text):
                return found
            self.left -= 1
            self.tokens = self._spanned(self.words.words).tokens
        return found

    def _read(self) -> tuple[Tensor | None, TextReading | None]:
        """A text, and how it was read: among the words that what is left holds, and, since what was taken
        away leaves rounding in which a faint word is lost, among those that all held."""
        assert self.released.attention is not None
        space = self._space((self.released.attention.output,))
        matrix = self._matrix(self.released.attention.inside)[0]
        own = torch.equal(self.tokens, self.words.tokens)
        for tokens in (self.tokens,) if own else (self.tokens, self.words.tokens):
            if bool((tokens[:, 1] == 0).any()):
                reading = TextReading.of(self.attack, self.released, self.left, tokens, space, matrix)
                text = reading.read()
                if text is not None:
                    return text, reading
        return None, None

    def _only_text(self) -> tuple[Tensor, bool] | None:
        """The text if there is one left, and one word for each place; proven if each is needed there."""
        words, places = self.tokens.T
        if not len(places) or not torch.equal(places, torch.arange(len(places))):
            return None
        assert self.released.attention is not None
        assert self.released.additive is not None
        space = self._space(self.released.attention.inside)
        some, row = words.unique(return_inverse=True)
        points = self.released.additive.take(some).vectors()[row, places] @ space.v
        sure = needed_groups(points, torch.arange(len(words)), space.rank, close=self.attack.close)
        return words, bool(sure.all()) and space.gap >= self.attack.gap and space.open

    # --- proofs

    def _prove(self, text: Tensor, reading: TextReading) -> bool:
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
        return not bool(
            self._fits(torch.stack(rivals), spaces, dtype, self.attack.rival * self.attack.rounding).any()
        )

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
            if vectors.dim() == 3 and len(spaces) < self.attack.layers:
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
                after = self._without((attention.output,), own)
                if rank_of(*after, self.left * self.length) == rank - len(text):
                    self.matrices, self.spaces = (
                        {names: self._without(names, own) for names in self.matrices},
                        {},
                    )
                    return True
        return False

    def _without(self, names: tuple[str, ...], slopes: Layers) -> tuple[Tensor, float]:
        """What is left of a matrix without a text's own ``slopes``, and its floor: what was taken away is not
        known better than the passes that computed it, here and there."""
        matrix, floor = self.matrices[names]
        own = torch.cat([slopes[name] for name in names if name in slopes])
        return matrix - own, max(floor, self.attack.passes * self.released.eps * largest(own))
