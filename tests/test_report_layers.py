"""What page, terminal, tables and gates read of audits layer by layer: real cells, told by their kind."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest
import torch
from layer_cells import TABLE, cell, people, run

from leakscope import Dataset
from leakscope.audits.layers.found import LayersFound
from leakscope.audits.layers.kind import KIND
from leakscope.audits.layers.page.claims import judge_claims
from leakscope.audits.layers.page.maps import layer_maps
from leakscope.core.errors import ArgumentError, DataError
from leakscope.results.cell import Cell
from leakscope.results.kind import World, headline, numbers
from leakscope.results.result import find_checks

PICTURES = TABLE | {
    "model": {"name": "LeNet"}, "train": 20, "public": 20,
    "game": {
        "name": "LayerAudit", "images": 2, "shown": True, "sensitive": 2, "columns": 4,
        "reconstruct": {"name": "InvertingGradients", "label": "known", "iterations": 2},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def records():
    return people()


@pytest.fixture(scope="module")
def runs(records):
    return [run(cell(), records, seed) for seed in (0, 1)]


@pytest.fixture(scope="module")
def one(runs):
    return runs[0]


@pytest.fixture(scope="module")
def guarded(records):
    defense = {
        "name": "Chain",
        "defenses": [{"name": "Noise", "std": 0.01}, {"name": "Pruning", "rate": 0.1}],
    }
    return run(cell({"secrets": ["group"], "together": 2}, defense=defense), records)


@pytest.fixture(scope="module")
def pictured():
    x = torch.rand(60, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    return run(Cell.model_validate(PICTURES), Dataset(x, torch.arange(60) % 2, {}, name="dots"))


def moved(estimate, value, half=0.01):
    return dataclasses.replace(estimate, value=value, low=value - half, high=value + half)


def with_found(result, **changes):
    return result.model_copy(update={"found": result.found.model_copy(update=changes)})


def with_latent(result, leaks=None, *, half=0.01, chance=False, together=0.5, secret="group", **changes):
    """The same result, had one secret been found so: information by layer; ``chance``: guesses and their
    ranking show nothing."""
    (latent, *_) = result.found.latent

    def leak(old, value):
        new = {"information": moved(old.information, value, half)}
        if chance:
            new |= {"advantage": moved(old.advantage, 0.0, 0.05), "auroc": moved(old.auroc, 0.5, 0.04)}
        return old.model_copy(update=new)

    pairs = zip(latent.layers.items(), leaks or (0.6, 0.1, 0.0), strict=True)
    layers = {key: leak(old, value) for (key, old), value in pairs}
    new = {"layers": layers, "together": leak(latent.together, together), "secret": secret} | changes
    return with_found(result, latent=(latent.model_copy(update=new),))


def with_measures(result, **left):
    """The same result, had each measure of a kind left so much: (information, half, accuracy)."""
    rows = []
    for row in result.found.protection:
        key = row.measure.replace(" ", "_")
        value, half, accuracy, *gain = left.get(key, (0.5, 0.01, 0.8))
        new = {
            "information": moved(row.information, value, half),
            "advantage": moved(row.advantage, *(gain or [0.0])),
            "accuracy": moved(row.accuracy, accuracy),
            "auroc": moved(result.found.latent[0].together.auroc, 0.5),
        }
        rows.append(row.model_copy(update=new))
    return with_found(result, protection=tuple(rows))


def tell(*results):
    (verdict,) = KIND.tell(results).verdicts
    return verdict


def words(chapter):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", str(chapter.body)))


# What was found is typed, and every number of it has a row.


def test_a_limit_on_information_fails_on_every_layer_that_gives_more(one):
    leaking = with_latent(one, (0.66, 0.2, 0.0), together=0.66)
    rows = [row for row in numbers(leaking) if row.measure == "information" and row.about == "leakage"]
    low = {row.part: row.low for row in rows}
    expected = {"all layers", "layer 1, linear 10 to 6 [0]", "layer 2, linear 6 to 4 [2]"}
    assert {part for part, value in low.items() if value > 0.1} == expected
    assert {row.bound for row in rows} == {"lower"}  # which can never pass a limit
    assert {row.question for row in rows} == {"layers"}


def test_every_layer_and_secret_has_its_numbers_and_what_they_rest_on(one):
    rows = [row for row in numbers(one) if row.about == "leakage"]
    parts = ["all layers", *(f"{layer.title} [{layer.name}]" for layer in one.found.layers)]
    measures = ("advantage", "auroc", "information")
    assert [(row.secret, row.part, row.measure) for row in rows] == [
        (secret, part, measure) for secret in ("group", "coin") for part in parts for measure in measures
    ]
    for row in rows:
        assert row.attack.startswith("Family (")
        assert row.adaptive is None
        if row.measure == "advantage":
            assert (row.basis.base, row.basis.n) == (1 / 2, 150)
            assert row.basis.low(0.025) == pytest.approx(row.low)
        if row.measure == "auroc":
            assert row.basis.low(0.025) == pytest.approx(row.low)


def test_what_needs_no_attack_and_what_was_tried_have_rows_too(one):
    rows = {(row.about, row.part, row.measure): row for row in numbers(one) if row.secret != "coin"}
    assert rows["baseline", "counts of labels", "information"].value == pytest.approx(0, abs=0.05)
    for measure in ("subspace_distance", "sensitivity_F", "sensitivity_relative"):
        assert rows["diagnostic", "layer 1, linear 10 to 6 [0]", measure].value > 0
    noise = next(key for key in rows if key[0] == "protection" and key[2] == "noise_std")
    assert rows[(*noise[:2], "information")].bound == "lower"
    assert rows["diagnostic", "subspace distance", "correlation"].n == 6
    assert rows["diagnostic", "", "latent peak at the first classifier layer"].n == 2
    assert rows["utility", "", "accuracy"].guessing == one.found.utility.majority
    assert headline(one).startswith("group: ")


def test_negative_information_is_a_number_as_it_is_and_floored_where_it_is_told(one):
    below = with_latent(one, (0.6, -0.2, 0.0), together=-0.3)
    row = next(r for r in numbers(below) if r.part == "all layers" and r.measure == "information")
    assert (row.value, row.low) == (pytest.approx(-0.3), pytest.approx(-0.31))
    assert headline(below) == "group: 0.00 of 0.69 nats"
    (told,) = layer_maps([below])
    assert told.found.latent[0].together.floored == 0


def test_a_cell_says_what_it_asks_and_which_defenses_the_adversary_knows(one, guarded, pictured):
    asked = KIND.ask(one.cell)
    assert (asked.secrets, asked.protected, asked.adaptive) == (("group", "coin"), False, None)
    asked = KIND.ask(guarded.cell)
    assert [table["name"] for table in asked.shields] == ["Chain", "Noise", "Pruning"]
    assert (asked.protected, asked.adaptive) == (True, True)
    assert {row.adaptive for row in numbers(guarded)} == {True}
    assert KIND.ask(pictured.cell).secrets == ("the inputs",)


def test_self_checks_are_found_under_their_secret_and_layer(one):
    where = [name for name, _ in find_checks(one.found)]
    assert where[:5] == ["group, 0", "group, 2", "group, 4", "group, all layers", "group, counts of labels"]


@pytest.mark.parametrize(
    ("game", "changes", "error", "reason"),
    [
        ({"secrets": ["nobody"]}, {}, DataError, "nobody"),
        ({"people": "nobody"}, {}, DataError, "nobody"),
        ({"together": 4}, {}, ArgumentError, "at most the model's 3 layers"),
        ({"images": 2}, {}, ArgumentError, "needs images"),
        ({"estimator": {"name": "NearestNeighbours"}}, {"rounds": 2}, ArgumentError, "one round observed"),
        ({"others": 4_000}, {}, ArgumentError, "needs 2002 training records to mix"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_trained(
    records, game, changes, error, reason, monkeypatch
):
    monkeypatch.setattr("leakscope.audits.world.fit", lambda *_, **__: pytest.fail("trained"))
    for seed in (0, 1):
        with pytest.raises(error, match=reason):
            KIND.check(World(cell(game, **changes), seed, records))


# No false all-clear: wherever nothing is said to be found, nothing was.


def test_a_layer_behind_a_wide_interval_is_not_lost(one):
    latent = with_latent(one, (0.02, 0.03, 0.0), chance=True, together=0.0).found.latent[0]
    layers = dict(latent.layers)
    layers["2"] = layers["2"].model_copy(update={"information": moved(layers["2"].information, 0.03, 0.2)})
    verdict = tell(with_latent(one, (0.02, 0.03, 0.0), chance=True, together=0.0, layers=layers))
    assert "Layer 1, linear 10 to 6, gave away most" in verdict.sentence
    assert "layer 1, layer 2 and layer 3 overlap" in verdict.sentence
    assert verdict.severity == "slight"


def test_what_only_all_layers_together_give_away_is_said(one):
    verdict = tell(with_latent(one, (0.0, 0.0, 0.0), chance=True, together=0.3))
    assert "All layers at once do: 0.30 of 0.69 nats" in verdict.sentence
    assert verdict.leaks


def test_guesses_that_beat_chance_are_said_where_no_information_is_shown(one):
    leak = with_latent(one, (-0.1, -0.1, -0.1), together=-0.1)
    assert "But with layer 1 and all layers, guesses or their ranking beat chance" in tell(leak).sentence
    assert tell(leak).severity == "severe"
    (told,) = layer_maps([with_measures(leak, none=(0.0, 0.01, 0.8), keep_local=(0.0, 0.01, 0.8))])
    assert told.advice.needed  # though all that is sent, by itself, shows nothing


def test_an_adversary_who_only_guesses_clears_nothing(one):
    silent = with_latent(one, (0.0, 0.0, 0.0), half=0.01, chance=True, together=0.0)
    assert tell(silent).severity == "none"
    guess = with_latent(one, (0.0, 0.0, 0.0), half=0.0, chance=True, together=0.0)
    assert tell(guess).severity == "inconclusive"
    assert "the adversary found nothing to use and guessed" in tell(guess).sentence


def test_rebuilt_inputs_count_where_secrets_show_nothing(pictured):
    original = pictured.found.original
    best = original.sets[0].model_copy(update={"information": moved(original.sets[0].information, 15.0)})
    leaking = with_found(pictured, original=original.model_copy(update={"sets": (best, *original.sets[1:])}))
    assert tell(leaking).severity == "severe"
    whole = original.whole.model_copy(update={"information": moved(original.whole.information, 3.0)})
    quiet = [one.model_copy(update={"information": moved(one.information, -1.0)}) for one in original.sets]
    verdict = tell(
        with_found(pictured, original=original.model_copy(update={"sets": tuple(quiet), "whole": whole}))
    )
    assert "All layers at once do: 3.00 of 19.74 nats" in verdict.sentence
    assert verdict.severity == "substantial"


@pytest.mark.parametrize(
    "left",
    [
        (0.3, 0.01, 0.8),  # information is found
        (0.0, 0.2, 0.8),  # the interval is wide
        (-0.2, 0.01, 0.8),  # worse than a guess
        (0.0, 0.01, 0.8, 0.2),  # guesses are better than chance
    ],
)
def test_a_measure_that_is_not_shown_to_be_enough_is_not_recommended(one, left):
    result = with_measures(with_latent(one), keep_local=left, freeze=left, noise=left)
    (told,) = layer_maps([result])
    assert told.advice.recommended is None
    assert "is enough for group: the adversary still finds" in told.advice.sentences[0]
    assert "Recommended" not in KIND.tell([result]).body


def test_no_need_of_a_measure_is_said_only_where_no_view_leaks(one):
    silent = with_latent(one, (0.0, 0.0, 0.0), chance=True, together=0.0)
    (told,) = layer_maps([with_measures(silent, none=(0.0, 0.01, 0.8))])
    assert told.advice.recommended is None
    wide = any(risk.information.high >= 0.1 * told.advice.latent.most for risk in told.advice.latent.views)
    assert ("no need of a measure" in told.advice.sentences[0]) != wide
    (told,) = layer_maps([with_measures(with_latent(one), none=(0.0, 0.01, 0.8), freeze=(0.0, 0.01, 0.8))])
    assert told.advice.recommended.measure == "freeze"


def test_a_measure_that_not_every_seed_took_is_not_recommended(runs):
    first, second = (with_measures(with_latent(run), noise=(0.0, 0.01, 0.9)) for run in runs)
    other = [row for row in second.found.protection if row.measure != "noise"]
    (told,) = layer_maps([first, with_found(second, protection=tuple(other))])
    assert told.advice.recommended is None
    assert "With 1 of 2 seeds this was enough" in told.advice.sentences[0]


def test_secrets_that_no_measure_was_audited_for_are_named(one):
    note = next(note for note in tell(one).notes if note.startswith("Protection:"))
    assert "Their effect on coin is not known." in note


def test_seeds_that_failed_are_said_to_and_are_in_no_number(runs):
    broken = runs[1].model_copy(update={"found": None, "error": "DataError: no layers"})
    chapter = KIND.tell([runs[0], broken])
    (verdict,) = chapter.verdicts
    assert "Seed 1 failed and is in no number here: DataError: no layers" in verdict.notes
    assert layer_maps([runs[0], broken])[0].found == layer_maps(runs[:1])[0].found
    chapter = KIND.tell([broken])
    assert (chapter.verdicts[0].severity, chapter.verdicts[0].leaks) == ("failed", False)
    assert "is not known" in chapter.verdicts[0].sentence
    assert chapter.lead == "1 model audited layer by layer; 1 audit failed."
    assert [row.error for row in numbers(broken)] == ["DataError: no layers"]


# The order of layers, the advice, the paper's claims.


def test_a_clear_order_is_told_with_its_lead_and_an_unclear_one_is_left_open(one):
    clear = tell(with_latent(one, (0.6, 0.2, 0.1))).sentence
    assert clear.endswith("3.0 times the next layer (layer 2, linear 6 to 4).")
    assert "more than 10 times" in tell(with_latent(one, (0.6, -0.2, -0.1))).sentence
    near = tell(with_latent(one, (0.6, 0.59, 0.1))).sentence
    assert "The intervals of layer 1 and layer 2 overlap: their order is not certain" in near


def test_the_cheapest_measure_that_is_enough_is_recommended(one):
    enough = dict.fromkeys(("keep_local", "freeze"), (0.0, 0.01, 0.8))
    (told,) = layer_maps([with_measures(with_latent(one), **enough, noise=(0.0, 0.01, 0.9))])
    assert told.advice.recommended.measure == "noise"
    assert f"noise of std {told.advice.recommended.std}" in told.advice.sentences[0]
    assert "task accuracy of 90.0% instead of 80.0%" in told.advice.sentences[0]
    (told,) = layer_maps([with_measures(with_latent(one), **enough)])
    fewest = min(row.parameters for row in told.advice.tried)
    assert told.advice.recommended.parameters == fewest


def test_seeds_are_averaged_and_their_spread_is_the_interval(runs):
    pair = [with_latent(run, (value, 0.1, -0.1)) for run, value in zip(runs, (0.2, 0.3), strict=True)]
    (told,) = layer_maps(pair)
    leak = told.found.latent[0].layers["layer 1"].information
    half = 12.706204736174698 * math.sqrt(0.005) / math.sqrt(2)  # Student's t, one degree of freedom
    assert (leak.value, leak.low, leak.high) == pytest.approx((0.25, 0.25 - half, 0.25 + half))
    assert told.found.latent[0].layers["layer 3"].information.value == pytest.approx(-0.1)  # not cut at 0
    p = [run.found.latent[0].subspace["0"].p for run in runs]
    assert told.found.latent[0].subspace["layer 1"].p == max(p)


@pytest.mark.parametrize(
    ("leaks", "verdict"),
    [
        ((0.6, 0.1, 0.1), "holds"),
        ((0.6, 0.595, 0.1), "not known"),
        ((0.59, 0.6, 0.1), "not known"),
        ((0.1, 0.6, 0.1), "does not hold"),
        ((0.0, -0.1, -0.1), "not known"),
    ],
)
def test_the_first_fully_connected_layer_must_be_clear_of_all_others(one, leaks, verdict):
    (told,) = layer_maps([with_latent(one, leaks)])
    assert judge_claims(told.found)[1].verdict == verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.1, 0.9, "holds"),
        (-0.1, 0.9, "not known"),
        (0.1, 0.68, "does not hold"),
        (0.8, 0.9, "holds"),
    ],
)
def test_a_correlation_holds_if_it_is_above_zero_and_reaches_the_published(one, low, high, verdict):
    row = next(row for row in one.found.correlations if row.measure == "subspace distance")
    changed = with_found(one, correlations=(row.model_copy(update={"low": low, "high": high}),))
    assert judge_claims(layer_maps([changed])[0].found)[4].verdict == verdict


def test_the_paper_s_other_claims_are_judged_by_intervals(one, pictured):
    (told,) = layer_maps([pictured])
    assert judge_claims(told.found)[0].numbers.startswith("Highest: layers ")
    distance = one.found.latent[0].subspace["0"]
    for p, verdict in ((0.01, "holds"), (0.05, "does not hold")):
        changed = with_latent(one, subspace={"0": distance.model_copy(update={"p": p})})
        assert judge_claims(layer_maps([changed])[0].found)[2].verdict == verdict


def test_no_distance_is_part_of_any_order_of_layers(one):
    distance = one.found.latent[0].subspace["0"]
    huge = distance.model_copy(update={"distance": moved(distance.distance, 99.0)})
    before, after = with_latent(one), with_latent(one, subspace={"4": huge})
    assert tell(before).sentence == tell(after).sentence


# The page.


def test_labels_that_tell_by_themselves_and_a_weak_adversary_are_said(one):
    labels = one.found.latent[0].labels
    loud = labels.model_copy(update={"information": moved(labels.information, 0.1)})
    text = words(KIND.tell([with_latent(one, labels=loud)]))
    assert "labels alone give 0.100 nats (0.090 to 0.110), without any gradient" in text
    assert "All layers at once gave less than one alone about group" in text
    assert "gave less than one alone" not in words(KIND.tell([with_latent(one, together=0.65)]))


def test_layers_looked_at_together_go_by_their_places(guarded):
    assert list(guarded.found.latent[0].layers) == ["0+2", "2+4"]
    (told,) = layer_maps([guarded])
    assert {"layers 1 + 2": (0, 1), "layers 2 + 3": (1, 2)}.items() <= told.found.spans.items()
    assert "Chain (defenses Noise (std 0.01) + Pruning (rate 0.1))" in words(KIND.tell([guarded]))
    assert "No measure was tried." in words(KIND.tell([guarded]))
    assert judge_claims(told.found)[1].numbers == "Not measured by itself."


def test_pictures_come_with_a_warning_and_only_if_they_are_there(pictured):
    chapter = KIND.tell([pictured])
    assert chapter.body.count('<img class="private"') == 2 * len(pictured.found.pictures)
    assert "Private data." in words(chapter)
    assert "<img" not in KIND.tell([with_found(pictured, pictures=())]).body
    forged = pictured.found.model_dump()
    forged["pictures"][0]["original"] = '" onerror="alert(1)'
    with pytest.raises(ValueError, match="pattern"):
        LayersFound.model_validate(forged)


def test_cells_that_differ_are_told_apart_in_the_same_order_whatever_comes_first(runs, guarded):
    other = runs[0].model_copy(update={"cell": cell({"batch": 8}), "key": "other"})
    results = [*runs, other, guarded]
    chapter = KIND.tell(results)
    assert chapter == KIND.tell(results[::-1])
    assert chapter.settings == len({verdict.anchor for verdict in chapter.verdicts}) == 3
    sentences = " ".join(verdict.sentence for verdict in chapter.verdicts)
    assert "game batch 4" in sentences
    assert "game batch 8" in sentences
