"""The audit of records: what it counts is what was there, and what it did not search passes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from builders import cell, measure, refuses

import leakscope as ls
from leakscope.audits.records.found import RecordsFound
from leakscope.audits.records.kind import KIND
from leakscope.audits.records.preflight import Foreseen, Preflight
from leakscope.audits.records.request import ask_records, request_records
from leakscope.core.errors import ArgumentError
from leakscope.core.nouns import CERTIFIED
from leakscope.measures.records import match
from leakscope.report.page import render
from leakscope.results import gate
from leakscope.results.cell import Cell
from leakscope.results.chapter import LEAKS
from leakscope.results.kind import chapters, numbers
from leakscope.results.result import Result
from leakscope.run import experiment

LIMIT = '[[limit]]\nsecret="reconstruction"\nmeasure="recovered"\nat_most={}'
LOCAL = {"name": "Local", "rate": 0.1, "batch": 4, "epochs": 3, "momentum": 0.0, "decay": 0.0}


def ask(game: dict | None = None, **changes) -> Result:
    """The tiny audit of heart with changes."""
    tiny = cell("records")
    asked = Cell.model_validate(tiny.described | changes | {"game": dict(tiny.game) | (game or {})})
    return experiment.run(asked, 0)


def verdict(result: Result):
    return chapters([result])[0].verdicts[0]


# What was found is what was there


def test_every_record_comes_back_from_a_gradient_and_the_gate_fails():
    result = measure("records")
    assert [size.records for size in result.found.sizes] == [2, 6]
    for size in result.found.sizes:
        assert size.exact.value == size.certified.value == size.cells.value == 1.0
        assert size.false.value == 0.0
        assert size.search.whole
        assert size.selfcheck.passed
    assert gate.judge(gate.parse(LIMIT.format(0.1)), [result]).exit_code == 1
    told = verdict(result)
    assert told.severity == "substantial"  # four releases show no more
    assert "From one gradient of 6 records, all 6 were recovered exactly, every column" in told.sentence
    assert "100% were certified without knowing them" in told.sentence


@pytest.mark.parametrize(
    "game", [{"local": LOCAL}, {"local": LOCAL, "clients": 2, "batches": [3]}], ids=["upload", "sum"]
)
def test_records_come_back_from_uploads_and_from_sums(game):
    result = ask(game)
    for size in result.found.sizes:
        assert size.exact.value > 0.8
        assert size.false.value == 0.0
    assert result.found.uploads
    assert result.found.sizes[-1].records == 6


def test_a_record_is_shown_only_where_that_is_asked():
    assert all(not size.shown for size in measure("records").found.sizes)
    result = ask({"shown": 2})
    shown = result.found.sizes[0].shown
    assert len(shown) == 2
    assert {record.status for record in shown} == {"certified"}
    data = ls.load("heart")
    there = {
        (f"{float(age):.4g}", sex)
        for age, sex in zip(data.x[:, 0], data.private["sex"].tolist(), strict=True)
    }
    for record in shown:
        cells = {name: (original, said) for name, original, said in record.cells}
        assert cells["age"][0] == cells["age"][1]
        assert (cells["age"][0], data.value_names("sex").index(cells["sex"][0])) in there
    page = render([result], plan="", title="x")
    assert "Private data." in page
    assert "Private data." not in render([measure("records")], plan="", title="x")


# What is not known passes nothing


@pytest.mark.parametrize(
    "changes",
    [
        {"game": {"batches": [64]}},
        {"game": {"batches": [6], "reconstruct": {"name": "RowSpace", "branches": 1, "tried": 0}}},
        {"defense": {"name": "Within", "defense": {"name": "Withhold"}, "layers": ["0.weight", "0.bias"]}},
        {"defense": {"name": "Pruning", "rate": 0.9}},
        {"defense": {"name": "Noise", "std": 0.003}},
    ],
    ids=[
        "more records than rank",
        "stopped at a branch",
        "first layer kept local",
        "pruned",
        "a little noise",
    ],
)
def test_where_the_search_stopped_nothing_passes_and_the_page_says_so(changes):
    result = ask(**changes)
    assert not any(size.search.whole for size in result.found.sizes)
    recovered = [number for number in numbers(result) if number.measure == "recovered"]
    assert {number.bound for number in recovered} == {"lower"}
    assert gate.judge(gate.parse(LIMIT.format(1.0)), [result]).exit_code == 3
    told = verdict(result)
    assert told.severity == "inconclusive"
    assert "not found here, which does not show that it cannot be found" in told.sentence
    assert (
        "keep records from coming back" in " ".join(chapters([result])[0].brief.helps)
        or not result.cell.defense
    )


def test_an_audit_of_other_questions_asks_it_beside_them_and_says_why_where_it_cannot():
    """As the audit of a table does: of pictures, and of a model that begins otherwise, it is no all-clear."""
    asked = ask_records()
    one = Cell.model_validate({"data": {"name": "digits"}, "model": {"name": "MLP", "hidden": [8]}} | asked)
    result = experiment.run(one, 0)
    assert result.found.sizes == ()
    assert "these have no named columns" in result.found.unread
    told = verdict(result)
    assert told.severity == "inconclusive"
    assert "was not measured: digits" in told.sentence
    assert [(row.secret, row.error) for row in numbers(result)] == [("reconstruction", result.found.unread)]
    assert gate.judge(gate.parse(LIMIT.format(1.0)), [result]).exit_code == 3
    page = render([result], plan="", title="x")
    assert "does not show that nobody can" in page
    with pytest.raises(ValueError, match="either records of at least one size"):
        RecordsFound.model_validate(result.found.model_dump() | {"unread": ""})


def test_a_size_that_gives_nothing_back_is_not_played_to_the_end():
    assert ask({"batches": [64], "patience": 3}, trials=30).found.sizes[0].search.batches == 3


def test_behind_much_noise_nothing_comes_back_and_that_was_measured():
    result = ask({"batches": [6]}, defense={"name": "Noise", "std": 1.0}, trials=40)
    size = result.found.sizes[0]
    assert size.search.whole
    assert (size.exact.value, size.certified.value, size.false.value) == (0.0, 0.0, 0.0)
    assert size.exact.high < 0.1
    told = verdict(result)
    assert told.severity == "none"
    assert told.severity not in LEAKS
    assert gate.judge(gate.parse(LIMIT.format(0.1)), [result]).exit_code == 3  # its model learned nothing
    training = {"rounds": 11, "observe": [11], "training": {"rate": 0.05, "batch": 32}}
    learned = ask({"batches": [6]}, defense={"name": "Noise", "std": 0.1}, trials=40, **training)
    assert gate.judge(gate.parse(LIMIT.format(0.1)), [learned]).exit_code == 0
    helps = chapters([measure("records"), result])[0].brief.helps
    assert helps[0].startswith("With Noise (std 1.0), this attack, which allows for it, gets at most 8.8%")
    more = ask({"batches": [6]}, defense={"name": "Noise", "std": 2.0}, trials=40)
    helps = chapters([measure("records"), result, more])[0].brief.helps
    cheap, dear = sorted((result, more), key=lambda one: -one.found.utility.main.value)
    assert helps[0].startswith(f"With Noise (std {cheap.cell.defense['std']})")
    assert helps[1].startswith("Of 2 that held it costs least")
    assert f"The others: Noise (std {dear.cell.defense['std']})" in helps[1]


def test_a_self_check_that_fails_is_no_all_clear():
    """Records that everybody has come back whatever was released."""
    result = ask({"batches": [6]}, defense={"name": "Noise", "std": 1.0}, trials=40)
    size = result.found.sizes[0]
    doubted = size.model_copy(update={"selfcheck": replace(size.selfcheck, passed=False)})
    found = result.found.model_copy(update={"sizes": (doubted,)})
    doubt = result.model_copy(update={"found": found})
    assert verdict(doubt).severity == "inconclusive"
    assert gate.judge(gate.parse(LIMIT.format(0.1)), [doubt]).exit_code == 3


# Measures


def test_a_number_with_a_mark_for_missing_ones_is_right_as_a_number_is():
    columns = (
        ls.Column("dose", 0, 2, fill=0.0),
        ls.Column("kind", 2, 4, values=("a", "b"), standardised=False),
    )
    x = torch.cat([torch.randn(50, 1, generator=ls.seeded(0)), torch.zeros(50, 2), torch.ones(50, 1)], dim=1)
    public = ls.Dataset(x, torch.arange(50) % 2, {}, name="doses", columns=columns)
    near, far = x[None, :4].clone(), x[None, :4].clone()
    near[..., 0] += 0.04
    far[..., 0] += 0.4
    marked = x[None, :4].clone()
    marked[..., 1] = 1.0
    for guesses, share in ((near, 1.0), (far, 0.0), (marked, 0.0)):
        transcript = ls.Transcript(x[None, :4], guesses, torch.empty(0))
        assert match(transcript, public).exact_share().value == share


def test_matching_is_the_best_one_to_one():
    """Beside a search over all orders of four records."""
    from itertools import permutations

    data = ls.load("heart")
    columns = tuple(column for column in data.columns if column.values)
    data = replace(data, columns=columns)
    rng = ls.seeded(1)
    originals = data.x[torch.randperm(len(data), generator=rng)[:4]]
    guesses = torch.where(torch.rand(4, 1, generator=rng) < 0.5, originals.flip(0), data.x[:4])
    transcript = ls.Transcript(
        originals[None], guesses[None], torch.empty(0), status=torch.full((1, 4), CERTIFIED)
    )

    def cells(order) -> float:
        right = [
            torch.equal(originals[i, c.start : c.stop], guesses[j, c.start : c.stop])
            for i, j in enumerate(order)
            for c in columns
        ]
        exact = [all(right[i * len(columns) : (i + 1) * len(columns)]) for i in range(4)]
        return sum(exact) * 10 + sum(right) / len(columns)

    best = max(map(cells, permutations(range(4))))
    found = match(transcript, data)
    assert float(found.exact.sum() * 10 + found.right.double().mean(2).sum()) == pytest.approx(best)


# Requests


def test_options_that_say_nothing_together_are_refused():
    refuses(ArgumentError, "--clients and --sums go together", ls.reconstruct, "heart", clients=3)
    refuses(ArgumentError, "--clients and --sums go together", ls.reconstruct, "heart", sums=True)
    refuses(ArgumentError, "--optimiser is for uploads", ls.reconstruct, "heart", optimiser="adam")


def test_a_model_in_memory_and_a_frame_are_audited_alike():
    import pandas as pd

    data = ls.load("heart")
    frame = pd.DataFrame(
        {
            column.name: (
                [column.values[i] for i in data.x[:, column.start : column.stop].argmax(1).tolist()]
                if column.values
                else data.x[:, column.start].tolist()
            )
            for column in data.columns
        }
    ).assign(disease=data.y.tolist())
    report = ls.reconstruct(frame, label="disease", batches=(4,), trials=4, width=64, quiet=True)
    assert report.results[0].found.sizes[0].exact.value == 1.0
    assert KIND.headline(report.results[0].cell, report.results[0].found).startswith(
        "records back from one gradient"
    )
    assert request_records.__doc__


# Before anything is trained


def test_a_preflight_foresees_what_is_read_and_trains_nothing(tmp_path, leakscope):
    found = ls.preflight("heart", batches=(3, 64), width=40)
    assert [one.recoverable for one in found.sizes] == [True, False]
    assert found.sizes[1].rank < 64
    assert 0 < found.sizes[0].noise < 1
    said = leakscope("reconstruct", "heart", "--batch", "3", "--width", "40", "--preflight", cwd=tmp_path)
    assert said.code == 0
    assert "3 records behind one gradient: recoverable" in said.out
    assert not list(tmp_path.iterdir())
    changed = dict(found.changed)
    assert changed["float16"] > 0.9
    assert changed["signs alone"] == 0.0
    assert "float16, 100%" in said.out
    none = ls.preflight("heart", batches=(64,), width=8)
    assert "that does not show that none can be" in " ".join(none.lines)


def test_a_preflight_does_not_call_unread_what_comes_back_in_part():
    weak = Foreseen(records=20, share=0.3, rank=20, searched=False, noise=1e-6)
    none = Foreseen(records=64, share=0.0, rank=50, searched=True, noise=1e-6)
    said = " ".join(Preflight((weak, none), units=50, uploads=False).lines)
    assert "20 records behind one gradient: read in part (30% came back in rehearsal" in said
    assert "What stops this attack on 20 records" in said
    assert "- 64 records behind each" in said
    assert "No number of records that was tried is read" not in said


def test_the_noise_that_a_preflight_names_stops_the_attack_at_ten_times_as_much():
    std = 10 * ls.preflight("heart", batches=(6,), width=40).sizes[0].noise
    plain, noised = ask({"batches": [6]}), ask({"batches": [6]}, defense={"name": "Noise", "std": std})
    assert plain.found.sizes[0].exact.value == 1.0
    assert noised.found.sizes[0].exact.value < 0.5


# Bad input

NETS = """
from torch import nn

class Bare(nn.Module):
    def __init__(self, bias=False):
        super().__init__()
        self.a, self.b = nn.Linear(3, 20, bias=bias), nn.Linear(20, 2)

    def forward(self, x):
        return self.b(self.a(x).relu())

class Convolved(nn.Module):
    def __init__(self):
        super().__init__()
        self.c, self.b = nn.Conv1d(1, 2, 3), nn.Linear(2, 2)

    def forward(self, x):
        return self.b(self.c(x[:, None]).mean(2))
"""


@pytest.fixture(scope="module")
def bad(tmp_path_factory):
    """A table of numbers, and models that cannot be read."""
    folder = tmp_path_factory.mktemp("bad")
    (folder / "record_nets.py").write_text(NETS)
    numbers = torch.randn(200, 3, generator=ls.seeded(0)).tolist()
    rows = [f"{a:.4f},{b:.4f},{c:.4f},{i % 2}" for i, (a, b, c) in enumerate(numbers)]
    (folder / "nums.csv").write_text("\n".join(["a,b,c,y", *rows]) + "\n")
    return folder


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["digits"], "these have no named columns"),
        (["heart", "--batch", "4000"], "records are fewer than Reconstruction.batch = 4000"),
        (
            ["nums.csv", "--label", "y", "--model", "record_nets.Bare", "--trust", "record_nets"],
            "layers without a bias",
        ),
        (
            ["nums.csv", "--label", "y", "--model", "record_nets.Convolved", "--trust", "record_nets"],
            "whose first layer is linear",
        ),
        (["nums.csv", "--label", "y", "--local-epochs", "2", "--batch", "4"], "of tables with categories"),
        (["heart", "--local-epochs", "2", "--optimiser", "adam"], "reads uploads of SGD"),
        (["heart", "--optimiser", "adam"], "--optimiser is for uploads"),
        (["heart", "--attack", "Posterior"], "RowSpace, which proves records, or SpanMatching, got"),
        (["heart", "--attack", "SpanMatching:steps=1", "--local-epochs", "3"], "at most 1 local steps, got"),
        (["heart", "--clients", "2"], "--clients and --sums go together"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_read_is_refused_in_one_sentence(words, reason, bad, leakscope):
    said = leakscope("reconstruct", *words, "--trials", "2", cwd=bad)
    assert said.code == 2
    assert reason in said.err
    assert len(said.err.strip().splitlines()) == 1
