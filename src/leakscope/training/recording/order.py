"""Whether rounds are in their order: which global model the uploads of a round lead to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor

from leakscope.training.recording.index import listed

FEW = 4096  # entries of the parameters, by which a model is known again


@dataclass
class Trail:
    """Some entries of every global model and of the mean of every round's uploads, by round."""

    models: dict[int, Tensor] = field(default_factory=dict)
    means: dict[int, Tensor] = field(default_factory=dict)

    def see_model(self, r: int, model: Tensor) -> None:
        self.models[r] = _few(model)

    def see_mean(self, r: int, mean: Tensor) -> None:
        self.means[r] = _few(mean)

    def faults(self, exact: float) -> Iterator[str]:
        """Uploads whose mean is another round's global model than the next one's, but for a share ``exact``
        of their mean update."""
        astray = [f"those of round {r} to that of round {q}" for r, q in self._astray(exact)]
        if astray:
            yield (
                f"Uploads lead to the global model of another round than the next: {listed(astray)}. Rounds "
                f"are out of order, or models were recorded in other rounds than they were sent out in. "
                f"Record each upload in the round of the model that its client was sent."
            )

    def _astray(self, exact: float) -> Iterator[tuple[int, int]]:
        for r, mean in self.means.items():
            near = exact * float((mean - self.models[r]).norm())
            far = {q: float((mean - model).norm()) for q, model in self.models.items() if q != r}
            after = min(
                (q for q in far if q > r), default=r
            )  # a round may be missing, or the count go by tens
            if near > 0 and far.get(after, near + 1) > near and min(far.values(), default=near + 1) <= near:
                yield r, min(far, key=lambda q: far[q])


def _few(parameters: Tensor) -> Tensor:
    return parameters[:: max(1, len(parameters) // FEW)].clone()
