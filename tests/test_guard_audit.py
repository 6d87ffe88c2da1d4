"""The audit of a guard, from a plan to saved encoders and representations."""

from __future__ import annotations

import base64
import dataclasses
import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

from leakscope import (
    DPFE,
    AdvReg,
    Column,
    Dataset,
    DPEncoder,
    GuardAudit,
    ImageEncoder,
    Inf2Guard,
    NeuGuard,
    TableEncoder,
    Unguarded,
    engines,
    load_encoder,
)
from leakscope.data import synthetic
from leakscope.dataset import joined
from leakscope.errors import ArgumentError, DataError
from leakscope.experiment import _split, run
from leakscope.guard_audits import encoded, requested
from leakscope.plan import Cell, construct, from_document
from leakscope.rng import seeded

GUARD = {
    "name": "Inf2Guard",
    "secret": "attribute",
    "column": "group",
    "lam": 0.5,
    "loss": "mean",
    "epochs": 2,
    "encoder": {"name": "TableEncoder", "widths": [16, 8]},
}


def cell(**game):
    document = {
        "cell": [
            {
                "data": {"name": "synthetic"},
                "game": {"name": "GuardAudit", "guard": GUARD, "baselines": False, **game},
                "trials": 200,
                "rehearsals": 300,
                "train": 400,
                "public": 400,
            }
        ]
    }
    return from_document(document).cell[0]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guard") / "encoder"
    records = synthetic(records=1_200, shift=3.0)
    found = run(
        cell(save=str(folder), mapped=50, estimators=[{"name": "MINE", "epochs": 2}], informative=200),
        0,
        records=records,
    )
    return found, folder, records


def test_a_result_has_a_fresh_attacker_the_stale_one_and_what_the_task_is_worth(saved):
    found, _, _ = saved
    (judged,) = found["guarding"]["judged"]
    assert judged["secret"] == "attribute"
    assert judged["column"] == "group"
    assert sum(entry["chosen"] for entry in judged["attacks"]) == 1
    assert 0 < judged["utility"]["fresh"]["accuracy"]["value"] <= 1
    assert judged["guarantee"]["bound"] <= 1
    assert "no certificate" in judged["guarantee"]["caveat"]
    assert set(judged["information"]) == {"MINE"}
    assert len(judged["map"]["after"]["points"]) == 50
    assert found["guarding"]["lam"] == 0.5
    assert found["guarding"]["seconds"]["plain"] > 0
    json.dumps(found)


def test_a_saved_encoder_takes_records_as_they_are_and_says_the_same_again(saved, tmp_path, monkeypatch):
    _, folder, records = saved
    encoder = load_encoder(folder)
    shift, scale = (torch.tensor(encoder.about["scaling"][part]) for part in ("shift", "scale"))
    expected = encoder((records.x - shift) / scale, key=3)
    monkeypatch.setattr("leakscope.guard_audits.experiment.dataset", lambda table: records)
    target = tmp_path / "shared.npz"
    assert encoded("synthetic", folder, target, label=None, secret=None, key=3, labels=True) == len(records)
    with np.load(target, allow_pickle=False) as file:
        assert np.array_equal(file["r"], expected.numpy())
        assert set(file.files) == {"r", "y"}
    with pytest.raises(ArgumentError, match="must not exist yet"):
        encoded("synthetic", folder, target, label=None, secret=None, key=3, labels=True)
    narrow = dataclasses.replace(records, x=records.x[:, :3], columns=())
    monkeypatch.setattr("leakscope.guard_audits.experiment.dataset", lambda table: narrow)
    with pytest.raises(DataError, match="other categories or another place"):
        encoded("synthetic", folder, tmp_path / "other.npz", label=None, secret=None, key=3, labels=True)
    assert not (tmp_path / "other.npz").exists()


def test_records_whose_categories_stand_elsewhere_are_not_encoded(tmp_path):
    cities = ("athens", "berlin", "cairo")

    def table(values: tuple[str, ...]) -> Dataset:
        codes = torch.arange(300) % 3
        x = torch.nn.functional.one_hot(codes, 3).float()
        column = Column("city", 0, 3, values, standardised=False)
        return Dataset(x, codes % 2, {"group": torch.arange(300) // 2 % 2}, columns=(column,), name="towns")

    guard = Inf2Guard(column="group", epochs=1, encoder=TableEncoder((4,)))
    audit = GuardAudit(guard, baselines=False, save=str(tmp_path / "encoder"))
    parts = [table(cities).take(torch.arange(100 * i, 100 * i + 100)) for i in range(3)]
    audit.run(*parts, trials=60, rehearsals=60, seed=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "leakscope.guard_audits.experiment.dataset", lambda _: table(("berlin", "cairo", "delhi"))
        )
        with pytest.raises(DataError, match="'city' has other categories"):
            encoded(
                "synthetic",
                tmp_path / "encoder",
                tmp_path / "r.npz",
                label=None,
                secret=None,
                key=0,
                labels=False,
            )


def test_a_guard_that_leaves_nothing_has_a_bound_and_not_an_error():
    guard = GUARD | {"perturbation": "gaussian", "scale": 1000.0, "normed": True}
    found = run(cell(guard=guard), 0, records=synthetic(records=1_200))
    (judged,) = found["guarding"]["judged"]
    assert 0.5 <= judged["guarantee"]["bound"] < 0.8
    assert judged["guarantee"]["entropy"]["value"] > 0.6


def test_the_stale_network_speaks_of_its_own_secret_only():
    records = synthetic(records=1_200)
    other = torch.arange(1_200) % 3
    records = dataclasses.replace(records, private={**records.private, "other": other})
    encoder = {"name": "TableEncoder", "widths": [8]}
    guards = [GUARD | {"encoder": encoder}, GUARD | {"column": "other", "encoder": encoder}]
    found = run(cell(guard={"name": "Guards", "guards": guards}), 0, records=records)
    first, second = found["guarding"]["judged"]
    assert (first["column"], second["column"]) == ("group", "other")
    assert second["stale"] is None


def test_members_are_hidden_from_records_the_guard_has_not_seen():
    guard = {"name": "Inf2Guard", "secret": "membership", "lam": 0.5, "epochs": 2, "label_aware": True}
    found = run(
        cell(guard=guard | {"encoder": {"name": "TableEncoder", "widths": [16, 8]}}),
        0,
        records=synthetic(records=1_200),
    )
    (judged,) = found["guarding"]["judged"]
    assert {entry["name"] for entry in judged["attacks"]} == {
        "LossThreshold",
        "HeadConfidence",
        "LabelAware",
        "Network",
    }
    assert judged["guarantee"] is None


def typed(folder, **changes):
    """The plan of what was typed."""
    options = {
        "label": None, "secret": "sex", "against": "attribute", "drop": [], "lams": [0.5], "width": 8,
        "settings": {"loss": "mmd", "epochs": 3}, "train": None, "public": None, "trials": 100, "rehearsals": 100,
        "seeds": 1, "folder": folder,
    }  # fmt: skip
    return from_document(requested("adult", **options | changes))


def test_what_was_typed_becomes_a_plan_with_a_cell_for_every_lambda(tmp_path):
    plan = typed(tmp_path, lams=[0.0, 0.5])
    assert [c.game["guard"]["lam"] for c in plan.cell] == [0.0, 0.5]
    assert plan.cell[0].data["without"] == ["sex"]
    assert [c.game["baselines"] for c in plan.cell] == [True, False]


@pytest.mark.parametrize("against", ["attribute", "property", "membership", "reconstruction"])
def test_every_secret_that_can_be_typed_becomes_a_plan(against, tmp_path):
    column = "sex" if against in ("attribute", "property") else None
    settings = {"loss": "prior", "epochs": 1}
    (cell,) = typed(tmp_path, secret=column, against=against, settings=settings).cell
    audit = construct(cell.game, "audit")
    assert [(secret, name) for secret, name, _ in audit.asked()] == [(against, column)]
    assert len(audit.estimators) == (2 if against == "attribute" else 0)


def test_guards_beside_it_have_its_encoder_epochs_and_column(tmp_path):
    plan = typed(tmp_path, width=4, beside=["DPEncoder:scale=2", "DPFE", "Unguarded:epochs=1"])
    first, *others = (construct(cell.game["guard"], "guard") for cell in plan.cell)
    plain = Unguarded(encoder=TableEncoder((64, 4)), epochs=3)
    assert others == [
        DPEncoder(2.0, plain=plain),
        DPFE("sex", plain=plain),
        dataclasses.replace(plain, epochs=1),
    ]
    assert first.encoder == plain.encoder
    assert all((cell.game["secret"], cell.game["column"]) == ("attribute", "sex") for cell in plan.cell[1:])
    assert len({cell.game["save"] for cell in plan.cell}) == 4


def test_a_guard_beside_it_guards_the_same_secret_and_can_be_tuned_to_it(tmp_path):
    *_, first, second = typed(
        tmp_path,
        secret=None,
        against="membership",
        lams=[0.0, 0.9],
        settings={"loss": "prior", "epochs": 2},
        beside=["Inf2Guard:loss='clip'", "Distilled"],
        equal="privacy",
    ).cell
    tuned, distilled = (construct(cell.game["guard"], "guard") for cell in (first, second))
    assert (tuned.guard.secret, tuned.guard.loss, tuned.like.lam) == ("membership", "clip", 0.9)
    assert (distilled.kind, distilled.to, distilled.secret) == ("Distilled", "privacy", "membership")


def test_a_guard_learns_from_records_as_they_come_and_the_adversary_too():
    """A balanced draw for the adversary would leave the guard a population with fewer of the rare value."""
    made = Dataset(
        torch.randn(2_000, 3, generator=seeded(0)),
        torch.arange(2_000) % 2,
        {"u": (torch.arange(2_000) % 10 == 0).long()},
    )
    cell = Cell(
        data={"name": "made up"},
        game={"name": "GuardAudit", "guard": {"name": "Inf2Guard", "column": "u"}},
        train=900,
        public=900,
    )
    parts = _split(cell, 0, made)
    for part in (parts.train, parts.public):
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
def test_what_cannot_be_guarded_is_refused(changes, words, tmp_path):
    with pytest.raises((ArgumentError, DataError), match=words):
        typed(tmp_path, **changes)


def test_a_guard_without_a_secret_of_its_own_must_be_told_one():
    with pytest.raises(ArgumentError, match=r"GuardAudit\.secret must say"):
        GuardAudit(lambda data, rng, others=None: None)
    secret, column, _ = next(GuardAudit(Inf2Guard(column="sex", encoder=TableEncoder())).asked())
    assert (secret, column) == ("attribute", "sex")


def test_records_are_shown_only_if_that_is_asked_for_and_are_those_of_the_game():
    x = torch.rand(90, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    parts = [Dataset(x[i::3], torch.arange(30) % 2, {}, name="made up") for i in range(3)]
    guard = Inf2Guard("reconstruction", loss="clip", epochs=1, batch=16, encoder=ImageEncoder())
    sizes = {"trials": 4, "rehearsals": 20, "seed": 0}
    hidden = GuardAudit(guard, baselines=False).run(*parts, **sizes)
    assert hidden["pictures"] is None
    shown = GuardAudit(guard, baselines=False, shown=2).run(*parts, **sizes)["pictures"]
    assert len(shown) == 2
    originals = [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(pair["original"]))))[::3, ::3] for pair in shown
    ]
    test = (parts[1].x * 255).round().byte().permute(0, 2, 3, 1).numpy()
    assert all(any(np.array_equal(one, record) for record in test) for one in originals)


def test_a_map_of_three_dimensions_has_three():
    found = run(cell(mapped=50, dimensions=3), 0, records=synthetic(records=1_200, shift=3.0))
    (judged,) = found["guarding"]["judged"]
    assert {len(point) for point in judged["map"]["after"]["points"]} == {3}


def test_shadows_of_the_guard_are_one_more_attack_on_membership_and_are_trained_as_each_model_was():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(120, 6, generator=generator), torch.randint(3, (120,), generator=generator)
    parts = [Dataset(x[i::3], y[i::3], {}, name="made up") for i in range(3)]
    guard = Inf2Guard("membership", loss="prior", epochs=2, batch=16, encoder=TableEncoder((16, 8)))
    audit = GuardAudit(guard, shadows=2, epochs=3)
    (judged,) = audit.run(*parts, trials=40, rehearsals=40, seed=0)["judged"]
    assert [entry["name"] for entry in judged["attacks"]].count("LiRA") == 1
    assert sum(entry["chosen"] for entry in judged["attacks"]) == 1
    used = {
        one["baseline"]: next(entry["attack"] for entry in one["attacks"] if entry["name"] == "LiRA")
        for one in judged["baselines"]
    }
    assert "guard=None, epochs=3" in used["plain training"]
    assert "guard=None, epochs=6" in used["plain training, 6 epochs"]


@pytest.mark.parametrize("baseline", [AdvReg(), NeuGuard()])
def test_baselines_against_membership_can_be_audited_with_the_network_they_were_trained_with(baseline):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(120, 6, generator=generator), torch.randint(3, (120,), generator=generator)
    parts = [Dataset(x[i::3], y[i::3], {}, name="made up") for i in range(3)]
    plain = Unguarded(epochs=2, batch=16, encoder=TableEncoder((16, 8)))
    audit = GuardAudit(dataclasses.replace(baseline, plain=plain), baselines=False)
    (judged,) = audit.run(*parts, trials=40, rehearsals=40, seed=0)["judged"]
    assert (judged["stale"] is not None) == isinstance(baseline, AdvReg)


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
    with pytest.raises(ArgumentError, match=message):
        GuardAudit(Inf2Guard("attribute", "sex"), **settings)


def test_a_secret_with_a_rare_value_is_guarded_with_public_records_as_they_come():
    records = synthetic(records=1_200)
    rare = torch.zeros(1_200, dtype=torch.long)
    rare[::2], rare[:60] = 1, 2
    records = dataclasses.replace(records, private={**records.private, "rare": rare})
    guard = GUARD | {"column": "rare"}
    found = run(cell(guard=guard), 0, records=records)
    assert found["data"]["public"] == 400
    (judged,) = found["guarding"]["judged"]
    assert judged["column"] == "rare"


def test_a_worker_says_how_far_the_guards_training_has_come(tmp_path):
    asked = cell()
    told = []
    run(asked, 0, records=synthetic(records=1_200), watch=lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]
    list(engines.Loky().results([(asked, 0)], jobs=1, trusted=(), beats=tmp_path))
    assert engines.beat(tmp_path / asked.key(0)) == (2, 2)
    (tmp_path / "half").write_text("2 ")
    assert engines.beat(tmp_path / "half") is None
    assert engines.beat(tmp_path / "none") is None


def test_a_guard_of_members_among_repeated_records_is_known_by_the_records_that_were_given():
    once = synthetic(records=300)
    twice = joined([once, once])
    guard = {"name": "Inf2Guard", "secret": "membership", "epochs": 1, "encoder": GUARD["encoder"]}
    document = {
        "cell": [
            {
                "data": {"name": "synthetic"},
                "game": {"name": "GuardAudit", "guard": guard, "baselines": False},
                "trials": 40,
                "rehearsals": 40,
                "train": 100,
                "public": 100,
            }
        ]
    }
    found = run(from_document(document).cell[0], 0, records=twice)
    assert found["data"]["digest"] == twice.digest
    assert found["data"]["records"] == 300
