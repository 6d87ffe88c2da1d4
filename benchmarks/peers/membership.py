"""Black-box membership: our attacks by losses and ART's on one trained net, its records and its outputs.

Needs LEAKSCOPE_DATA/location30.npz. Half of the members and as many others are known to either adversary,
the rest are the candidates. Ours learn on one half of what is known; the other half chooses the attack and
its threshold. ART's learn on all that is known. Scores of both go through our `auroc` and `success_rate`,
which is the balanced accuracy, as members are half of the candidates. Our LiRA, which trains shadow nets of
its own, is set apart from those that train none, against ART's attack that did best on the candidates.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.metrics import roc_curve
from torch import Tensor, nn

from leakscope import Dataset, GradientChannel, Knowledge, Transcript, auroc, load, play, seeded, success_rate
from leakscope.attacks.losses import Loss, Merlin, ModifiedEntropy, Zari
from leakscope.attacks.members import LiRA
from leakscope.core.nouns import Attack
from leakscope.games import Membership
from leakscope.games.representations import RepresentationChannel
from leakscope.guards.encoder import Encoder
from leakscope.models import MLP, build
from leakscope.training import fit
from peers.table import Peer, Row, duration

NEEDS = (Peer("art", ("adversarial-robustness-toolbox",)),)
T = TypeVar("T")
ATTACKS: tuple[Attack, ...] = (Loss(), ModifiedEntropy(), Merlin(), Zari())
SHADOWED = LiRA(shadows=8)
THEIRS = (("prediction", "nn"), ("prediction", "rf"), ("prediction", "gb"), ("loss", "nn"), ("loss", "gb"))


@dataclass(frozen=True, eq=False)
class Victim:
    """A net trained on all members, and who is known to the adversary."""

    channel: GradientChannel
    candidates: Membership
    known: Membership

    @property
    def size(self) -> int:
        return len(self.candidates.members) + len(self.candidates.others)


def victim(data: Dataset, *, half: int) -> Victim:
    """Of 4 ``half`` records two halves are trained on for 60 epochs, each with a half of others."""
    order = torch.randperm(len(data), generator=seeded(0, "records"))
    parts = [data.take(rows) for rows in order[: 4 * half].split(half)]
    members = data.take(order[: 2 * half])
    model = build(MLP((128,)), data, seeded(0, "net"))
    trained = fit(model, members, rounds=60, rate=0.1, batch=32, rng=seeded(0, "training"))[-1]
    channel = GradientChannel(model, (trained,))
    return Victim(channel, Membership(parts[0], parts[2]), Membership(parts[1], parts[3]))


def rows(*, quick: bool) -> Iterator[Row]:
    if not NEEDS[0].installed:
        return
    target = victim(load("location30"), half=200 if quick else 1_000)
    task, known = "membership, Location-30", 2 * len(target.known.members)
    equal = f"net, {target.size} candidates, {known} known records; outputs and labels only"
    (name, own), left = _timed(lambda: ours(target))
    theirs: list[tuple[float, str]] = []
    for label, attack in peers(target).items():
        said, right = _timed(partial(transcript, target, attack))
        theirs.append((auroc(said).value, f"ART {label}: {scored(said, right)}"))
        gap = f"AUROC {auroc(own).value - theirs[-1][0]:+.3f}"
        yield Row(task, f"{name}: {scored(own, left)}", theirs[-1][1], gap, equal)
    own, left = _timed(lambda: shadowed(target))
    area, best = max(theirs)
    gap, cell = f"AUROC {auroc(own).value - area:+.3f}", f"LiRA of {SHADOWED.shadows}: {scored(own, left)}"
    yield Row(task, cell, best, gap, f"{equal}; ours trains {SHADOWED.shadows} shadow nets, ART none")


def _timed(run: Callable[[], T]) -> tuple[T, float]:
    started = time.process_time()
    return run(), time.process_time() - started


def ours(target: Victim) -> tuple[str, Transcript]:
    """The attack that did best on records it did not learn from, its scores less the best threshold there."""
    known = target.known
    learned, chosen = (
        Membership(known.members.take(part), known.others.take(part))
        for part in torch.arange(len(known.members)).chunk(2)
    )
    knowledge = Knowledge(learned, target.channel, trials=2 * len(learned.members))

    def against(game: Membership, attack: Attack, role: str) -> Transcript:
        trials = 2 * len(game.members)
        return play(game, target.channel, attack, knowledge, trials=trials, rng=seeded(0, role))

    rehearsed = {attack: against(chosen, attack, "choice") for attack in ATTACKS}
    best = max(rehearsed, key=lambda attack: auroc(rehearsed[attack]).value)
    said = against(target.candidates, best, "candidates")
    cut = threshold(rehearsed[best])
    return repr(best), Transcript(said.secrets, said.guesses - cut, said.prior)


def shadowed(target: Victim) -> Transcript:
    """LiRA, to which the net's outputs are the representation."""
    channel = RepresentationChannel(Encoder(_trained(target), {}, head=nn.Identity()))
    knowledge = Knowledge(target.known, channel, trials=2 * len(target.known.members))
    return play(
        target.candidates, channel, SHADOWED, knowledge, trials=target.size, rng=seeded(0, "candidates")
    )


def threshold(said: Transcript) -> float:
    """Half-way below the score from which on balanced accuracy is best."""
    false, true, cuts = roc_curve(said.secrets.numpy(), said.guesses.numpy(), drop_intermediate=False)
    best = int(np.argmax(true[1:] - false[1:])) + 1  # the first is above all scores
    below = cuts[min(best + 1, len(cuts) - 1)]
    return float((cuts[best] + below) / 2)


Infer = Callable[[Dataset], Tensor]  # records -> chances of being a member


def peers(target: Victim) -> dict[str, Callable[[], Infer]]:
    """ART's attacks by name, each to be taught when called."""
    from art.attacks.inference import membership_inference as art

    nets = {"prediction": _classifier(target, nn.Softmax(1)), "loss": _classifier(target, nn.Identity())}
    known = [part for data in (target.known.members, target.known.others) for part in _arrays(data)]

    def taught(kind: str, head: str) -> Infer:
        # ART draws from the global generators only.
        np.random.seed(0)
        torch.manual_seed(0)
        attack = art.MembershipInferenceBlackBox(nets[kind], input_type=kind, attack_model_type=head)
        attack.fit(*known)
        return lambda data: torch.from_numpy(attack.infer(*_arrays(data), probabilities=True)).flatten()

    def ruled() -> Infer:
        attack = art.MembershipInferenceBlackBoxRuleBased(nets["prediction"])
        return lambda data: torch.from_numpy(attack.infer(*_arrays(data))).flatten()

    heads: dict[str, Callable[[], Infer]] = {
        f"black box, {head} on {kind}": lambda kind=kind, head=head: taught(kind, head)
        for kind, head in THEIRS
    }
    return heads | {"rule: rightly classified": ruled}


def transcript(target: Victim, attack: Callable[[], Infer]) -> Transcript:
    """What ART says of the candidates, as scores above zero for members."""
    infer, game = attack(), target.candidates
    said = torch.cat([infer(game.members), infer(game.others)]).double() - 0.5
    secrets = torch.tensor([1, 0]).repeat_interleave(torch.tensor([len(game.members), len(game.others)]))
    return Transcript.of_scores(secrets, said, game.chances)


def scored(said: Transcript, taken: float) -> str:
    area, right = auroc(said), success_rate(said)
    return (
        f"AUROC {area.value:.3f} ({area.low:.3f} to {area.high:.3f}), "
        f"accuracy {right.value:.3f} ({right.low:.3f} to {right.high:.3f}), {duration([taken])}"
    )


def _classifier(target: Victim, last: nn.Module) -> Any:
    """The net for ART, its outputs through ``last``: from logits as they are ART's heads learn little."""
    from art.estimators.classification import PyTorchClassifier

    data, net = target.known.members, nn.Sequential(_trained(target), last).eval()
    shape = tuple(data.x.shape[1:])
    return PyTorchClassifier(net, nn.CrossEntropyLoss(), shape, data.classes, device_type="cpu")


def _trained(target: Victim) -> nn.Module:
    """A copy of the net with the weights it was trained to."""
    model, (params,) = copy.deepcopy(target.channel.model), target.channel.rounds
    model.load_state_dict(dict(params))
    return model


def _arrays(data: Dataset) -> tuple[np.ndarray, np.ndarray]:
    return data.x.numpy(), data.y.numpy()
