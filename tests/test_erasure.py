"""LEACE, INLP and LAFTR: what they take out, and what a network still finds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from builders import refuses
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from leakscope import INLP, LAFTR, LEACE, Dataset, TableEncoder, Unguarded, seeded
from leakscope.core.errors import ArgumentError
from leakscope.guards.baselines import _Fair
from leakscope.guards.batches import Seen
from leakscope.guards.erasure import leace, null_space
from leakscope.guards.protections import OfRecords
from leakscope.models.encoders import ImageEncoder

PLAIN = Unguarded(encoder=TableEncoder((6,)), head=(), epochs=3)


def crossed(n: int = 3_000, seed: int = 0) -> Dataset:
    """The secret is in the first number, and in whether the second and third agree; the label in the fourth."""
    rng = seeded(seed, "crossed")
    x = torch.randn(n, 6, generator=rng)
    u = (x[:, 1] * x[:, 2] > 0).long()
    x[:, 0] += 2 * u
    return Dataset(x, (x[:, 3] + x[:, 1] > 0).long(), {"u": u})


def areas(encoder, train: Dataset, test: Dataset) -> dict[str, float]:
    """What a linear attacker tells, and what boosted trees tell."""
    fit, held = encoder(train.x).numpy(), encoder(test.x).numpy()
    models = {"linear": LogisticRegression(), "trees": HistGradientBoostingClassifier(random_state=0)}
    return {
        name: roc_auc_score(test.private["u"], model.fit(fit, train.private["u"]).predict_proba(held)[:, 1])
        for name, model in models.items()
    }


@pytest.mark.parametrize(
    ("guard", "left"), [(LEACE("u", plain=PLAIN), 0.53), (INLP("u", rounds=3, plain=PLAIN), 0.6)]
)
def test_a_linear_attacker_finds_little_after_erasure_and_one_that_is_not_finds_the_secret(guard, left):
    train, test = crossed(), crossed(seed=1)
    before, after = (areas(one(train, seeded(0)).encoder, train, test) for one in (PLAIN, guard))
    assert before["linear"] > 0.85
    assert after["linear"] < left
    assert after["trees"] > after["linear"] + 0.1


def test_leace_gives_every_value_the_same_mean_and_changes_nothing_else():
    rng = seeded(2)
    r = torch.randn(500, 5, generator=rng, dtype=torch.double) @ torch.randn(5, 5, generator=rng).double()
    codes = torch.randint(3, (500,), generator=rng)
    r[codes == 1] += 2.0
    matrix, shift = leace(r, codes)
    erased = r @ matrix.T + shift
    means = torch.stack([erased[codes == code].mean(0) for code in range(3)])
    assert torch.allclose(means, erased.mean(0).expand(3, -1), atol=1e-9)
    assert torch.allclose(erased.mean(0), r.mean(0), atol=1e-9)
    assert int(torch.linalg.matrix_rank(torch.eye(5, dtype=torch.double) - matrix)) == 2
    # the least change: orthogonal, in r's own metric, to all that is kept
    covariance = torch.cov((r - r.mean(0)).T, correction=0)
    assert torch.allclose(
        matrix @ covariance @ (torch.eye(5, dtype=torch.double) - matrix).T,
        torch.zeros(5, 5).double(),
        atol=1e-8,
    )


def test_every_round_of_projections_takes_directions_away():
    r, codes = crossed().x.double(), crossed().private["u"]
    ranks = [int(torch.linalg.matrix_rank(null_space(r, codes, rounds))) for rounds in (0, 1, 2)]
    assert ranks == [6, 5, 4]
    projection = null_space(r, codes, 2)
    assert torch.allclose(projection @ projection, projection, atol=1e-8)


@pytest.mark.parametrize(
    "guard",
    [LEACE("u", erase=0, plain=PLAIN), INLP("u", rounds=0, plain=PLAIN), LAFTR("u", gamma=0.0, plain=PLAIN)],
)
def test_at_the_null_setting_a_baseline_is_plain_training(guard):
    data = crossed(300)
    expected, found = (one(data, seeded(0)).encoder(data.x) for one in (PLAIN, guard))
    assert torch.allclose(expected, found, atol=1e-5)


def test_laftr_plays_about_the_mean_over_values_of_the_belief_in_the_right_one():
    data = crossed(50)
    net = torch.nn.Linear(6, 2)
    fair = _Fair(OfRecords("u"), net, "prior", torch.tensor([0.5, 0.5]))
    belief, u = net(data.x).softmax(1), data.private["u"]
    expected = (belief[u == 0, 0].mean() + belief[u == 1, 1].mean()) / 2
    gain = fair.gain(Seen.of(data), data.x, None)
    assert float(gain.detach()) == pytest.approx(float(expected.detach()))
    assert float(fair.own(Seen.of(data), data.x, None, seeded(0)).detach()) == -float(gain.detach())
    assert np.isfinite([*LAFTR("u", plain=PLAIN)(data, seeded(0)).history[-1].values()]).all()


def test_what_cannot_be_erased_is_refused():
    refuses(ArgumentError, "normed must be False", LEACE, "u", plain=Unguarded(normed=True))
    refuses(ArgumentError, "erase must be 0 or 1", LEACE, "u", erase=2)
    refuses(ArgumentError, "must be a TableEncoder", INLP, "u", plain=Unguarded(encoder=ImageEncoder()))
