"""More questions to a recording: the evidence against attacks one by one, and records that nobody trained on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import builders
import numpy as np
import pytest
import torch
from builders import Named, refuses
from scipy import stats

import leakscope as ls
from leakscope.attacks.whitened import InOut, Whitened
from leakscope.audits.membership.judged import WatchedFederation
from leakscope.audits.questions.answers import (
    AskedRecords,
    answer_canaries,
    answer_person,
    answer_provenance,
    answer_source,
    compare_sizes,
    play_people,
)
from leakscope.audits.questions.evidence import weigh
from leakscope.audits.questions.kind import KIND
from leakscope.audits.questions.page import _average, tell
from leakscope.core.dataset import Batch, Dataset, joined
from leakscope.core.errors import ArgumentError, DataError, LeakscopeError
from leakscope.core.nouns import Knowledge, View
from leakscope.core.rng import seeded
from leakscope.games import Membership
from leakscope.measures.success import auroc
from leakscope.models import MLP, build
from leakscope.report.page import render
from leakscope.results import kind
from leakscope.results.cell import Cell
from leakscope.results.kind import World
from leakscope.results.scores import average_scores
from leakscope.run import engines
from leakscope.run.plan import from_document
from leakscope.training import Local, federate
from leakscope.training.recording import Canaries, RecordedChannel, Recorder, Recording

NAMES = ("anna", "ben", "cara")
SIZE = 100


@dataclass(frozen=True, eq=False)
class Bed:
    """A recorded federation, its members, and the rest of the records, which nobody trained on."""

    recording: Recording
    model: torch.nn.Module
    members: tuple[Dataset, ...]
    nobody: Dataset

    def watch(self, seen="uploads") -> WatchedFederation:
        return WatchedFederation(self.recording, self.model, NAMES, (), seen)


def draw(n: int = 1800) -> Dataset:
    """Noise with labels drawn at random: what a net says of them it has by heart."""
    rng = seeded(0, "noise")
    x, y = torch.randn(n, 40, generator=rng), torch.randint(4, (n,), generator=rng)
    return Dataset(x, y, {}, values={"label": tuple("abcd")})


def grow(folder: Path, *, rounds=6, fraction=1.0, more: Dataset | None = None, seed=0) -> Bed:
    """``more`` records are trained on by the first client too."""
    data = draw()
    order = torch.randperm(len(data), generator=seeded(seed, "order"))
    members = tuple(data.take(order[SIZE * i : SIZE * (i + 1)]) for i in range(3))
    model = build(MLP((64,)), data, seeded(seed, "model"))
    recorder = Named(Recorder(folder, model, model_name="mlp"), NAMES)
    trained = [joined([members[0], *([more] if more is not None else [])]), *members[1:]]
    federate(
        model,
        trained,
        rounds=rounds,
        rng=seeded(seed, "training"),
        local=Local(0.2, batch=20, epochs=3),
        fraction=fraction,
        recorder=recorder,
    )
    return Bed(Recording(folder), model.eval(), members, data.take(order[SIZE * 3 :]))


@pytest.fixture(scope="module")
def bed(tmp_path_factory) -> Bed:
    return grow(tmp_path_factory.mktemp("bed") / "run")


@pytest.fixture(scope="module")
def sums(tmp_path_factory) -> Bed:
    return grow(tmp_path_factory.mktemp("sums") / "run", rounds=12, fraction=0.6)


def view_of(channel: RecordedChannel, records: Dataset) -> View:
    batch = Batch(records, torch.arange(len(records))[:, None])
    return View(channel(batch, torch.zeros(len(records)).long(), torch.Generator()), {"candidates": batch})


def scored(attack, channel, known: Dataset, records: Dataset) -> torch.Tensor:
    """What one attack says of records, seen through one channel."""
    told = Knowledge(Membership(known.take(torch.arange(0)), known), channel, len(known))
    return attack(told, seeded(0))(view_of(channel, records))


def in_units(scores: torch.Tensor) -> torch.Tensor:
    return (scores - scores.mean()) / scores.std()


# --- the evidence ----------------------------------------------------------------------------------


def test_against_uploads_evidence_is_each_round_of_a_client_less_the_mean_of_the_others(bed):
    known, records = bed.nobody.take(torch.arange(300)), joined([*bed.members])
    found = weigh(Whitened(), bed.watch(), known, records, torch.zeros(len(records), 1).double())
    total = torch.zeros(3, len(records)).double()
    for r in bed.recording.rounds[:-1]:
        rounds = []
        for name in NAMES:
            channel = RecordedChannel(bed.recording, bed.model, (name,), (r,))
            rounds += Whitened().score_rounds(bed.model, view_of(channel, records), (known.x, known.y))
        for c in range(3):
            others = [i for i in range(3) if i != c]
            for layer in range(rounds[0].scores.shape[2]):
                each, null = (
                    [part[layer] for part in parts]
                    for parts in ([one.scores[0, 0] for one in rounds], [one.known[0] for one in rounds])
                )
                left = each[c] - sum(each[i] for i in others) / 2
                rest = null[c] - sum(null[i] for i in others) / 2
                total[c] += (left - rest.mean()) / rest.std() / rounds[0].scores.shape[2]
    assert torch.allclose(found.scores, total / (len(bed.recording.rounds) - 1), atol=1e-6)


def test_against_sums_evidence_is_the_in_out_attack(sums):
    known, records = sums.nobody.take(torch.arange(300)), joined([*sums.members])
    watched = sums.watch("sum")
    found = weigh(Whitened(by_class=True), watched, known, records, torch.zeros(len(records), 1).double())
    assert found.stayed
    for c, name in enumerate(NAMES):
        channel = RecordedChannel(sums.recording, sums.model, (name,), (), "sum")
        view, own = view_of(channel, records), Whitened(by_class=True)
        rounds = [one.z[0, 0] for one in own.score_rounds(sums.model, view, (known.x, known.y))]
        there = torch.tensor([name in sums.recording.clients_in(r) for r in channel.rounds])
        z = torch.stack(rounds)
        expected = z[there].mean(0) - z[~there].mean(0)
        assert torch.allclose(in_units(found.scores[c]), in_units(expected), atol=1e-6)
        assert float(np.corrcoef(found.scores[c], scored(InOut(), channel, known, records))[0, 1]) > 0.9


# --- found where it is there, and not found where it is not ----------------------------------------


def ask(
    bed: Bed, seen="uploads", members=None, nobody=None, person=None
) -> tuple[AskedRecords, torch.Tensor]:
    """The scores of members, and of records of nobody that the adversary does not know."""
    members = bed.members if members is None else members
    rest = bed.nobody if nobody is None else nobody
    known, held, others = (rest.take(rows) for rows in torch.arange(len(rest)).tensor_split(3))
    asked = AskedRecords(NAMES, tuple(members), held, others, None, person)
    zeros = torch.zeros(len(asked.records), 1).double()
    return asked, weigh(Whitened(by_class=True), bed.watch(seen), known, asked.records, zeros).scores


@pytest.mark.parametrize("seen", ["uploads", "sum"])
def test_the_client_of_a_known_member_is_told(bed, sums, seen):
    asked, scores = ask(bed if seen == "uploads" else sums, seen)
    answer = answer_source(scores, asked, column="client", seed=0)
    assert answer.scores.advantage.low > 0.1
    assert answer.guessing == pytest.approx(1 / 3)
    assert answer.selfcheck.p < 0.02
    assert not answer.unlike
    assert [client.cases for client in answer.clients] == [SIZE] * 3


def placebo_scores(bed: Bed) -> tuple[torch.Tensor, Dataset]:
    """Of records that nobody trained on."""
    known, rest = bed.nobody.take(torch.arange(300)), bed.nobody.take(torch.arange(300, len(bed.nobody)))
    zeros = torch.zeros(len(rest), 1).double()
    return weigh(Whitened(by_class=True), bed.watch(), known, rest, zeros).scores, rest


def test_records_that_nobody_trained_on_are_put_to_no_client(bed):
    """A hundred times some of them are said to be the clients': found above the nominal rate in 5% at most."""
    scores, rest = placebo_scores(bed)
    claims = 0
    for seed in range(100):
        rows = torch.randperm(len(rest), generator=seeded(seed, "placebo"))[:300]
        asked = AskedRecords(NAMES, tuple(rest.take(part) for part in rows.split(100)), rest, rest)
        whose = asked.whose
        right = int((scores[:, rows].argmax(0) == whose).sum())
        claims += stats.binomtest(right, 300, 1 / 3, alternative="greater").pvalue < 0.025
    assert claims <= 5
    answer = answer_source(scores[:, rows], asked, column="client", seed=0)
    assert answer.scores.success.low <= 1 / 3


def people_of(data: Dataset, first: int, each: int = 5) -> Dataset:
    """People of so many records each, numbered from the first on."""
    codes = first + torch.arange(len(data)) // each
    values = dict(data.values) | {"person": tuple(map(str, range(2000)))}
    return replace(data, private=dict(data.private) | {"person": codes}, values=values)


def with_people(members, nobody) -> tuple[list[Dataset], Dataset]:
    return [people_of(part, 100 * i) for i, part in enumerate(members)], people_of(nobody, 1000)


def test_a_person_with_several_records_is_found_better_than_a_record(bed):
    members, nobody = with_people(bed.members, bed.nobody)
    asked, scores = ask(bed, members=members, nobody=nobody, person="person")
    answer = answer_person(scores, asked, seed=0)
    single = [(scores[c, asked.places[c]].mean() / scores[c, asked.places[4]].std()) for c in range(3)]
    assert min(single) > 0
    assert answer.scores.auroc.low > 0.8
    assert [client.cases for client in answer.clients] == [20] * 3
    assert not answer.unlike
    assert compare_sizes(asked) > 0.05


def test_people_whom_nobody_trained_on_are_not_found(bed):
    scores, rest = placebo_scores(bed)
    claims = 0
    for seed in range(40):
        rows = torch.randperm(len(rest), generator=seeded(seed, "people"))
        parts = [rest.take(part) for part in (rows[:100], rows[100:200], rows[200:300])]
        members, nobody = with_people(parts, rest.take(rows[300:]))
        held, others = (nobody.take(part) for part in torch.arange(len(nobody)).tensor_split(2))
        asked = AskedRecords(NAMES, tuple(members), held, others, None, "person")
        claims += sum(auroc(game).low > 0.5 for _, game in play_people(scores[:, rows], asked))
    assert claims <= stats.binom.ppf(0.99, 120, 0.025)


def test_people_with_other_numbers_of_records_are_not_compared(bed):
    members, _ = with_people(bed.members, bed.nobody)
    asked = AskedRecords(NAMES, tuple(members), *(people_of(bed.nobody, 1000, 1),) * 2, None, "person")
    assert compare_sizes(asked) < 1e-6


def test_clients_whose_records_differ_by_themselves_have_no_source(bed):
    """Sites that are told apart before any update is looked at: no number, and no finding."""
    members = [replace(part, x=part.x + 0.3 * i) for i, part in enumerate(bed.members)]
    asked, scores = ask(bed, members=members)
    answer = answer_source(scores, asked, column="client", seed=0)
    assert answer.unlike


def test_the_sender_of_an_unnamed_upload_is_told_by_half_of_its_records(bed):
    records = joined([*bed.members])
    groups = torch.zeros(len(records), 3).double()
    for c in range(3):
        groups[SIZE * c : SIZE * c + SIZE // 2, c] = 2 / SIZE
    found = weigh(Whitened(by_class=True), bed.watch(), bed.nobody, records, groups)
    centred = found.resemblance - found.resemblance.mean(0)
    assert (centred.argmax(1) == torch.tensor(found.senders)).all()
    answer = answer_provenance(found.resemblance, torch.tensor(found.senders), NAMES, column="client", seed=0)
    assert answer.scores.success.value == 1.0
    assert answer.scores.success.n == 3


def test_the_sender_is_not_told_by_records_that_nobody_trained_on(bed):
    rest = bed.nobody.take(torch.arange(300, len(bed.nobody)))
    hits = 0
    zeros = torch.zeros(len(rest), 300).double()
    for g in range(300):
        zeros[torch.randperm(len(rest), generator=seeded(g, "half"))[:50], g] = 1 / 50
    found = weigh(Whitened(by_class=True), bed.watch(), bed.nobody.take(torch.arange(300)), rest, zeros)
    for draw in range(100):
        answer = answer_provenance(
            found.resemblance[:, 3 * draw : 3 * draw + 3],
            torch.tensor(found.senders),
            NAMES,
            column="client",
            seed=draw,
        )
        hits += round(answer.scores.success.value * 3)
    assert stats.binomtest(hits, 300, 1 / 3, alternative="greater").pvalue > 0.01


# --- canaries --------------------------------------------------------------------------------------


def canary_bed(folder: Path, *, kept: bool) -> tuple[Bed, Dataset]:
    """A federation in which a coin put canaries into the first client's records, or, not ``kept``, did not."""
    data = draw()
    rows = torch.randperm(len(data), generator=seeded(0, "order"))[-300:]
    names = [f"c{i}" for i in range(300)]
    canaries = Canaries.toss(names, seed=5)
    canaries.write(folder)
    inside = torch.tensor([canaries.coins[name] for name in names])
    bed = grow(folder, rounds=8, more=data.take(rows[inside]) if kept else None)
    outside = bed.nobody.take(torch.arange(len(bed.nobody) - 300))
    values = {"client": (*NAMES, "nobody"), "canary": (*names, "no")}

    def label(part: Dataset, whose: torch.Tensor, canary: torch.Tensor) -> Dataset:
        return replace(part, private={"client": whose, "canary": canary}, values=dict(part.values) | values)

    parts = [label(p, torch.full((SIZE,), i), torch.full((SIZE,), 300)) for i, p in enumerate(bed.members)]
    parts.append(label(outside, torch.full((len(outside),), 3), torch.full((len(outside),), 300)))
    parts.append(label(data.take(rows), torch.where(inside, 0, 3), torch.arange(300)))
    return bed, joined(parts)


def plan(folder: Path, **game) -> Cell:
    table = {"name": "QuestionAudit", "recording": str(folder), "column": "client"} | game
    cell = {"id": "q", "game": table, "data": {"name": "digits"}, "model": {"name": "MLP", "hidden": [64]}}
    return from_document({"cell": [cell | {"trials": 100}]}).cell[0]


def audit(folder: Path, candidates: Dataset, **game):
    return engines.run_task(plan(folder, **game), 0, trusted=(), spare=1, records=candidates).result


@pytest.mark.parametrize("kept", [True, False])
def test_canaries_certify_an_epsilon_where_they_were_trained_on_and_nowhere_else(tmp_path, kept):
    _, candidates = canary_bed(tmp_path / "run", kept=kept)
    result = audit(tmp_path / "run", candidates, canary="canary", ask=["source"], promised=1.0)
    assert not result.error
    run = result.found.one_run
    assert (run.canaries, run.unit) == (300, "record")
    assert 120 < run.included < 180
    assert (run.certified.low > 0) == (run.gaussian.low > 0) == kept
    rows = [row for row in kind.numbers(result) if row.question == "epsilon" and row.about == "leakage"]
    assert {row.bound for row in rows} == {"lower"}
    assert all(row.high is None for row in rows)
    sentence = tell([result]).verdicts[-1].sentence
    assert ("does not show that the training is private" in sentence) == (not kept)


def test_canaries_may_be_clients_where_only_sums_are_seen(tmp_path):
    """Twenty-four clients, each by a coin there in every round or never; who took part is not looked at."""
    data, folder = draw(), tmp_path / "run"
    names = tuple(f"site-{i}" for i in range(24))
    canaries = Canaries.toss(names, seed=1)
    canaries.write(folder)
    parts = [data.take(torch.arange(20 * i, 20 * i + 20)) for i in range(24)]
    inside = [i for i, name in enumerate(names) if canaries.coins[name]]
    model = build(MLP((64,)), data, seeded(0, "model"))
    recorder = Named(Recorder(folder, model, model_name="mlp"), [names[i] for i in inside])
    local = Local(0.2, batch=20, epochs=5)
    trained = [parts[i] for i in inside]
    federate(model, trained, rounds=8, rng=seeded(0, "training"), local=local, recorder=recorder)
    whose = torch.full((len(data),), 24)
    whose[:480] = torch.arange(24).repeat_interleave(20)
    values = dict(data.values) | {"client": (*names, "nobody")}
    candidates = replace(data, private={"client": whose}, values=values)
    result = audit(folder, candidates, canary="client", seen="sum", ask=[])
    assert not result.error
    run = result.found.one_run
    assert (run.unit, run.canaries, run.included) == ("client", 24, len(inside))
    assert run.certified.low > 0
    assert "for a client" in tell([result]).verdicts[-1].sentence


def test_candidates_that_contradict_the_coins_are_refused(tmp_path):
    _, candidates = canary_bed(tmp_path / "run", kept=True)
    wrong = candidates.private["client"].clone()
    wrong[-300:] = 3 - wrong[-300:]
    bad = replace(candidates, private=dict(candidates.private) | {"client": wrong})
    cell = plan(tmp_path / "run", canary="canary")
    refuses(DataError, "coin says otherwise", KIND.run, World(cell, 0, bad))
    fewer = candidates.take(torch.arange(len(candidates) - 3))
    refuses(DataError, "give all of them", KIND.run, World(cell, 0, fewer))


def test_scores_of_a_person_s_canaries_are_taken_together_and_no_coin_decides_the_client():
    scores = torch.tensor([[0.0, 2.0, 1.0, 1.0], [5.0, 0.0, 0.0, 0.0]]).double().repeat(1, 10)
    which = torch.arange(20).repeat_interleave(2)
    run = answer_canaries(
        scores, [True, False] * 10, which, column="p", client=False, delta=1e-5, promised=None, seed=0
    )
    assert run.unit == "person"
    assert run.certified.n == 20


# --- the audit as a whole --------------------------------------------------------------------------


def test_an_audit_asks_what_the_candidates_allow_and_says_what_it_does_not_ask(tmp_path):
    folder = tmp_path / "run"
    candidates = builders.record_digits(folder, NAMES, 150, hidden=64, rounds=3)
    result = audit(folder, candidates)
    assert {answer.question for answer in result.found.answers} == {"source", "provenance"}
    chapter = tell([result])
    assert len(chapter.verdicts) == 2
    assert all("no evidence" not in verdict.word.lower() for verdict in chapter.verdicts)
    sums = audit(folder, candidates, seen="sum")
    assert not sums.found.answers
    assert len(sums.found.unasked) == 4
    assert "sums do not tell who" in sums.found.unasked[0]
    assert "no column says whose" in sums.found.unasked[1]
    assert "no secret column was named" in sums.found.unasked[3]


def test_questions_and_attacks_that_are_none_are_refused(tmp_path):
    from leakscope import Cosine, QuestionAudit

    refuses(ArgumentError, "among source", QuestionAudit, "run", ask=("whom",))
    refuses(ArgumentError, "begin with Whitened", QuestionAudit, "run", attacks=(Cosine(),))
    refuses(DataError, "toss them before", Canaries.read, tmp_path)


def tables(folder: Path, candidates: Dataset) -> list[Path]:
    """The candidates as arrays and as a table, people of five records each."""
    clients = np.array(candidates.value_names("client"))[candidates.private["client"].numpy()]
    canaries = np.array(candidates.value_names("canary"))[candidates.private["canary"].numpy()]
    order = np.argsort(clients, kind="stable")
    people = np.empty(len(order), dtype="U8")
    for name in set(clients):
        rows = order[clients[order] == name]
        people[rows] = [f"{name[0]}{i // 5}" for i in range(len(rows))]
    beside = {"client": clients, "canary": canaries, "person": people}
    x, y = candidates.x.numpy(), candidates.y.numpy()
    np.savez(folder / "c.npz", x=x, y=y, **beside)
    head = [f"x{i}" for i in range(x.shape[1])]
    lines = [",".join([*head, "y", *beside])]
    lines += [
        ",".join([*(repr(float(v)) for v in row), "abcd"[label], *(col[i] for col in beside.values())])
        for i, (row, label) in enumerate(zip(x, y, strict=True))
    ]
    (folder / "c.csv").write_text("\n".join(lines) + "\n")
    return [folder / "c.npz", folder / "c.csv"]


def test_one_command_asks_about_members_sources_people_and_epsilon(tmp_path, monkeypatch):
    """The plan that is written is of members and of questions; what members are asked is tested elsewhere."""
    monkeypatch.setattr("leakscope.run.running.run_document", lambda document, *_, **__: document)
    _, candidates = canary_bed(tmp_path / "run", kept=True)
    arrays, table = tables(tmp_path, candidates)
    given = {"client": "client", "label": "y", "model": "MLP", "canary": "canary", "promised": 2.0}
    for path, more, asked in (
        (arrays, {"person": "person", "ask": ("source",)}, ["source", "person"]),
        (table, {"drop": ("person",), "ask": ("provenance",)}, ["provenance"]),
    ):
        document = ls.audit_recording(tmp_path / "run", path, **given, **more)
        members, questions = from_document(document).cell
        assert (members.kind, questions.kind) == ("membership", "questions")
        result = engines.run_task(questions, 0, trusted=(), spare=1).result
        assert not result.error
        assert [answer.question for answer in result.found.answers] == asked
        assert result.found.one_run.promised == 2.0
        page = render([result], plan="", title="x")
        assert "Epsilon of one record" in page
    call = partial(ls.audit_recording, tmp_path / "run", table, **given)
    refuses(ArgumentError, "one column of people, canaries or sites", call, person="person")
    (alone,) = ls.audit_recording(tmp_path / "run", arrays, client="client", label="y", model="MLP")["cell"]
    assert alone["id"] == "membership"  # what is not asked for costs nothing
    asked = {"client": "client", "label": "y", "model": "MLP", "ask": ("source", "sums")}
    *members, _ = ls.audit_recording(tmp_path / "run", arrays, **asked)["cell"]
    assert [(cell["id"], cell["game"]["seen"]) for cell in members] == [
        ("membership", "uploads"),
        ("membership in sums", "sum"),
    ]
    second = partial(ls.audit_recording, tmp_path / "run", arrays, **asked)
    refuses(ArgumentError, "--ask sums is a second audit", second, seen="sum")


def test_what_lacks_its_column_is_refused_before_anything_is_run(tmp_path):
    candidates = builders.record_digits(tmp_path / "run", NAMES, 100, hidden=8, rounds=1)
    whose = np.array(candidates.value_names("client"))[candidates.private["client"].numpy()]
    np.savez(tmp_path / "c.npz", x=candidates.x.numpy(), y=candidates.y.numpy(), client=whose)
    given = {"client": "client", "label": "y", "model": "MLP", "output": tmp_path / "out", "quiet": True}
    for more, words in (
        ({"ask": ("person",)}, "needs --person"),
        ({"promised": 1.0}, "needs --canary"),
        ({"canary": "client"}, "who uploads is then no secret"),
        ({"canary": "client", "seen": "sum"}, "toss them before"),
    ):
        call = partial(ls.audit_recording, tmp_path / "run", tmp_path / "c.npz")
        refuses(LeakscopeError, words, call, **given, **more)
    assert not (tmp_path / "out").exists()


# --- over seeds ------------------------------------------------------------------------------------


def test_intervals_over_seeds_hold_for_clients_who_are_the_same_in_every_seed():
    """Federations of twelve clients drawn anew, of whom six in ten can be told by their uploads; three seeds
    of each differ by a little noise in what the adversary knows. A spread over seeds would be of the noise
    alone, and say nothing of other clients."""
    names, rng = tuple(f"site-{i}" for i in range(12)), seeded(0, "federations")
    held = missed = 0
    for _ in range(80):
        told = torch.rand(12, generator=rng) < 0.6
        resemblance = torch.eye(12) * torch.where(told, 4.0, -4.0)[:, None]
        answers = []
        for seed in range(3):
            noise = 1.5 * torch.randn(12, 12, generator=rng)
            senders = torch.arange(12)
            answers.append(answer_provenance(resemblance + noise, senders, names, column="site", seed=seed))
        found = _average(tuple(answers), "").scores.success
        held += found.low <= 0.6 <= found.high
        spread = average_scores([answer.scores for answer in answers]).success  # as of trainings of their own
        missed += not spread.low <= 0.6 <= spread.high
    assert held >= 76
    assert missed > 12
