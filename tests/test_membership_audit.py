"""Audits of federations: who is who, what is judged, and that the test keeps what it promises."""

from __future__ import annotations

import csv
import math

import pytest
import torch
from torch import nn

from leakscope.attacks.alignment import Cosine, Whitened
from leakscope.attacks.losses import Loss, Zari
from leakscope.core import Defense
from leakscope.data import load
from leakscope.dataset import Dataset
from leakscope.defenses.training import MixupMMD
from leakscope.errors import ArgumentError, DataError
from leakscope.measures.membership import p_values
from leakscope.membership import MembershipAudit, RecordingAudit
from leakscope.membership.judged import Watched, brief, played
from leakscope.membership.simulated import audited, evaluated, recorded, roster
from leakscope.models import MLP, build
from leakscope.recording import Recorder, Recording
from leakscope.rng import seeded
from leakscope.training import Local, federate

LOCAL = Local(0.2, batch=10)


def table(n: int, seed: int, width: int = 12) -> Dataset:
    rng = seeded(seed, "table")
    x = torch.randn(n, width, generator=rng)
    person = torch.arange(n) // 5
    return Dataset(x, torch.randint(3, (n,), generator=rng), {"person": person})


def audit(**changes) -> MembershipAudit:
    settings = {"clients": 3, "size": 20, "known": 40, "held": 30} | changes
    return MembershipAudit(settings.pop("attacks", (Cosine(),)), LOCAL, **settings)


def run(made: MembershipAudit, data: Dataset, **changes):
    settings = {"rounds": 3, "observed": (0, 2), "defense": Defense(), "trials": 200, "seed": 0} | changes
    return audited(made, MLP((8,)), data, **settings)[0]


def test_members_the_adversarys_records_the_thresholds_and_the_judged_are_disjoint():
    who = roster(audit(validation=10), table(200, 0), seeded(0, "split"))
    parts = [*who.members, who.known, who.held, who.others, who.validation]
    assert [len(part) for part in parts] == [20, 20, 20, 40, 30, 60, 10]
    keys = [key for part in parts for key in part.hashes]
    assert len(set(keys)) == len(keys) == 200


def test_repeated_records_are_left_out_before_anyone_is_dealt_any():
    data = table(150, 0)
    doubled = data.take(torch.arange(300) % 150)
    who = roster(audit(), doubled, seeded(0, "split"))
    assert sum(map(len, who.members)) + len(who.known) + len(who.held) + len(who.others) == 150


def test_people_are_members_or_not_as_a_whole():
    who = roster(audit(how="user", column="person"), table(400, 0), seeded(0, "split"))
    inside = {int(p) for member in who.members for p in member.private["person"]}
    outside = {int(p) for part in (who.known, who.held, who.others) for p in part.private["person"]}
    assert inside
    assert outside
    assert not inside & outside


def test_too_few_records_say_how_many_are_left():
    with pytest.raises(DataError, match="leave -10 of 120 different records"):
        roster(audit(), table(120, 0), seeded(0, "split"))
    with pytest.raises(ArgumentError, match="column of people"):
        roster(audit(how="user"), table(400, 0), seeded(0, "split"))


def test_every_attack_is_judged_on_every_client_and_what_was_learned_is_beside_it():
    found = run(audit(attacks=(Cosine(), Whitened(label="predicted"), Loss(), Zari())), table(300, 0))
    attacks = found["membership"]["attacks"]
    assert [one["attack"] for one in attacks] == ["Cosine", "Whitened(label='predicted')", "Loss", "Zari"]
    assert all(one["clients"] == 3 for one in attacks)
    sizes = {
        key: found["membership"][key] for key in ("clients", "members", "known", "held", "others", "rounds")
    }
    assert sizes == {"clients": 3, "members": 60, "known": 40, "held": 30, "others": 170, "rounds": 2}
    assert found["utility"]["trained"]["n"] == 60
    for one in attacks:
        assert set(one["deviation"]) == set(one["estimates"])
        assert one["estimates"]["auroc"]["low"] <= one["estimates"]["auroc"]["value"]


def test_a_rate_that_the_held_records_cannot_judge_is_left_out():
    estimates = run(audit(held=30), table(300, 0))["membership"]["attacks"][0]["estimates"]
    assert "conformal_fpr_at_5%" in estimates
    assert "conformal_fpr_at_1%" not in estimates


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others():
    first, again, other = (run(audit(), table(300, 0), seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("seen", ["sum", "broadcast"])
def test_where_clients_are_not_told_apart_all_members_are_judged_at_once(seen):
    found = run(audit(seen=seen), table(300, 0))["membership"]
    assert found["attacks"][0]["clients"] == 1
    assert found["seen"] == seen


def test_a_defense_that_needs_held_out_records_gets_the_clients_own():
    run(audit(validation=20), table(300, 0), defense=MixupMMD(weight=0.5))
    with pytest.raises(ArgumentError, match="held must be records"):
        run(audit(), table(300, 0), defense=MixupMMD(weight=0.5))


def test_an_attack_is_called_by_what_differs_from_its_defaults():
    assert brief(Cosine()) == "Cosine"
    assert brief(Cosine(label="sum", layer="all")) == "Cosine(label='sum', layer='all')"


def test_non_members_are_called_at_the_promised_rates_over_a_hundred_federations():
    """Given its held-out records, a federation's rate is Beta(k, n + 1 - k) with k = alpha (n + 1), so the
    mean over federations has a known variance; four standard errors are allowed."""
    rates, held, judged = (0.01, 0.05, 0.1), 99, 120
    calls = dict.fromkeys(rates, 0)
    made = audit(clients=2, size=20, scored=1, known=30, held=held)
    for seed in range(100):
        who = roster(made, table(2 * 20 + 30 + held + judged, seed), seeded(seed, "split"))
        model = build(MLP((8,)), who.members[0], seeded(seed, "model"))
        federation = recorded(
            made, model, who, rounds=1, observed=(0,), defense=Defense(), rng=seeded(seed, "training")
        )
        with federation as (recording, history):
            watched = Watched(recording, evaluated(model, history), ("0",), (0,))
            (transcript,) = played(Cosine(), watched, who, trials=2 * judged, seed=seed)
        p = p_values(transcript)[transcript.secrets == 0]
        assert len(p) == judged
        for rate in rates:
            calls[rate] += int((p <= rate + 1e-12).sum())
    for rate, count in calls.items():
        k = round(rate * (held + 1))
        spread = k * (held + 1 - k) / ((held + 1) ** 2 * (held + 2))  # of a Beta
        error = math.sqrt((spread + (rate * (1 - rate) - spread) / judged) / 100)
        assert abs(count / (100 * judged) - rate) <= 4 * error, rate


@pytest.fixture
def federation(tmp_path):
    """Two clients of digits that were recorded, and the candidates with whose they are."""
    data = load("digits").distinct()
    order = torch.randperm(len(data), generator=seeded(0, "digits"))
    client = torch.full((len(data),), 2)
    client[order[:50]], client[order[50:100]] = 0, 1
    members = [data.take(order[:50]), data.take(order[50:100])]
    model = build(MLP((32,)), data, seeded(0, "model"))
    recorder = Recorder(tmp_path / "run", model, model_name="mlp")
    federate(
        model, members, rounds=3, rng=seeded(0, "training"), local=Local(0.1, batch=25), recorder=recorder
    )
    candidates = Dataset(
        data.x, data.y, {"client": client}, name="candidates", values={"client": ("0", "1", "nobody")}
    )
    return model, candidates, tmp_path


def test_a_recording_is_audited_and_its_records_listed_only_when_asked(federation):
    model, candidates, folder = federation
    listed = folder / "records.csv"
    made = RecordingAudit(str(folder / "run"), (Cosine(), Whitened()), records=str(listed))
    found = made.run(model, candidates, trials=2_000, seed=0)["membership"]
    assert found["clients"] == 2
    assert found["members"] == 100
    assert found["attacks"][1]["estimates"]["auroc"]["value"] > 0.8
    with listed.open(newline="") as file:
        rows = list(csv.DictReader(file))
    # Two attacks, and the records of nobody are held against either client.
    assert len(rows) == 2 * (100 + 2 * found["others"])
    assert {row["client"] for row in rows} == {"0", "1"}
    keys = candidates.hashes
    for row in rows[:: len(rows) // 20]:
        assert keys[int(row["row"])] == row["hash"]
        assert 0 < float(row["p_value"]) <= 1
    whose, strong = candidates.private["client"], [r for r in rows if r["attack"] == "Whitened"]
    groups = [[r for r in strong if (whose[int(r["row"])] < 2) == member] for member in (True, False)]
    called = [sum(float(r["p_value"]) <= 0.05 for r in group) / len(group) for group in groups]
    assert called[0] > 3 * called[1]
    made = RecordingAudit(str(folder / "run"), (Cosine(),))
    made.run(model, candidates, trials=2_000, seed=0)
    assert {path.name for path in folder.iterdir()} == {"run", "records.csv"}


def test_a_recording_that_declares_its_loss_and_preprocessing_is_audited_with_the_same_only(federation):
    model, candidates, folder = federation
    for i, (said, asked, words) in enumerate(
        [
            ({"loss": "focal"}, "", "declares the loss 'focal', and attacks on recordings take gradients of"),
            (
                {"preprocessing": "abc"},
                "",
                "declares the preprocessing 'abc', and the candidates are said to",
            ),
            ({}, "abc", "declares the preprocessing None"),
            ({"loss": "cross-entropy", "preprocessing": "abc"}, "abc", None),
        ]
    ):
        recorder = Recorder(folder / f"run{i}", model, model_name="mlp", **said)
        again = Recorder(folder / f"run{i}", model, model_name="mlp", **said)
        assert again.loss == recorder.loss
        audit = RecordingAudit(str(folder / f"run{i}"), (Cosine(),), preprocessing=asked)
        if words is None:
            audit.check(Recording(folder / f"run{i}"))
        else:
            with pytest.raises(DataError, match=words):
                audit.run(model, candidates, trials=10, seed=0)
    with pytest.raises(DataError, match="with preprocessing 'abc' where this has None"):
        Recorder(folder / "run1", model, model_name="mlp")


def test_candidates_of_nobody_in_the_recording_are_refused(federation):
    model, candidates, folder = federation
    strangers = Dataset(
        candidates.x, candidates.y, candidates.private, values={"client": ("anna", "ben", "nobody")}
    )
    with pytest.raises(DataError, match="names no client of the recording: it has 'anna'"):
        RecordingAudit(str(folder / "run"), (Cosine(),)).run(model, strangers, trials=10, seed=0)
    few = candidates.take((candidates.private["client"] < 2).nonzero()[:, 0])
    with pytest.raises(DataError, match="0 candidates belong to no client"):
        RecordingAudit(str(folder / "run"), (Cosine(),)).run(model, few, trials=10, seed=0)


def test_a_record_of_a_client_and_of_nobody_is_refused_by_number(federation):
    model, candidates, folder = federation
    member = int((candidates.private["client"] == 0).nonzero()[0])
    doubled = candidates.take(torch.tensor([member, *range(len(candidates))]))
    doubled.private["client"][0] = 2
    with pytest.raises(DataError, match=f"candidates 0 and {member + 1} are the same record"):
        RecordingAudit(str(folder / "run"), (Cosine(),)).run(model, doubled, trials=10, seed=0)


def test_a_model_whose_statistics_are_not_recorded_is_refused(federation):
    _, candidates, folder = federation
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10))
    with pytest.raises(ArgumentError, match=r"model\.2 must not need running statistics"):
        RecordingAudit(str(folder / "run"), (Cosine(),)).run(model, candidates, trials=10, seed=0)
    with pytest.raises(ArgumentError, match="told half of the members"):
        RecordingAudit("run", (Zari(),), records="x.csv")


def test_clients_that_sit_out_some_rounds_are_judged_on_theirs():
    found = run(audit(fraction=0.5), table(300, 0), rounds=6, observed=range(6))["membership"]
    assert 1 <= found["rounds"] < 6


def test_candidates_that_do_not_fit_the_recorded_model_are_refused(federation):
    _, candidates, folder = federation
    with pytest.raises(DataError, match="does not fit the model"):
        RecordingAudit(str(folder / "run"), (Cosine(),)).run(nn.Linear(64, 10), candidates, trials=10, seed=0)
    assert Recording(folder / "run").rounds == (0, 1, 2, 3)
