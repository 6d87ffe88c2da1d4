"""What two figures show and no measure of an audit says, from the papers' own cells, trained again.

    python benchmarks/figures.py cosines [--seeds 0 1 2]
    python benchmarks/figures.py features [--seeds 0 1 2]

``cosines``: figure 9 of paper 002, the mean cosine of members and of others on CIFAR-100, with its deviation,
over the rounds that the cell observes. ``features``: figure 11 of paper 003, of how many features of Activity
the learned noise leaves a larger error than Gaussian noise of the cell beside it, over 50 records.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from unittest.mock import patch

from torch import Tensor

from leakscope.audits.guards.kind import KIND as GUARDS
from leakscope.audits.guards.trial import Trial
from leakscope.audits.membership import judged
from leakscope.audits.membership.kind import KIND as MEMBERS
from leakscope.core.nouns import Transcript
from leakscope.data import tabled
from leakscope.results.cell import Cell
from leakscope.results.kind import World
from leakscope.run.published import cells

RECORDS = 50
NOISES = ("activity-learned-1.0", "activity-gaussian-1.5")


def show_cosines(seed: int) -> Iterator[tuple[str, float]]:
    cell = cells("002")["cifar100"]
    cell = cell.model_copy(update={"game": {**cell.game, "attacks": [{"name": "Cosine"}]}})
    seen: list[Transcript] = []

    def look(transcript: Transcript, *rates: object) -> object:
        seen.append(transcript)
        return scored(transcript, *rates)

    scored = judged.score
    with patch.object(judged, "score", look):
        MEMBERS.run(_world(cell, seed))
    for word, secret in (("members", 1), ("others", 0)):
        groups = [one.guesses[one.secrets == secret].double() for one in seen]
        yield f"{word}, mean", statistics.fmean(float(group.mean()) for group in groups)
        yield f"{word}, deviation", statistics.fmean(float(group.std()) for group in groups)


def show_features(seed: int) -> Iterator[tuple[str, float]]:
    errors = [_invert(cells("003")[name], seed) for name in NOISES]
    (accuracies, (learned, gaussian)) = zip(*errors, strict=True)
    for name, accuracy in zip(NOISES, accuracies, strict=True):
        yield f"{name}, accuracy", accuracy
    yield "features", len(learned)
    yield "with a larger error behind learned noise", int((learned > gaussian).sum())


def _invert(cell: Cell, seed: int) -> tuple[float, Tensor]:
    """The accuracy, and each feature's mean squared error over records by `Inversion` of one release."""
    seen: list[Transcript] = []

    def look(trial: Trial, transcript: Transcript) -> object:
        seen.append(transcript)
        return scored(trial, transcript)

    scored = Trial.score
    with patch.object(Trial, "score", look):
        found = GUARDS.run(_world(cell, seed)).found.judged[0]
    one = next(seen[i] for i, tried in enumerate(found.attacks) if tried.name == "Inversion")
    apart = (one.guesses - one.secrets).double().square().flatten(1)[:RECORDS]
    task = found.utility.task.main
    return (task.value if task else 0.0), apart.mean(0)


def _world(cell: Cell, seed: int) -> World:
    return World(cell, seed, tabled(cell.data))


SHOWN: dict[str, Callable[[int], Iterator[tuple[str, float]]]] = {
    "cosines": show_cosines,
    "features": show_features,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figure", choices=SHOWN)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    asked = parser.parse_args()
    print("| seed | of what | value |")
    print("| --- | --- | --- |")
    for seed in asked.seeds:
        for name, value in SHOWN[asked.figure](seed):
            print(f"| {seed} | {name} | {value:.6g} |", flush=True)


if __name__ == "__main__":
    main()
