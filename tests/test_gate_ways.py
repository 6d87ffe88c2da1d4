"""Wrong ways to pass a gate. Each begins with what does pass, changes one thing, and passes no more."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import replace
from functools import cache
from xml.etree import ElementTree as xml

import builders
import pytest
import tomli_w
from builders import golden
from test_gate import FAIL, OPEN, PASS, SIGN, appetite, declare, game, limit, transcript
from test_no_false_all_clear import write_folder

import leakscope as ls
from leakscope.audits.inference.found import Guarantee
from leakscope.core.errors import PlanError
from leakscope.measures.accounting import account_shown, account_training
from leakscope.measures.shuffled import SelfCheck
from leakscope.measures.success import proportion
from leakscope.results import gate
from leakscope.results.kind import numbers
from leakscope.results.scores import MEASURES, Worth

DP = {"name": "DPSGD", "clip": 2.0, "noise": 1.5}
REFUSED = 2


def safe(**options):
    """Guesses at chance: an advantage of at most .1 is sure."""
    return game(1000, 2000, **options)


@cache
def accounted():
    """Ten rounds of one batch of 16, from a training of 20,000 records, with what both cost."""
    defense = ls.DPSGD(2.0, 1.5)
    promise = Guarantee(
        shown=account_shown(defense.mechanism(16, 50), releases=10, batch=16),
        training=account_training(defense, records=20_000, batch=64, rounds=10, entries=50),
    )
    return game(1000, 2000, defense=DP, guarantee=promise)


def change(one, **found):
    return one.model_copy(update={"found": one.found.model_copy(update=found)})


def rescore(one, **scores):
    return change(one, scores=one.found.scores.model_copy(update=scores))


def settle(one, **cell):
    """The same numbers under other settings."""
    settings = one.cell.model_copy(update=cell)
    return one.model_copy(update={"cell": settings, "key": settings.key(one.seed)})


def stamp(one, **made):
    return one.model_copy(update={"made": one.made.model_copy(update=made)})


def epsilon(**more):
    return limit(**{"measure": "epsilon", "at_most": 1.0, "releases": "training"} | more)


def code(wanted, *runs):
    return gate.judge(wanted, *runs).exit_code


def lacking(one, seeds):
    """A run whose plan asks for more seeds than were run."""
    document = {"seeds": seeds, "defaults": builders.DEFAULTS, "cell": [builders.KINDS["game"]]}
    return gate.complete([one], tomli_w.dumps(document))


BROKEN = SelfCheck("advantage", shuffles=100, alarms=60, expected=2.5, largest=0.5, p=1e-9, passed=False)
ADVANTAGE = appetite(limit())
MEMBERS = appetite(limit(secret="membership", measure="auroc", at_most=1.0))
NOTHING = Worth(accuracy=proportion("accuracy", 500, 1000), majority=0.5)
WAYS = {
    # who attacked
    "a static adversary": lambda: code(ADVANTAGE, [safe(defense=SIGN, adaptive=False)]),
    "an attack that was named": lambda: code(appetite(limit(attack="strongest")), [safe()]),
    "members, and no attack on them that is sharp": lambda: code(
        appetite(limit(secret="membership", measure="auroc", at_most=1.0, attack="strongest")),
        [builders.measure("members")],
    ),
    "one attack, named twice": lambda: code(appetite(limit(attack="strongest")), [choose("Posterior", "Posterior")]),
    "members behind batch normalisation": lambda: code(MEMBERS, [change(members(), batchwise=True)]),
    "members in updates that the server did not average": lambda: code(MEMBERS, [change(members(), agreement=0.01)]),
    "members of a model of which nobody knows what it learned": lambda: code(
        MEMBERS, [change(members(), utility=Worth())]
    ),
    "an attack that is worse than guessing": lambda: code(
        appetite({**limit(), "secret": "sex", "at_most": 0.5}), [builders.game(rate=0.55, n=2_000, prior=0.25)]
    ),
    "an attack that only ranks": lambda: code(ADVANTAGE, [game(played=transcript(0, 2000, ranked=0.8))]),
    "an attack that ranks the wrong way": lambda: code(
        appetite(limit(measure="auroc", at_most=0.6)), [game(played=transcript(0, 2000, ranked=0.1))]
    ),
    "an attack heard on what it had learned from": lambda: code(ADVANTAGE, [change(safe(), apart=False)]),
    "a model that learned nothing": lambda: code(ADVANTAGE, [change(safe(), utility=NOTHING)]),
    "a model that learned nothing behind its defense": lambda: code(
        ADVANTAGE, [change(safe(defense=SIGN), utility=NOTHING)]
    ),
    "a self-check that failed": lambda: code(ADVANTAGE, [change(safe(), selfcheck=BROKEN)]),
    "one of two attacks": lambda: code(ADVANTAGE, [safe(), settle(game(1900, 2000), trials=2001)]),
    # what was attacked
    "another secret": lambda: code(appetite(limit(secret="age")), [safe()]),
    "another game": lambda: code(appetite(limit(game="user")), [safe()]),
    "other data": lambda: code(appetite(limit(data="heart")), [safe()]),
    "another batch": lambda: code(appetite(limit(where={"game.batch": 1})), [safe()]),
    "fewer rounds": lambda: code(appetite(limit(where={"rounds": 50})), [safe()]),
    "fewer rehearsals, as quick settings have": lambda: code(
        appetite(limit(where={"rehearsals": 2000})), [safe()]
    ),
    "a setting that is left to its default": lambda: code(
        appetite(limit(where={"game.batch": 4})), [safe(), settle(game(1990, 2000), game=unsaid())]
    ),
    "a default alone": lambda: code(
        appetite(limit(where={"rounds": 2, "game.batch": 4})),
        [settle(safe(), game=unsaid()), settle(safe(defense=SIGN), trials=77)],
    ),
    "true for 1": lambda: code(appetite(limit(where={"rounds": True})), [settle(safe(), rounds=1)]),
    "a setting that nobody has": lambda: code(appetite(limit(where={"round": 2})), [safe()]),
    "another defense": lambda: code(appetite(limit(defense="DPSGD")), [safe(defense=SIGN)]),
    "other settings of the defense": lambda: code(
        appetite(limit(defense=DP | {"noise": 9.0})), [safe(defense=DP)]
    ),
    "a game that was not played behind the defense": lambda: code(
        appetite(limit(defense=DP)), [safe(defense=DP), ask(safe(), "attribute")]
    ),
    "a defense for which the measure is missing": lambda: code(
        appetite(limit(measure="tpr_at_1%", at_most=0.5)), [safe(), rescore(safe(defense=SIGN), tpr_at_1=None)]
    ),
    # what was run
    "no result": lambda: code(ADVANTAGE, []),
    "a cell that failed": lambda: code(ADVANTAGE, [safe(), builders.fail(safe(defense=SIGN))]),
    "a seed that was not run": lambda: code(ADVANTAGE, lacking(safe(), [0, 1])),
    "one good run of two": lambda: code(ADVANTAGE, [safe()], [game(1900, 2000, seed=1)]),
    "stale code": lambda: code(ADVANTAGE, [stamp(safe(), code="0" * 12)]),
    "code that nobody knows": lambda: code(ADVANTAGE, [stamp(safe(), code="")]),
    "an earlier meaning": lambda: code(ADVANTAGE, [safe().model_copy(update={"key": "0" * 16})]),
    "another program's version in one of two runs": lambda: code(
        ADVANTAGE, [safe()], [stamp(safe(seed=1), code="0" * 12)]
    ),
    # how sure
    "a value without its interval": lambda: code(appetite(limit(at_most=0.02)), [safe()]),
    "few trials": lambda: code(ADVANTAGE, [game(10, 20)]),
    "many limits at the confidence of one": lambda: code(
        appetite(*[limit(at_most=edge())] * 30), [safe()]
    ),
    "many seeds at the confidence of one": lambda: code(
        appetite(limit(at_most=edge())), [safe(seed=seed) for seed in range(20)]
    ),
    "the same seeds in other runs": lambda: code(
        appetite(limit(at_most=edge())), *[[settle(safe(), trials=2000 + run)] for run in range(20)]
    ),
    "what is no number": lambda: code(
        appetite(limit(at_most=1.0)),
        [rescore(safe(), advantage=replace(safe().found.scores.advantage, value=math.nan, low=math.nan,
                                           high=math.nan, basis=None))],
    ),
    # lower for upper
    "cells of records, which are filled in where none is found": lambda: code(
        appetite(limit(secret="*", measure="right_cells", at_most=1.0)), [builders.measure("records")]
    ),
    "information, a lower bound": lambda: code(appetite(limit(measure="information", at_most=5.0)), [safe()]),
    "a measured epsilon by its own name": lambda: code(
        appetite(limit(secret="race", measure="epsilon_gaussian", at_most=50.0)), [golden("mechanism")[1]]
    ),
    "a measure that nobody has": lambda: code(appetite(limit(measure="advantages")), [safe()]),
    "a measured epsilon, a lower bound": lambda: code(
        appetite(epsilon(secret="race", at_most=50.0)), [golden("mechanism")[1]]
    ),
    # an epsilon of something else
    "an epsilon of one game, where another was not played behind the defense": lambda: code(
        appetite(epsilon(releases="shown", at_most=100.0, defense=DP)), [accounted(), ask(safe(), "attribute")]
    ),
    "an epsilon that another version computed": lambda: code(
        appetite(epsilon(releases="shown", at_most=100.0)), [stamp(accounted(), code="0" * 12)]
    ),
    "the training's epsilon for what was shown": lambda: code(
        appetite(epsilon(releases="shown")), [accounted()]
    ),
    "an epsilon counted as if shuffled batches were drawn": lambda: code(appetite(epsilon()), [accounted()]),
    "a declared epsilon for what was shown": lambda: code(
        appetite(epsilon(releases="shown"), declared=declare(0.1)), [accounted()]
    ),
    "a declared epsilon for a defense that has none": lambda: code(
        appetite(epsilon(), declared=declare(0.1)), [safe(defense=SIGN)]
    ),
    "a declared epsilon where there is no defense": lambda: code(
        appetite(epsilon(), declared=declare(0.1)), [safe()]
    ),
    "a declared epsilon over the accounted one": lambda: code(
        appetite(epsilon(), declared=declare(1.5)), [accounted()]
    ),
    "a declared epsilon without its delta": lambda: code(
        appetite(epsilon(), declared={"epsilon": 0.5, "neighbours": "replace"}), [accounted()]
    ),
    "a declared epsilon of one record added, for one replaced": lambda: code(
        appetite(epsilon(), declared=declare(0.5, neighbours="add or remove")), [accounted()]
    ),
    "a declared epsilon that does not say for which neighbours": lambda: code(
        appetite(epsilon(), declared={"epsilon": 0.5, "delta": 1e-5}), [accounted()]
    ),
    "a declared epsilon below what drawn batches would have": lambda: code(
        appetite(epsilon(), declared=declare(0.1)), [accounted()]
    ),
    "a delta at which a record may be shown whole": lambda: code(
        appetite(epsilon(delta=1e-4), declared=declare(0.5, delta=1e-4)), [accounted()]
    ),
    "a delta at which anything goes": lambda: code(
        appetite(epsilon(delta=0.5), declared=declare(0.1, delta=0.5)), [accounted()]
    ),
    "a delta of one in ten, of a batch of sixteen": lambda: code(
        appetite(epsilon(releases="shown", at_most=20.0, delta=0.1)), [accounted()]
    ),
    "other neighbours": lambda: code(
        appetite(epsilon(releases="shown", at_most=6.0)), [accounted()]
    ),
    "another delta": lambda: code(
        appetite(epsilon(releases="shown", at_most=20.0, delta=1e-7)), [accounted()]
    ),
    "an epsilon of a mean of clients": lambda: code(
        appetite(epsilon(releases="shown", at_most=100.0)),
        [change(accounted(), guarantee=Guarantee(shown=replace(accounted().found.guarantee.shown, unit="mean")))],
    ),
    "a promise that trials contradict": lambda: code(
        appetite(epsilon(secret="sex", at_most=50.0), declared=declare(certified() - 0.01)), [certain()]
    ),
}  # fmt: skip


def choose(*names):
    """The strongest of these attacks."""
    return settle(safe(), attack={"name": "Strongest", "attacks": [{"name": name} for name in names]})


@cache
def members():
    """A federation whose model has learned."""
    worth = Worth(
        trained=proportion("accuracy", 900, 1000), accuracy=proportion("accuracy", 800, 1000), majority=0.5
    )
    return change(builders.measure("members"), utility=worth)


def ask(one, question):
    return change(one, secret=one.found.secret.model_copy(update={"kind": question}))


def unsaid():
    """The game without its batch."""
    return {key: value for key, value in safe().cell.game.items() if key != "batch"}


def edge():
    """An at_most that the upper limit of one seed keeps at 95%, and not at 99.5%."""
    basis = safe().found.scores.advantage.basis
    return (basis.high(0.05) + basis.high(0.005)) / 2


def certain():
    return next(one for one in golden("mechanism") if one.found.sure.low > 0)


def certified():
    return certain().found.certified.low


@pytest.mark.parametrize("way", WAYS)
def test_a_wrong_way_does_not_pass(way):
    with contextlib.suppress(PlanError):
        assert WAYS[way]() != PASS


def test_what_the_wrong_ways_begin_with_passes():
    assert len(WAYS) >= 30
    assert code(ADVANTAGE, [safe()]) == PASS
    assert code(ADVANTAGE, [safe()], [safe(seed=1)]) == PASS
    assert code(appetite(limit(at_most=edge())), [safe()]) == PASS
    assert code(appetite(limit(at_most=edge())), *[[safe()]] * 20) == PASS  # one result, shown twenty times
    assert code(appetite(limit(data="synthetic", where={"game.batch": 4, "rounds": 2})), [safe()]) == PASS
    assert code(appetite(limit(), code="any"), [stamp(safe(), code="0" * 12)]) == PASS
    assert code(appetite(limit(defense=DP)), [safe(defense=DP)]) == PASS
    assert code(appetite(limit(defense=DP)), [safe(defense=DP), safe()]) == PASS
    assert code(appetite(epsilon(), declared=declare(0.5)), [accounted()]) == PASS
    assert code(appetite(epsilon(releases="shown", at_most=20.0)), [accounted()]) == PASS
    assert (
        code(appetite(epsilon(releases="shown", at_most=6.0, neighbours="add or remove")), [accounted()])
        == PASS
    )
    assert code(appetite(limit(attack="strongest")), [choose("Joint", "Posterior")]) == PASS
    assert code(appetite(limit(where={"rounds": 1})), [settle(safe(), rounds=1)]) == PASS
    assert code(MEMBERS, [members()]) == PASS


@pytest.mark.parametrize("kind", sorted(builders.KINDS))
def test_every_number_about_leakage_can_be_limited_by_its_name(kind):
    """Whatever a kind measures; and a lower bound passes nothing, by whatever name."""
    result = builders.measure(kind)
    rows = [row for row in numbers(result) if row.about == "leakage" and not row.error]
    for row in {(row.secret, row.measure): row for row in rows}.values():
        known = MEASURES.get(row.measure)
        if known and known.falls:
            continue
        wanted = {"secret": row.secret, "measure": row.measure, "attack": "any", "adversary": "any"}
        wide = known.most if known and math.isfinite(known.most) else 1e6
        said = [gate.judge(appetite(wanted | {"at_most": most}), [result]) for most in (wide, 0.0)]
        assert said[0].combined != "fail"
        assert row.bound == "estimate" or said[0].combined != "pass"
        assert said[1].combined != "pass" or not row.value


def test_pipelines_get_the_verdict_in_their_own_formats(tmp_path, leakscope):
    runs = [
        write_folder(tmp_path / "a", safe()),
        write_folder(tmp_path / "b", game(1900, 2000, seed=1), seeds=(1,)),
    ]
    hostile = limit(secret="*", confidence=0.9)
    (tmp_path / "a.toml").write_text(tomli_w.dumps({"limit": [limit(at_most=1.0), hostile]}))
    junit, sarif, badge = (tmp_path / name for name in ("gate.xml", "gate.sarif", "gate.svg"))
    options = ("--junit", junit, "--sarif", sarif, "--badge", badge)
    said = leakscope("gate", *runs, tmp_path / "a.toml", *options)
    assert said.code == FAIL
    suite = xml.fromstring(junit.read_text())
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    kinds = [case.find("failure") is None for case in suite]
    assert kinds == [True, False]
    assert "the lower limit is above it" in suite[1].find("failure").text.lower()
    results = json.loads(sarif.read_text())["runs"][0]["results"]
    assert [one["kind"] for one in results] == ["pass", "fail"]
    assert [one["level"] for one in results] == ["none", "error"]
    assert ">fail</text>" in badge.read_text()
    only = leakscope("gate", runs[0], tmp_path / "a.toml", *options)
    assert only.code == PASS
    assert xml.fromstring(junit.read_text()).get("failures") == "0"
    assert ">pass</text>" in badge.read_text()


def test_what_is_open_fails_a_pipeline_too():
    told = gate.judge(ADVANTAGE, [game(10, 20)])
    assert told.exit_code == OPEN
    assert xml.fromstring(gate.as_junit(told)).get("failures") == "1"
    assert json.loads(gate.as_sarif(told, ["run"]))["runs"][0]["results"][0]["kind"] == "open"
    assert "not enough evidence" in gate.as_badge(told)


def test_a_verdict_over_several_runs_is_kept_in_none_of_their_reports(tmp_path, leakscope):
    runs = [write_folder(tmp_path / "a", safe()), write_folder(tmp_path / "b", safe(seed=1), seeds=(1,))]
    (tmp_path / "a.toml").write_text(tomli_w.dumps({"limit": [limit()]}))
    said = leakscope("gate", *runs, tmp_path / "a.toml", "--report")
    assert said.code == REFUSED
    assert "--report" in said.err
    assert not (runs[0] / gate.APPETITE).exists()
