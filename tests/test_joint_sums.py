"""Joint regression over sums that everyone is in: from the steps of the global model alone, in plain NumPy; and
members who were never trained on are not found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from leakscope.attacks.joint_regression import JointRegression
from leakscope.audits.membership.judged import Roster, WatchedFederation, play_clients
from leakscope.audits.membership.limits import describe_limits
from leakscope.core.dataset import Batch, Dataset
from leakscope.core.nouns import Knowledge, View
from leakscope.core.rng import seeded
from leakscope.games import Membership
from leakscope.measures.membership import p_values
from leakscope.measures.success import auroc
from leakscope.models import MLP, build
from leakscope.training import Local, federate
from leakscope.training.recording import RecordedChannel, Recorder, Recording

ROUNDS, CLIENTS, SIZE, KNOWN = 4, 4, 25, 150


@dataclass(frozen=True, eq=False)
class Bed:
    recording: Recording
    model: nn.Module
    members: tuple[Dataset, ...]
    nobody: Dataset

    @property
    def known(self) -> Dataset:
        return self.nobody.take(torch.arange(KNOWN))

    @property
    def rest(self) -> Dataset:
        return self.nobody.take(torch.arange(KNOWN, len(self.nobody)))

    def guess(self, asked: Dataset, clients: tuple[str, ...] = (), seen: str = "sum") -> Tensor:
        channel = RecordedChannel(self.recording, self.model, clients, tuple(range(ROUNDS)), seen)
        knowledge = Knowledge(Membership(asked.take(torch.arange(0)), self.known), channel, KNOWN)
        batch = Batch(asked, torch.arange(len(asked))[:, None])
        view = View(
            channel(batch, torch.zeros(len(asked)), torch.Generator()),
            {"candidates": batch},
        )
        return JointRegression()(knowledge, seeded(0))(view)


@pytest.fixture(scope="module")
def bed(tmp_path_factory) -> Bed:
    """Two epochs of local steps on batches, as federations have them; labels are coin flips."""
    rng, folder = seeded(0, "records"), Path(tmp_path_factory.mktemp("bed")) / "run"
    x, y = torch.randn(1_000, 24, generator=rng), torch.randint(3, (1_000,), generator=rng)
    data = Dataset(x, y, {}, values={"label": ("a", "b", "c")})
    parts = [*torch.arange(CLIENTS * SIZE).split(SIZE), torch.arange(CLIENTS * SIZE, 1_000)]
    *members, nobody = (data.take(rows) for rows in parts)
    model = build(MLP((32,), activation="tanh"), data, seeded(0, "model"))
    recorder, local = Recorder(folder, model, model_name="mlp"), Local(0.1, batch=5, epochs=2)
    federate(model, members, rounds=ROUNDS, rng=seeded(0, "training"), local=local, recorder=recorder)
    return Bed(Recording(folder), model.eval(), tuple(members), nobody)


def regress_plainly(bed: Bed, known: Dataset, asked: Dataset) -> np.ndarray:
    """By hand: gradients formed from factors, roots of moments by eigenvalues, one ridge of all candidates. Of
    the recording it reads the global models, which a server under secure aggregation sends out itself."""
    total = np.zeros(len(asked))
    for r in range(ROUNDS):
        before, after = (
            {name: p.double().numpy() for name, p in bed.recording.global_model(i).items()}
            for i in (r, r + 1)
        )

        def factors(data: Dataset) -> list[tuple[np.ndarray, np.ndarray]]:
            x, y = data.x.double().numpy(), data.y.numpy()
            hidden = np.tanh(x @ before["0.weight"].T + before["0.bias"])  # noqa: B023
            odds = np.exp(hidden @ before["2.weight"].T + before["2.bias"])  # noqa: B023
            error = odds / odds.sum(1, keepdims=True) - np.eye(3)[y]
            return [(x, error @ before["2.weight"] * (1 - hidden**2)), (hidden, error)]  # noqa: B023

        blocks, along = [], []
        for name, own, others in zip(("0.weight", "2.weight"), factors(asked), factors(known), strict=True):
            roots = []
            for part in others:
                moment = part.T @ part / len(part)
                damping = 0.1 * np.trace(moment) / len(moment) * np.eye(len(moment))
                values, vectors = np.linalg.eigh(moment + damping)
                roots.append(vectors / np.sqrt(values) @ vectors.T)
            a, b = own[0] @ roots[0], own[1] @ roots[1]
            g = np.einsum("no,ni->noi", b, a).reshape(len(a), -1)
            scale = np.sqrt((g**2).sum(1).mean())
            blocks.append(g / scale)
            along.append((roots[1] @ (before[name] - after[name]) @ roots[0]).ravel() / scale)
        g, u = np.concatenate(blocks, 1), np.concatenate(along)
        c = 0.3 * (g**2).sum(1).mean()
        solve = np.linalg.lstsq(g @ g.T + c * np.eye(len(g)), g, rcond=None)[0]
        t = solve @ u / np.sqrt((solve**2).sum(1))
        total += t / np.sqrt((t**2).mean()) / ROUNDS
    return total


def test_plain_numpy_says_the_same_from_the_steps_of_the_global_model_alone(bed):
    asked = bed.rest.take(torch.arange(60))
    channel = RecordedChannel(bed.recording, bed.model, rounds=(0,), seen="sum")
    game = Membership(asked.take(torch.arange(0)), bed.known)
    dealt = Knowledge(game, channel, KNOWN).simulate(seeded(0))[0].public["candidates"]
    known = dealt.data.take(dealt.rows[: int(0.8 * KNOWN), 0])
    ours = bed.guess(asked)
    np.testing.assert_allclose(ours.numpy(), regress_plainly(bed, known, asked), rtol=1e-2, atol=5e-3)
    torch.testing.assert_close(bed.guess(asked, seen="broadcast"), ours, rtol=1e-2, atol=5e-3)


def test_neither_the_order_of_candidates_nor_who_is_asked_about_is_looked_at(bed):
    asked = bed.rest.take(torch.arange(60))
    order = torch.randperm(60, generator=seeded(1))
    ours = bed.guess(asked)
    torch.testing.assert_close(bed.guess(asked.take(order)), ours[order], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(bed.guess(asked, ("2",)), ours)


def watch(bed: Bed) -> WatchedFederation:
    return WatchedFederation(bed.recording, bed.model, tuple(map(str, range(CLIENTS))), seen="sum")


def test_members_who_were_never_trained_on_are_found_at_the_nominal_rate_only(bed):
    """Thirty audits, each of other records of nobody in the place of members; those of the real members find
    them."""
    rates, called, n = (0.05, 0.1, 0.25), {0.05: 0, 0.1: 0, 0.25: 0}, 0
    for seed in range(30):
        order = torch.randperm(len(bed.rest), generator=seeded(seed, "placebo"))
        placebo, held, others = (bed.rest.take(rows) for rows in order[:300].split((100, 99, 101)))
        parts = tuple(placebo.take(rows) for rows in torch.arange(100).split(SIZE))
        who = Roster(parts, bed.known, held, others)
        ((_, found),) = play_clients(JointRegression(), watch(bed), who, trials=200, seed=seed)
        p = p_values(found)[found.secrets == 1]
        n += len(p)
        for rate in rates:
            called[rate] += int((p <= rate + 1e-12).sum())
    for rate in rates:
        assert called[rate] / n < rate + 4 * np.sqrt(rate * (1 - rate) * (1 / n + 1 / (30 * 100)))
    real = Roster(bed.members, bed.known, held, others)
    ((_, found),) = play_clients(JointRegression(), watch(bed), real, trials=200, seed=0)
    assert auroc(found).low > 0.6
    assert stats.binomtest(int((p_values(found)[found.secrets == 1] <= 0.05).sum()), 100, 0.05).pvalue < 1e-3


def test_how_many_of_the_records_behind_a_sum_were_listed_is_said(bed):
    held, others = bed.rest.take(torch.arange(100)), bed.rest.take(torch.arange(100, 300))
    who = Roster(bed.members, bed.known, held, others)
    (said,) = describe_limits((JointRegression(),), watch(bed), who, trials=60)
    assert "30 of the 100 records behind a sum" in said
    assert not list(describe_limits((JointRegression(),), watch(bed), who, trials=200))
