"""Plans: what they mean, and what each mistake is told."""

from __future__ import annotations

import math

import pytest
from builders import refuses

from leakscope import DPSGD, MLP, Chain, Inference, MaxPool, Posterior, RandomForest, Sign
from leakscope.core.errors import PlanError
from leakscope.core.tables import construct
from leakscope.data import synthetic
from leakscope.run.plan import parse

CELL = """
[defaults]
data = {name = "synthetic"}
[[cell]]
game = {name = "Inference", secret = "group", batch = 16}
attack = {name = "Posterior", head = {name = "RandomForest", trees = 7}, reduce = {name = "MaxPool", width = 4}}
"""


def test_a_table_with_a_name_is_a_constructor_call_all_the_way_down():
    cell = parse(CELL).cell[0]
    assert construct(cell.attack, "attack") == Posterior(RandomForest(7), MaxPool(4))
    assert construct({"name": "MLP", "hidden": [8, 4]}, "model") == MLP((8, 4))
    game = construct(cell.game, "game", data=synthetic(records=200))
    assert isinstance(game, Inference)
    assert game.batch == 16


def test_defaults_fill_in_what_a_cell_leaves_out():
    plan = parse(
        CELL.replace("[[cell]]", "rounds = 3\n[[cell]]", 1)
        + '[[cell]]\nrounds = 2\ngame = {name = "Inference", secret = "group"}\n'
    )
    assert [cell.rounds for cell in plan.cell] == [3, 2]


def test_names_and_published_values_do_not_change_the_key_and_everything_else_does():
    plain = parse(CELL).cell[0]
    assert parse(CELL + 'id = "a"\npublished = {auroc = 0.9}\nnote = "n"\n').cell[0].key(0) == plain.key(0)
    assert plain.key(0) != plain.key(1)
    assert parse(CELL + "rounds = 4\n").cell[0].key(0) != plain.key(0)
    assert parse(CELL.replace("trees = 7", "trees = 8")).cell[0].key(0) != plain.key(0)


INTEGER = "RandomForest.trees: should be a valid integer"
MISTAKES = [  # what is written in place of what, at the end of the cell where it is in place of nothing
    (CELL, "cell = [", "not valid TOML"),
    (CELL, "seeds = [1]", r"at least one \[\[cell\]\]"),
    ("[defaults]", "seed = [1]\n[defaults]", r"unknown setting 'seed' \(did you mean 'seeds'\?\)"),
    ("", "round = 3", r"unknown setting 'cell.1.round' \(did you mean 'rounds'\?\)"),
    ("", 'rounds = "many"', "cell.1.rounds should be a valid integer.*'many'"),
    ("", "rounds = 0", "rounds should be greater than or equal to 1, got 0"),
    ("", "rounds = 3\nobserve = [4]", "observe must name rounds 1 to 3"),
    ("", "rounds = 3\nobserve = [1, 1]", "each once"),
    ("", "observe = []", "each once"),
    ("", 'model = {name = "os.path.join"}', "--trust os"),
    ("Inference", "Inferense", r"unknown game 'Inferense' \(did you mean 'Inference'\?\); known: Inference"),
    ("RandomForest", "Forest", "unknown head 'Forest'.*RandomForest"),
    ("trees", "tree", r"RandomForest has no argument 'tree' \(did you mean 'trees'\?\); it takes: trees"),
    ('secret = "group", ', "", "Inference needs the argument 'secret'"),
    ("trees = 7", 'trees = "seven"', INTEGER),
    ("trees = 7", 'trees = "7"', INTEGER),
    ("trees = 7", "trees = true", INTEGER),
    ("trees = 7", "trees = 0", "RandomForest.trees must be at least 1, got 0"),
    ('{name = "RandomForest", trees = 7}', '"forest"', "head must be a table with a name, got 'forest'"),
    ('{name = "synthetic"}', "{}", "data must be a table with a name"),
    ('{name = "MaxPool", width = 4}', '{name = "LDA"}', "unknown reduction 'LDA'"),
    ('name = "Inference"', "name = []", "game must be a table with a name"),
    ("batch = 16", "batch = 16, data = 3", "Inference has no argument 'data'"),
]


@pytest.mark.parametrize(("old", "new", "words"), MISTAKES, ids=[new for _, new, _ in MISTAKES])
def test_every_mistake_is_told_before_anything_is_computed(old, new, words):
    refuses(PlanError, words, parse, CELL.replace(old, new) if old else f"{CELL}{new}\n")


def test_a_chain_and_an_infinite_clip_can_be_planned():
    text = (
        CELL
        + 'defense = {name = "Chain", defenses = [{name = "DPSGD", clip = inf, noise = 0.0}, {name = "Sign"}]}\n'
    )
    cell = parse(text).cell[0]
    assert construct(cell.defense, "defense") == Chain(DPSGD(math.inf, 0.0), Sign())
    assert cell.meaning["defense"]["defenses"][0]["clip"] == "inf"
