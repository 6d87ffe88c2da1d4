"""The share of a value at each client of a recording: told where uploads tell it, and not where nothing can."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import Named, refuses
from scipy import stats
from torch import Tensor

import leakscope as ls
from leakscope.attacks.joint import Joint
from leakscope.audits.membership.judged import WatchedFederation
from leakscope.audits.questions.page import tell
from leakscope.audits.questions.shares import Rehearsal, answer_property, compare_order, deal_shares
from leakscope.audits.questions.sums import LinearReader, Participation, RehearsedSums
from leakscope.core.dataset import Batch, Dataset
from leakscope.core.errors import LeakscopeError
from leakscope.core.nouns import Release
from leakscope.core.rng import seeded
from leakscope.models import MLP, build
from leakscope.report.page import render
from leakscope.results.chapter import LEAKS
from leakscope.run import engines
from leakscope.run.plan import from_document
from leakscope.training import Local, federate
from leakscope.training.recording import Recorder, Recording

NAMES = tuple(f"site-{i:02d}" for i in range(20))
SIZE, OUTSIDE, WIDTH = 60, 600, 12
LOCAL = Local(0.1, batch=20, momentum=0.0, decay=0.0)


@dataclass(frozen=True, eq=False)
class Bed:
    """A recorded federation and its candidates, of whom the last `OUTSIDE` are nobody's."""

    recording: Recording
    model: torch.nn.Module
    candidates: Dataset

    def ask(
        self, codes: Tensor, *, seed: int = 0, rehearsals: int = 300, rate: float = 0.1, seen: str = "uploads"
    ):
        """What is said where ``codes`` are the candidates' values of the secret."""
        data = replace(
            self.candidates,
            private=dict(self.candidates.private) | {"ill": codes},
            values=dict(self.candidates.values) | {"ill": ("no", "yes")},
        )
        known = data.take(torch.arange(len(data) - OUTSIDE, len(data)))
        watched = WatchedFederation(self.recording, self.model, NAMES, (), seen)
        game, having, sizes = deal_shares(data, known, "client", NAMES, "ill", 6)
        local = replace(LOCAL, rate=rate)
        rehearsal = Rehearsal(watched, game, having, sizes, local, False, 2, Joint(10, ordinal=True))
        return answer_property(rehearsal, rehearsals=rehearsals, seed=seed)


def deal_codes(seed: int) -> Tensor:
    """Each client's share of the value is its own; among records of nobody it is a half."""
    rng = seeded(seed, "codes")
    shares = torch.rand(len(NAMES), generator=rng).repeat_interleave(SIZE)
    shares = torch.cat([shares, torch.full((OUTSIDE,), 0.5)])
    return (torch.rand(len(shares), generator=rng) < shares).long()


def grow(
    folder: Path, *, seed: int = 0, rate: float | None = 0.1, rounds: int = 2, fraction: float = 1.0
) -> Bed:
    """The value moves some inputs and with them the labels."""
    rng, codes = seeded(seed, "records"), deal_codes(seed)
    x = torch.randn(len(codes), WIDTH, generator=rng)
    x[:, :4] += 2 * codes[:, None].float()
    y = (x.sum(1) + torch.randn(len(codes), generator=rng) > 4).long()
    whose = torch.full((len(codes),), len(NAMES))
    whose[:-OUTSIDE] = torch.arange(len(NAMES)).repeat_interleave(SIZE)
    values = {"client": (*NAMES, "nobody"), "ill": ("no", "yes"), "label": ("a", "b")}
    data = Dataset(x, y, {"client": whose, "ill": codes}, values=values)
    model = build(MLP((8,)), data, seeded(seed, "model"))
    recorder = Named(Recorder(folder, model, model_name="mlp"), NAMES)
    if rate is None:
        told = recorder.update
        recorder.update = lambda *given, **facts: told(*given, **facts | {"rate": None})
    members = [data.take((whose == c).nonzero()[:, 0]) for c in range(len(NAMES))]
    rng = seeded(seed, "training")
    federate(model, members, rounds=rounds, rng=rng, local=LOCAL, fraction=fraction, recorder=recorder)
    return Bed(Recording(folder), model.eval(), data)


@pytest.fixture(scope="module")
def bed(tmp_path_factory) -> Bed:
    return grow(tmp_path_factory.mktemp("bed") / "run")


def test_the_share_of_a_value_is_told_from_uploads_without_any_record_of_a_client(bed):
    codes = bed.candidates.private["ill"]
    answer = bed.ask(codes)
    assert answer.scores.advantage.low > 0
    assert answer.selfcheck.p < 0.025
    assert answer.order[0] > 0.8
    assert answer.order[1] < 0.025
    own = codes[:-OUTSIDE].view(len(NAMES), SIZE).sum(1)
    assert answer.guessing == max(np.bincount(-(-own * 5 // SIZE))) / len(NAMES)
    right = [
        client.range[0] < int(n) / SIZE <= client.range[1]
        for client, n in zip(answer.clients, own, strict=True)
    ]
    assert [bool(client.scores.success.value) for client in answer.clients] == right
    assert answer.scores.success.value == sum(right) / len(right)
    assert len(answer.remarks) == 1
    assert "does not name the optimiser" in answer.remarks[0]


def test_a_column_that_inputs_know_nothing_of_is_not_told(bed):
    """Each time with other shares, which have nothing to do with what was trained on."""
    answers = [bed.ask(deal_codes(200 + i), seed=i, rehearsals=90) for i in range(20)]
    claims = sum(answer.scores.advantage.low > 0 for answer in answers)
    assert claims <= stats.binom.ppf(0.99, len(answers), 0.025)
    assert sum(answer.selfcheck.p <= 0.025 for answer in answers) <= 2
    told = [answer.order[1] for answer in answers if answer.order is not None]
    assert sum(p <= 0.025 for p in told) <= stats.binom.ppf(0.99, len(answers), 0.025)


def test_clients_who_trained_otherwise_than_was_assumed_are_said_to(bed):
    answer = bed.ask(bed.candidates.private["ill"], rate=1.0)
    assert "trained otherwise than was assumed" in answer.remarks[1]


def test_the_order_of_clients_is_spearmans_with_the_chance_of_a_permutation():
    rng = seeded(5)
    said = torch.randn(12, generator=rng).double()
    true = (said + torch.randn(12, generator=rng)).float().round(decimals=1)
    found, chance = compare_order(said, true, rng)
    expected = stats.spearmanr(said, true, alternative="greater")
    assert found == pytest.approx(expected.statistic)
    assert chance == pytest.approx(expected.pvalue, abs=0.02)
    assert compare_order(said, torch.ones(12), rng) is None
    assert compare_order(said, said, rng) == (pytest.approx(1), 1 / 1_000)


# --- sums of which it is known who took part -------------------------------------------------------


@pytest.fixture(scope="module")
def sums(tmp_path_factory) -> Bed:
    return grow(tmp_path_factory.mktemp("sums") / "run", rounds=30, fraction=0.25)


def test_shares_are_solved_for_exactly_where_who_took_part_tells_all(sums):
    """Plain: what is read off a sum is its clients' shares and nothing else. Silent: it cannot be read."""
    recording = sums.recording
    part = Participation.of(recording, recording.rounds[:30])
    assert part.clients == tuple(dict.fromkeys(c for r in part.rounds for c in recording.clients_in(r)))
    for r, weights in zip(part.rounds, part.weights, strict=True):
        there = [part.clients[i] for i in weights.nonzero()[:, 0].tolist()]
        assert sorted(there) == sorted(recording.clients_in(r))
        assert weights[weights > 0].tolist() == [1 / len(there)] * len(there)
    shares = torch.rand(len(part.clients), generator=seeded(0)).double() - 0.5
    for noise, expected in ((1e-9, shares), (torch.inf, torch.zeros_like(shares))):
        found = part.solve(torch.full((30,), noise, dtype=torch.float64), 0.1) @ (part.weights @ shares)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    alike = Participation(part.rounds, part.clients, part.weights[:1].repeat(30, 1))
    assert part.tells_apart
    assert not alike.tells_apart


def test_solving_is_the_mean_of_shares_given_what_is_read():
    """By conditioning the joint Gaussian of both, in NumPy."""
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(4), 6)
    noise, spread = rng.uniform(0.1, 2, 6), 0.7
    both = spread * weights @ weights.T + np.diag(noise * (weights**2).sum(1))
    expected = spread * weights.T @ np.linalg.inv(both)
    found = Participation(tuple(range(6)), tuple("abcd"), torch.from_numpy(weights))
    np.testing.assert_allclose(found.solve(torch.from_numpy(noise), spread).numpy(), expected, rtol=1e-8)


def test_a_linear_reader_reads_what_it_was_taught_and_says_so_where_there_is_nothing():
    rng = seeded(0, "uploads")
    codes = torch.randint(6, (90,), generator=rng)
    way = {"w": torch.randn(4, 3, generator=rng), "b": torch.randn(4, generator=rng)}
    told = {name: 1 + part * codes.view(-1, *[1] * part.dim()) for name, part in way.items()}
    told = {name: part + 0.1 * torch.randn(part.shape, generator=rng) for name, part in told.items()}
    reader = LinearReader.fit(Release.of(told), codes)
    assert reader.noise < 0.01
    torch.testing.assert_close(reader.read(told), codes - codes[:60].double().mean(), atol=0.3, rtol=0)
    silent = LinearReader.fit(Release.of({"w": torch.zeros(90, 4, 3)}), codes)
    assert silent.noise == torch.inf
    assert not silent.read({"w": torch.randn(5, 4, 3, generator=rng)}).any()


def test_rehearsed_sums_are_solved_as_a_loop_over_them_says(sums):
    part = Participation.of(sums.recording, (0, 1, 2))
    k, solution = len(part.clients), torch.randn(len(part.clients), 3, generator=seeded(1)).double()
    reader = LinearReader({"w": torch.ones(2, 3)}, 0.5, 1.0)

    def channel(batch, secret, rng):
        return tuple(
            Release.of({"w": (r + secret).float()[:, None, None].expand(-1, 2, 3)}) for r in range(3)
        )

    rehearsed = RehearsedSums(channel, (reader,) * 3, part.weights, solution)
    secret = torch.arange(1, k + 4)  # one federation, and three clients of the next
    (release,) = rehearsed(Batch(sums.candidates, torch.zeros(k + 3, 1).long()), secret, seeded(0))
    every = secret.repeat(2)[: 2 * k].tolist()
    expected = [
        sum(
            solution[place, r] * sum(part.weights[r, j] * (6 * (r + own[j]) - 0.5) for j in range(k))
            for r in range(3)
        )
        for own in (every[:k], every[k:])
        for place in range(k)
    ]
    torch.testing.assert_close(release.layers["share"][:, 0], torch.tensor(expected).float()[: k + 3])


def test_shares_are_told_from_sums_by_who_took_part_and_not_where_nothing_tells_them(sums):
    codes = sums.candidates.private["ill"]
    answer = sums.ask(codes, seen="sum", rehearsals=200)
    assert answer.selfcheck.p < 0.025
    own = codes[:-OUTSIDE].view(len(NAMES), SIZE).double().mean(1)
    told = [sum(client.range) / 2 for client in answer.clients]
    assert stats.spearmanr(own, told).statistic > 0.6
    assert answer.order[0] > 0.6
    assert answer.order[1] < 0.025
    assert "solved for from 30 sums of 20 clients" in answer.remarks[1]
    others = [sums.ask(deal_codes(300 + i), seed=i, rehearsals=90, seen="sum") for i in range(3)]
    assert sum(answer.scores.advantage.low > 0 for answer in others) == 0
    assert sum(answer.selfcheck.p <= 0.025 for answer in others) <= 1


# --- the audit as a whole --------------------------------------------------------------------------


def write(bed: Bed, path: Path, **columns: np.ndarray) -> Path:
    data = bed.candidates
    named = {name: np.array(data.value_names(name))[data.private[name].numpy()] for name in ("client", "ill")}
    np.savez(path, x=data.x.numpy(), y=data.y.numpy(), **named | columns)
    return path


@pytest.fixture
def request_only(monkeypatch):
    """The plan that is written; what members are asked is tested elsewhere."""
    monkeypatch.setattr("leakscope.run.running.run_document", lambda document, *_, **__: document)


def answer(document):
    _, questions = from_document(document).cell
    result = engines.run_task(questions, 0, trusted=(), spare=1).result
    assert not result.error
    return result


def test_one_call_asks_for_shares_and_a_page_tells_them(bed, tmp_path, request_only):
    path = write(bed, tmp_path / "c.npz")
    call = partial(ls.audit_recording, bed.recording.path, path, client="client", label="y", model="MLP")
    result = answer(call(ask=["property"], secret="ill", batch=20))
    (shares,) = result.found.answers
    assert (shares.question, shares.column, shares.trait) == ("property", "ill", "yes")
    assert shares.scores.advantage.low > 0
    (verdict,) = tell([result]).verdicts
    assert verdict.severity in LEAKS
    assert "the share of yes (ill) lies at each client" in verdict.sentence
    assert "which clients have a larger share than others: the rank correlation" in verdict.sentence
    page = render([result], plan="", title="x")
    assert "Range said" in page
    assert "the recorded rate" in page
    few = answer(call(ask=["property"], secret="ill", batch=20, clients=NAMES[:4]))
    (verdict,) = tell([few]).verdicts
    assert verdict.severity == "inconclusive"
    together = answer(call(secret="ill", seen="sum"))
    assert "everybody is in every sum" in together.found.unasked[0]


def test_where_all_shares_are_in_one_range_nothing_is_said_to_be_told(bed, tmp_path, request_only):
    path = write(bed, tmp_path / "c.npz", even=np.arange(len(bed.candidates)) % 2)
    given = {"client": "client", "label": "y", "model": "MLP"}
    result = answer(ls.audit_recording(bed.recording.path, path, secret="even", **given))
    assert not result.found.answers
    assert "the same range at every client" in result.found.unasked[0]
    assert not tell([result]).verdicts


def test_what_shares_need_is_refused_before_anything_is_run(bed, tmp_path):
    nobody = np.arange(len(bed.candidates)) >= len(bed.candidates) - OUTSIDE
    rare = np.where(nobody, "no", np.where(np.arange(len(nobody)) % 2, "yes", "no"))
    path = write(bed, tmp_path / "c.npz", one=np.full(len(nobody), "a"), rare=rare)
    given = {"client": "client", "label": "y", "model": "MLP", "output": tmp_path / "out", "quiet": True}
    call = partial(ls.audit_recording, bed.recording.path, path, **given)
    for more, words in (
        ({"ask": ("property",)}, "needs --secret"),
        ({"rate": 0.1}, "--rate with --recording needs --ask property"),
        ({"secret": "none"}, "none"),
        ({"secret": "one"}, "at least 2 values"),
        ({"secret": "rare"}, "records of nobody"),
        ({"secret": "client"}, "column of clients"),
        ({"secret": "ill", "batch": 0}, "batch"),
    ):
        refuses(LeakscopeError, words, call, **more)
    silent = grow(tmp_path / "silent", rate=None)
    call = partial(ls.audit_recording, silent.recording.path, path, **given)
    refuses(LeakscopeError, "needs --rate", call, secret="ill")
    assert not (tmp_path / "out").exists()


def test_the_command_asks_for_shares_and_refuses_in_a_sentence(bed, tmp_path):
    path = write(bed, tmp_path / "c.npz", one=np.full(len(bed.candidates), "a"))
    words = ["audit", str(path), "--recording", str(bed.recording.path), "--client", "client", "--label", "y"]
    words += ["--model", "MLP", "--ask", "property", "--output", str(tmp_path / "out"), "--batch", "20"]
    command = [sys.executable, "-m", "leakscope.cli", *words]
    bad = subprocess.run([*command, "--secret", "one"], capture_output=True, text=True, check=False)
    assert bad.returncode == 2
    assert "at least 2 values" in bad.stderr
    good = subprocess.run([*command, "--secret", "ill"], capture_output=True, text=True, check=False)
    assert good.returncode == 0, good.stderr
    assert "lies at each client" in good.stdout
