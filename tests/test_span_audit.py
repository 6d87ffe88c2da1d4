"""Row spaces in audits of members: where they are played, what the page says, and when that nobody is missed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from leakscope.attacks.span_membership import SpanDistance, largest_rank
from leakscope.audits.membership.found import MembershipFound
from leakscope.audits.membership.kind import KIND
from leakscope.audits.membership.request import request_recording
from leakscope.audits.membership.strongest import find_spans
from leakscope.audits.sites.request import LOCAL, ask_federation, name_attacks
from leakscope.core.dataset import Dataset
from leakscope.core.rng import initialised, seeded
from leakscope.data import tabled
from leakscope.models import MLP, build
from leakscope.results.cell import Cell
from leakscope.results.kind import World
from leakscope.results.result import Made, Result
from leakscope.training import Local, federate
from leakscope.training.recording import Recorder

WIDTH, NAME = 60, SpanDistance.__name__
EXACT = "Members of a client below the rank are found without error"
STEPS = {"rate": 0.1, "batch": 8, "epochs": 3, "momentum": 0.0, "decay": 0.0}


def table(n: int) -> Dataset:
    rng = seeded(0, "table")
    x = torch.randn(n, WIDTH, generator=rng)
    return Dataset(x, (x[:, 0] + 0.3 * torch.randn(n, generator=rng) > 0).long(), {})


def told(cell: Cell, records: Dataset) -> tuple[MembershipFound, str]:
    """What a cell finds, and what its page says of it."""
    found = KIND.run(World(cell, 0, records)).found
    result = Result[MembershipFound](key="k", seed=0, cell=cell, kind="membership", found=found, made=Made())
    return found, str(KIND.tell([result]).body)


def audited(**changes) -> tuple[MembershipFound, str]:
    """Three clients that are trained for the audit."""
    game = {"name": "MembershipAudit", "local": {"name": "Local"} | STEPS, "clients": 3, "size": 24}
    game |= {"attacks": [{"name": "Whitened"}, {"name": NAME, "steps": 9}], "known": 100, "held": 100}
    cell = {"data": {"name": "table"}, "game": game | changes, "model": {"name": "MLP", "hidden": [64, 32]}}
    return told(Cell.model_validate(cell | {"rounds": 2, "trials": 400}), table(800))


def test_members_below_the_rank_are_found_without_error_and_the_page_says_so():
    found, page = audited()
    assert found.attacks[1].scores.tpr_at_1.value == 1
    spaces = found.attacks[1].reach
    assert [(space.layer, space.rank, space.most, space.open) for space in spaces] == [
        ("0", 24, WIDTH + 1, True)
    ] * 3
    assert min(space.gap for space in spaces) > 10
    assert found.attacks[0].reach == ()
    assert EXACT in page
    assert f"rank 24, at most {WIDTH + 1}; gap" in page
    assert MembershipFound.model_validate_json(found.model_dump_json()) == found


def test_above_the_rank_the_page_says_so_and_the_other_attack_finds_what_it_finds_alone():
    found, page = audited(size=100)
    assert not any(space.open for space in found.attacks[1].reach)
    assert EXACT not in page
    assert "says little there" in page
    alone, _ = audited(size=100, attacks=[{"name": "Whitened"}])
    assert found.attacks[0] == alone.attacks[0]


def recorded(folder, *, size: int, trained: bool) -> Cell:
    """The audit of a recording with the attacks that are played unless named; ``trained``: those who are said
    to be members are."""
    data = table(800)
    model = build(MLP((64, 32)), data, seeded(0, "net"))
    recorder, own = Recorder(folder / "run", model, model_name="MLP"), torch.arange(size)
    federate(model, [data.take(own)], rounds=2, rng=seeded(1), local=Local(**STEPS), recorder=recorder)
    kept = torch.arange(0 if trained else size, 800)
    client = np.where(np.arange(len(kept)) < size, "0", "nobody")
    np.savez(folder / "c.npz", x=data.x[kept].numpy(), y=data.y[kept].numpy(), client=client)
    plan = request_recording(
        str(folder / "c.npz"), recording=folder / "run", client="client", label="y", model="MLP", seen="uploads",
        centred=False, records=False, drop=(), trials=600, seeds=1, trust=(),
    )  # fmt: skip
    return Cell.model_validate(plan["cell"][0])


@pytest.mark.parametrize("trained", [True, False])
def test_a_recording_is_asked_by_row_spaces_and_a_placebo_finds_nothing(tmp_path, trained):
    cell = recorded(tmp_path, size=24, trained=trained)
    found, page = told(cell, tabled(cell.data))
    (spans,) = [attack for attack in found.attacks if attack.reach]
    assert spans.name.startswith(NAME)
    assert (EXACT in page) == trained
    if trained:
        assert spans.scores.tpr_at_1.value == 1
    else:
        assert spans.scores.auroc.low < 0.5 < spans.scores.auroc.high
        assert spans.scores.tpr_at_1.low <= 0.01


def test_a_recording_above_the_rank_is_asked_by_the_others_and_says_why(tmp_path):
    cell = recorded(tmp_path, size=80, trained=True)
    assert NAME not in [attack["name"] for attack in cell.game["attacks"]]
    assert "span at most 61 dimensions here, and what is seen is of 80 records or more" in cell.note


def test_only_models_that_begin_with_a_linear_layer_are_asked():
    some = table(4)
    images = Dataset(torch.zeros(4, 1, 4, 4), some.y, {})
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    assert find_spans(net, images, records=1, rounds=1) == (None, "")
    rows = nn.Sequential(nn.Linear(4, 3), nn.Flatten(), nn.Linear(12, 2))  # takes four vectors of a record
    assert find_spans(rows, Dataset(images.x[:, 0], some.y, {}), records=1, rounds=1) == (None, "")
    assert largest_rank(initialised(lambda: MLP((7, 5))(some), seeded(0)), rounds=3) == 21
    assert largest_rank(initialised(lambda: MLP((50, 45))(some), seeded(0)), rounds=3) == WIDTH + 1


@pytest.mark.parametrize(("width", "played"), [(400, True), (30, False)])
def test_the_audit_of_a_wide_table_plays_row_spaces_as_its_clients_train(width, played):
    records = Dataset(torch.randn(2_000, width, generator=seeded(0)), torch.arange(2_000) % 2, {})
    asked = ask_federation(records, secrets=(), person=None, site=None, seen="uploads", rate=0.1, rounds=15)
    model = {"name": "MLP", "hidden": [32, 16]}
    cell = name_attacks(asked[0], records, model, (), 15)
    spans = [attack for attack in cell["game"]["attacks"] if attack["name"] == NAME]
    assert bool(spans) == played
    assert ("Row spaces are left out" in cell.get("note", "")) == (not played)
    if played:
        assert spans[0]["steps"] == LOCAL["epochs"] * -(-asked[0]["game"]["size"] // LOCAL["batch"])
        assert 0.99 < spans[0]["kept"] < 1
