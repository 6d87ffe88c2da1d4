"""The words behind a gradient or an upload: those of an embedding that moved, or of a first attention's space.

A word that does not occur moves no row of a trained embedding. Where the embedding is frozen, queries, keys
and values take vectors h of words at places that everybody can compute, and their gradient is Σ d h' over the
words of all texts: its rows span what the words' vectors span. A word whose vector, at some place, lies in
that space is there, unless others together explain it (compare Petrov et al., NeurIPS 2024, "DAGER").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakscope.attacks.first_attention import Additive
from leakscope.attacks.spans import Span, gradient_floor, kept_by_decay, upload_floor
from leakscope.core.nouns import Layers, Params
from leakscope.training.local import Local

SKETCH = 16  # directions outside the space along which all words are tried first
COARSE = 0.3  # of what words have along them: above it, no word is tried again
TAIL = 4  # one over the share of singular values that are taken for noise
MARGIN = 1.05  # by which a singular value must be above all that noise has
SPANNED = 1e-5  # of the largest singular value, below which candidates span nothing more


@dataclass(frozen=True, eq=False)
class Space:
    """The row space of one matrix (rows, d) that was released, U S V', what is outside it, ``beyond``
    (d, d - r), and the deviation of what disturbs an entry."""

    span: Span
    beyond: Tensor
    deviation: float
    rows: int

    @property
    def open(self) -> bool:
        """Whether it is a true part of all there could be, so that lying in it says something."""
        r = self.span.rank
        return 0 < r < min(self.rows, len(self.span.v)) - 1

    @staticmethod
    def of(matrix: Tensor, floor: float, most: int) -> Space:
        """The part above rounding and above what noise of any size would have; at most so many dimensions."""
        m, d = matrix.shape
        values = torch.linalg.svdvals(matrix.double())
        noise = torch.linalg.svdvals(
            torch.randn(m, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        )
        few = max(1, len(values) // TAIL)
        size = float(values[-few:].norm() / noise[-few:].norm())
        span = Span.of(matrix, max(floor, MARGIN * size * float(noise[0])), most)
        r = span.rank
        rest = float(values[r:].square().sum()) / max(1, (m - r) * (d - r))
        beyond = torch.linalg.svd(span.v.T, full_matrices=True)[2][r:].T if r else torch.eye(d).double()
        return Space(span, beyond, rest**0.5, m)

    def z(self, vectors: Tensor, rounding: float) -> tuple[Tensor, Tensor]:
        """How far vectors (n, d) are outside: in units of what noise, and ``rounding`` of the vectors
        themselves, explain (n,), and as a share of their length (n,)."""
        length = vectors.norm(dim=1).clamp(min=torch.finfo(vectors.dtype).tiny)
        outside = (vectors @ self.beyond).norm(dim=1)
        moved = self.deviation * self.beyond.shape[1] ** 0.5 * (vectors @ self.span.v / self.span.s).norm(dim=1)
        return outside / (moved.square() + (rounding * length).square()).sqrt(), outside / length


@dataclass(frozen=True, eq=False)
class Words:
    """The words (n,) found behind one release, which of them are proven (n,), the words at places (c, 2) whose
    vectors lie in the space, sorted by place, the space's ``rank`` and the ``gap`` below it. ``through``: the
    whole vocabulary was tried, and a word that was not found is not there, as far as rounding tells."""

    words: Tensor
    proven: Tensor
    tokens: Tensor
    rank: int
    gap: float
    through: bool

    @staticmethod
    def none(rank: int = 0, gap: float = 0.0) -> Words:
        nothing = torch.zeros(0, dtype=torch.int64)
        return Words(nothing, nothing.bool(), nothing.view(0, 2), rank, gap, through=False)


def embedding_of(model: nn.Module, released: Layers, words: int) -> str | None:
    """The weight of an embedding of all words that is released."""
    for name, part in model.named_modules():
        if isinstance(part, nn.Embedding) and part.num_embeddings == words and f"{name}.weight" in released:
            return f"{name}.weight"
    return None


def moved_words(rows: Tensor, most: int) -> Words:
    """The words whose rows (v, d) are not 0. Where there are more than can be behind a release, something else
    moved them, and nothing is said."""
    moved = rows.ne(0).any(1).nonzero()[:, 0]
    moved = moved[moved > 0]
    if len(moved) > most:
        return Words.none()
    sure = torch.ones(len(moved), dtype=torch.bool)
    return Words(moved, sure, moved.new_zeros(0, 2), len(moved), torch.inf, through=True)


def released_matrix(
    params: Params, layers: Layers, names: Sequence[str], trial: int, local: Local | None, steps: int, eps: float
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
) -> Words:
    """The words, all or those that are ``known`` to be there, that a space holds at some place."""
    r, width = space.span.rank, space.beyond.shape[1]
    if not space.open or width < SKETCH:
        return Words.none(r, space.span.gap)
    rng = torch.Generator().manual_seed(0)
    drawn = torch.randn(width, SKETCH, generator=rng, dtype=torch.float64) / SKETCH**0.5
    along = additive.along((space.beyond @ drawn).to(additive.words.dtype)).norm(dim=2)
    typical = along[1:].median()
    along[0] = torch.inf  # padding is no word
    if known is not None:
        along[~torch.isin(torch.arange(len(along)), known)] = torch.inf
    words, places = (along < COARSE * typical).nonzero(as_tuple=True)
    if not len(words):
        return Words(words, words.bool(), words.new_zeros(0, 2), r, space.span.gap, through=True)
    some, row = words.unique(return_inverse=True)
    vectors = additive.take(some).vectors()[row, places]
    score, share = space.z(vectors, rounding)
    kept = ((score < z) & (share < far)).nonzero()[:, 0]
    kept = kept[(places[kept] * (len(additive.words) + 1) + words[kept]).argsort()]
    tokens, points = torch.stack([words[kept], places[kept]], dim=1), vectors[kept] @ space.span.v
    found, which = tokens[:, 0].unique(return_inverse=True)
    sure = needed_groups(points, which, r, close=close) if space.span.gap >= gap else found.bool() & False
    return Words(found, sure, tokens, r, space.span.gap, through=True)


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
