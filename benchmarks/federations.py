"""What the attacks on members of a federation find: the table of figures, row by row.

    python benchmarks/federations.py [--rows uploads printed half nine all images resnet] [--seeds 0 1 2]

location30, 10 clients of 300 records, the net of paper 002 (446-1024-512-256-30, tanh, Adam, one local epoch
of batches of 100); all ten clients are scored, against the same 1,005 records of nobody. The figure is the
positive likelihood ratio at 1% false alarms, the mean over clients, of 100 possible; 1 is chance. Beside it:
"source", the members in percent that are put to the right client of ten, and "person", the ratio for people
of five records each.

    uploads   20 rounds, six of them seen: the server (FedMIA), who sees one client (Whitened by class)
    printed   the paper's t-test as printed on the same uploads, client 0, at nominal 1%: its real rate of
              false alarms and what it finds, in percent
    half      sums of 5 of 10 clients, 20 rounds: InOut, and the plain mean of the same scores
    nine      sums of 9 of 10 clients, 30 rounds
    all       sums of all ten, 10 rounds: JointRegression, all members against the others
    images    a small convolutional net with normalisation, 4 clients of 100 images of CIFAR-100, 3 rounds
    resnet    ResNet-18 of width 16 (the papers' is 64), 3 clients of 40 images, 2 rounds, 300 others judged
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from leakscope import Dataset, seeded
from leakscope.attacks.alignment import Cosine
from leakscope.attacks.joint_regression import JointRegression
from leakscope.attacks.whitened import FedMIA, RoundScores, Whitened
from leakscope.audits.membership import MembershipAudit
from leakscope.audits.membership.judged import Roster
from leakscope.audits.membership.simulated import record, roster, settle
from leakscope.core.dataset import Batch, joined
from leakscope.core.nouns import Attack, Defense, Knowledge, Transcript, View
from leakscope.core.rng import initialised
from leakscope.data import load
from leakscope.games import Membership
from leakscope.measures.membership import plr_at_fpr, t_test_as_printed
from leakscope.models import MLP, ResNet18, build
from leakscope.training import Local
from leakscope.training.recording import RecordedChannel, Recording

SEEN = (0, 3, 7, 11, 15, 19)  # of 20 rounds
ADAM = Local(0.001, optimiser="adam", batch=100)
Row = Callable[[int], dict[str, float]]


class Watched:
    """A federation that was trained and recorded, and its records: members of all clients, then others."""

    def __init__(self, recording: Recording, model: nn.Module, who: Roster) -> None:
        self.recording, self.model, self.who = recording, model, who
        self.asked = joined((*who.members, who.others))
        self.member = torch.full((len(self.asked),), -1)
        sizes = torch.tensor([len(part) for part in who.members])
        self.member[: int(sizes.sum())] = torch.arange(len(sizes)).repeat_interleave(sizes)

    def channel(self, clients: tuple[str, ...], seen: str, rounds: tuple[int, ...] = ()) -> RecordedChannel:
        return RecordedChannel(self.recording, self.model, clients, rounds, seen, peers=True)  # type: ignore[arg-type]

    def view(self, channel: RecordedChannel) -> View:
        batch = Batch(self.asked, torch.arange(len(self.asked))[:, None])
        return View(channel(batch, self.member, torch.Generator()), {"candidates": batch})

    def scores(self, channel: RecordedChannel) -> Iterator[RoundScores]:
        """Of every record against every update, centred by class, one round after the other."""
        known = self.who.known.x, self.who.known.y
        return Whitened(by_class=True).score_rounds(self.model, self.view(channel), known)

    def guess(self, attack: Attack, channel: RecordedChannel) -> Tensor:
        """What an attack says of all records."""
        game = Membership(self.asked.take(torch.arange(0)), self.who.known)
        knowledge = Knowledge(game, channel, len(self.who.known))
        return attack(knowledge, seeded(0, "benchmark"))(self.view(channel))

    def ratio(self, scores: Tensor, client: int | None = None) -> float:
        """At 1% false alarms, of one client's members or of all."""
        mine = self.member >= 0 if client is None else self.member == client
        chosen = mine | (self.member < 0)
        secrets, even = mine[chosen].long(), torch.full((2,), 0.5, dtype=torch.float64)
        return plr_at_fpr(Transcript(secrets, scores[chosen], even)).value

    def mean(self, scores: Tensor) -> float:
        """Of scores (clients, n)."""
        return statistics.fmean(self.ratio(scores[c], c) for c in range(len(scores)))

    def source(self, scores: Tensor) -> float:
        """The members, in percent, that score highest against their own client."""
        inside = self.member >= 0
        return 100 * float((scores[:, inside].argmax(0) == self.member[inside]).double().mean())

    def person(self, scores: Tensor, each: int = 5) -> float:
        """As `mean`, of people with so many records each."""
        ratios = []
        for c in range(len(scores)):
            mine, others = (scores[c, self.member == whose] for whose in (c, -1))
            mine, others = (
                part[: len(part) // each * each].view(-1, each).mean(1) for part in (mine, others)
            )
            secrets = torch.cat([torch.ones(len(mine)), torch.zeros(len(others))]).long()
            even = torch.full((2,), 0.5, dtype=torch.float64)
            ratios.append(plr_at_fpr(Transcript(secrets, torch.cat([mine, others]), even)).value)
        return statistics.fmean(ratios)


def location(seed: int, *, rounds: int, fraction: float = 1.0, seen: str = "uploads") -> Iterator[Watched]:
    """The papers' federation, for as long as it is looked at."""
    audit = MembershipAudit(
        (FedMIA(),), ADAM, clients=10, size=300, known=630, held=375, fraction=fraction, seen=seen
    )  # type: ignore[arg-type]
    who = roster(audit, load("location30"), seeded(seed, "split"))
    net = MLP(hidden=(1024, 512, 256), activation="tanh")
    model = build(net, who.members[0], seeded(seed, "model"))
    observed = SEEN if seen == "uploads" else range(rounds)
    trained = record(
        audit, model, who, rounds, tuple(observed), defense=Defense(), rng=seeded(seed, "training")
    )
    with trained as (recording, history):
        yield Watched(recording, settle(model, history), who)


def uploads(seed: int) -> dict[str, float]:
    names = tuple(str(c) for c in range(10))
    for one in location(seed, rounds=20):
        against, alone = [], []
        for found in one.scores(one.channel(names, "uploads", SEEN)):
            against.append(found.less_others()[0])
            alone.append(found.z[0])
        return {
            "FedMIA, 6 rounds": one.mean(torch.stack(against).mean(0)),
            "FedMIA, round 1": one.mean(against[0]),
            "by class, 6 rounds": one.mean(torch.stack(alone).mean(0)),
            "by class, round 1": one.mean(alone[0]),
            "source, 6 rounds": one.source(torch.stack(against).mean(0)),
            "person, round 1": one.person(against[0]),
        }
    raise AssertionError


def printed(seed: int) -> dict[str, float]:
    for one in location(seed, rounds=20):
        scores = one.guess(Cosine(over="t"), one.channel(("0",), "uploads", SEEN))
        chosen = one.member <= 0
        found = Transcript((one.member[chosen] == 0).long(), scores[chosen], torch.full((2,), 0.5))
        alarms, hits = t_test_as_printed(found, rounds=len(SEEN))
        return {"false alarms, %": 100 * alarms.value, "hits, %": 100 * hits.value}
    raise AssertionError


def in_out(fraction: float, rounds: int) -> Row:
    def row(seed: int) -> dict[str, float]:
        for one in location(seed, rounds=rounds, fraction=fraction, seen="sum"):
            channel = one.channel(one.recording.clients, "sum")
            found = list(one.scores(channel))
            z = torch.stack([part.z[0, 0] for part in found])
            there = torch.tensor([[str(c) in part.took_part for c in range(10)] for part in found])
            apart = [
                z[there[:, c]].mean(0) - (z[~there[:, c]].mean(0) if (~there[:, c]).any() else 0)
                for c in range(10)
            ]
            both = torch.stack(apart)
            plain = one.mean(z.mean(0).repeat(10, 1))
            return {
                "InOut": one.mean(both),
                "plain mean": plain,
                "source": one.source(both),
                "person": one.person(both),
            }
        raise AssertionError

    return row


def everyone(seed: int) -> dict[str, float]:
    for one in location(seed, rounds=10, seen="sum"):
        channel = one.channel(one.recording.clients, "sum", tuple(range(10)))
        plain = torch.stack([part.z[0, 0] for part in one.scores(channel)]).mean(0)
        joint = one.guess(JointRegression(), channel)
        return {"JointRegression": one.ratio(joint), "plain mean": one.ratio(plain)}
    raise AssertionError


def convolutional(norm: Callable[[int], nn.Module]) -> nn.Module:
    """Three convolutions of 32, 64 and 64 channels, each normalised, and one linear layer."""
    layers: list[nn.Module] = []
    for wide, narrow in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(wide, narrow, 3, stride=2, padding=1, bias=False), norm(narrow), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 100))


NORMS: dict[str, Callable[[int], nn.Module]] = {
    "GroupNorm": lambda channels: nn.GroupNorm(8, channels),
    "BatchNorm": nn.BatchNorm2d,
    "LayerNorm": lambda channels: nn.GroupNorm(1, channels),  # over all of a record's entries
}


def convolutions(norm: str, data: Dataset, rng: torch.Generator) -> nn.Module:
    return initialised(lambda: convolutional(NORMS[norm]), rng)


def residual(norm: str, data: Dataset, rng: torch.Generator) -> nn.Module:
    return build(ResNet18(width=16, norm=norm.removesuffix("Norm").lower()), data, rng)  # type: ignore[arg-type]


def normalised(
    net: Callable[[str, Dataset, torch.Generator], nn.Module], norms: Sequence[str], rounds: int, **sizes: int
) -> Row:
    """Images of CIFAR-100, by nets with each normalisation."""

    def row(seed: int) -> dict[str, float]:
        data, found = load("cifar100"), {}
        data = Dataset(data.x, data.y, {}, values={"label": tuple(map(str, range(100)))})
        audit = MembershipAudit((FedMIA(),), Local(0.05, batch=20), **sizes)
        who = roster(audit, data, seeded(seed, "split"))
        names, seen = tuple(str(c) for c in range(audit.clients)), tuple(range(rounds))
        for norm in norms:
            model = net(norm, who.members[0], seeded(seed, "model"))
            trained = record(audit, model, who, rounds, seen, defense=Defense(), rng=seeded(seed, "training"))
            with trained as (recording, history):
                one = Watched(recording, settle(model, history), who)
                scores = [part.less_others()[0] for part in one.scores(one.channel(names, "uploads", seen))]
                found[f"FedMIA, {norm}"] = one.mean(torch.stack(scores).mean(0))
                first = one.guess(Cosine(), one.channel(("0",), "uploads", seen))
                found[f"Cosine, {norm}, client 0"] = one.ratio(first, 0)
        return found

    return row


ROWS: dict[str, Row] = {
    "uploads": uploads,
    "printed": printed,
    "half": in_out(0.5, 20),
    "nine": in_out(0.9, 30),
    "all": everyone,
    "images": normalised(
        convolutions, tuple(NORMS), 3, clients=4, size=100, known=400, held=100, judged=1000
    ),
    "resnet": normalised(
        residual, ("GroupNorm", "BatchNorm"), 2, clients=3, size=40, known=150, held=4, judged=300
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Members found at 1% false alarms, as a multiple of chance.")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    asked = parser.parse_args()
    for row in asked.rows:
        every = []
        for seed in asked.seeds:
            every.append(ROWS[row](seed))
            said = ", ".join(f"{name} {value:.1f}" for name, value in every[-1].items())
            print(f"{row:8} seed {seed}: {said}", flush=True)
        for name in every[0]:
            values = [found[name] for found in every]
            print(f"{row:8} {name:24} mean {statistics.fmean(values):6.1f}", flush=True)


if __name__ == "__main__":
    main()
