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


MISTAKES = {
    "not TOML": ("cell = [", "not valid TOML"),
    "no cell": ("seeds = [1]", r"at least one \[\[cell\]\]"),
    "typo in a setting": (
        CELL + "round = 3\n",
        r"unknown setting 'cell.1.round' \(did you mean 'rounds'\?\)",
    ),
    "typo in the plan": ("seed = [1]\n" + CELL, r"unknown setting 'seed' \(did you mean 'seeds'\?\)"),
    "wrong kind of setting": (CELL + 'rounds = "many"\n', "cell.1.rounds should be a valid integer.*'many'"),
    "rounds below 1": (CELL + "rounds = 0\n", "rounds should be greater than or equal to 1, got 0"),
    "unknown game": (
        CELL.replace("Inference", "Inferense"),
        r"unknown game 'Inferense' \(did you mean 'Inference'\?\); known: Inference, Distribution, UserInference",
    ),
    "unknown head": (CELL.replace("RandomForest", "Forest"), "unknown head 'Forest'.*RandomForest"),
    "unknown argument": (
        CELL.replace("trees", "tree"),
        r"RandomForest has no argument 'tree' \(did you mean 'trees'\?\); it takes: trees, depth",
    ),
    "missing argument": (CELL.replace('secret = "group", ', ""), "Inference needs the argument 'secret'"),
    "wrong type": (
        CELL.replace("trees = 7", 'trees = "seven"'),
        "RandomForest.trees: should be a valid integer",
    ),
    "value against the rule": (
        CELL.replace("trees = 7", "trees = 0"),
        "RandomForest.trees must be at least 1, got 0",
    ),
    "a part that is no table": (
        CELL.replace('{name = "RandomForest", trees = 7}', '"forest"'),
        "Posterior.head must be a table with a name, got 'forest'",
    ),
    "data without a name": (CELL.replace('{name = "synthetic"}', "{}"), "data must be a table with a name"),
    "observed round that is not there": (
        CELL + "rounds = 3\nobserve = [4]\n",
        "observe must name rounds 1 to 3",
    ),
    "a module nobody trusted": (CELL + 'model = {name = "os.path.join"}\n', "--trust os"),
    "observed round twice": (CELL + "rounds = 3\nobserve = [1, 1]\n", "each once"),
    "no observed round": (CELL + "observe = []\n", "each once"),
    "a head in place of a reduction": (
        CELL.replace('{name = "MaxPool", width = 4}', '{name = "LDA"}'),
        "unknown reduction 'LDA'",
    ),
    "a name that is no word": (
        CELL.replace('name = "Inference"', "name = []"),
        "game must be a table with a name",
    ),
    "a number in words": (
        CELL.replace("trees = 7", 'trees = "7"'),
        "RandomForest.trees: should be a valid integer",
    ),
    "yes for a number": (
        CELL.replace("trees = 7", "trees = true"),
        "RandomForest.trees: should be a valid integer",
    ),
    "data given by the plan": (
        CELL.replace("batch = 16", "batch = 16, data = 3"),
        "Inference has no argument 'data'",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_every_mistake_is_told_before_anything_is_computed(name):
    text, words = MISTAKES[name]
    refuses(PlanError, words, parse, text)


def test_a_chain_and_an_infinite_clip_can_be_planned():
    text = (
        CELL
        + 'defense = {name = "Chain", defenses = [{name = "DPSGD", clip = inf, noise = 0.0}, {name = "Sign"}]}\n'
    )
    cell = parse(text).cell[0]
    assert construct(cell.defense, "defense") == Chain(DPSGD(math.inf, 0.0), Sign())
    assert cell.meaning["defense"]["defenses"][0]["clip"] == "inf"
