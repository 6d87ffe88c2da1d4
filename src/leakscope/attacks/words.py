"""The words behind a gradient or an upload: of an embedding that moved, or of a first attention's space.

A word that does not occur moves no row of a trained embedding. Where the embedding is frozen, queries, keys
and values take vectors h of words at places that everybody can compute, and their gradient is Σ d h' over the
words of all texts: its rows span what the words' vectors span. A word whose vector, at some place, lies in
that space is there, unless others together explain it (compare Petrov et al., NeurIPS 2024, "DAGER").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from leakscope.attacks.first_attention import Additive
from leakscope.attacks.spans import gradient_floor, kept_by_decay, upload_floor
from leakscope.core.nouns import Layers, Params
from leakscope.training.local import Local

SKETCH = 16  # directions outside the space along which all words are tried first
TYPICAL = 20  # words whose mean length outside the space stands for that of all
COARSE = 0.3  # of what words have along them: above it, no word is tried again
TAIL = 4  # one over the share of singular values that are taken for noise
MARGIN = 1.05  # by which a singular value must be above all that noise has
NOISE = 64  # the shorter side of a matrix whose noise stands for that of larger ones
BLOCK = 2048  # words that are tried together, of which all places fit into the processor's memory
SPANNED = 1e-5  # of the largest singular value, below which candidates span nothing more


@dataclass(frozen=True, eq=False)
class Space:
    """The row space ``v`` (d, r) of one matrix of so many ``rows`` that was released, its singular values
    ``s`` (r,), the ``axes`` (d, k) of all its rows with those of ``v`` first, the deviation of what disturbs
    an entry, and the ``gap`` below the last singular value."""

    axes: Tensor
    s: Tensor
    deviation: float
    gap: float
    rows: int

    @property
    def rank(self) -> int:
        return len(self.s)

    @property
    def v(self) -> Tensor:
        return self.axes[:, : self.rank]

    @cached_property
    def beyond(self) -> Tensor:
        """What is outside the space (d, d - r)."""
        d, k = self.axes.shape
        if k == d:
            return self.axes[:, self.rank :]
        whole: Tensor = torch.linalg.qr(self.v, mode="complete")[0]
        return whole[:, self.rank :]

    @property
    def open(self) -> bool:
        """Whether it is a true part of all there could be, so that lying in it says something."""
        return 0 < self.rank < min(self.rows, len(self.axes)) - 1

    @staticmethod
    def of(matrix: Tensor, floor: float, most: int) -> Space:
        """The part above rounding and above what noise of any size would have; at most so many dimensions."""
        m, d = matrix.shape
        if m < d:
            turned, square = torch.linalg.qr(matrix.T)
            inner, values, _ = torch.linalg.svd(square)
            axes = turned @ inner
        else:
            square = torch.linalg.qr(matrix, mode="r")[1] if m > d else matrix
            _, values, rows = torch.linalg.svd(square)
            axes = rows.T
        r = min(_above(values, floor, m, d), most)
        rest = values[r:]
        deviation = (float(rest.square().sum()) / max(1, (m - r) * (d - r))) ** 0.5
        below = max(floor, float(rest[0]) if len(rest) else 0.0, torch.finfo(values.dtype).tiny)
        gap = float(values[r - 1]) / below if r else 0.0
        return Space(axes, values[:r], deviation, gap, m)

    def z(self, vectors: Tensor, rounding: float) -> tuple[Tensor, Tensor]:
        """How far vectors (n, d) are outside: in units of what noise, and ``rounding`` of the vectors
        themselves, explain (n,), and as a share of their length (n,)."""
        length = vectors.norm(dim=1).clamp(min=torch.finfo(vectors.dtype).tiny)
        inside = vectors @ self.v
        outside = (vectors - inside @ self.v.T).norm(dim=1)
        width = len(self.axes) - self.rank
        moved = self.deviation * width**0.5 * (inside / self.s).norm(dim=1)
        return outside / (moved.square() + (rounding * length).square()).sqrt(), outside / length


def rank_of(matrix: Tensor, floor: float, most: int) -> int:
    """The rank of `Space.of`, without its axes."""
    m, d = matrix.shape
    square = torch.linalg.qr(matrix if m > d else matrix.T, mode="r")[1] if m != d else matrix
    return min(_above(torch.linalg.svdvals(square), floor, m, d), most)


def _above(values: Tensor, floor: float, m: int, d: int) -> int:
    """How many singular values of a matrix (m, d) are no rounding and no noise."""
    above = int((values > floor).sum())
    if above == len(values):  # nothing is as small as rounding: noise, or more words than dimensions
        above = int((values > _edge(values, m, d)).sum())
    return above


def _edge(values: Tensor, m: int, d: int) -> float:
    """The singular value that noise in a matrix (m, d) stays below, if the least of ``values`` are noise: by
    noise that is drawn, in a matrix of the same form of at most NOISE on its shorter side."""
    scale = min(1.0, NOISE / min(m, d))
    size = max(1, round(m * scale)), max(1, round(d * scale))
    drawn = torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise = torch.linalg.svdvals(drawn)
    least, like = (part[-max(1, len(part) // TAIL) :].square().mean().sqrt() for part in (values, noise))
    return MARGIN * float(noise[0] * least / like)


@dataclass(frozen=True, eq=False)
class FoundWords:
    """The words (n,) found behind one release, which of them are proven (n,), the words at places (c, 2)
    whose vectors lie in the space, sorted by place, the space's ``rank`` and the ``gap`` below it.
    ``through``: the whole vocabulary was tried in a space that ends clearly, so that a word that was not
    found is not there."""

    words: Tensor
    proven: Tensor
    tokens: Tensor
    rank: int
    gap: float
    through: bool

    def joined(self, others: FoundWords) -> FoundWords:
        """With what ``others`` found too, and their places; where this went through, with these alone."""
        if self.through:
            return replace(self, tokens=others.tokens)
        words, row = torch.cat([self.words, others.words]).unique(return_inverse=True)
        proven = torch.zeros(len(words), dtype=torch.bool)
        proven[row[torch.cat([self.proven, others.proven])]] = True
        return replace(others, words=words, proven=proven)

    @staticmethod
    def none(rank: int = 0, gap: float = 0.0) -> FoundWords:
        nothing = torch.zeros(0, dtype=torch.int64)
        return FoundWords(nothing, nothing.bool(), nothing.view(0, 2), rank, gap, through=False)


def embedding_of(model: nn.Module, released: Layers, words: int) -> str | None:
    """The weight of an embedding of all words that is released."""
    for name, part in model.named_modules():
        if isinstance(part, nn.Embedding) and part.num_embeddings == words and f"{name}.weight" in released:
            return f"{name}.weight"
    return None


def moved_words(rows: Tensor, most: int, *, defended: bool = False, padded: bool = False) -> FoundWords:
    """The words whose rows (v, d) are not 0. Nothing is said where something else moved them: where they are
    more than can be behind a release, or all, or where padding's moved, unless the model trains that one too
    (``padded``). ``defended``: rows may have been emptied, so that a word that was not found may be there."""
    moving = rows.ne(0).any(1)
    words = moving[1:].nonzero()[:, 0] + 1
    if len(words) > most or bool(moving[1:].all()) or (bool(moving[0]) and not padded):
        return FoundWords.none()
    sure, through = torch.ones(len(words), dtype=torch.bool), len(words) > 0 and not defended
    return FoundWords(words, sure, words.new_zeros(0, 2), len(words), torch.inf, through=through)


def released_matrix(
    params: Params,
    layers: Layers,
    names: Sequence[str],
    trial: int,
    local: Local | None,
    steps: int,
    eps: float,
) -> tuple[Tensor, float]:
    """Weights (rows, d) that take the same vectors, one below the other, without what decay took of them, and
    the singular value below which they are rounding."""
    parts, floors = [], []
    for name in names:
        if name in layers:
            part = layers[name][trial].double()
            if local is not None:
                part = part - (1 - kept_by_decay(local, steps)) * params[name].double()
                floors.append(upload_floor(params[name].double(), eps, steps))
            parts.append(part)
    matrix = torch.cat(parts)
    return matrix, gradient_floor(matrix, eps) if local is None else sum(f**2 for f in floors) ** 0.5


def spanned_words(
    space: Space,
    additive: Additive,
    known: Tensor | None,
    *,
    z: float,
    far: float,
    rounding: float,
    gap: float,
    close: float,
) -> FoundWords:
    """The words, all or those that are ``known`` to be there, that a space holds at some place."""
    r, width = space.rank, space.beyond.shape[1]
    if not space.open or width < SKETCH:
        return FoundWords.none(r, space.gap)
    rng = torch.Generator().manual_seed(0)
    drawn = torch.randn(width, SKETCH, generator=rng, dtype=torch.float64)
    all_words = torch.arange(1, len(additive.words)) if known is None else known  # padding is no word
    own = additive.take(all_words, additive.words.dtype)
    directions = (space.beyond @ drawn).to(own.words.dtype)
    along = torch.cat([part.along(directions).square_().mean(2).sqrt() for part in own.split(BLOCK)])
    words, places = (along < COARSE * _typical(additive, space)).nonzero(as_tuple=True)
    words = all_words[words]
    if not len(words):
        return replace(FoundWords.none(r, space.gap), through=space.gap >= gap)
    some, row = words.unique(return_inverse=True)
    vectors = additive.take(some).vectors()[row, places]
    score, share = space.z(vectors, rounding)
    kept = ((score < z) & (share < far)).nonzero()[:, 0]
    kept = kept[(places[kept] * (len(additive.words) + 1) + words[kept]).argsort()]
    tokens, points = torch.stack([words[kept], places[kept]], dim=1), vectors[kept] @ space.v
    found, which = tokens[:, 0].unique(return_inverse=True)
    sure = needed_groups(points, which, r, close=close) if space.gap >= gap else found.bool() & False
    return FoundWords(found, sure, tokens, r, space.gap, through=space.gap >= gap)


def _typical(additive: Additive, space: Space) -> float:
    """How much words that may be any have along one direction outside the space."""
    some = torch.linspace(1, len(additive.words) - 1, min(len(additive.words) - 1, TYPICAL)).long()
    outside = additive.take(some).vectors().flatten(0, 1) @ space.beyond
    return float(outside.square().mean().sqrt()) * math.sqrt(space.beyond.shape[1])


def needed_groups(points: Tensor, group: Tensor, rank: int, *, close: float) -> Tensor:
    """Which groups of candidates (g,) all others do not replace: without them the points (n, r) do not span
    the space, which those that are there do. If all together do not, one is missing, and none is proven."""
    groups = int(group.max()) + 1 if len(group) else 0
    found = torch.zeros(groups, dtype=torch.bool)
    if len(points) < rank:
        return found
    u, s, _ = torch.linalg.svd(points, full_matrices=False)
    if len(s) < rank or float(s[rank - 1]) < SPANNED * float(s[0]):
        return found
    for i in range(groups):
        own = u[group == i, :rank]
        found[i] = bool(torch.linalg.matrix_norm(own, 2) ** 2 > 1 - close)
    return found
