"""Membership by the row space of an upload: who spans it, which layer is believed, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from builders import refuses
from scipy.linalg import sqrtm
from torch import nn

import leakscope as ls
from leakscope.attacks.span_membership import SpanDistance, WhitenedSpan
from leakscope.attacks.spans import kept_by_decay
from leakscope.core.dataset import Batch
from leakscope.core.errors import ArgumentError
from leakscope.core.nouns import Release, View
from leakscope.core.rng import initialised
from leakscope.games import Membership
from leakscope.models import MLP, parameters
from leakscope.training import Local, federate

WIDTH = 40


def records(n: int, seed: int, *, width: int = WIDTH) -> ls.Dataset:
    """Numbers that stand in ``width`` columns, zero in the others."""
    rng = ls.seeded(seed, "records")
    x = torch.zeros(n, WIDTH)
    x[:, :width] = torch.randn(n, width, generator=rng)
    return ls.Dataset(x, torch.randint(3, (n,), generator=rng), {})


def net(hidden: tuple[int, ...] = (48, 32)) -> nn.Module:
    return initialised(lambda: MLP(hidden)(records(5, 0)), ls.seeded(0, "net"))


class Watched:
    """A channel that releases the mean update of all clients in every round."""

    def __init__(
        self, clients: list[ls.Dataset], local: Local, rounds: int = 1, hidden: tuple[int, ...] = (48, 32)
    ) -> None:
        self.model, self.releases = net(hidden), []
        seen: dict[int, dict] = {}

        class Listener:
            def global_model(self, r, params):
                seen[r] = {"global": params, "uploads": []}

            def update(self, r, client, params, *, samples, rate, steps):
                seen[r]["uploads"].append(params)

        federate(self.model, clients, rounds=rounds, rng=ls.seeded(1), local=local, recorder=Listener())
        for r in range(rounds):
            start = seen[r]["global"]
            change = {
                name: (start[name] - torch.stack([u[name] for u in seen[r]["uploads"]]).mean(0))[None]
                for name in parameters(self.model)
            }
            self.releases.append(Release.of(change, start))

    def __call__(self, batch, secret, rng):
        return tuple(self.releases)


def played(members: ls.Dataset, channel: Watched, attack, *, width: int = WIDTH):
    game = Membership(members, records(300, 2, width=width))
    knowledge = ls.Knowledge(game.on(records(150, 3, width=width)), channel, 150)
    return ls.play(game, channel, attack, knowledge, trials=600, rng=ls.seeded(4))


LOCAL = Local(rate=0.1, batch=4, epochs=3, momentum=0.0, decay=0.0)


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fewer_members_than_rank_are_found_without_error_also_behind_a_sum(clients, momentum):
    members = records(24, 1)
    local = Local(rate=0.1, batch=4, epochs=3, momentum=momentum, decay=0.0)
    channel = Watched([members.take(part) for part in torch.arange(24).chunk(clients)], local)
    transcript = played(members, channel, SpanDistance(steps=18))
    assert ls.auroc(transcript).value == 1.0
    assert ls.tpr_at_fpr(transcript, fpr=0.01).value == 1.0


def test_rounds_together_hold_members_that_one_does_not():
    """Seven rows span seven dimensions a round: several are needed for twenty members."""
    members = records(20, 1)
    channel = Watched([members], LOCAL, rounds=4, hidden=(7, 32))
    whole = played(members, channel, SpanDistance(layer="0", steps=15))
    channel.releases = channel.releases[:1]
    first = played(members, channel, SpanDistance(layer="0", steps=15))
    assert ls.auroc(whole).value == 1.0
    assert ls.auroc(first).value < 1.0


def test_decay_is_taken_out_if_it_is_known():
    members, local = records(24, 1), Local(rate=0.1, batch=4, epochs=3, momentum=0.0, decay=0.05)
    channel = Watched([members], local)
    kept = kept_by_decay(local, 18)
    known, unknown = (played(members, channel, SpanDistance(steps=18, kept=k)) for k in (kept, 1.0))
    members_of = known.secrets == 1
    assert known.guesses[members_of].min() > 3
    assert unknown.guesses[members_of].median() < 3


def test_a_layer_whose_space_holds_everybody_is_passed_over():
    """Ten columns are spanned by anyone: the second layer tells members, and it is chosen on others alone."""
    members = records(24, 1, width=10)
    channel = Watched([members], LOCAL)
    attack, known = SpanDistance(steps=18), records(150, 3, width=10).x
    view = View(tuple(channel.releases))
    reach = attack.reach(channel.model, view, known)
    assert (reach.layer, SpanDistance(layer="0", steps=18).reach(channel.model, view, known).rank) == (
        "2",
        11,
    )
    second, first = (
        played(members, channel, a, width=10) for a in (attack, SpanDistance(layer="0", steps=18))
    )
    assert ls.auroc(second).value > max(0.8, ls.auroc(first).value)


def test_the_score_is_the_distance_to_the_space_by_least_squares():
    members = records(6, 1)
    channel = Watched([members], LOCAL)
    transcript = played(members, channel, SpanDistance(layer="0", steps=1))
    matrix = torch.cat(
        [channel.releases[0].layers[f"0.{p}"][0].reshape(48, -1) for p in ("weight", "bias")], 1
    )
    x = torch.cat([records(300, 2).x, torch.ones(300, 1)], dim=1).double()
    basis = torch.cat([members.x, torch.ones(6, 1)], dim=1).double()
    fitted = torch.linalg.lstsq(basis.T, x.T).solution
    distance = (x - fitted.T @ basis).norm(dim=1) / x.norm(dim=1)
    assert torch.linalg.matrix_rank(matrix.double(), rtol=1e-5) == 6
    others = transcript.guesses[transcript.secrets == 0].sort().values
    torch.testing.assert_close(others, (-distance.log10()).sort().values, rtol=0, atol=1e-3)


def test_what_cannot_be_asked_is_refused():
    refuses(
        ArgumentError,
        "'first' or a linear layer of the model, got '9'; it has: 0, 2, 4",
        SpanDistance(layer="9").check,
        net(),
        None,
        None,
    )
    refuses(
        ArgumentError, "it has: none", SpanDistance().check, nn.Sequential(nn.Conv1d(1, 1, 1)), None, None
    )
    refuses(ArgumentError, "SpanDistance.kept must be above 0 and at most 1, got 2", SpanDistance, kept=2)


def test_the_whitened_span_is_what_inverse_matrices_give():
    """Against explicit inverse roots and outer products, with NumPy alone."""
    members = records(24, 1)
    channel = Watched([members], LOCAL, rounds=2)
    known, candidates = records(150, 3), records(50, 2)
    knowledge = ls.Knowledge(Membership(members, candidates).on(known), channel, len(known))
    view = View(tuple(channel.releases), {"candidates": Batch(candidates, torch.arange(50)[:, None])})
    scores = WhitenedSpan(damping=0.01, floor=0.1)(knowledge, ls.seeded(4))(view)
    one = [np.c_[part.x.double().numpy(), np.ones(len(part))] for part in (known, candidates)]
    moment = one[0].T @ one[0] / len(one[0])
    moment += 0.01 * np.diag(moment).mean() * np.eye(WIDTH + 1)
    root = np.linalg.inv(sqrtm(moment).real)
    rows = [
        np.c_[r.layers["0.weight"][0].double().numpy(), r.layers["0.bias"][0].double().numpy()]
        for r in channel.releases
    ]
    upload = np.concatenate(rows) @ root
    largest = np.linalg.norm(upload, 2)
    inverse = np.linalg.inv(upload.T @ upload + (0.1 * largest) ** 2 * np.eye(WIDTH + 1))
    white = [part @ root for part in one]
    outside = [np.einsum("ni,ij,nj->n", part, inverse, part) / (part**2).sum(1) for part in white]
    null, own = (-np.log(part) for part in outside)
    expected = (own - null.mean()) / null.std(ddof=1)
    np.testing.assert_allclose(scores.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_the_whitened_span_finds_members_beyond_the_rank_whatever_the_loss():
    """More members than dimensions, and a label that nobody else knows: the row space holds everybody."""
    members = records(90, 1)
    private = ls.seeded(7, "labels of their own")
    own = replace(members, y=torch.randint(3, (90,), generator=private))
    channel = Watched([own], LOCAL, rounds=2)
    assert ls.auroc(played(members, channel, WhitenedSpan())).low > 0.7


def test_the_whitened_span_of_an_upload_without_change_says_nothing():
    channel = Watched([records(24, 1)], LOCAL)
    still = {name: torch.zeros_like(layer) for name, layer in channel.releases[0].layers.items()}
    channel.releases = [Release.of(still, channel.releases[0].params)]
    assert ls.auroc(played(records(24, 1), channel, WhitenedSpan())).value == 0.5
