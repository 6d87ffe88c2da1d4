"""Images back from gradients: CIFAR-100, the net of iDLG and the LeNet of paper 001.

    python benchmarks/reconstruction.py                   every part (about half an hour on one core)
    python benchmarks/reconstruction.py labels leakage    or solved relu sets aggregates
    python benchmarks/reconstruction.py --quick           few images and evaluations, to see that it runs

Needs LEAKSCOPE_DATA/cifar100.npz. One thread, process time; seeds 10, 11 and 12 of nets, images and starts.
Targets: the label rule at least 99 %; from the whole gradient of the sigmoid net at least 60 % of images
recovered (squared distance below 0.01 and SSIM of at least 0.9) from single starts of at most 6,000
evaluations, and 80 % with one restart where the distance stayed high. The other parts are measured, and
promise nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from leakscope import Dataset, GradientChannel, Knowledge, Release, Transcript, View, load, seeded
from leakscope.attacks.closed_form import Attempt, SeenLayer, labels_of
from leakscope.attacks.layer_by_layer import LayerByLayer
from leakscope.attacks.reconstruction import DeepLeakage, InvertingGradients
from leakscope.games import Reconstruction
from leakscope.measures.fidelity import matched, ssim, trivial
from leakscope.measures.success import proportion
from leakscope.models import LeNet, SigmoidNet, build, layers_of, parameters

SEEDS, PUBLIC = (10, 11, 12), 500
IMAGES, FEW = 20, 8  # to the targets, and where nothing is promised
LOSS, SSIM = 0.01, 0.9


@dataclass(frozen=True, eq=False)
class Case:
    """One net, the images behind its gradients, and what the adversary has of both."""

    knowledge: Knowledge
    view: View
    secrets: Tensor
    seed: int

    def narrowed(self, trials: Tensor) -> Case:
        """These trials alone."""
        releases = tuple(
            Release.of({name: part[trials] for name, part in r.layers.items()}, r.params)
            for r in self.view.releases
        )
        public = {name: part[trials] for name, part in self.view.public.items() if isinstance(part, Tensor)}
        return replace(self, view=View(releases, public), secrets=self.secrets[trials])

    def scores(self, attempt: Attempt) -> Tensor:
        """The SSIM (t, k) of what was found, in its best order."""
        return ssim(matched(Transcript(self.secrets, attempt.records, torch.empty(0))), self.secrets)

    @property
    def floor(self) -> float:
        """The SSIM of the public mean image."""
        return float(trivial(self.secrets, self.knowledge.game.mean)["public mean"].mean())  # type: ignore[attr-defined]


def case(data: Dataset, architecture: object, seed: int, *, images: int, batch: int = 1) -> Case:
    order = torch.randperm(len(data), generator=seeded(seed, "records"))
    public, private = data.take(order[:PUBLIC]), data.take(order[PUBLIC:])
    net = build(architecture, data, seeded(seed, "net"))  # type: ignore[arg-type]
    channel = GradientChannel(net, (parameters(net),))
    game = Reconstruction(private, batch=batch)
    view, secrets = game.deal(channel, images // batch, seeded(seed, "images"))
    return Case(Knowledge(game.on(public), channel), view, secrets, seed)


def model_of(case: Case) -> nn.Module:
    channel = case.knowledge.channel
    assert isinstance(channel, GradientChannel)
    return channel.model


def described(name: str, case: Case, attempt: Attempt, seconds: float) -> str:
    scores = case.scores(attempt)
    done = int(((scores >= SSIM).all(1)).sum())
    return (
        f"{name:42} seed {case.seed}  SSIM mean {scores.mean():.3f} median {scores.quantile(0.5):.3f} "
        f"(public mean {case.floor:.3f})  >= {SSIM}: {done}/{len(scores)}  failed "
        f"{int(attempt.failed.sum())}  evaluations {attempt.evaluations.double().mean():.0f}  {seconds:.0f} s"
    )


def labels(data: Dataset, *, quick: bool) -> Iterator[str]:
    """The label rule, 300 images of batch 1 on three nets each; then batches of 4."""
    n = 20 if quick else 300
    for kind in (SigmoidNet(), LeNet()):
        for seed in SEEDS:
            one = case(data, kind, seed, images=n)
            right = labels_of(SeenLayer.of(one.knowledge, one.view), "labels") == one.view.public["labels"]
            yield f"label rule, {type(kind).__name__}, batch 1, seed {seed}: " + str(
                proportion("right", int(right.sum()), n)
            )
            four = case(data, kind, seed, images=n, batch=4)
            found = labels_of(SeenLayer.of(four.knowledge, four.view), "labels").sort(1).values
            told = four.view.public["labels"]
            assert isinstance(told, Tensor)
            whole = (found == told.sort(1).values).all(1)
            yield f"  all labels of a batch of 4: {proportion('right', int(whole.sum()), len(whole))}"


def leakage(data: Dataset, *, quick: bool) -> Iterator[str]:
    """DLG with the label read off, the whole gradient of the sigmoid net, single starts and one restart."""
    attack = DeepLeakage(restarts=0, evaluations=300 if quick else 6_000)
    n = 2 if quick else IMAGES
    single, again = [], []
    for seed in SEEDS[:1] if quick else SEEDS:
        one = case(data, SigmoidNet(), seed, images=n)
        started = time.process_time()
        first = attack.attempt(one.knowledge, one.view, seeded(seed, "start"))
        yield described("DLG, sigmoid net, single start", one, first, time.process_time() - started)
        hits = ((first.losses < LOSS) & (one.scores(first)[:, 0] >= SSIM)).tolist()
        single += hits
        left = first.failed.nonzero()[:, 0]
        if len(left):
            rest = one.narrowed(left)
            second = attack.attempt(rest.knowledge, rest.view, seeded(seed, "restart"))
            yield described("  their restart", rest, second, 0.0)
            for i, hit in zip(
                left, (second.losses < LOSS) & (rest.scores(second)[:, 0] >= SSIM), strict=True
            ):
                hits[i] = bool(hit)
        again += hits
    yield f"single starts: {proportion('recovered', sum(single), len(single))}, target 0.60"
    yield f"one restart: {proportion('recovered', sum(again), len(again))}, target 0.80"


def solved(data: Dataset, *, quick: bool) -> Iterator[str]:
    """The same images by linear equations, layer by layer, without a start; one by one, as seconds are."""
    for seed in SEEDS[:1] if quick else SEEDS:
        one = case(data, SigmoidNet(), seed, images=2 if quick else IMAGES)
        parts, seconds = [], []
        for i in range(len(one.secrets)):
            own = one.narrowed(torch.tensor([i]))
            started = time.process_time()
            parts.append(own.scores(LayerByLayer().attempt(own.knowledge, own.view)))
            seconds.append(time.process_time() - started)
        scores = torch.cat(parts)[:, 0]
        share = proportion("recovered", int((scores >= SSIM).sum()), len(scores))
        yield (
            f"layer by layer, sigmoid net, seed {seed}: SSIM mean {scores.mean():.6f}, least "
            f"{scores.min():.6f}; {share}; seconds median "
            f"{sorted(seconds)[len(seconds) // 2]:.2f} (most {max(seconds):.2f})"
        )


def relu(data: Dataset, *, quick: bool) -> Iterator[str]:
    """The whole gradient of the paper's LeNet, which has ReLU and max-pooling."""
    n, steps = (2, 20) if quick else (FEW, 2_400)
    attacks = {
        "DLG, LeNet": DeepLeakage(restarts=1, evaluations=steps),
        "cosine, LeNet, tv 0.1": InvertingGradients(iterations=steps, tv=0.1),
        "cosine, LeNet, tv 0.01": InvertingGradients(iterations=steps, tv=0.01),
        "cosine, LeNet, tv 0.001": InvertingGradients(iterations=steps, tv=0.001),
    }
    for name, attack in attacks.items():
        yield _timed(name, case(data, LeNet(), SEEDS[0], images=n), attack)


def sets(data: Dataset, *, quick: bool) -> Iterator[str]:
    """Two neighbouring layers at a time, the label known (paper 001, section 6.2)."""
    n, steps = (2, 20) if quick else (FEW, 2_000)
    for kind in (SigmoidNet(), LeNet()):
        one = case(data, kind, SEEDS[0], images=n)
        for pair in pairwise(layers_of(model_of(one))):
            attack = (
                DeepLeakage(label="known", layers=pair, evaluations=steps, restarts=0)
                if isinstance(kind, SigmoidNet)
                else InvertingGradients(label="known", layers=pair, iterations=steps // 2, tv=0.01)
            )
            yield _timed(f"{type(kind).__name__}, {' + '.join(pair)}", one, attack)


def aggregates(data: Dataset, *, quick: bool) -> Iterator[str]:
    """Mean gradients of 2 and 4 images, their labels known."""
    n, steps = (4, 20) if quick else (FEW, 3_000)
    for batch in (2, 4):
        for kind in (SigmoidNet(), LeNet()):
            attack = (
                DeepLeakage(label="known", evaluations=steps, restarts=1)
                if isinstance(kind, SigmoidNet)
                else InvertingGradients(label="known", iterations=steps // 3, tv=0.01)
            )
            one = case(data, kind, SEEDS[0], images=n, batch=batch)
            yield _timed(f"{type(kind).__name__}, mean of {batch}", one, attack)


def _timed(name: str, case: Case, attack: DeepLeakage | InvertingGradients) -> str:
    started = time.process_time()
    attempt = attack.attempt(case.knowledge, case.view, seeded(case.seed, "start"))
    return described(name, case, attempt, time.process_time() - started)


PARTS = {
    "labels": labels,
    "leakage": leakage,
    "solved": solved,
    "relu": relu,
    "sets": sets,
    "aggregates": aggregates,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], metavar="part", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    data = load("cifar100")
    for name in asked.parts or PARTS:
        for line in PARTS[name](data, quick=asked.quick):
            print(line, flush=True)


if __name__ == "__main__":
    main()
