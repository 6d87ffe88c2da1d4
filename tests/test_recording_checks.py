"""A recording is believed only if the server's steps can come from its uploads."""

from __future__ import annotations

import builders
import pytest
import torch

from leakscope.core.errors import ArgumentError, DataError
from leakscope.training.recording import Recorder, Recording
from leakscope.training.recording.checks import check_recording

CLIENTS = {"alice": 30, "bob": 10, "carol": 60}


def add(a, b, by=1.0):
    return {name: a[name] + by * b[name] for name in a}


def adaptive(name, rate=0.1, one=0.9, two=0.99, tau=1e-9):
    """The rules of Reddi et al. 2021, algorithm 2, an entry at a time."""
    first, second = {}, {}

    def step(update):
        out = {}
        for key, value in update.items():
            m, v = first.get(key, torch.zeros_like(value)), second.get(key, torch.zeros_like(value))
            m = one * m + (1 - one) * value
            v = {
                "FedAdam": two * v + (1 - two) * value**2,
                "FedYogi": v - (1 - two) * value**2 * torch.sign(v - value**2),
                "FedAdagrad": v + value**2,
            }[name]
            first[key], second[key] = m, v
            out[key] = rate * (value if name == "FedAdagrad" else m) / (v.sqrt() + tau)
        return out

    return step


def heavy(rate=0.5, share=0.7):
    before = {}

    def step(update):
        out = {key: share * before.get(key, 0.0) + rate * value for key, value in update.items()}
        before.update(out)
        return out

    return step


def noisy(update):
    return {key: value + torch.randn(value.shape) for key, value in update.items()}


def record(folder, server, *, rounds=5, upload=None, late=False, frozen=(), weights=CLIENTS, grow=0.0):
    """A federation of drawn updates, whose server makes a step of their mean."""
    torch.manual_seed(0)
    recorder = Recorder(folder, builders.net(), model_name="net")
    sent = builders.params(1)
    for r in range(rounds):
        drift = builders.params(1000 + r)
        locals_ = {}
        for i, client in enumerate(weights):
            moved = add(add(sent, sent, grow), add(drift, builders.params(100 * r + i + 2)), 0.1)
            locals_[client] = {key: sent[key] if key in frozen else moved[key] for key in moved}
        updates = {client: add(params, sent, -1) for client, params in locals_.items()}
        total = sum(weights.values())
        mean = {key: sum(updates[c][key] * (n / total) for c, n in weights.items()) for key in sent}
        then = add(sent, server(mean))
        recorder.global_model(r, then if late else sent)
        for client, samples in weights.items():
            given = upload(sent, locals_[client]) if upload else locals_[client]
            recorder.update(r, client, given, samples=samples)
        sent = then
    if not late:
        recorder.global_model(rounds, sent)
    return Recording(folder)


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (lambda update: update, "FedAvg"),
        (lambda update: {key: 0.5 * value for key, value in update.items()}, "at a rate of 0.5"),
        (heavy(), "momentum 0.7"),
        (adaptive("FedAdam"), "FedAdam"),
        (adaptive("FedYogi", tau=1e-3), "FedYogi"),
        (adaptive("FedAdagrad"), "FedAdagrad"),
        (noisy, "unknown"),
    ],
    ids=("average", "rate", "momentum", "adam", "yogi", "adagrad", "noise"),
)
def test_the_server_is_told_from_its_steps(tmp_path, server, words):
    checked = check_recording(record(tmp_path / "run", server))
    assert words in checked.server
    assert checked.faults == ()
    assert checked.averages == (words == "FedAvg")
    assert bool(checked.remarks) == (words == "unknown")
    adaptives = {"FedAdam", "FedYogi", "FedAdagrad"} - {words}
    assert not any(other in checked.server for other in adaptives)


@pytest.mark.parametrize("sign", [1, -1])
def test_differences_in_place_of_parameters_are_refused(tmp_path, sign):
    recording = record(
        tmp_path / "run",
        lambda update: update,
        upload=lambda sent, own: {k: sign * (own[k] - sent[k]) for k in own},
    )
    with pytest.raises(DataError, match="differences, not parameters"):
        check_recording(recording).raise_faults("run")


def record_again(recording, folder, *, sent=lambda r: r, came=lambda r: r, upload=None):
    """The recording written anew, with the models and uploads of other rounds."""
    recorder = Recorder(folder, builders.net(), model_name="net")
    for r in recording.rounds:
        recorder.global_model(r, recording.global_model(sent(r)))
        for client in recording.clients_in(r):
            own = recording.uploaded(came(r), client)
            own = upload(r, client, recording.global_model(r), own) if upload else own
            recorder.update(r, client, own, samples=CLIENTS[client])
    return Recording(folder)


@pytest.mark.parametrize("steps", [True, False])
def test_one_clients_differences_among_parameters_are_refused(tmp_path, steps):
    """Whether or not there is a step that shows it."""
    honest = record(tmp_path / "honest", lambda update: update, rounds=4 if steps else 1)
    honest = honest if steps else honest.choose([0])
    mixed = record_again(
        honest, tmp_path / "run", upload=lambda r, c, sent, own: add(own, sent, -1) if c == "bob" else own
    )
    assert check_recording(honest).faults == ()
    with pytest.raises(DataError, match=r"next to nothing beside the global model: client bob\. They"):
        check_recording(mixed).raise_faults("run")


def test_rounds_of_differences_among_rounds_of_parameters_are_refused(tmp_path):
    honest = record(tmp_path / "honest", lambda update: update)
    mixed = record_again(
        honest, tmp_path / "run", upload=lambda r, c, sent, own: add(own, sent, -1) if r in (1, 3) else own
    )
    with pytest.raises(
        DataError, match=r"these rounds are differences, and those of others parameters: 1, 3"
    ):
        check_recording(mixed).raise_faults("run")


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"came": lambda r: 4 - r}, "round 0 to that of round 5, those of round 1 to that of round 4"),
        ({"sent": lambda r: max(0, r - 1)}, "those of round 0 to that of round 2, those of round 1 to"),
    ],
    ids=("permuted", "a round behind"),
)
def test_rounds_that_are_out_of_order_are_refused(tmp_path, other, words):
    honest = record(tmp_path / "honest", lambda update: update)
    assert check_recording(honest).faults == ()
    with pytest.raises(DataError, match=f"of another round than the next: .*{words}"):
        check_recording(record_again(honest, tmp_path / "run", **other)).raise_faults("run")


def test_rounds_that_are_counted_otherwise_are_in_their_order(tmp_path):
    """By tens, or without a round in which all clients failed, which leaves the model as it was."""
    honest = record(tmp_path / "honest", lambda update: update)
    recorder = Recorder(tmp_path / "run", builders.net(), model_name="net")
    for r in honest.rounds:
        recorder.global_model(10 * r, honest.global_model(r))
        for client in honest.clients_in(r):
            recorder.update(10 * r, client, honest.uploaded(r, client), samples=CLIENTS[client])
    assert check_recording(Recording(tmp_path / "run")).faults == ()


def test_a_global_model_that_never_moves_is_said(tmp_path):
    honest = record(tmp_path / "honest", lambda update: update)
    checked = check_recording(record_again(honest, tmp_path / "run", sent=lambda r: 0))
    assert checked.server == "unknown: the global model is the same after every round"
    assert checked.agreement == 0  # so that little found is no all-clear
    assert any("stayed as it was, after these rounds: 0, 1, 2, 3, 4" in line for line in checked.remarks)


@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize("times", [2, 3, 100])
def test_a_sum_of_parameters_that_passes_for_a_clients_upload_is_refused(tmp_path, times, rate):
    """The step is the uploads' mean once they are divided, whatever the rate of the server."""
    recording = record(
        tmp_path / "run",
        lambda update: {key: rate * value for key, value in update.items()},
        upload=lambda sent, own: {key: times * value for key, value in own.items()},
    )
    with pytest.raises(DataError, match=f"mean of the uploads only once they are divided by {times}"):
        check_recording(recording).raise_faults("run")


def test_uploads_that_are_the_model_several_times_over_agree_with_no_step(tmp_path):
    """A server whose rule is not known: nothing is proved, so that it is said, and nothing found is no news."""
    triple = record(
        tmp_path / "run",
        noisy,
        upload=lambda sent, own: {key: 3 * value for key, value in own.items()},
    )
    checked = check_recording(triple)
    assert checked.agreement == 0
    assert any("about 3 times the global model: client alice" in remark for remark in checked.remarks)
    alone = check_recording(
        record(
            tmp_path / "short",
            noisy,
            rounds=1,
            upload=lambda sent, own: {key: 3 * value for key, value in own.items()},
        ).choose((0,))
    )
    assert any("about 3 times the global model" in remark for remark in alone.remarks)


def test_models_that_grow_as_they_are_trained_are_no_sums(tmp_path):
    """Every client's upload is twice what it was sent, and the server's step is their mean."""
    recording = record(
        tmp_path / "run",
        lambda update: update,
        upload=None,
        grow=1.0,
    )
    checked = check_recording(recording)
    assert checked.faults == ()
    assert checked.remarks == ()
    assert checked.agreement > 0.99


def test_a_global_model_from_after_the_round_is_refused(tmp_path):
    checked = check_recording(record(tmp_path / "run", lambda update: update, late=True))
    with pytest.raises(DataError, match="recorded after the round"):
        checked.raise_faults("run")


def test_clients_who_upload_what_they_were_sent_are_named_and_all_of_them_refused(tmp_path):
    recording = record(tmp_path / "run", lambda update: update, upload=lambda sent, own: sent)
    with pytest.raises(DataError, match="the model it was sent"):
        check_recording(recording).raise_faults("run")


def test_frozen_layers_and_twins_are_named(tmp_path):
    frozen = next(iter(builders.params(1)))
    checked = check_recording(record(tmp_path / "one", lambda update: update, frozen=(frozen,)))
    assert checked.faults == ()
    assert any(frozen in remark and "never change" in remark for remark in checked.remarks)
    double = record(tmp_path / "two", lambda update: update, upload=lambda sent, own: add(sent, sent, 0.1))
    assert any(
        "the same as another: alice, bob, carol" in remark for remark in check_recording(double).remarks
    )


def test_half_precision_is_no_other_server(tmp_path):
    recording = record(
        tmp_path / "run",
        lambda update: update,
        upload=lambda sent, own: {k: v.half() for k, v in own.items()},
    )
    assert "FedAvg" in check_recording(recording).server


def test_a_recording_without_steps_says_so(tmp_path):
    checked = check_recording(builders.record(tmp_path / "run", rounds=1))
    assert checked.gap is None
    assert "no round has both" in checked.server
    assert not checked.averages


def test_centred_is_refused_where_the_step_is_not_the_mean(tmp_path):
    from leakscope.attacks.alignment import Cosine
    from leakscope.audits.membership.recorded import RecordingAudit

    recording = record(tmp_path / "run", adaptive("FedAdam"))
    audit = RecordingAudit(str(tmp_path / "run"), (Cosine(),), centred=True)
    with pytest.raises(ArgumentError, match="leave --centred out"):
        audit.believe(recording)
    plain = RecordingAudit(str(tmp_path / "run"), (Cosine(),))
    assert "FedAdam" in plain.believe(recording).server


@pytest.mark.parametrize(
    ("client", "name"),
    [("site-1", "Site 1"), ("site-1", "site_1"), ("3", "3.0"), ("3", "03"), ("site-1", "site-01")],
)
def test_a_client_that_is_nearly_named_is_not_taken_for_nobody(client, name):
    from leakscope.audits.membership.fitting import refuse_misnamed

    with pytest.raises(DataError, match="name them alike"):
        refuse_misnamed((client, name, "nobody"), {client}, "client")
    refuse_misnamed((client, "nobody", "-1", "-3", "site-10", "30"), {client}, "client")
