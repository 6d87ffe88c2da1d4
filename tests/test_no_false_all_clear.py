"""Every way to say that nothing leaks, and for each a case in which that would be wrong and is not said."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil

import builders
import numpy as np
import pandas as pd
import pytest
import tomli_w
import torch
from builders import FORMAT1, golden, refuses
from builders import fail as lost
from fuzzing import files
from markupsafe import Markup
from test_gate import FAIL, OPEN, PASS, SIGN, appetite, code, declare, game, limit, real, transcript

import leakscope as ls
from leakscope.audits.inference.bounds import bound_releases
from leakscope.audits.inference.found import Guarantee
from leakscope.audits.inference.settings import average_setting, draw_frontier, group_settings
from leakscope.audits.membership.seeds import watches
from leakscope.audits.membership.view import ClientReading as Membership
from leakscope.core.catalogue import KINDS, roles
from leakscope.core.errors import PlanError, StoreError
from leakscope.measures.accounting import account_shown, account_training
from leakscope.measures.information import mutual_information
from leakscope.measures.shuffled import SelfCheck
from leakscope.measures.success import proportion
from leakscope.report import overview, page
from leakscope.report.report import read_report
from leakscope.results import gate, number, store
from leakscope.results.averages import Average
from leakscope.results.cell import plan_of, words
from leakscope.results.chapter import LEAKS, read_severity
from leakscope.results.compare import compare
from leakscope.results.kind import chapters, numbers
from leakscope.run import experiment, measured, progress, published, search, sweep, tuning

NOISY = {
    "flower": {"name": "FlowerLocalDp", "clip": 1.0, "sensitivity": 1.0, "epsilon": 5.0, "delta": 1e-5},
    "svt": {"name": "SVTPrivacy"},
    "laplace": {"name": "LaplaceNoise", "std": 0.1},
    "chain": {"name": "Chain", "defenses": [{"name": "Pruning", "rate": 0.5}, {"name": "Noise", "std": 0.1}]},
    "within": {"name": "Within", "defense": {"name": "Noise", "std": 0.1}, "layers": ["0.weight"]},
}
QUIET = {"pruning": {"name": "Pruning", "rate": 0.5}, "sign": SIGN}
PRUNED = QUIET["pruning"]
DP = {"name": "DPSGD", "clip": 2.0, "noise": 1.5}


def chapter(*results):
    (told,) = chapters(results)
    return told


def shown(*results):
    return Markup(chapter(*results).body).striptags()


def change(result, **found):
    return result.model_copy(update={"found": result.found.model_copy(update=found)})


def ranked(share=0.8, **options):
    """An adversary who says "0" every time, right less often than guessing, and yet ranks: AUROC ``share``."""
    played = transcript(0, 2000, ranked=share)
    return game(played=dataclasses.replace(played, prior=torch.tensor([0.6, 0.4]).double()), **options)


def eps(**more):
    return limit(**{"measure": "epsilon", "at_most": 1.0} | more)


# Noise


def test_a_declared_epsilon_does_not_pass_a_defense_that_has_none():
    one = builders.game(rate=0.5, defense={"name": "Pruning", "rate": 0.9})
    wanted = appetite(eps(secret="sex", at_most=3.0, releases="training"), declared=declare(1.0))
    assert gate.judge(wanted, [one]).combined == "not enough evidence"


def test_an_attack_that_is_worse_than_guessing_passes_nothing():
    """Its ranking may be at chance: that its guesses are bad says nothing of better ones."""
    one = builders.game(rate=0.55, n=2_000, prior=0.25)
    assert one.found.scores.success.high < one.found.guessing
    limit = '[[limit]]\nsecret="sex"\nmeasure="advantage"\nat_most=0.5\n'
    assert gate.judge(gate.parse(limit), [one]).combined == "not enough evidence"
    assert average_setting([one]).severity != "none"


def test_whatever_releases_something_else_each_time_says_that_it_adds_noise():
    layers = {"first": torch.linspace(-2, 2, 60).view(2, 30), "second": torch.ones(2, 5)}
    random = set()
    for name in roles("defense"):
        made = ls.Within(ls.Noise(0.1), ("second",)) if name == "Within" else getattr(ls, name)()
        made = ls.Chain(ls.Sign(), ls.LaplaceNoise(0.1)) if name == "Chain" else made
        sent = [made.release(layers, None, torch.Generator().manual_seed(s), batch=4) for s in (0, 1)]
        if any(not torch.equal(sent[0][key], sent[1][key]) for key in layers):
            random.add(name)
            assert made.adds_noise, name
    assert random >= {"FlowerLocalDp", "SVTPrivacy", "LaplaceNoise", "Noise", "DPSGD", "Chain", "Within"}


@pytest.mark.parametrize("name", [*NOISY, *QUIET])
def test_the_page_says_that_a_defense_adds_no_noise_of_those_that_add_none(name):
    one = experiment.run(builders.cell("game", defense=(NOISY | QUIET)[name], rounds=1), 0)
    assert one.found.bounds.noise == (name in NOISY)
    assert ("adds no noise" in shown(one)) == (name in QUIET)


# Epsilons


@pytest.fixture(scope="module")
def trained():
    """Ten rounds of the same batch of 16, of a training of 20,000 records in batches of 64."""
    defense = ls.DPSGD(2.0, 1.5)
    promise = Guarantee(
        shown=account_shown(defense.mechanism(16, 50), releases=10, batch=16),
        training=account_training(defense, records=20_000, batch=64, rounds=10, entries=50),
    )
    return game(1000, 2000, defense=DP, guarantee=promise)


def test_a_real_cell_accounts_for_what_it_showed():
    cell = builders.cell("game", defense=DP, rounds=10, game=builders.KINDS["game"]["game"] | {"batch": 16})
    promise = experiment.run(cell, 0).found.guarantee
    assert (promise.shown.releases, promise.shown.batch, promise.shown.sampling) == (10, 16, 1.0)
    assert promise.shown.added == pytest.approx(4.65, rel=5e-3)
    assert promise.shown.replaced == pytest.approx(10.7, rel=5e-3)
    assert promise.training.covers == "training"


def test_an_epsilon_passes_only_if_it_covers_the_releases_asked_about(trained):
    promise = trained.found.guarantee
    assert promise.training.replaced < 0.2 < 4 < promise.shown.added < promise.shown.replaced
    told = gate.judge(appetite(eps()), [trained])
    assert told.exit_code == OPEN
    assert told.limits[0].decisive.promised == promise.shown.replaced
    # its batches were shuffled, and the figure is for drawn ones: ten unsampled rounds have 4.6
    assert code(appetite(eps(releases="training")), trained) == OPEN
    declared = declare(0.2)
    assert code(appetite(eps(releases="training"), declared=declared), trained) == PASS
    assert code(appetite(eps(at_most=promise.shown.replaced)), trained) == PASS
    assert code(appetite(eps(), declared=declared), trained) == OPEN
    alone = change(trained, guarantee=Guarantee(training=promise.training))
    assert code(appetite(eps()), alone) == OPEN
    assert code(appetite(eps(), declared=declared), alone) == OPEN
    assert code(appetite(eps(releases="training"), declared=declare(1.5)), trained) == OPEN


def test_an_epsilon_holds_for_its_own_neighbours_and_delta(trained):
    promise = trained.found.guarantee.shown
    between = (promise.added + promise.replaced) / 2
    assert code(appetite(eps(at_most=between)), trained) == OPEN
    assert code(appetite(eps(at_most=between, neighbours="add or remove")), trained) == PASS
    most = eps(at_most=promise.replaced + 1)
    assert code(appetite(most | {"delta": 1e-4}), trained) == PASS
    assert code(appetite(most | {"delta": 1e-6}), trained) == OPEN


def test_noise_on_a_mean_on_one_layer_or_in_one_step_promises_nothing(trained, channel):
    promise = trained.found.guarantee.shown
    mean = change(trained, guarantee=Guarantee(shown=dataclasses.replace(promise, unit="mean")))
    for releases in ("shown", "training"):
        assert code(appetite(eps(at_most=100.0, releases=releases)), mean) == OPEN
    assert ls.Within(ls.DPSGD(2.0, 1.5), ("first",)).mechanism(16, 50) is None
    one = golden("mechanism")[0]  # of one step
    step = eps(secret=one.found.attribute, at_most=one.found.exact + 1)
    for releases in ("shown", "training"):
        assert code(appetite(step | {"releases": releases}), one) == OPEN
    played = transcript(500, 1000)
    full, part = (
        dataclasses.replace(channel, fitted=(ls.DPSGD(1.0, 50.0), last))
        for last in (ls.DPSGD(1.0, 50.0), ls.Defense())
    )
    assert bound_releases(played, full, 8).advantage < 1
    assert bound_releases(played, part, 8).advantage is None


def test_a_promise_below_what_trials_certify_or_one_step_has_passes_nothing():
    one = next(r for r in golden("mechanism") if r.found.sure.low > 0)
    wanted = eps(secret="sex", at_most=50.0, releases="training")
    exact, low = one.found.exact, one.found.certified.low
    for epsilon, expected in ((exact + 1, PASS), (exact - 1, OPEN), (low - 0.01, OPEN)):
        assert code(appetite(wanted, declared=declare(epsilon)), one) == expected
    assert code(appetite(wanted | {"at_most": low / 2}, declared=declare(0.01)), one) == FAIL
    bare = game(1000, 2000)
    assert code(appetite(eps(releases="training"), declared=declare(0.1)), bare) == OPEN
    assert code(appetite(eps(at_most=0.5, secret="race")), golden("mechanism")[1]) == OPEN


def test_nothing_certified_is_no_all_clear():
    one = next(r for r in golden("mechanism") if r.found.certified.low == 0)
    (verdict,) = chapter(one).verdicts
    assert verdict.severity == "inconclusive"
    assert "does not show that the step is private" in verdict.sentence


# Information


def test_information_fails_or_stays_open_unless_an_upper_bound_covers_what_was_shown():
    wrong = change(game(1000, 2000), scores=ranked().found.scores)
    sure = transcript(1700, 2000)
    sharp = torch.where(sure.guesses > 0.5, 1 - 1e-9, 1e-9).double()
    negative = mutual_information(dataclasses.replace(sure, guesses=sharp))
    assert negative.basis.high(0.05) < 0  # by the log loss, though 85% are right
    assert negative.low > 0.2  # by Fano at that success
    scores = game(1700, 2000).found.scores.model_copy(update={"information": negative})
    assert code(appetite(limit(measure="information", at_most=0.05)), change(wrong, scores=scores)) == FAIL
    for at_most in (0.0, 0.05, 5.0):
        for one in (game(1000, 2000), game(1010, 2000)):
            assert code(appetite(limit(measure="information", at_most=at_most)), one) == OPEN
    assert code(appetite(limit(measure="information")), game(2000, 2000)) == FAIL
    bounds = real().found.bounds.model_copy(update={"information": 0.04})
    covered = game(1000, 2000, defense=DP, bounds=bounds)
    assert code(appetite(limit(measure="information", at_most=0.05)), covered) == PASS
    assert code(appetite(limit(measure="information", at_most=0.03)), covered) == OPEN


# Rankings, and what is no number


def test_a_ranking_that_tells_passes_no_limit_on_guesses_and_says_why():
    one = ranked()
    scores = one.found.scores
    assert scores.success.value < one.found.guessing
    assert scores.auroc.value == pytest.approx(0.8, abs=0.03)
    told = gate.judge(appetite(limit()), [one])
    assert told.exit_code == OPEN
    assert "ranking" in told.limits[0].decisive.reason
    assert code(appetite(limit(measure="success", at_most=0.9)), one) == OPEN
    assert code(appetite(limit(measure="auroc", at_most=0.9)), one) == PASS  # that much was allowed
    assert code(appetite(limit(measure="auroc", at_most=0.7)), one) == FAIL
    (verdict,) = chapter(one).verdicts
    assert verdict.severity == "ranking"
    assert verdict.leaks
    assert any("ranking" in note for note in verdict.notes)


def test_a_result_whose_self_check_failed_passes_nothing():
    one = builders.game(rate=0.5, n=4_000)
    sound = SelfCheck("advantage", shuffles=100, alarms=2, expected=2.5, largest=0.01, p=0.5, passed=True)
    wrong = dataclasses.replace(sound, alarms=60, p=1e-9, passed=False)
    assert code(appetite(limit(secret="sex", at_most=0.5)), change(one, selfcheck=sound)) == PASS
    told = gate.judge(appetite(limit(secret="sex", at_most=0.5)), [change(one, selfcheck=wrong)])
    assert told.exit_code == OPEN
    assert "self-check" in told.limits[0].decisive.reason
    leak = change(builders.game(rate=0.99), selfcheck=wrong)
    assert code(appetite(limit(secret="sex", at_most=0.5)), leak) == FAIL


def test_an_attack_heard_only_on_what_it_had_learned_from_passes_nothing():
    one, wanted = builders.game(rate=0.5, n=4_000), appetite(limit(secret="sex", at_most=0.5))
    assert code(wanted, one) == PASS
    told = gate.judge(wanted, [change(one, apart=False)])
    assert told.exit_code == OPEN
    assert "learned from" in told.limits[0].decisive.reason
    assert code(wanted, change(builders.game(rate=0.99), apart=False)) == FAIL


def test_a_defense_without_the_measure_is_not_passed_by_another_that_has_it():
    measured = builders.game(rate=0.5, n=4_000)
    other = builders.game(rate=0.5, n=4_000, defense={"name": "Sign"})
    silent = change(other, scores=other.found.scores.model_copy(update={"tpr_at_1": None}))
    wanted = limit(secret="sex", measure="tpr_at_1%", at_most=0.5)
    assert code(appetite(wanted), measured) == PASS
    assert code(appetite(wanted), measured, silent) == OPEN


def test_a_ranking_turned_round_gives_as_much_away():
    one = ranked(0.2)
    assert one.found.scores.auroc.high < 0.3
    assert code(appetite(limit()), one) == OPEN
    assert code(appetite(limit(measure="auroc", at_most=0.6)), one) == OPEN
    assert code(appetite(limit(measure="auroc", at_most=0.9)), one) == PASS
    assert code(appetite(limit(measure="tpr_at_1%", at_most=0.5)), one) == OPEN
    assert chapter(one).verdicts[0].severity == "inconclusive"
    nothing, low = (
        Average(v, a, b, 0.95, 500, 1, None, "exact") for v, a, b in ((0.01, 0.0, 0.02), (0.3, 0.2, 0.4))
    )
    assert Membership("A", False, nothing, low, False, True, True).severity == "inconclusive"
    assert read_severity(dataclasses.replace(nothing, low=0.0), low) == "inconclusive"


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [(0.47, 0.54, "none"), (0.44, 0.62, "inconclusive"), (0.38, 0.53, "inconclusive")],
)
def test_a_ranking_that_is_not_known_is_no_all_clear(low, high, word):
    """Of a value that one in twenty has, no guess beats the usual one: its ranking must be known too."""
    nothing, ranking = (
        Average(v, a, b, 0.95, 500, 1, None, "exact") for v, a, b in ((0.0, -0.01, 0.01), (0.5, low, high))
    )
    assert read_severity(nothing, ranking) == word


@pytest.mark.parametrize("known", [[], ["race"]])
def test_side_knowledge_does_not_hide_a_ranking(known):
    """Who knows something of each record ranks by that too: it is no evidence of a leak, and no all-clear."""
    one = game(1000, 2000)
    gain, area = one.found.scores.advantage, one.found.scores.auroc
    told = one.cell.model_copy(update={"game": {**one.cell.game, **({"known": known} if known else {})}})
    words = []
    for ranking in ((0.5, 0.48, 0.52), (0.85, 0.82, 0.88)):
        value, low, high = ranking
        scores = one.found.scores.model_copy(
            update={
                "advantage": dataclasses.replace(gain, value=0.0, low=-0.02, high=0.02),
                "auroc": dataclasses.replace(area, value=value, low=low, high=high),
            }
        )
        (group,) = group_settings([change(one, scores=scores).model_copy(update={"cell": told})])
        words.append(group.worst.severity)
    assert words == ["none", "inconclusive" if known else "ranking"]


def test_what_is_no_number_passes_nothing():
    one = game(1000, 2000)
    gain, area = one.found.scores.advantage, one.found.scores.auroc
    broken = dataclasses.replace(gain, value=math.nan, low=math.nan, high=math.nan, basis=None)
    odd = dataclasses.replace(area.basis, value=math.nan)
    scores = one.found.scores.model_copy(
        update={"advantage": broken, "auroc": dataclasses.replace(area, basis=odd)}
    )
    for measure in ("advantage", "auroc"):
        assert code(appetite(limit(measure=measure, at_most=1.0)), change(one, scores=scores)) == OPEN
    (group,) = group_settings([change(one, scores=scores)])
    assert group.worst.severity != "none"


# The frontier of defenses


def frontier(*results):
    (group,) = group_settings(results)
    return draw_frontier(group)


LEAKING, SAFE = {"hits": 1900, "n": 2000}, {"hits": 1000, "n": 2000}


def test_a_defense_is_said_to_hold_against_every_attack_that_was_tried_on_it():
    free, held = game(**LEAKING), game(**SAFE, defense=PRUNED)
    found = frontier(free, held)
    assert [mark.row.defense for mark in found.holding] == [words(PRUNED)]
    assert not found.needless
    assert "1 keeps the advantage" in shown(free, held)

    def other(result):  # another attack on the same victim
        return result.model_copy(
            update={"cell": result.cell.model_copy(update={"attack": {"name": "Prototype"}})}
        )

    for spoiler in (
        ranked(defense=PRUNED),
        ranked(0.2, defense=PRUNED),
        game(**LEAKING, defense=PRUNED),
        game(**LEAKING, defense=PRUNED, adaptive=False),
        game(26, 50, defense=PRUNED),
        lost(held),
    ):
        assert not frontier(free, held, other(spoiler)).holding
        assert "keeps the advantage at" not in shown(free, held, other(spoiler))
    assert not frontier(free, held, lost(game(seed=1, defense=PRUNED))).holding
    static = frontier(free, game(**SAFE, defense=PRUNED, adaptive=False))
    assert not static.tried
    assert not static.holding


def test_no_defense_is_needless_only_where_nothing_leaks_without_it():
    held = game(**SAFE, defense=PRUNED)
    assert frontier(game(**SAFE), held).needless
    for free in ([game(**LEAKING)], [ranked()], [game(26, 50)], [game(**SAFE), lost(game(seed=1))]):
        assert not frontier(*free, held).needless
        assert "Without any defense the advantage already" not in shown(*free, held)


def test_a_static_adversary_alone_and_a_seed_that_failed_are_told_of():
    (verdict,) = chapter(game(**SAFE, defense=PRUNED, adaptive=False)).verdicts
    assert any("who knows the defense may do better" in note for note in verdict.notes)
    (verdict,) = chapter(game(**SAFE), lost(game(seed=1))).verdicts
    assert any("Seed 1 failed" in note for note in verdict.notes)
    (verdict,) = chapter(game(**SAFE), lost(game(defense=PRUNED))).verdicts
    assert any("1 more setting failed" in note for note in verdict.notes)
    assert chapter(lost(game())).verdicts[0].severity == "failed"
    assert chapter(game(26, 50)).verdicts[0].severity == "inconclusive"
    assert chapter(game(**SAFE)).verdicts[0].severity == "none"


# Comparisons and summaries


def test_guesses_that_say_nothing_compare_nothing():
    better = compare([game(1400, 2000)], [game(**SAFE)])
    assert [one.reading for one in better.headlines] == ["less"]
    for worse in (ranked(0.95), ranked(0.99)):
        (one,) = compare([game(1400, 2000)], [worse]).headlines
        assert (one.measure, one.reading) == ("auroc", "more")
    (lone,) = compare([game(1400, 2000)], [lost(game())]).pairs
    assert not lone.differences
    assert lone.failed == (0, 1)


def write_folder(place, *results, seeds=(0,), document=None):
    document = document or {
        "seeds": [*seeds],
        "defaults": builders.DEFAULTS,
        "cell": [builders.KINDS["game"]],
    }
    text = tomli_w.dumps(document)
    store.claim(place, text, plan_of(text).digest)
    for result in results:
        store.save(place, result)
    return place


def test_a_summary_says_what_failed_and_what_was_not_run(tmp_path):
    folder = write_folder(tmp_path / "run", game(**SAFE), lost(game(seed=1)), seeds=(0, 1, 2))
    (folder / "appetite.toml").write_text(tomli_w.dumps({"limit": [limit()]}))
    (run,), bad = overview.read_runs([folder], page=tmp_path / "summary.html")
    assert not bad
    assert (run.failed, run.missing, run.gate) == (1, 1, "not enough evidence")
    (row,) = overview.rows([run])
    assert "1 of 3 failed" in row[2]
    assert "1 of 3 not run" in row[2]
    html = Markup(overview.render([run], [])).striptags()
    assert "1 failed" in html
    assert "1 not run" in html
    assert "2 of 3" in Markup(page.write(folder).read_text()).striptags()


# Layers, members and guards


def test_the_gate_fails_on_layers_by_information_and_by_one_layer_alone():
    silent = next(one for one in golden("layers") if one.cell.id == "noise")
    silent = change(silent, utility=game().found.utility)
    scores = game(1000, 2000).found.scores
    flat = {"advantage": scores.advantage, "auroc": scores.auroc}
    (latent,) = silent.found.latent
    name = next(iter(latent.layers))
    views = {key: leak.model_copy(update=flat) for key, leak in latent.layers.items()}
    leaking = views | {
        name: views[name].model_copy(update={"advantage": game(1900, 2000).found.scores.advantage})
    }
    together = latent.together.model_copy(update=flat)
    certain = transcript(2000, 2000)
    certain = dataclasses.replace(certain, guesses=torch.where(certain.guesses > 0.5, 0.97, 0.03).double())
    nats = mutual_information(certain)
    assert nats.value > 0.6
    told = latent.model_copy(update={"together": together.model_copy(update={"information": nats})})
    wanted = appetite(limit(game="layers", measure="information"))
    assert code(wanted, change(silent, latent=(told,))) == FAIL
    assert code(wanted, silent) == OPEN
    for layers, expected in ((views, PASS), (leaking, FAIL)):
        one = change(silent, latent=(latent.model_copy(update={"layers": layers, "together": together}),))
        judged = gate.judge(appetite(limit(game="layers"), code="any"), [one])
        assert judged.exit_code == expected
        assert (name in judged.limits[0].decisive.reading.attack) == (expected == FAIL)


def test_no_table_names_an_attack_that_was_not_used():
    for one in golden("layers"):
        used = {row.attack for row in numbers(one)}
        assert words(one.cell.attack) not in used
        rows = number.as_csv(numbers(one)).splitlines()
        assert not any(f",{words(one.cell.attack)}," in row for row in rows)


def test_a_game_of_several_attacks_names_the_one_that_was_played():
    parts = [{"name": "Joint", "components": 5}, {"name": "Posterior", "head": {"name": "LDA"}}]
    attack = {"name": "Strongest", "by": "loss", "rehearsals": 200, "attacks": parts}
    result = experiment.run(builders.cell("game", attack=attack, rehearsals=200), 0)
    assert not result.error
    played = result.found
    assert [one.attack for one in played.tried] == [words(part) for part in parts]
    assert played.attack in {one.attack for one in played.tried}
    assert {row.attack for row in numbers(result) if row.about == "leakage"} == {played.attack}
    (verdict,) = chapter(result).verdicts
    assert verdict.attack == played.attack


def test_a_layer_that_ranks_and_an_adversary_who_only_guesses_are_no_all_clear():
    one = next(
        r for r in golden("layers") if r.found.protection and r.found.latent[0].together.advantage.low == 0
    )
    (latent,) = one.found.latent
    scores = game(1000, 2000).found.scores
    flat = {"advantage": scores.advantage, "auroc": scores.auroc}
    zero = dataclasses.replace(scores.information, value=0.0, low=0.0, high=0.01)
    quiet = {key: leak.model_copy(update=flat | {"information": zero}) for key, leak in latent.layers.items()}
    together = latent.together.model_copy(update=flat | {"information": zero})
    clear = latent.model_copy(update={"layers": quiet, "together": together})
    rows = tuple(
        row.model_copy(update={"information": zero, "advantage": scores.advantage, "auroc": scores.auroc})
        for row in one.found.protection
    )
    need = "found no need of a measure"
    found = change(one, latent=(clear,), protection=rows)
    assert chapter(found).verdicts[0].severity == "none"
    assert need in shown(found)
    ranking = ranked().found.scores.auroc
    name = next(iter(quiet))
    telling = clear.model_copy(
        update={"layers": quiet | {name: quiet[name].model_copy(update={"auroc": ranking})}}
    )
    assert chapter(change(found, latent=(telling,))).verdicts[0].severity == "ranking"
    assert need not in shown(change(found, latent=(telling,)))
    ranks = tuple(row.model_copy(update={"auroc": ranking}) for row in rows)
    assert need not in shown(change(found, protection=ranks))
    assert "is enough for group: the adversary still finds" in shown(change(found, protection=ranks))
    unranked = change(found, protection=tuple(row.model_copy(update={"auroc": None}) for row in rows))
    assert need not in shown(unranked)
    assert "the ranking was not measured" in shown(unranked)
    guess = dataclasses.replace(zero, high=0.0)
    guessed = clear.model_copy(update={
        "layers": {key: leak.model_copy(update={"information": guess}) for key, leak in quiet.items()},
        "together": together.model_copy(update={"information": guess}),
    })  # fmt: skip
    assert chapter(change(found, latent=(guessed,))).verdicts[0].severity == "inconclusive"


def test_inputs_that_are_recovered_or_look_like_themselves_are_no_all_clear():
    one = next(r for r in golden("layers") if r.found.original)
    original = one.found.original
    nothing = dataclasses.replace(original.whole.information, value=0.0, low=0.0, high=0.01 * original.most)
    none = proportion("recovered", 0, 1000)
    like = dataclasses.replace(original.whole.ssim, value=0.0, low=-0.1, high=original.trivial_ssim)
    flat = {"information": nothing, "recovered": none, "ssim": like}

    def read(**changes):
        views = [view.model_copy(update=flat) for view in original.sets]
        views[0] = views[0].model_copy(update=changes)
        whole = original.whole.model_copy(update=flat)
        rebuilt = original.model_copy(update={"sets": tuple(views), "whole": whole})
        return chapter(change(one, original=rebuilt, latent=(), protection=(), trend={})).verdicts[0].severity

    assert read() == "none"
    assert read(recovered=proportion("recovered", 600, 1000)) == "severe"
    assert read(recovered=proportion("recovered", 0, 5)) == "inconclusive"
    better = dataclasses.replace(like, value=0.9, low=original.trivial_ssim + 0.01, high=1.0)
    assert read(ssim=better) == "slight"


def test_a_federation_whose_model_was_not_looked_at_is_no_all_clear():
    one = next(r for r in golden("membership") if r.found and r.found.utility.trained)

    def read(result):
        ((federation,),) = (watch.federations for watch in watches([result]))
        return federation

    assert not any("not known" in doubt for doubt in read(one).doubts)
    blind = read(change(one, utility=one.found.utility.model_copy(update={"trained": None})))
    assert any("not known" in doubt for doubt in blind.doubts)
    assert not any(attack.sound for attack in blind.attacks)


def test_a_guard_is_called_clear_only_if_no_adversary_that_was_measured_finds_anything():
    one = next(r for r in golden("guards") if r.cell.id == "sex" and r.found.judged[0].stale)
    (judged,) = one.found.judged
    nothing, all_ = game(1000, 2000).found.scores, game(1900, 2000).found.scores
    even = {"scores": nothing, "guessing": 0.5}
    flat = [attack.model_copy(update=even) for attack in judged.attacks]
    stale = judged.stale.model_copy(update=even)

    def guarded(attacks, stale):
        return change(one, judged=(judged.model_copy(update={"attacks": tuple(attacks), "stale": stale}),))

    wanted = limit(secret="sex", game="guard")
    clear = guarded(flat, stale)
    assert chapter(clear).verdicts[0].severity == "inconclusive"  # nobody tried labels and more releases
    assert "Only single releases were attacked" in " ".join(chapter(clear).verdicts[0].notes)
    assert code(appetite(wanted), clear) == OPEN  # of an earlier version
    assert code(appetite(wanted, code="any"), clear) == OPEN
    for i, attack in enumerate(flat):
        others = [*flat[:i], attack.model_copy(update={"scores": all_}), *flat[i + 1 :]]
        assert chapter(guarded(others, stale)).verdicts[0].severity in LEAKS
        assert code(appetite(wanted), guarded(others, stale)) == FAIL
    leaking = guarded(flat, stale.model_copy(update={"scores": all_}))
    assert code(appetite(wanted), leaking) == FAIL
    assert chapter(lost(one)).verdicts[0].severity == "failed"


def keep_more_than(majority, judged):
    """A guard's task beside a constant that is right so often."""
    task = judged.utility.task.model_copy(update={"majority": majority})
    return {"utility": judged.utility.model_copy(update={"task": task})}


def silence(judged, even):
    """Attacks on one release that find nothing behind a guard that keeps its task."""
    attacks = tuple(attack.model_copy(update=even) for attack in judged.attacks)
    stale = judged.stale and judged.stale.model_copy(update=even)
    return {"attacks": attacks, "single": (), "stale": stale} | keep_more_than(0.0, judged)


def test_a_guard_passes_only_if_no_row_of_what_is_held_beside_one_release_leaks():
    rows = builders.measure("guard")
    (judged,) = rows.found.judged
    assert {row.holding for row in judged.rows} >= {"nothing", "once", "beside", "changed"}
    nothing, all_ = game(1000, 2000).found.scores, game(1900, 2000).found.scores
    even = {"scores": nothing, "guessing": 0.5}
    flat = [row.model_copy(update={"attack": row.attack.model_copy(update=even)}) for row in judged.rows]
    quiet = silence(judged, even)

    def held(each):
        return change(rows, judged=(judged.model_copy(update=quiet | {"rows": tuple(each)}),))

    wanted = appetite(limit(secret=judged.title, game="guard"))
    assert chapter(held(flat)).verdicts[0].severity == "none"
    assert code(wanted, held(flat)) == PASS
    assert code(wanted, held([])) == OPEN
    assert chapter(held([])).verdicts[0].severity == "inconclusive"
    for i, row in enumerate(flat):
        loud = row.model_copy(update={"attack": row.attack.model_copy(update={"scores": all_})})
        found = held([*flat[:i], loud, *flat[i + 1 :]])
        if row.holding == "nothing":  # what a label tells alone it tells without a guard too
            assert code(wanted, found) == PASS
        else:
            assert code(wanted, found) == FAIL
        if row.usual and row.holding != "nothing":
            assert chapter(found).verdicts[0].severity in LEAKS
            if row.labelled and row.holding != "once":
                assert any(f"holds {row.title}: " in note for note in chapter(found).verdicts[0].notes)


def test_a_guard_that_keeps_none_of_the_task_passes_nothing():
    """What says nothing of anything says nothing of a secret."""
    result = builders.measure("guard")
    (judged,) = result.found.judged
    even = {"scores": game(1000, 2000).found.scores, "guessing": 0.5}
    quiet = silence(judged, even)
    quiet["rows"] = tuple(
        row.model_copy(update={"attack": row.attack.model_copy(update=even)}) for row in judged.rows
    )
    verdicts = {}
    for majority in (0.0, 1.0):
        quiet |= keep_more_than(majority, judged)
        found = change(result, judged=(judged.model_copy(update=quiet),))
        told = chapter(found)
        wanted = appetite(limit(secret=judged.title, game="guard"))
        verdicts[majority] = told.verdicts[0].severity, code(wanted, found), " ".join(told.verdicts[0].notes)
    assert verdicts[0.0][:2] == ("none", PASS)
    assert verdicts[1.0][:2] == ("inconclusive", OPEN)
    assert "no better than by always saying" in verdicts[1.0][2]


def test_a_guard_of_which_one_row_tells_too_little_is_not_called_quiet():
    """Twelve trials of a row show nothing, and would have shown nothing of a secret that is there."""
    result = builders.measure("guard")
    (judged,) = result.found.judged
    nothing, few = game(1000, 2000).found.scores, game(6, 12).found.scores
    even, vague = ({"scores": scores, "guessing": 0.5} for scores in (nothing, few))
    flat = [row.model_copy(update={"attack": row.attack.model_copy(update=even)}) for row in judged.rows]
    quiet = silence(judged, even)

    def say(each):
        told = chapter(change(result, judged=(judged.model_copy(update=quiet | {"rows": tuple(each)}),)))
        return told.verdicts[0].severity, " ".join(told.brief.helps)

    assert say(flat)[0] == "none"
    assert "learned no more than guessing, and with the label" in say(flat)[1]
    whole = flat[-1].attack.model_copy(update={"scores": game(1900, 2000).found.scores})
    keyed = flat[-1].model_copy(update={"holding": "keyed", "labelled": False, "attack": whole})
    assert "learned no more than guessing without its key, and with" in say([*flat, keyed])[1]
    assert {row.labelled for row in flat if row.usual and row.holding != "nothing"} == {False, True}
    for i, row in enumerate(flat):
        if row.usual:
            unsure = row.model_copy(update={"attack": row.attack.model_copy(update=vague)})
            severity, helps = say([*flat[:i], unsure, *flat[i + 1 :]])
            assert severity == "inconclusive"
            assert "no more than guessing" not in helps


def test_members_are_called_safe_only_where_they_could_have_been_found():
    for one in golden("membership") + golden("recording"):
        verdict = chapter(one).verdicts[0]
        few = one.found is None or one.found.judged < 100
        assert verdict.severity != "none" if few else verdict.severity
        assert bool(one.error) == (verdict.severity == "failed")
    guarded = next(r for r in golden("membership") if r.found)
    assert code(appetite(limit(secret="membership", measure="auroc", at_most=1.0)), lost(guarded)) == OPEN


# The search for a defense


@pytest.fixture
def play(monkeypatch, tmp_path):
    """The search of `tune` where each defense finds what the test says, on the first and second victim."""
    plain = {"safe": game(**SAFE), "leaks": game(**LEAKING), "ranks": ranked()}
    plain["lost"] = lost(plain["safe"])

    def run(first, second=None, place="run"):
        def played(cell, seed, folder, trusted, spare):
            victim = (second or first) if folder.name == search.CONFIRMED else first
            name = (cell.defense or {"name": "none"})["name"]
            told = plain[victim.get(name, "leaks")]
            result = told.model_copy(update={"cell": cell, "key": cell.key(seed), "seed": seed})
            store.save(folder, result)
            return result

        monkeypatch.setattr(sweep, "run_cell", played)
        document = {"name": "Defenses", "defaults": builders.DEFAULTS, "cell": [builders.KINDS["game"]]}
        text, folder = tomli_w.dumps(document), tmp_path / place
        with progress.bar(quiet=True) as shown:
            answer = search.search_defense(
                plan_of(text), text, tuning.Risk(0.1, 1.0), folder, halvings=1, jobs=1, trusted=(), progress=shown, tell=lambda _: None
            )  # fmt: skip
        page.write(folder)
        return answer, folder

    return run


def test_the_answer_of_a_search_is_one_on_page_terminal_and_disk_and_names_its_game(play):
    answer, folder = play({"Sign": "safe"})
    assert "Sign" in answer.sentence
    assert "property inference of group" in answer.question
    assert "second victim" in answer.notes[0]
    report = read_report(folder)
    assert report.answer == answer
    assert json.loads((folder / "answer.json").read_text())["sentence"] == answer.sentence
    words = Markup((folder / "report.html").read_text()).striptags()
    for line in answer.lines:
        assert line in words
        assert line in report.lines


@pytest.mark.parametrize(
    ("second", "phrase"), [("lost", "Not confirmed"), ("leaks", "NOT"), ("ranks", "NOT")]
)
def test_a_choice_that_a_second_victim_does_not_bear_out_says_so(play, second, phrase):
    answer, folder = play({"Sign": "safe"}, {"Sign": second})
    assert phrase in answer.notes[0]
    assert "keeps both there too" not in " ".join(answer.lines)
    assert phrase in Markup((folder / "report.html").read_text()).striptags()
    answer, _ = play({"Sign": "safe"}, {"Sign": "safe", "none": "lost"}, place="free")
    assert "Not confirmed" in answer.notes[0]


@pytest.mark.parametrize("word", ["lost", "ranks", "leaks"])
def test_what_fails_leaks_or_ranks_is_never_chosen(play, word):
    answer, folder = play({"Sign": word, "Pruning": word})
    assert "No setting that was tried keeps both" in answer.sentence
    assert any("could not be measured" in note for note in answer.notes) == (word == "lost")
    points = [r for r in store.results(folder) if (r.cell.defense or {}).get("name") == "Sign"]
    assert points


def test_a_point_protects_only_by_its_upper_limit():
    risk = tuning.Risk(0.1, 0.02)
    point = tuning.Point("Sign", SIGN, 0.0, 0.1, False, None, 0.0, "", ())
    assert point.meets(risk)
    for spoiled in ({"high": 0.11}, {"high": math.nan}, {"ranks": True}, {"error": "x"}):
        assert not dataclasses.replace(point, **spoiled).protects(risk)
    assert not dataclasses.replace(point, loss=0.03).meets(risk)
    assert tuning.choose([dataclasses.replace(point, family="none")], risk) is None


# Papers, and folders that something has been at


def test_quick_settings_of_a_paper_say_that_they_are_quick():
    plan, _, _ = published.plan("000", only=["fig2"], quick=True)
    full, _, _ = published.plan("000", only=["fig2"])
    assert max(cell.trials for cell in plan.cell) < max(cell.trials for cell in full.cell)
    one = game(**SAFE)
    for quick in (True, False):
        (block,) = measured.blocks_of([one], quick=quick).values()
        assert ("quick" in block.scaled) == quick


def test_results_of_an_earlier_meaning_are_counted_and_not_reused(tmp_path, monkeypatch):
    folder = write_folder(tmp_path / "run", game(**SAFE))
    plan = plan_of(store.plan(folder))
    assert sweep.look(plan, folder).sentence == "1 of 1 cells kept from before"
    entry = KINDS["inference"]
    monkeypatch.setitem(KINDS, "inference", dataclasses.replace(entry, format=entry.format + 1))
    kept = sweep.look(plan, folder)
    assert (len(kept.reuse), kept.stale) == (0, 1)
    assert "1 not reused" in kept.sentence
    assert "format" in kept.sentence


def spoil(folder, **changes):
    """The one result of a folder with some of it changed, and signed again, as another program would write
    it."""
    (path,) = (folder / "cells").glob("*.json")
    table = json.loads(path.read_text())
    table.pop(store.SIGNED)
    table |= changes
    path.write_text(json.dumps({store.SIGNED: store._fingerprint(table), **table}))


SPOILED = {
    "another format": lambda folder: spoil(folder, format=3),
    "more": lambda folder: spoil(folder, more=1),
    "another kind": lambda folder: spoil(folder, kind="layers"),
    "no format": lambda folder: spoil(folder, format=None),
    "a kind that is gone": lambda folder: spoil(folder, kind="toss"),
    "something else found": lambda folder: spoil(folder, found={"tossed": 1}),
    "another cell": lambda folder: spoil(folder, key="0" * 16),
    "changed": lambda folder: [
        path.write_text(path.read_text().replace('"hits": 1000', '"hits": 0')) for path in (folder / "cells").iterdir()
    ],
    "cut": lambda folder: [path.write_text(path.read_text()[:500]) for path in (folder / "cells").iterdir()],
    "foreign": lambda folder: [path.write_text('{"hello": 1}') for path in (folder / "cells").iterdir()],
    "mixed": lambda folder: shutil.copy(next((FORMAT1 / "inference" / "cells").iterdir()), folder / "cells"),
}  # fmt: skip


@pytest.mark.parametrize("how", SPOILED)
def test_a_folder_that_something_has_been_at_is_refused_in_one_sentence_and_left_alone(
    how, tmp_path, leakscope
):
    folder, whole = (write_folder(tmp_path / name, game(**SAFE)) for name in ("run", "whole"))
    (tmp_path / "a.toml").write_text(tomli_w.dumps({"limit": [limit()]}))
    assert leakscope("gate", folder, tmp_path / "a.toml").code == PASS
    SPOILED[how](folder)
    before = files(folder)
    with pytest.raises(StoreError):
        store.results(folder)
    for command in (
        ("report", folder),
        ("gate", folder, tmp_path / "a.toml", "--report"),
        ("compare", whole, folder),
        ("summary", folder, "-o", tmp_path / "summary.html"),
        ("run", folder),
    ):
        said = leakscope(*command)
        assert said.code == 2, command
        assert not said.out
        assert len(said.err.strip().splitlines()) == 1
    assert files(folder) == before
    assert not (tmp_path / "summary.html").exists()


def test_a_failed_result_of_a_kind_that_is_gone_is_refused_too(tmp_path, leakscope):
    folder = write_folder(tmp_path / "run", lost(game(**SAFE)))
    spoil(folder, kind="toss")
    said = leakscope("report", folder)
    assert said.code == 2
    assert "toss" in said.err
    refuses(StoreError, "toss", store.results, folder)


def test_a_table_too_small_to_ask_who_was_trained_on_says_so_and_passes_nothing(tmp_path):
    """The other games are played; of members nothing is known, on the page, in the terminal, at the gate."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 2)), columns=["a", "b"])
    frame = frame.assign(sex=rng.choice(["f", "m"], 60), ill=rng.choice(["no", "yes"], 60))
    asked = {"label": "ill", "secret": "sex", "defenses": ["none"], "jobs": 1, "quiet": True}
    small = {"batch": 2, "rounds": 1, "trials": 40, "rehearsals": 60}
    report = ls.audit(frame, **asked, **small, attack="Posterior")
    sentence = (
        "Nobody asked whose records a federation trained on: that needs a table of 80 records or more, and "
        "table has 60. So nothing is known about it."
    )
    assert sentence in report.remarks
    assert sentence in Markup(report.html()).striptags()
    assert not any("trained on" in verdict.about for verdict in report.verdicts)
    limit = '[[limit]]\nsecret = "membership"\nmeasure = "auroc"\nat_most = 1.0'
    (tmp_path / "appetite.toml").write_text(limit)
    refuses(
        PlanError, "is 'membership', and the results have none", ls.gate, report, tmp_path / "appetite.toml"
    )
