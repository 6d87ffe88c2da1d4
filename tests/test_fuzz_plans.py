"""Plans and risk appetites that anybody could write: they are read, or refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from fuzzing import CASES, broken, files, fuzz, nudged, scratched, works_or_says_why
from hypothesis import strategies as st

from leakscope.results import gate as gating
from leakscope.run import plan, sweep

SMALL = {"name": "synthetic", "records": 400, "shift": 1.0}
PLAN = {
    "name": "Everything a plan can say",
    "seeds": [0, 1],
    "defaults": {
        "data": SMALL,
        "model": {"name": "MLP", "hidden": [8]},
        "attack": {"name": "Posterior", "head": {"name": "RandomForest", "trees": 5}},
        "rounds": 2,
        "trials": 20,
        "rehearsals": 20,
        "train": 150,
        "public": 100,
        "training": {"rate": 0.1, "batch": 16},
    },
    "cell": [
        {"id": "property", "game": {"name": "Inference", "secret": "group", "batch": 4}, "observe": [2]},
        {
            "id": "share",
            "game": {"name": "Distribution", "column": "group", "bins": 3, "batch": 6},
            "attack": {"name": "Posterior", "ordinal": True, "reduce": {"name": "MaxPool", "width": 3}},
            "defense": {"name": "Chain", "defenses": [{"name": "Sign"}, {"name": "Noise", "std": 0.1}]},
            "adaptive": False,
            "published": {"auroc": 0.9},
            "figure": ["fig2"],
            "note": "a note",
        },
        {
            "id": "epsilon",
            "game": {"name": "AttributeAudit", "attribute": "group", "delta": 1e-5},
            "defense": {"name": "DPSGD", "clip": 1.0, "noise": 1.0},
        },
        {
            "id": "members",
            "game": {"name": "MembershipAudit", "clients": 2, "size": 20, "local": {"name": "Local", "rate": 0.1},
                     "attacks": [{"name": "Cosine"}]},
        },
        {
            "id": "layers",
            "game": {"name": "LayerAudit", "secrets": ["group"], "batch": 4, "images": 0},
        },
        {
            "id": "guard",
            "game": {
                "name": "GuardAudit",
                "guard": {"name": "Inf2Guard", "column": "group", "encoder": {"name": "TableEncoder", "widths": [8]}},
            },
        },
    ],
}  # fmt: skip
APPETITE = {
    "limit": [
        {"secret": "sex", "measure": "advantage", "at_most": 0.1, "game": "attribute", "confidence": 0.95},
        {"secret": "*", "measure": "epsilon", "at_most": 3.0, "adversary": "any", "delta": 1e-5},
        {"secret": "membership", "measure": "tpr_at_1%", "at_most": 0.05, "defense": {"name": "DPSGD", "noise": 1.0}},
    ],
    "declared": {"epsilon": 3.0, "delta": 1e-5},
}  # fmt: skip


def toml(document) -> str | None:
    """The document as TOML, if TOML can say it."""
    try:
        return tomli_w.dumps(document)
    except (TypeError, AttributeError, ValueError):
        return None


def test_five_thousand_cases_are_run():
    assert sum(CASES.values()) >= 5_000


def test_the_whole_plan_and_the_whole_appetite_are_read():
    assert len(plan.from_document(PLAN).cell) == 6
    assert plan.parse(tomli_w.dumps(PLAN)) == plan.from_document(PLAN)
    assert len(gating.parse(tomli_w.dumps(APPETITE)).limit) == 3


def test_a_broken_plan_is_read_or_refused_in_one_sentence():
    def check(document):
        def described():
            found = plan.from_document(document)
            json.dumps([found.digest, [cell.described for cell in found.cell]], allow_nan=False)

        works_or_says_why(described)
        if text := toml(document):
            works_or_says_why(lambda: plan.parse(text))

    fuzz("plans as documents", broken(PLAN) | nudged(PLAN), check)


def test_a_scratched_plan_is_read_or_refused_in_one_sentence(tmp_path):
    path = tmp_path / "plan.toml"

    def check(content):
        path.write_bytes(content)
        works_or_says_why(lambda: plan.read(path))

    fuzz("plans as text", scratched(tomli_w.dumps(PLAN).encode()), check)
    assert files(tmp_path).keys() == {"plan.toml"}


def sources_in(folder: Path) -> list[dict]:
    """The data tables of a CSV, of arrays and of made-up records."""
    rows = [f"{i % 7}.5,{'fm'[i % 2]},{'yn'[i // 2 % 2]}" for i in range(200)]
    (folder / "small.csv").write_text("\n".join(["age,group,label", *rows]))
    codes = np.arange(200)
    np.savez(folder / "small.npz", x=codes[:, None] * np.ones(3), y=codes // 2 % 2, group=codes % 2)
    options = {"secrets": ["group"], "without": []}
    return [
        {"name": "csv", "path": str(folder / "small.csv"), "label": "label", "drop": [], **options},
        {"name": "npz", "path": str(folder / "small.npz"), "y": "y", **options},
        {**SMALL, "inputs": 3, "seed": 0, "without": ["x1"], "sha256": "0"},
    ]


def test_a_broken_plan_meets_its_data_in_one_sentence_and_claims_no_folder(tmp_path):
    playable = {**PLAN, "cell": [PLAN["cell"][0], PLAN["cell"][1], PLAN["cell"][4]]}
    output = tmp_path / "out"

    def check(document):
        def checked():
            sweep.check(plan.from_document(document))

        if works_or_says_why(checked):
            assert not output.exists()

    fuzz("plans with their data", nudged(playable), check)
    sources = [broken(source) | nudged(source) for source in sources_in(tmp_path)]
    one = {**PLAN["defaults"], **PLAN["cell"][0]}
    fuzz("data tables of plans", st.one_of(sources).map(lambda data: {"cell": [one | {"data": data}]}), check)


def test_a_broken_appetite_is_read_or_refused_in_one_sentence():
    def check(document):
        if text := toml(document):
            works_or_says_why(lambda: gating.parse(text))

    fuzz("appetites", broken(APPETITE), check)


def test_a_scratched_appetite_is_read_or_refused_in_one_sentence(tmp_path):
    path = tmp_path / "appetite.toml"

    def check(content):
        path.write_bytes(content)
        works_or_says_why(lambda: gating.read(path))

    fuzz("appetites as text", scratched(tomli_w.dumps(APPETITE).encode()), check)


@pytest.mark.parametrize("read", [plan.parse, gating.parse], ids=["plan", "appetite"])
@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 5_000,
        "a = " + "{b = " * 5_000,
        "a" + ".a" * 5_000 + " = 1",
        "a = " + "9" * 5_000,
        "a = 1e999999",
        "cell = 3\ncell = 4",
        "\ufeff[[cell]]",
        "[[cell]]\n" * 200,
        "",
        "\x00",
    ],
    ids=range(10),
)
def test_what_no_parser_likes_is_refused_in_one_sentence(read, text):
    assert works_or_says_why(lambda: read(text)) is not None
