"""What an audit of a model's layers found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Literal, Self, TypeVar, get_args

from pydantic import model_validator

from leakscope.core.nouns import Estimate
from leakscope.measures.sensitivity import Norm
from leakscope.measures.shuffled import SelfCheck
from leakscope.results.averages import Average
from leakscope.results.scores import FrozenModel, RebuiltPicture, Scores, TaskScore, Worth, tells

WHOLE, COUNTS = "all layers", "counts of labels"
T = TypeVar("T", bound=Estimate | Average)  # of one seed, or over seeds
Measure = Literal["none", "keep local", "freeze", "noise"]


class Layer(FrozenModel):
    """A layer of the model: its ``name`` there, its ``place`` from 1, and the shape of its weights."""

    name: str
    place: int
    parameters: int
    kind: str
    shape: tuple[int, ...] = ()

    @property
    def form(self) -> str:
        """``linear 108 to 32`` or ``convolution 3 to 16, 5 x 5``."""
        if self.kind in ("linear", "convolution") and len(self.shape) > 1:
            outputs, inputs, *window = map(str, self.shape)
            return f"{self.kind} {inputs} to {outputs}" + (f", {' x '.join(window)}" if window else "")
        sizes = (" to " if self.kind == "embedding" else " x ").join(map(str, self.shape))
        return f"{self.kind} {sizes}".strip()

    @property
    def title(self) -> str:
        return f"layer {self.place}, {self.form}"


class Amount(FrozenModel, Generic[T]):
    """Nats that were found; they may be found negative, but never are."""

    information: T

    @property
    def scores(self) -> Scores[T]:
        return Scores[T](information=self.information)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        """Scores refuse what a measure cannot be: when it is read, not when it is told."""
        if not any(self.scores.present()):
            raise ValueError("nothing was measured")
        return self

    @property
    def floored(self) -> float:
        """An adversary may ignore what it sees."""
        return max(0.0, self.information.value)

    @property
    def shown(self) -> bool:
        """Whether anything is given away, by the lower limit."""
        return self.information.low > 0

    @property
    def guesses(self) -> bool:
        """An interval without width is an adversary who ignored what it saw."""
        return self.information.low == self.information.high


class Leak(Amount[T], Generic[T]):
    """What the attack family finds in the gradient of these ``layers``, and which of its members it chose."""

    name: str
    layers: tuple[str, ...]
    auroc: T
    advantage: T
    family: str
    selfcheck: SelfCheck | None  # a result from before there was one has none

    @property
    def leaks(self) -> bool:
        """Whether anything is given away, by the lower limit of any measure."""
        return self.shown or self.advantage.low > 0 or tells(self.auroc.low, self.auroc.high)

    @property
    def scores(self) -> Scores[T]:
        return Scores[T](advantage=self.advantage, auroc=self.auroc, information=self.information)


class SubspaceGap(FrozenModel, Generic[T]):
    """Between the subspaces of gradients with and without a secret, and what random splits give."""

    distance: T
    normalised: float
    rank: int
    null_mean: float
    null_sd: float
    p: float


class SampleRatio(FrozenModel, Generic[T]):
    """A two-sample statistic over its null, as a logarithm."""

    log_ratio: T
    p: float


class Latent(FrozenModel, Generic[T]):
    """One secret that no layer is trained for; ``most`` nats are certainty. ``layers`` are by name, or by the
    names of neighbours joined by +; ``together`` is all at once, ``labels`` what the batch's labels alone
    tell."""

    secret: str
    values: tuple[str, ...]
    most: float
    layers: dict[str, Leak[T]]
    together: Leak[T]
    labels: Leak[T]
    subspace: dict[str, SubspaceGap[T]]
    two_sample: dict[str, SampleRatio[T]]

    @property
    def views(self) -> tuple[Leak[T], ...]:
        """Every layer, and all at once."""
        return (*self.layers.values(), self.together)


class Rebuilt(Amount[T], Generic[T]):
    """What is rebuilt of the inputs from the gradients of these layers; information is above that of a
    trivial guess."""

    name: str
    layers: tuple[str, ...]
    ssim: T
    recovered: T
    failures: int

    @property
    def scores(self) -> Scores[T]:
        return Scores[T](information=self.information, ssim=self.ssim, recovered=self.recovered)


class Original(FrozenModel, Generic[T]):
    """The inputs themselves, rebuilt from neighbours and from all; ``most`` nats are without a flaw."""

    sets: tuple[Rebuilt[T], ...]
    whole: Rebuilt[T]
    trivial_ssim: float
    most: float
    images: int
    attack: str

    @property
    def layers(self) -> dict[str, Rebuilt[T]]:
        """Each set by its name."""
        return {rebuilt.name: rebuilt for rebuilt in self.sets}

    @property
    def views(self) -> tuple[Rebuilt[T], ...]:
        return (*self.sets, self.whole)


class ProtectionTried(TaskScore[Estimate]):
    """A measure that was taken on these layers, and what an audit of all that is still sent finds."""

    measure: Measure
    layers: tuple[str, ...]
    std: float | None = None
    secret: str
    information: Estimate
    advantage: Estimate
    auroc: Estimate | None = None  # a result from before it was kept has none

    @model_validator(mode="after")
    def _judged(self) -> Self:
        if self.main is None:
            raise ValueError("a measure that was taken must say what the task is worth")
        return self


class Correlation(FrozenModel):
    """Pearson's r of two measures over layers; points of one model are not independent, so p is too small."""

    measure: str
    target: str
    r: float
    low: float
    high: float
    p: float
    n: int


class Picture(RebuiltPicture):
    """From a ``set`` of layers."""

    set: str


class LayersFound(FrozenModel):
    """All that an audit of layers found. Layers are named as in the model wherever they are a key."""

    layers: tuple[Layer, ...]
    latent: tuple[Latent[Estimate], ...]
    original: Original[Estimate] | None
    sensitivity: dict[str, dict[str, Estimate]]  # by norm and layer
    protection: tuple[ProtectionTried, ...]
    mutual: dict[str, dict[str, Estimate]]  # by target and layer
    correlations: tuple[Correlation, ...]
    claims: dict[str, Estimate]
    trend: dict[str, float]  # latent information as a share of the most, smoothed over layers
    pictures: tuple[Picture, ...]
    utility: Worth[Estimate]

    @model_validator(mode="after")
    def _whole(self) -> Self:
        views = [leak.layers for latent in self.latent for leak in latent.layers.values()]
        views += [rebuilt.layers for rebuilt in (self.original.sets if self.original else ())]
        known = {layer.name for layer in self.layers}
        if not all(view and known.issuperset(view) for view in views):
            raise ValueError("what is attacked must be layers of the model")
        first = self.latent[0].layers if self.latent else {}
        pairs = [(first, self.trend.keys()), *((one.layers, one.two_sample.keys()) for one in self.latent)]
        if not all(layers.keys() >= names for layers, names in pairs):
            raise ValueError("what is compared must be layers that are attacked")
        if not {"relative", *get_args(Norm)}.issuperset(self.sensitivity):
            raise ValueError("sensitivity must be in a known norm")
        return self

    def label(self, names: Sequence[str]) -> str:
        """``layer 1``, or ``layers 1 + 2``, of the layers of these names."""
        chosen = self._named(names)
        return f"layer{'s' * (len(chosen) > 1)} {' + '.join(str(layer.place) for layer in chosen)}"

    def title(self, names: Sequence[str]) -> str:
        """The same with what they are."""
        return f"{self.label(names)}, {' + '.join(layer.form for layer in self._named(names))}"

    def _named(self, names: Sequence[str]) -> list[Layer]:
        wanted = set(names)
        return [layer for layer in self.layers if layer.name in wanted]
