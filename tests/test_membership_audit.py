"""Audits of federations: who is who, what is judged, and that the test keeps what it promises."""

from __future__ import annotations

import csv
import math
from dataclasses import replace

import pytest
import torch
from builders import record_digits, refuses
from torch import nn

from leakscope.attacks.alignment import Cosine, GradientDiff
from leakscope.attacks.joint_regression import JointRegression
from leakscope.attacks.losses import FedLoss, Loss, Merlin, ModifiedEntropy, Zari
from leakscope.attacks.span_membership import SpanDistance
from leakscope.attacks.whitened import FedMIA, InOut, Whitened
from leakscope.audits.membership import MembershipAudit, RecordingAudit
from leakscope.audits.membership.found import MembershipFound
from leakscope.audits.membership.judged import WatchedFederation, brief, play_clients
from leakscope.audits.membership.kind import KIND
from leakscope.audits.membership.simulated import record, roster, settle
from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, DataError
from leakscope.core.fingerprints import keyed
from leakscope.core.nouns import Defense, Estimate
from leakscope.core.rng import seeded
from leakscope.measures.membership import p_values
from leakscope.models import MLP, build
from leakscope.results.cell import Cell
from leakscope.results.kind import World
from leakscope.results.result import Made, Result
from leakscope.run.progress import bar, show_beats
from leakscope.training import Local
from leakscope.training.recording import Recorder, Recording

LOCAL = Local(0.2, batch=10)


def table(n: int, seed: int, width: int = 12) -> Dataset:
    rng = seeded(seed, "table")
    x = torch.randn(n, width, generator=rng)
    person = torch.arange(n) // 5
    return Dataset(x, torch.randint(3, (n,), generator=rng), {"person": person})


def audit(**changes) -> MembershipAudit:
    settings = {"clients": 3, "size": 20, "known": 40, "held": 30} | changes
    return MembershipAudit(settings.pop("attacks", (Cosine(),)), LOCAL, **settings)


GAME = {"name": "MembershipAudit", "attacks": [{"name": "Cosine"}], "clients": 3, "size": 20, "known": 40}
GAME |= {"local": {"name": "Local", "rate": 0.2, "batch": 10}, "held": 30}


def world(data: Dataset, *, seed: int = 0, cell=(), **game) -> World:
    tables = {"data": {"name": "table"}, "game": GAME | game, "model": {"name": "MLP", "hidden": [8]}}
    return World(
        Cell.model_validate({"rounds": 3, "observe": (1, 3), "trials": 200} | tables | dict(cell)), seed, data
    )


def run(data: Dataset, **changes):
    return KIND.run(world(data, **changes)).found


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


def test_the_likelihood_ratio_is_measured_at_further_rates_if_asked_for():
    plain, asked = (run(table(300, 0), **more).attacks[0].scores for more in ({}, {"rates": [0.025, 0.1]}))
    assert {*asked.table} - {*plain.table} == {"plr_at_2.5%", "plr_at_10%"}
    assert 0 <= asked.plr_at_10.value <= 10
    assert asked.plr_at_10.value * 0.1 >= asked.plr_at_5.value * 0.05  # more alarms, no fewer hits
    refuses(ArgumentError, "some of 0.025, 0.04, 0.1", audit, rates=(0.5,))


def test_people_are_members_or_not_as_a_whole():
    who = roster(audit(how="user", column="person"), table(400, 0), seeded(0, "split"))
    inside = {int(p) for member in who.members for p in member.private["person"]}
    outside = {int(p) for part in (who.known, who.held, who.others) for p in part.private["person"]}
    assert inside
    assert outside
    assert not inside & outside


def test_too_few_records_say_how_many_are_left():
    with pytest.raises(DataError, match="take 130 of 120 different records"):
        roster(audit(), table(120, 0), seeded(0, "split"))
    refuses(ArgumentError, "column of people", roster, audit(how="user"), table(400, 0), seeded(0, "split"))


def test_every_attack_is_judged_on_every_client_and_what_was_learned_is_beside_it():
    attacks = [
        {"name": "Cosine"},
        {"name": "Whitened", "label": "predicted"},
        {"name": "Loss"},
        {"name": "Zari"},
    ]
    found = run(table(300, 0), attacks=attacks)
    assert [one.name for one in found.attacks] == ["Cosine", "Whitened(label='predicted')", "Loss", "Zari"]
    assert all(one.games == 3 for one in found.attacks)
    sizes = (found.clients, found.members, found.known, found.held, found.others, found.judged, found.rounds)
    assert sizes == (3, 60, 40, 30, 170, 100, 2)
    assert found.utility.trained.n == 60
    for one in found.attacks:
        assert [name for name, _ in one.deviation.present()] == [name for name, _ in one.scores.present()]


def test_a_rate_that_the_held_records_cannot_judge_is_left_out():
    scores = run(table(300, 0), held=30).attacks[0].scores
    assert scores.conformal_fpr_at_5 is not None
    assert scores.conformal_fpr_at_1 is None


def test_a_defense_that_needs_held_out_records_gets_the_clients_own():
    mixed = {"defense": {"name": "MixupMMD", "weight": 0.5}}
    assert run(table(300, 0), validation=20, cell=mixed).attacks
    refuses(ArgumentError, "held must be records", KIND.check, world(table(300, 0), cell=mixed))


@pytest.mark.parametrize(
    ("words", "cell", "game"),
    [
        ("take 310 of 300 different records", {}, {"size": 80}),
        ("or a layer of the model", {}, {"attacks": [{"name": "Cosine", "layer": "head"}]}),
        ("layers of the model", {}, {"attacks": [{"name": "Whitened", "only": ["head"]}]}),
        ("rounds from 1 to 3", {"observe": (4,)}, {}),
        (
            "Within.layers must name layers",
            {},
            {"upload": {"name": "Within", "defense": {"name": "Sign"}, "layers": ["x"]}},
        ),
        ("must act on a finished update", {}, {"upload": {"name": "DPSGD"}}),
        ("records of the smallest client", {}, {"virtual": 21}),
        (
            "shares its noise among 7 clients",
            {},
            {"upload": {"name": "FlowerFixedClipping", "noise": 1.0, "clients": 7}},
        ),
        ("records that are no images", {}, {"local": {"name": "Local", "rate": 0.1, "augment": ["flip"]}}),
        ("a single record", {}, {"clients": 60, "size": 1, "attacks": [{"name": "Zari"}]}),
    ],
)
def test_what_the_records_or_the_model_cannot_give_is_refused_before_anything_is_trained(words, cell, game):
    data = table(300, 0)
    KIND.check(world(data))
    refuses((ArgumentError, DataError), words, KIND.check, world(data, cell=cell, **game))


def test_an_attack_refuses_a_model_that_it_cannot_be_played_on():
    data, normed = table(8, 0), nn.Sequential(nn.LayerNorm(12), nn.Linear(12, 3))
    model = nn.Sequential(nn.Unflatten(1, (2, 6)), nn.Conv1d(2, 3, 6), nn.Flatten())
    Whitened().check(normed, data.x, data.y)
    Cosine().check(model, data.x, data.y)
    refuses(ArgumentError, "linear", Whitened().check, model, data.x, data.y)


def test_a_check_leaves_the_numbers_as_they_are():
    asked = world(table(300, 0))
    first = KIND.run(asked).found
    KIND.check(asked)
    assert KIND.run(asked).found == first


def test_an_attack_is_called_by_what_differs_from_its_defaults():
    assert brief(Cosine()) == "Cosine"
    assert brief(Cosine(label="sum", layer="all")) == "Cosine(label='sum', layer='all')"


SCORES = {
    "uploads": (Cosine(label="max"), GradientDiff(), Whitened(by_class=True), Whitened(label="max"), FedMIA(), SpanDistance()),
    "sum": (InOut(), JointRegression(most=150), Cosine(), FedLoss(), Loss(), ModifiedEntropy(), Merlin(perturbations=5)),
}  # fmt: skip


def within_chance(called: int, rate: float, held: int, judged: int, federations: int) -> bool:
    """Given its held-out records, a federation's rate is Beta(k, n + 1 - k) with k = alpha (n + 1), so the
    mean over federations has a known variance; four standard errors are allowed."""
    k = round(rate * (held + 1))
    spread = k * (held + 1 - k) / ((held + 1) ** 2 * (held + 2))  # of a Beta
    error = math.sqrt((spread + (rate * (1 - rate) - spread) / judged) / federations)
    return bool(called / (federations * judged) <= rate + 4 * error)


@pytest.mark.parametrize("seen", SCORES)
def test_no_score_calls_more_non_members_than_its_test_promises(seen):
    """Three clients, two in each round: what is seen of them changes from federation to federation."""
    held, judged, federations, rates = 39, 60, 15, (0.05, 0.1, 0.25, 0.5)
    calls = {(attack, rate): 0 for attack in SCORES[seen] for rate in rates}
    made = audit(clients=3, size=12, known=40, held=held, seen=seen, fraction=0.6, attacks=SCORES[seen])
    for seed in range(federations):
        who = roster(made, table(3 * 12 + 40 + held + judged, seed), seeded(seed, "split"))
        model = build(MLP((8,)), who.members[0], seeded(seed, "model"))
        federation = record(made, model, who, 3, (0, 1, 2), defense=Defense(), rng=seeded(seed, "training"))
        with federation as (recording, history):
            client = next(c for c in ("0", "1", "2") if c in recording.clients_in(0))
            watched = WatchedFederation(recording, settle(model, history), (client,), seen=seen)
            for attack in SCORES[seen]:
                ((_, found),) = play_clients(attack, watched, who, trials=2 * judged, seed=seed)
                p = p_values(found)[found.secrets == 0]
                assert len(p) == judged
                for rate in rates:
                    calls[attack, rate] += int((p <= rate + 1e-12).sum())
    for (attack, rate), count in calls.items():
        assert within_chance(count, rate, held, judged, federations), (attack, rate, count)


def test_non_members_are_called_at_the_promised_rates_over_a_hundred_federations():
    rates, held, judged = (0.01, 0.05, 0.1), 99, 120
    calls = dict.fromkeys(rates, 0)
    made = audit(clients=2, size=20, scored=1, known=30, held=held)
    for seed in range(100):
        who = roster(made, table(2 * 20 + 30 + held + judged, seed), seeded(seed, "split"))
        model = build(MLP((8,)), who.members[0], seeded(seed, "model"))
        federation = record(made, model, who, 1, (0,), defense=Defense(), rng=seeded(seed, "training"))
        with federation as (recording, history):
            watched = WatchedFederation(recording, settle(model, history), ("0",), (0,))
            ((_, transcript),) = play_clients(Cosine(), watched, who, trials=2 * judged, seed=seed)
        p = p_values(transcript)[transcript.secrets == 0]
        assert len(p) == judged
        for rate in rates:
            calls[rate] += int((p <= rate + 1e-12).sum())
    for rate, count in calls.items():
        assert within_chance(count, rate, held, judged, 100), rate
        assert within_chance(100 * judged - count, 1 - rate, held, judged, 100), rate


@pytest.fixture
def federation(tmp_path):
    """Two clients of digits that were recorded, and the candidates with whose they are."""
    return record_digits(tmp_path / "run", ("0", "1"), 50, hidden=32, rounds=3), tmp_path


def recorded(folder, data: Dataset, *, trials: int = 10, model=None, **game) -> World:
    tables = {
        "data": {"name": "candidates"},
        "model": model or {"name": "MLP", "hidden": [32]},
        "trials": trials,
    }
    game = {"name": "RecordingAudit", "recording": str(folder), "attacks": [{"name": "Cosine"}]} | game
    return World(Cell.model_validate(tables | {"game": game}), 0, data)


def test_who_watches_an_audit_is_told_of_every_client_and_of_the_time_left(federation):
    """Two attacks on two clients, each said to take 100 seconds: more than Rich's own estimate remembers."""
    candidates, folder = federation
    both, now = [{"name": "Cosine"}, {"name": "Whitened"}], [0.0]
    lines, told, left = bar(), [], []
    lines.get_time = lambda: now[0]
    (folder / "beats").mkdir()
    shown = {}

    def watch(done: int, total: int) -> None:
        now[0] = 100.0 * done
        told.append((done, total))
        (folder / "beats" / "key").write_text(f"{done} {total}")
        show_beats(lines, folder / "beats", {"key": "run, seed 0"}, shown)
        left.append(lines.tasks[0].time_remaining)

    KIND.run(replace(recorded(folder / "run", candidates, attacks=both), watch=watch))
    assert told == [(done, 4) for done in range(5)]
    assert left == [None, None, 200, 100, 0]  # a speed is a difference between two that are finished
    assert "run, seed 0" in lines.tasks[0].description
    assert not lines.tasks[0].visible


def test_who_watches_sums_is_told_of_shorter_runs_too():
    told = []
    cell = {"rounds": 5, "observe": range(1, 6), "trials": 20}
    asked = world(table(500, 0), attacks=[{"name": "Whitened"}], seen="sum", cell=cell)
    KIND.run(replace(asked, watch=lambda *reached: told.append(reached)))
    assert told == [(done, 1 + 3) for done in range(5)]  # all rounds, then the first 1, 2 and 4


def test_a_recording_is_audited_and_its_records_listed_only_when_asked(federation):
    candidates, folder = federation
    listed, both = folder / "records.csv", [{"name": "Cosine"}, {"name": "Whitened"}]
    asked = recorded(folder / "run", candidates, trials=2_000, attacks=both, records=True)
    found = KIND.run(replace(asked, keep=lambda name, content: listed.write_bytes(content))).found
    assert found.clients == 2
    assert found.members == 100
    assert found.attacks[1].scores.auroc.value > 0.8
    with listed.open(newline="") as file:
        rows = list(csv.DictReader(file))
    # Two attacks, and the records of nobody are held against either client.
    assert len(rows) == 2 * (100 + 2 * found.others)
    assert {row["client"] for row in rows} == {"0", "1"}
    keys = [keyed(key) for key in candidates.hashes]
    for row in rows[:: len(rows) // 20]:
        assert keys[int(row["row"])] == row["hash"]
        assert 0 < float(row["p_value"]) <= 1
    whose, strong = candidates.private["client"], [r for r in rows if r["attack"] == "Whitened"]
    groups = [[r for r in strong if (whose[int(r["row"])] < 2) == member] for member in (True, False)]
    called = [sum(float(r["p_value"]) <= 0.05 for r in group) / len(group) for group in groups]
    assert called[0] > 3 * called[1]
    KIND.run(
        replace(recorded(folder / "run", candidates, trials=2_000), keep=lambda name, _: pytest.fail(name))
    )
    assert {path.name for path in folder.iterdir()} == {"run", "records.csv"}


def test_a_recording_that_declares_its_loss_and_preprocessing_is_audited_with_the_same_only(federation):
    candidates, folder = federation
    model = build(MLP((32,)), candidates, seeded(0))
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
        with pytest.raises(DataError, match=words or "has no round yet"):
            KIND.check(recorded(folder / f"run{i}", candidates, preprocessing=asked))
    with pytest.raises(DataError, match="with preprocessing 'abc' where this has None"):
        Recorder(folder / "run1", model, model_name="mlp")


def test_candidates_and_models_that_are_not_the_recordings_are_refused(federation):
    good, folder = federation
    whose = good.private["client"]
    member = int((whose == 0).nonzero()[0])
    doubled = good.take(torch.tensor([member, *range(len(good))]))
    doubled.private["client"][0] = 2
    for words, candidates, settings in (
        ("it has 'anna'", replace(good, values={"client": ("anna", "ben", "nobody")}), {}),
        ("0 candidates belong to no client", good.take((whose < 2).nonzero()[:, 0]), {}),
        (f"candidates 0 and {member + 1} are the same record", doubled, {}),
        ("does not fit the model", good, {"model": {"name": "MLP", "hidden": [16]}}),
        ("the recording takes 64", replace(good, x=good.x.flatten(1)[:, :60]), {}),
        ("has changed since the plan was written", good, {"digest": "0" * 64}),
    ):
        asked = recorded(folder / "run", candidates, **settings)
        refuses((ArgumentError, DataError), words, KIND.check, asked)
    refuses(ArgumentError, "told half of the members", RecordingAudit, "run", (Zari(),), records=True)
    assert Recording(folder / "run").rounds == (0, 1, 2, 3)


def test_clients_that_sit_out_some_rounds_are_judged_on_theirs():
    found = run(table(300, 0), fraction=0.5, cell={"rounds": 6, "observe": None})
    assert 1 <= found.rounds < 6


@pytest.mark.parametrize("seen", ["uploads", "sum", "broadcast"])
def test_clients_in_no_round_that_is_seen_do_not_thin_out_what_is_found(seen):
    """Two of three clients take part in the one round that is seen: of the third nothing could be found."""
    attacks = [{"name": "Whitened"}, {"name": "Loss"}]
    found = run(table(400, 0), attacks=attacks, seen=seen, fraction=0.6, cell={"observe": [2]})
    assert len(found.watched) == found.clients == 2
    assert found.members == 40
    (left,) = {"0", "1", "2"} - {*found.watched}
    assert any(f"about whom nothing is said: {left}." in remark for remark in found.remarks)
    every = run(table(400, 0), attacks=attacks, seen=seen, fraction=0.6, cell={"observe": [1, 2, 3]})
    assert len(every.watched) == 3
    assert not any("nothing is said" in remark for remark in every.remarks)


def test_the_page_says_what_dropout_gives_away():
    """Two of three clients in a round: their sums are held against each other."""
    attacks = [{"name": "InOut"}, {"name": "Whitened"}]
    asked = world(
        table(500, 0), attacks=attacks, seen="sum", fraction=0.6, cell={"rounds": 6, "observe": range(1, 7)}
    )
    found = KIND.run(asked).found
    assert [client.name for client in found.attacks[0].clients] == ["0", "1", "2"]
    assert len(found.took_part) == 3
    assert max(found.took_part) <= found.rounds == 6
    assert sum(found.took_part) == 12
    text = str(tell_of(asked, found).body)
    assert "whoever knows who took part" in text
    assert "of a client&#39;s members at 1% false alarms" in text
    assert "With every client in every sum" not in text


def test_the_page_says_how_many_rounds_of_everyone_stay_below_a_risk():
    """As far as was measured: nothing is said of rounds that were not, and nothing of few records."""
    cell = {"rounds": 5, "observe": range(1, 6), "trials": 400}
    asked = world(table(500, 0), attacks=[{"name": "Whitened"}], seen="sum", cell=cell)
    found = KIND.run(asked).found
    assert [count for count, _ in found.attacks[0].growth] == [1, 2, 4]
    assert found.took_part == (5, 5, 5)
    once = world(table(500, 0), attacks=[{"name": "Whitened"}], seen="sum", cell=cell | {"observe": (1, 2)})
    assert found.attacks[0].growth[1][1] == KIND.run(once).found.attacks[0].scores.tpr_at_1
    text = str(tell_of(asked, found).body)
    assert "With every client in every sum, Whitened finds" in text
    assert "after 1 round, " in text
    first, level = found.attacks[0], 0.95

    def said(*highs: float, low: float = 0.0) -> str:
        shares = [Estimate("TPR", low, low, high, level, 200, "") for high in highs]
        growth = tuple(zip((1, 2, 4), shares, strict=True))
        other = first.model_copy(update={"growth": growth})
        return str(tell_of(asked, found.model_copy(update={"attacks": (other,)})).body)

    assert "cannot be said from these records" in said(0.2, 0.3, 0.4)
    assert "One round is already above 3%" in said(0.2, 0.3, 0.4, low=0.05)
    assert "Up to 2 rounds" not in said(0.2, 0.01, 0.01)


def tell_of(asked: World, found):
    made = Result[MembershipFound](
        key="k", seed=0, cell=asked.cell, kind="membership", found=found, made=Made()
    )
    return KIND.tell([made])
