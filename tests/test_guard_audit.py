"""The audit of a guard, from a plan to saved encoders and representations."""

from __future__ import annotations

import base64
import dataclasses
import io

import numpy as np
import pandas as pd
import pytest
import torch
from builders import refuses
from guard_cells import GUARD, TABLE, cell, nobody, people, pictures, run
from PIL import Image

import leakscope as ls
from leakscope.attacks.representations import Fisher
from leakscope.audits.guards import Tuned, evaluation
from leakscope.audits.guards.encoding import encode
from leakscope.audits.guards.kind import KIND
from leakscope.audits.guards.request import name_encoders, request_guard
from leakscope.audits.world import describe
from leakscope.core import files
from leakscope.core.dataset import joined
from leakscope.core.errors import ArgumentError, DataError
from leakscope.core.rng import seeded
from leakscope.core.tables import construct
from leakscope.data import tabled
from leakscope.guards.hidden import Hidden, hidden_by
from leakscope.guards.keys import Key
from leakscope.results.kind import World
from leakscope.run import engines
from leakscope.run.plan import from_document


def save(folder, records, *guard, **options):
    asked = cell(*guard, save=True, **options)
    KIND.run(World(asked, 0, records, keep=lambda name, content: files.write(folder / name, content)))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder, records = tmp_path_factory.mktemp("guard") / "encoder", people()
    save(folder, records)
    return folder, records


@pytest.fixture
def one_attack(monkeypatch):
    """The quickest, where it does not matter which attacks are played."""
    monkeypatch.setattr(evaluation, "choose_attacks", lambda *_: (Fisher(),))
    monkeypatch.setattr(evaluation.try_holdings, "__kwdefaults__", {"second": None, "attacks": (Fisher(),)})


def test_a_saved_encoder_takes_records_as_they_are_and_says_the_same_again(saved, tmp_path, monkeypatch):
    folder, records = saved
    encoder, key = ls.load_encoder(folder), tmp_path / "key"
    expected = encoder(records.x, key=Key.new(key))
    monkeypatch.setattr("leakscope.audits.guards.encoding.tabled", lambda table: records)
    target, options = tmp_path / "shared.npz", {"key": key, "labels": True}
    assert encode("synthetic", folder, target, **options).count == len(records)
    with np.load(target, allow_pickle=False) as file:
        assert np.array_equal(file["r"], expected.numpy())
        assert set(file.files) == {"r", records.label}
    refuses(ArgumentError, "must not exist yet", encode, "synthetic", folder, target, **options)
    narrow = dataclasses.replace(records, x=records.x[:, :3], columns=())
    monkeypatch.setattr("leakscope.audits.guards.encoding.tabled", lambda table: narrow)
    other = tmp_path / "other.npz"
    refuses(DataError, r"lacks|records of shape \(3,\)", encode, "synthetic", folder, other, **options)
    assert not other.exists()


def test_categories_go_by_their_names_wherever_they_stand(tmp_path, one_attack):
    def table(*values: str) -> ls.Dataset:
        codes, group = torch.arange(300) % 3, torch.arange(300) // 2 % 2
        column = ls.Column("city", 0, 3, values, standardised=False)
        x = torch.nn.functional.one_hot(codes, 3).float()
        return ls.Dataset(x, codes % 2, {"group": group}, columns=(column,), name="towns")

    sizes = {"trials": 60, "rehearsals": 60, "train": 100, "public": 100}
    guard = GUARD | {"column": "group", "epochs": 1}
    save(tmp_path / "encoder", table("athens", "berlin", "cairo"), guard, sizes=sizes)
    rows = ls.load_encoder(tmp_path / "encoder").preparation.arrange(table("berlin", "cairo", "delhi"))
    assert rows[:3].tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 0]]  # of no city that is known


def test_a_guard_that_leaves_nothing_has_a_bound_and_not_an_error():
    found = run(cell(GUARD | {"perturbation": "gaussian", "scale": 1000.0, "normed": True})).found
    (judged,) = found.judged
    theorem = judged.theorem
    assert theorem.entropy.value > 0.6
    if theorem.bound is None:  # a network that learned noise by heart is too sure
        assert theorem.miscalibrated > 0.005
    else:
        assert 0.5 <= theorem.bound < 0.8


def test_members_are_hidden_from_records_the_guard_has_not_seen():
    guard = {"name": "Inf2Guard", "secret": "membership", "epochs": 2, "label_aware": True, "encoder": TABLE}
    (judged,) = run(cell(guard)).found.judged
    expected = {"LossThreshold", "HeadConfidence", "LabelAware", "Network"}
    assert {one.name for one in judged.attacks} == expected
    assert judged.theorem is None


def test_each_guard_says_what_it_hides():
    share = ls.Inf2Guard("property", "sex", value=1, shares=(0.1, 0.9), sizes=(5, 9), aggregate="max")
    (hidden,) = hidden_by(share)
    assert hidden == Hidden("property", "sex", 0.5, False, 1, (0.1, 0.9), (5, 9), "max")
    (like,) = Tuned(ls.AdvReg(), share).hides()  # the same game, and the network of the guard that is tuned
    assert like == dataclasses.replace(hidden, lam=None, label_aware=True)
    assert hidden_by(ls.DPEncoder()) == hidden_by(lambda data, rng: None) == ()


def test_what_decides_a_result_and_is_a_setting_is_in_its_key(one_attack):
    assert ls.GuardAudit(ls.Inf2Guard(column="u")).queries == 16
    once = [cell().key(0), *(cell(**one).key(0) for one in ({"queries": 4}, {"draws": 2}, {"early": [2]}))]
    assert len(set(once)) == 4
    noise = GUARD | {"perturbation": "gaussian", "epochs": 1}
    (judged,) = run(cell(noise, queries=2, near=3, rows=True)).found.judged
    assert {one.queries for one in judged.attacks} == {1, 2}
    assert [row.title for row in judged.rows] == [
        "label alone",
        "one draw and the label",
        "2 draws",
        "2 draws and the label",
        "3 neighbouring queries",
        "3 neighbouring queries and the label",
        "3 queries a grid step away",
        "3 queries a grid step away and the label",
        "two encoders",
        "two encoders and the label",
        "changed record",
        "changed record and the label",
        "changed record of a named person",
        "changed record of a named person and the label",
        "key known",
        "key known and the label",
    ]
    assert all(row.attack.chosen for row in judged.rows)


def typed(**changes):
    """The plan of what was typed."""
    options = {
        "label": None, "secret": "sex", "against": "attribute", "drop": [], "lams": [0.5], "width": 8,
        "settings": {"loss": "mmd", "epochs": 3}, "train": None, "public": None, "trials": 100, "rehearsals": 100,
        "seeds": 1,
    }  # fmt: skip
    return from_document(request_guard("adult", **options | changes)[0])


def test_what_was_typed_becomes_a_plan_with_a_cell_for_every_lambda():
    plan = typed(lams=[0.0, 0.5])
    assert [c.game["guard"]["lam"] for c in plan.cell] == [0.0, 0.5]
    assert plan.cell[0].data["without"] == ["sex"]
    assert [c.game["baselines"] for c in plan.cell] == [True, False]


@pytest.mark.parametrize("against", ["attribute", "property", "membership", "reconstruction"])
def test_every_secret_that_can_be_typed_becomes_a_plan(against):
    column = "sex" if against in ("attribute", "property") else None
    settings = {"loss": "prior", "epochs": 1}
    (cell,) = typed(secret=column, against=against, settings=settings).cell
    audit = construct(cell.game, "audit")
    assert [(one.secret, one.column) for one in audit.asked] == [(against, column)]
    assert len(audit.estimators) == (2 if against == "attribute" else 0)


def test_several_secrets_become_one_guard_that_is_tried_for_each():
    first, other = typed(secret=["sex", "race"], lams=[0.5], beside=["DPEncoder"]).cell
    guard, beside = (construct(cell.game, "audit") for cell in (first, other))
    assert [(one.column, one.lam) for one in guard.asked] == [("sex", 0.5), ("race", 0.5)]
    assert [one.column for one in beside.asked] == ["sex", "race"]
    assert first.data["without"] == ["sex", "race"]
    assert KIND.ask(other).secrets == KIND.ask(first).secrets == ("sex", "race")
    refuses(ArgumentError, "every column once", typed, secret=["sex", "sex"])
    refuses(
        ArgumentError, "can be repeated for attributes", typed, secret=["sex", "race"], against="property"
    )


def test_a_number_is_guarded_as_a_number_and_asked_in_ranges():
    (cell,) = typed(secret="age").cell
    records = tabled(cell.data)
    assert records.ordered == {"age"}
    assert not records.has("age")
    assert len(records.numbers["age"].unique()) > len(records.value_names("age")) == 5


def test_guards_beside_it_have_its_encoder_epochs_and_column():
    plan = typed(width=4, beside=["DPEncoder:scale=2", "DPFE", "Unguarded:epochs=1"])
    first, *others = (construct(cell.game["guard"], "guard") for cell in plan.cell)
    plain = ls.Unguarded(encoder=ls.TableEncoder((64, 4)), epochs=3)
    assert others == [
        ls.DPEncoder(2.0, plain=plain),
        ls.DPFE("sex", plain=plain),
        dataclasses.replace(plain, epochs=1),
    ]
    assert first.encoder == plain.encoder
    assert all((cell.game["secret"], cell.game["column"]) == ("attribute", "sex") for cell in plan.cell[1:])
    assert all(cell.game["save"] is True for cell in plan.cell)
    names = name_encoders([0.5], ["DPEncoder:scale=2", "DPFE", "Unguarded:epochs=1"])
    assert names == ["encoder-0.5", "encoder-DPEncoder-1", "encoder-DPFE-2", "encoder-Unguarded-3"]


def test_a_frontier_has_five_guards_and_four_baselines_and_one_of_its_kind_differs_in_what_is_typed():
    settings = {"loss": "ridge", "epochs": 3, "perturbation": "gaussian", "scale": 0.5, "normed": True}
    first, *others = typed(settings=settings, lams=[0.75], frontier=True).cell
    guard, mmd, *rest = (construct(cell.game["guard"], "guard") for cell in (first, *others))
    assert mmd == dataclasses.replace(guard, loss="mmd")
    names = {type(one).__name__ for one in rest}
    assert {"Inf2Guard", "LAFTR", "DPFE", "Repaired"} < names
    assert {"DPEncoder", "Compressed", "LEACE", "INLP", "AdversarialTraining"} < names
    (alone, *_) = typed(settings=settings, frontier=True, beside=["LEACE"]).cell[1:]
    assert alone.id == "LEACE"
    refuses(ArgumentError, "for --against attribute", typed, secret=None, against="membership", frontier=True)


def test_a_guard_beside_it_guards_the_same_secret_and_can_be_tuned_to_it():
    *_, first, second = typed(
        secret=None,
        against="membership",
        lams=[0.0, 0.9],
        settings={"loss": "prior", "epochs": 2},
        beside=["Inf2Guard:loss='clip'", "Distilled"],
        equal="privacy",
    ).cell
    tuned, distilled = (construct(cell.game["guard"], "guard") for cell in (first, second))
    assert (tuned.guard.secret, tuned.guard.loss, tuned.like.lam) == ("membership", "clip", 0.9)
    assert (distilled.guard.strength.setting, distilled.to) == ("without", "privacy")
    assert distilled.hides() == (Hidden("membership"),)


def test_a_guard_learns_from_records_as_they_come_and_the_adversary_too(monkeypatch):
    """A balanced draw for the adversary would leave the guard a population with fewer of the rare value."""
    made = ls.Dataset(
        torch.randn(2_000, 3, generator=seeded(0)),
        torch.arange(2_000) % 2,
        {"u": (torch.arange(2_000) % 10 == 0).long()},
    )
    parts: list[ls.Dataset] = []
    monkeypatch.setattr(ls.GuardAudit, "check", lambda audit, *given, seed: parts.extend(given))
    KIND.check(World(cell(sizes={"train": 900, "public": 900}), 0, made))
    for part in (parts[0], parts[2]):
        assert float(part.private["u"].double().mean()) == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"against": "membership"}, "--secret is a column"),
        ({"secret": "nosuch"}, "has no private column"),
        ({"shadows": 4}, "--shadows is for --against membership"),
        ({"shown": True}, "--show-reconstructions is for pictures"),
        ({"dimensions": 4}, "--dimensions must be 2 or 3"),
        ({"beside": ["Pruning"]}, "--beside must be a guard, got 'Pruning'; known: Inf2Guard"),
        ({"beside": ["DPFE", "DPFE"]}, "--beside must name every guard once, got DPFE, DPFE"),
        ({"equal": "utility"}, "--equal utility is for guards --beside"),
        ({"beside": ["NeuGuard:alpha"]}, "--beside must be a name, or a name with settings"),
    ],
)
def test_what_cannot_be_guarded_is_refused(changes, words):
    refuses((ArgumentError, DataError), words, typed, **changes)


def test_a_guard_without_a_secret_of_its_own_must_be_told_one():
    refuses(ArgumentError, r"GuardAudit\.secret must say", ls.GuardAudit, lambda data, rng, others=None: None)
    (one,) = ls.GuardAudit(ls.Inf2Guard(column="sex", encoder=ls.TableEncoder())).asked
    assert (one.secret, one.column) == ("attribute", "sex")


def test_records_are_shown_only_if_that_is_asked_for_and_are_those_of_the_game():
    parts = [pictures().take(torch.arange(i, 90, 3)) for i in range(3)]
    guard = ls.Inf2Guard("reconstruction", loss="clip", epochs=1, batch=16, encoder=ls.ImageEncoder())
    sizes = {"trials": 4, "rehearsals": 20, "seed": 0}
    hidden = ls.GuardAudit(guard, baselines=False).run(*parts, **sizes)
    assert hidden.pictures == ()
    shown = ls.GuardAudit(guard, baselines=False, shown=2).run(*parts, **sizes).pictures
    assert len(shown) == 2
    originals = [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(pair.original))))[::3, ::3] for pair in shown
    ]
    test = (parts[1].x * 255).round().byte().permute(0, 2, 3, 1).numpy()
    assert all(any(np.array_equal(one, record) for record in test) for one in originals)


def test_a_map_of_three_dimensions_has_three(one_attack):
    (judged,) = run(cell(mapped=50, dimensions=3, epochs=1)).found.judged
    assert {len(point) for point in judged.map.after.points} == {3}


def test_shadows_of_the_guard_are_one_more_attack_on_membership_and_are_trained_as_each_model_was():
    parts = [nobody(120).take(torch.arange(i, 120, 3)) for i in range(3)]
    guard = ls.Inf2Guard("membership", loss="prior", epochs=2, batch=16, encoder=ls.TableEncoder((16, 8)))
    audit = ls.GuardAudit(guard, shadows=2, epochs=3)
    (judged,) = audit.run(*parts, trials=40, rehearsals=40, seed=0).judged
    assert [one.name for one in judged.attacks].count("LiRA") == 1
    assert sum(one.chosen for one in judged.attacks) == 1
    used = {
        plain.name: next(one.attack for one in plain.attacks if one.name == "LiRA")
        for plain in judged.baselines
    }
    assert "guard=None, epochs=3" in used["plain training"]
    assert "guard=None, epochs=6" in used["plain training, 6 epochs"]


@pytest.mark.parametrize("baseline", [ls.AdvReg(), ls.NeuGuard()])
def test_baselines_against_membership_can_be_audited_with_the_network_they_were_trained_with(baseline):
    parts = [nobody(120).take(torch.arange(i, 120, 3)) for i in range(3)]
    plain = ls.Unguarded(epochs=2, batch=16, encoder=ls.TableEncoder((16, 8)))
    audit = ls.GuardAudit(dataclasses.replace(baseline, plain=plain), baselines=False)
    (judged,) = audit.run(*parts, trials=40, rehearsals=40, seed=0).judged
    assert (judged.stale is not None) == isinstance(baseline, ls.AdvReg)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dimensions": 4}, "GuardAudit.dimensions must be 2 or 3, got 4"),
        ({"shadows": 1}, "GuardAudit.shadows must be 0 or at least 2, got 1"),
        ({"shown": -1}, "GuardAudit.shown must be at least 0, got -1"),
        ({"shadows": 4}, "GuardAudit.shadows must be 0 for a guard of a column"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(settings, message):
    refuses(ArgumentError, message, ls.GuardAudit, ls.Inf2Guard("attribute", "sex"), **settings)


def test_a_secret_with_a_rare_value_is_guarded_with_public_records_as_they_come(one_attack):
    records = people()
    rare = torch.zeros(1_200, dtype=torch.long)
    rare[::2], rare[:60] = 1, 2
    result = run(
        cell(GUARD | {"column": "rare"}), dataclasses.replace(records, private={"rare": rare}, values={})
    )
    assert result.made.records.public == 400
    assert result.found.judged[0].column == "rare"


def test_whoever_watches_is_told_how_far_the_guards_training_has_come(one_attack):
    told = []
    KIND.run(World(cell(), 0, people(), watch=lambda done, total: told.append((done, total))))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_a_worker_says_how_far_the_guards_training_has_come(tmp_path):
    asked = cell().model_copy(update={"data": {"name": "synthetic"}})
    asked = asked.model_copy(update={"game": asked.game | {"guard": GUARD | {"column": "group"}}})
    list(engines.Loky().results([(asked, 0)], jobs=1, trusted=(), beats=tmp_path))
    assert engines.beat(tmp_path / asked.key(0)) == (3, 3)
    (tmp_path / "half").write_text("2 ")
    assert engines.beat(tmp_path / "half") is None
    assert engines.beat(tmp_path / "none") is None


def test_a_guard_of_members_among_repeated_records_is_known_by_the_records_that_were_given():
    once = people(300)
    twice = joined([once, once])
    guard = {"name": "Inf2Guard", "secret": "membership", "epochs": 1, "encoder": TABLE}
    asked = cell(guard, sizes={"trials": 40, "rehearsals": 40, "train": 100, "public": 100})
    made = run(asked, twice).made.records
    assert (made.digest, made.records) == (describe(twice).digest, 300)


def test_a_guard_of_an_attribute_has_its_pace_by_its_records_unless_epochs_are_typed():
    (own,) = (construct(cell.game["guard"], "guard") for cell in typed(settings={"loss": "ridge"}).cell)
    assert (own.epochs, own.batch, own.compared, own.last_rate) == (40, 500, 250, 0.02)  # of 12,000 records
    (small,) = (construct(cell.game["guard"], "guard") for cell in typed(train=300).cell)
    assert (small.epochs, small.batch, small.compared) == (3, 64, 32)
    (other,) = (
        construct(cell.game["guard"], "guard") for cell in typed(secret=None, against="membership").cell
    )
    assert (other.batch, other.compared, other.last_rate) == (256, None, 1.0)


def test_the_transformer_trains_at_the_pace_of_the_command():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"sex": rng.choice(["f", "m"], 1_800), "age": rng.normal(50, 10, 1_800)})
    guard = ls.GuardedEncoder("sex", width=2).fit(table, rng.integers(0, 2, 1_800))
    (made,) = guard.encoder_.about["guard"]
    assert "epochs=40, batch=75," in made
    assert made.endswith("compared=37, last_rate=0.02)")
