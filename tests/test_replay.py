"""A recording as a channel, and the games of clients played on it."""

from __future__ import annotations

import pytest
import torch
from builders import refuses
from torch import nn

from leakscope.attacks.heads import LDA
from leakscope.attacks.posterior import Posterior
from leakscope.attacks.reductions import Flat
from leakscope.core.dataset import Batch, Dataset
from leakscope.core.errors import ArgumentError, DataError
from leakscope.core.nouns import Knowledge
from leakscope.core.rng import seeded
from leakscope.data import load
from leakscope.games import Clients, Inference
from leakscope.games.channels import UpdateChannel
from leakscope.games.referee import play
from leakscope.measures.success import success_rate
from leakscope.training import Local, federate
from leakscope.training.recording import RecordedChannel, Recorder, Recording

NOBODY = Batch(Dataset(torch.zeros(1, 2), torch.zeros(1, dtype=torch.long), {}), torch.zeros(1, 1).long())


def params(value: float) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((2, 2), value), "bias": torch.tensor([value, -value])}


@pytest.fixture
def recording(tmp_path) -> Recording:
    recorder = Recorder(tmp_path, nn.Linear(2, 2), model_name="linear")
    for r, value in enumerate((1.0, 5.0, 8.0)):
        recorder.global_model(r, params(value))
        if r < 2:
            recorder.update(r, "a", params(value - 1), samples=1)
            recorder.update(r, "b", params(value - 3), samples=3)
    return Recording(tmp_path)


def releases(channel: RecordedChannel):
    found = channel(NOBODY, torch.zeros(1, dtype=torch.long), torch.Generator())
    return [(dict(release.params), release.layers) for release in found]


def test_uploads_are_one_trial_for_each_client_in_the_order_asked(recording):
    (first, layers), _ = releases(RecordedChannel(recording, nn.Linear(2, 2), ("b", "a")))
    assert layers["weight"].shape == (2, 2, 2)
    assert layers["weight"][:, 0, 0].tolist() == [3.0, 1.0]
    assert first["weight"][0, 0] == 1.0


@pytest.mark.parametrize("asked", [(), ("a",)])
def test_the_sum_is_the_weighted_mean_of_all_who_uploaded_and_one_trial(recording, asked):
    for _, layers in releases(RecordedChannel(recording, nn.Linear(2, 2), asked, seen="sum")):
        assert layers["weight"].shape == (1, 2, 2)
        assert layers["weight"][0, 0, 0] == (1 * 1 + 3 * 3) / 4


def test_only_uploads_can_be_centred(recording):
    with pytest.raises(ArgumentError, match="False unless uploads are seen"):
        RecordedChannel(recording, nn.Linear(2, 2), seen="sum", centred=True)


def test_the_broadcast_is_the_step_between_global_models_and_needs_the_next_one(recording):
    channel = RecordedChannel(recording, nn.Linear(2, 2), seen="broadcast")
    assert channel.rounds == (0, 1)
    assert [layers["weight"][0, 0, 0].item() for _, layers in releases(channel)] == [-4.0, -3.0]


def test_centring_takes_the_broadcast_off_the_upload(recording):
    channel = RecordedChannel(recording, nn.Linear(2, 2), ("a",), centred=True)
    assert [layers["weight"][0, 0, 0].item() for _, layers in releases(channel)] == [1 + 4.0, 1 + 3.0]


def test_rounds_in_which_a_client_is_missing_are_left_out_or_refused(tmp_path):
    recorder = Recorder(tmp_path, nn.Linear(2, 2), model_name="linear", clients=("a", "b"))
    for r in range(3):
        recorder.global_model(r, params(float(r)))
        recorder.update(r, "a", params(0.0), samples=1)
    recorder.update(1, "b", params(0.0), samples=1)
    found = Recording(tmp_path)
    assert RecordedChannel(found, nn.Linear(2, 2)).rounds == (1,)
    assert RecordedChannel(found, nn.Linear(2, 2), ("a",)).rounds == (0, 1, 2)
    with pytest.raises(DataError, match="client 'b' in round 0"):
        releases(RecordedChannel(found, nn.Linear(2, 2), ("b",), (0,)))
    refuses(DataError, "no round of clients c", RecordedChannel, found, nn.Linear(2, 2), ("c",))


def test_a_model_of_other_shapes_is_refused_by_layer(recording):
    refuses(DataError, "layer 'weight' is", RecordedChannel, recording, nn.Linear(3, 2))


def test_a_view_that_does_not_exist_is_refused(recording):
    with pytest.raises(ArgumentError, match="uploads, sum, broadcast"):
        RecordedChannel(recording, nn.Linear(2, 2), seen="everything")


def test_a_property_of_every_client_is_told_from_its_recorded_update(tmp_path):
    """Clients hold records of one value of the secret; the adversary rehearses local training on public
    records and reads the recording."""
    data, secret = load("adult"), "sex"
    train, _, public = data.split(seeded(0, "split"), secret=secret, train=1_600, public=1_000)
    model = nn.Sequential(nn.Linear(train.x.shape[1], train.classes))
    codes = train.secret(secret)
    truth = [c % 2 for c in range(20)]
    shards = []
    for c, value in enumerate(truth):
        rows = (codes == value).nonzero()[:, 0]
        shards.append(train.take(rows[torch.randint(len(rows), (64,), generator=seeded(c, "shard"))]))
    local = Local(0.1, batch=32, momentum=0.0, decay=0.0, epochs=2)
    recorder = Recorder(tmp_path, model, model_name="linear")
    history = federate(model, shards, rounds=2, rng=seeded(0, "training"), local=local, recorder=recorder)
    channel = RecordedChannel(Recording(tmp_path), model, tuple(str(c) for c in range(20)))
    belief = UpdateChannel(model, history[:2], local=local)
    game = Clients(Inference(train, secret, batch=64), tuple(truth))
    attack = Posterior(LDA(), Flat())
    transcript = play(
        game, channel, attack, Knowledge(game.on(public), belief, 400), trials=20, rng=seeded(0, "play")
    )
    assert success_rate(transcript).value >= 0.9
    refuses(ArgumentError, "number of clients, 20", game.deal, channel, 5, seeded(0, "deal"))
