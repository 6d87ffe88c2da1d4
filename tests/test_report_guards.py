"""What guards give to the page, the gate and the tables: audits that are really run, as small as can be."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from statistics import mean

import pytest
import tomli_w
import torch
from builders import refuses
from guard_cells import GUARD, NOISE, TABLE, cell, fail, nobody, people, pictures, run
from pydantic import ValidationError

from leakscope.attacks.representations import Fisher
from leakscope.audits.guards import evaluation
from leakscope.audits.guards.found import Attacked, GuardsFound, RebuiltPicture, Row
from leakscope.audits.guards.kind import KIND
from leakscope.audits.guards.page.measures import Scatter, judge
from leakscope.audits.guards.page.pages import GuardPage, group_pages, read
from leakscope.core.errors import LeakscopeError
from leakscope.results import gate
from leakscope.results.cell import Cell
from leakscope.results.chapter import LEAKS
from leakscope.results.kind import World, numbers
from leakscope.results.number import Number
from leakscope.results.result import Result, find_checks

SMALL = {"trials": 100, "rehearsals": 150, "train": 200, "public": 200}
MANY = SMALL | {"trials": 2_000}
FEW = {"trials": 40, "rehearsals": 40, "train": 100, "public": 100}


@pytest.fixture(scope="session")
def whole() -> Result[GuardsFound]:
    """An attribute behind noise, with all that can be asked for."""
    asked = cell(
        GUARD | NOISE, sizes=SMALL, baselines=True, epochs=2, mapped=50, informative=100,
        estimators=[{"name": "MINE", "epochs": 2}, {"name": "CLUB", "epochs": 2}],
    )  # fmt: skip
    return run(asked, people(600))


@pytest.fixture(scope="session")
def leaky() -> Result[GuardsFound]:
    """A guard that leaks more and keeps less than `plain`."""
    return run(cell(GUARD | {"epochs": 1, "loss": "prior"}, sizes=SMALL), people(600))


@pytest.fixture(scope="session")
def plain() -> Result[GuardsFound]:
    """A weight of 0, but too narrow for more than the task."""
    narrow = {"lam": 0.0, "epochs": 20, "encoder": {"name": "TableEncoder", "widths": [16, 1]}}
    return run(cell(GUARD | narrow, sizes=SMALL), people(600))


@pytest.fixture(scope="session")
def nowhere() -> Result[GuardsFound]:
    """A secret that stands nowhere in the records."""
    return run(cell(GUARD | {"column": "v"}, sizes=MANY), people(600))


@pytest.fixture(scope="session")
def shares() -> Result[GuardsFound]:
    """A share of a group that nobody can tell, in records that give each value away."""
    guard = GUARD | {"secret": "property", "loss": "prior", "sizes": [2, 3]}
    return run(cell(guard, sizes=SMALL), people(600))


@pytest.fixture(scope="session")
def members() -> Result[GuardsFound]:
    guard = {"name": "Inf2Guard", "secret": "membership", "epochs": 2, "label_aware": True, "encoder": TABLE}
    return run(cell(guard, sizes=FEW, shadows=2, baselines=True, epochs=3, early=[1]), nobody())


@pytest.fixture(scope="session")
def rebuilt() -> Result[GuardsFound]:
    guard = {"name": "Inf2Guard", "secret": "reconstruction", "loss": "clip", "epochs": 1, "batch": 16}
    sizes = {"trials": 4, "rehearsals": 20, "train": 30, "public": 30}
    return run(cell(guard | {"encoder": {"name": "ImageEncoder"}}, sizes=sizes, shown=2), pictures())


def only(*results: Result[GuardsFound]) -> GuardPage:
    (page,) = group_pages(results)
    return page


def change(result: Result[GuardsFound], attacks: Callable[[Attacked], Attacked]) -> Result[GuardsFound]:
    """A result with its attacks on one secret changed."""
    assert result.found
    (judged,) = result.found.judged
    judged = judged.model_copy(update={"attacks": tuple(attacks(one) for one in judged.attacks)})
    return result.model_copy(update={"found": result.found.model_copy(update={"judged": (judged,)})})


def rows(result: Result[GuardsFound], **wanted: object) -> list[Number]:
    return [n for n in numbers(result) if all(getattr(n, key) == value for key, value in wanted.items())]


def words(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def test_every_attack_has_its_self_check(whole):
    judged = whole.found.judged[0]
    beside = sum(len(one.attacks) for one in judged.baselines)
    assert len(list(find_checks(whole.found))) == len(judged.attacks) + 1 + beside


# What numbers say


def test_every_attack_gives_rows_of_its_own_and_the_stale_network_does_not_know_the_encoder(whole):
    keys = [(n.about, n.secret, n.attack, n.part, n.measure) for n in numbers(whole)]
    assert len(keys) == len(set(keys))
    leaks = {n.part: n for n in rows(whole, about="leakage", measure="auroc")}
    assert set(leaks) == {
        "Network", "Fisher", "Mixture", "Decensored", "Network, 16 draws averaged", "Fisher, 16 draws averaged",
        "Mixture, 16 draws averaged", "Stale",
    }  # fmt: skip
    assert [part for part, n in leaks.items() if n.adaptive is False] == ["Stale"]
    assert {n.question for n in leaks.values()} == {"guard"}
    judged = whole.found.judged[0]
    assert rows(whole, part="Network", measure="success")[0].guessing == judged.attacks[0].guessing
    tasks = {n.part: n for n in rows(whole, about="utility", measure="accuracy")}
    assert set(tasks) == {"fresh head", "own head"}
    assert tasks["fresh head"].guessing == judged.utility.task.majority


def test_no_number_of_a_guard_is_a_bound_that_could_pass_a_limit(whole, shares, members):
    for result in (whole, shares, members):
        assert not rows(result, bound="upper")
        assert not rows(result, about="bound")
    (estimate,) = rows(whole, measure="accuracy_bound_estimate")
    assert (estimate.about, estimate.covers) == ("diagnostic", "")
    sides = {n.part: (n.about, n.bound) for n in rows(whole, measure="information")}
    assert sides == {"MINE": ("diagnostic", "lower"), "CLUB": ("diagnostic", "estimate")}


def test_who_sees_single_records_behind_a_guarded_mean_has_rows_that_can_fail_a_limit(shares):
    parts = {n.part for n in rows(shares, about="leakage", measure="auroc")}
    assert {"single records, Network", "single records, Fisher"} < parts


def test_what_needs_no_guard_is_no_leakage_of_the_guard(whole):
    beside = rows(whole, about="baseline", measure="auroc")
    assert {n.part.partition(",")[0] for n in beside} == {"raw inputs", "plain noise"}
    assert all((n.defense, n.adaptive) == ("", None) for n in beside)
    assert not [n for n in rows(whole, about="leakage") if n.part.startswith(("raw", "plain"))]


def test_against_membership_the_task_is_that_of_the_head_that_is_released(members):
    assert members.found.judged[0].utility.head == "released"
    assert {n.part for n in rows(members, about="utility", measure="accuracy")} == {"", "own head"}
    early = {one.name for one in members.found.judged[0].baselines if one.needless == "early"}
    assert early == {"plain training, 1 epochs"}


def test_the_headline_is_the_attack_that_finds_most(whole, rebuilt):
    (chosen,) = (one for one in whole.found.judged[0].attacks if one.chosen)
    assert f"u: {chosen.name} auroc {chosen.scores.auroc.value:.3f}" in KIND.headline(whole.cell, whole.found)
    likest = max(rebuilt.found.judged[0].attacks, key=lambda one: one.scores.ssim.value)
    assert KIND.headline(rebuilt.cell, rebuilt.found).startswith(f"reconstruction: {likest.name} ssim")


# What is asked, and refused before anything is trained


@pytest.mark.parametrize(
    ("guard", "secrets", "shields"),
    [
        (GUARD, ("u",), ["Inf2Guard"]),
        ({"name": "AdvReg"}, ("membership",), ["AdvReg"]),
        ({"name": "Guards", "guards": [GUARD, GUARD | {"column": "v"}]}, ("u", "v"), ["Guards"] + 2 * ["Inf2Guard"]),
        ({"name": "Tuned", "guard": {"name": "DPEncoder"}, "like": GUARD}, ("u",), ["Tuned", "DPEncoder"]),
        ({"name": "DPSGDGuard", "guard": {"name": "Inf2Guard", "column": "u"}}, ("u",), ["DPSGDGuard", "Inf2Guard"]),
        ({"name": "theirs.Guard"}, ("*",), ["theirs.Guard"]),
    ],
)  # fmt: skip
def test_a_cell_says_what_it_asks_before_it_is_run(guard, secrets, shields):
    asked = KIND.ask(cell(guard))
    assert asked.secrets == secrets
    assert [table["name"] for table in asked.shields] == shields
    assert (asked.protected, asked.adaptive, asked.questions) == (True, True, ("guard",))


@pytest.mark.parametrize(
    ("changes", "sizes", "message"),
    [
        ({"column": "nosuch"}, SMALL, "nosuch"),
        ({"column": "same"}, SMALL, "one value only"),
        ({"secret": "membership", "column": None}, SMALL | {"public": 1}, "public"),
        ({}, SMALL | {"train": 10_000}, "10,?000"),
        ({"lam": 2.0}, SMALL, r"Inf2Guard\.lam"),
    ],
)
def test_what_the_records_cannot_give_is_refused_before_training(changes, sizes, message):
    records = people(600)
    records = replace(records, private={**records.private, "same": torch.zeros(600, dtype=torch.long)})
    guard = {key: value for key, value in (GUARD | changes).items() if value is not None}
    asked = Cell.model_construct(**dict(cell(guard, sizes=SMALL)) | sizes)
    refuses(LeakscopeError, message, KIND.check, World(asked, 0, records))


# Which guard is shown


def beaten(page: GuardPage, name: str) -> bool:
    """From the numbers of each result alone."""
    found = {}
    for one in page.settings:
        (result,) = one.runs
        (attack,) = (a for a in result.found.judged[0].attacks if a.chosen)
        found[one.label] = attack.scores.auroc.value, result.found.judged[0].utility.task.accuracy.value
    own = found[name]
    return any(leak < own[0] and worth >= own[1] for leak, worth in found.values())


def test_the_guard_that_is_shown_is_never_one_that_another_beats(leaky, plain):
    page = only(leaky, plain)
    names = {one.lam: one.label for one in page.settings}
    assert beaten(page, names[0.5])
    (verdict,) = KIND.tell([leaky, plain]).verdicts
    assert verdict.defense == names[0.0]
    assert not beaten(page, verdict.defense)
    assert any(note.startswith("Shown: the guard with the best trade-off of 2") for note in verdict.notes)
    assert any("λ=0 is plain training" in note for note in verdict.notes)


def test_a_guard_whose_second_release_gives_the_secret_away_is_not_the_best(leaky):
    """One guard shows nothing in one release and all in two, the other a little in either."""
    found = leaky.found.judged[0]

    def ranked(area: float) -> Attacked:
        scores = found.strongest.scores
        area_of = replace(scores.auroc, value=area, low=area - 0.01, high=area + 0.01)
        return found.strongest.model_copy(update={"scores": scores.model_copy(update={"auroc": area_of})})

    def guard(lam: float, once: float, twice: float) -> Result[GuardsFound]:
        rows = (Row(holding="changed", attack=ranked(twice)),)
        judged = found.model_copy(update={"attacks": (ranked(once),), "rows": rows})
        asked = cell(GUARD | {"lam": lam, "loss": "prior"}, sizes=SMALL)
        changes = {
            "cell": asked,
            "key": asked.key(0),
            "found": leaky.found.model_copy(update={"judged": (judged,), "lam": lam}),
        }
        return leaky.model_copy(update=changes)

    loud, even = guard(0.5, 0.5, 0.8), guard(0.25, 0.55, 0.55)
    assert only(loud, even).best[0].lam == 0.25
    assert "changed record" in KIND.headline(loud.cell, loud.found)
    assert "0.800" in KIND.headline(loud.cell, loud.found)
    assert "changed record" not in KIND.headline(even.cell, even.found)


def test_a_weight_of_0_is_not_shown_beside_a_guard_that_it_does_not_beat(plain, whole):
    page = only(plain, whole)
    assert not beaten(page, next(one.label for one in page.settings if one.lam))
    assert page.best[0].lam == 0.5
    assert not any(note.startswith("Shown") for note in KIND.tell([whole]).verdicts[0].notes)


def test_the_verdict_holds_the_chosen_attack_guessing_and_the_task(whole):
    (verdict,) = KIND.tell([whole]).verdicts
    judged = whole.found.judged[0]
    chosen, task = judged.strongest, judged.utility.task
    for value in (chosen.scores.success.value, chosen.guessing, task.accuracy.value, task.majority):
        assert f"{value:.1%}" in verdict.sentence
    assert chosen.name in verdict.sentence
    assert (verdict.attack, verdict.measure, verdict.average.value) == (
        chosen.name, "auroc", chosen.scores.auroc.value,
    )  # fmt: skip
    free = judged.baselines[0].attacks
    raw = next(one for one in free if one.chosen).scores.auroc.value
    assert any("raw inputs: " in note and f"AUROC {raw:.3f}" in note for note in verdict.notes)


# No false all-clear


def test_no_leak_is_said_where_nothing_is_there(nowhere):
    """One of its attackers ranks the other way round by chance, so that no all-clear is said either."""
    assert only(nowhere).severity in ("none", "inconclusive")


def test_no_all_clear_where_averaged_draws_find_the_secret():
    guard = GUARD | NOISE | {"lam": 0.0, "scale": 4.0, "epochs": 1}
    result = run(cell(guard, sizes=MANY | {"rehearsals": 600, "public": 400}), people(1_000))
    page = only(result)
    assert page.best[1].tried.strongest.scores.auroc.low <= 0.5
    assert any(one.scores.auroc.low > 0.5 for one in page.best[1].asked_again)
    assert page.severity == "ranking"
    (verdict,) = KIND.tell([result]).verdicts
    assert any("16 draws" in note for note in verdict.notes)


def test_no_all_clear_where_the_label_brings_the_secret_out_of_a_release():
    """The first input says whether label and secret differ: either alone tells nothing of the secret."""
    data, x = people(2_000, shift=0.0), people(2_000, shift=0.0).x
    u = data.private["u"]
    y = torch.where(u == 1, u.cumsum(0), (1 - u).cumsum(0)) % 2  # one half of either
    x[:, 0] = 3.0 * (y ^ u) + 0.3 * x[:, 0]
    sizes = {"trials": 800, "rehearsals": 900, "train": 500, "public": 700}
    result = run(cell(GUARD | {"lam": 0.0}, sizes=sizes, rows=True, near=2), replace(data, x=x, y=y))
    page = only(result)
    assert read(page.best[1].tried.strongest) not in LEAKS
    assert page.best[1].beyond
    assert page.severity in LEAKS


def test_no_all_clear_where_single_records_give_the_secret_away(shares):
    page = only(shares)
    assert page.best[1].tried.strongest.scores.advantage.low == 0
    assert page.severity == read(max(page.best[1].single, key=lambda one: one.scores.advantage.low))
    assert page.severity in ("severe", "substantial")
    assert any("single records" in note for note in KIND.tell([shares]).verdicts[0].notes)


def test_no_all_clear_where_the_attack_that_was_not_chosen_finds_the_secret(nowhere, leaky):
    """The choice falls on an attack that finds nothing, while another finds all."""
    blind = nowhere.found.judged[0].strongest.scores

    def swap(one: Attacked) -> Attacked:
        return one.model_copy(
            update={"chosen": not one.chosen} | ({"scores": blind} if not one.chosen else {})
        )

    found = leaky.found.judged[0]
    strongest = next(i for i, one in enumerate(found.attacks) if one.chosen)
    other = found.attacks[strongest - 1].name
    changed = change(
        leaky,
        lambda one: (
            swap(one) if one.name == other or one.chosen else one.model_copy(update={"scores": blind})
        ),
    )
    page = only(changed)
    assert page.best[1].tried.strongest.name == other
    assert page.severity == only(leaky).severity != "none"
    assert any("Clearly stronger" in note for note in KIND.tell([changed]).verdicts[0].notes)


def test_a_guard_that_failed_is_not_known_and_a_seed_that_failed_is_named(whole, leaky):
    chapter = KIND.tell([fail(leaky.cell)])
    (verdict,) = chapter.verdicts
    assert (verdict.severity, verdict.about) == ("failed", "What a guard leaves of u")
    assert "not known" in verdict.sentence
    assert "1 guard failed" in chapter.lead
    assert "diverged" in chapter.body
    both = KIND.tell([whole, fail(whole.cell, "out of memory", seed=1)])
    assert any("seed 1 failed and is in no number here: out of memory" in n for n in both.verdicts[0].notes)
    assert "failed" not in both.lead
    beside = KIND.tell([whole, fail(leaky.cell)])
    assert "1 guard failed" in beside.lead
    assert any("seed 0 failed: ArgumentError: diverged" in note for note in beside.verdicts[0].notes)


def test_a_bound_is_refuted_by_the_lower_limit_of_an_attack(whole):
    judged = whole.found.judged[0]
    low = max(judged.theorem.measured.low, judged.strongest.scores.success.low)
    for bound, refuted in ((low, 0), (low - 1e-6, 1)):
        theorem = judged.theorem.model_copy(update={"bound": bound})
        found = whole.found.model_copy(update={"judged": (judged.model_copy(update={"theorem": theorem}),)})
        (one,) = judge([found])
        assert (one.theorem.refuted, one.theorem.exceeded) == (refuted, True)


# Seeds, families and pages


def test_seeds_are_averaged_and_the_choice_is_that_of_each_seed(plain):
    results = [plain, run(plain.cell, people(600), seed=1)]
    page = only(*results)
    chosen = [next(one for one in r.found.judged[0].attacks if one.chosen) for r in results]
    strongest = page.best[1].tried.strongest
    assert strongest.scores.auroc.value == pytest.approx(mean(one.scores.auroc.value for one in chosen))
    assert strongest.scores.auroc.seeds == 2
    assert strongest.name == " or ".join(dict.fromkeys(one.name for one in chosen))
    gains = [(one.scores.success.value - one.guessing) / (1 - one.guessing) for one in chosen]
    assert strongest.scores.advantage.value == pytest.approx(max(0.0, mean(gains)))


def test_guards_of_one_secret_share_a_page_and_secrets_have_pages_of_their_own(
    whole, leaky, nowhere, members
):
    results = [whole, leaky, nowhere, members]
    pages = group_pages(results)
    assert sorted((page.secret, page.column, len(page.settings)) for page in pages) == [
        ("attribute", "u", 2), ("attribute", "v", 1), ("membership", "", 1),
    ]  # fmt: skip
    assert [page.number for page in pages] == [1, 2, 3]
    chapter, turned = KIND.tell(results), KIND.tell(results[::-1])
    assert (chapter.body, chapter.verdicts) == (turned.body, turned.verdicts)
    assert chapter.settings == 4
    anchors = [verdict.anchor for verdict in chapter.verdicts]
    assert all(f'id="{anchor}"' in chapter.body for anchor in anchors)


@pytest.fixture
def one_attack(monkeypatch):
    monkeypatch.setattr(evaluation, "choose_attacks", lambda *_: (Fisher(),))


def test_one_encoder_against_several_secrets_is_judged_for_each(one_attack):
    guards = {"name": "Guards", "guards": [GUARD, GUARD | {"column": "v"}]}
    result = run(cell(guards, sizes=SMALL), people(600))
    first, second, both = result.found.judged
    assert (first.column, second.column, both.column) == ("u", "v", "u and v")
    assert first.stale is not None
    assert second.stale is None  # the network is that of the first
    assert both.values == ("no, a", "no, b", "no, c", "yes, a", "yes, b", "yes, c")
    assert {page.column for page in group_pages([result])} == {"u", "v", "u and v"}
    assert {n.secret for n in numbers(result)} == {"u", "v", "u and v"}
    assert result.found.lam == 0.5


def test_of_several_secrets_the_worst_decides(one_attack):
    """A guard that hides one of two: no verdict and no gate may say that both are hidden."""
    leaks = GUARD | {"column": "v", "lam": 0.0}
    guards = {"name": "Guards", "guards": [leaks, GUARD]}
    result = run(cell(guards, jointly=0), people())
    assert [one.column for one in result.found.judged] == ["v", "u"]
    chapter = KIND.tell([result])
    assert [verdict.about.rpartition(" ")[2] for verdict in chapter.verdicts] == ["u", "v"]
    assert chapter.verdicts[0].severity in ("severe", "substantial")
    codes = {}
    for secret in ("u", "v", "*"):
        limit = {"secret": secret, "measure": "auroc", "at_most": 0.7, "attack": "any"}
        codes[secret] = gate.judge(gate.parse(tomli_w.dumps({"limit": [limit]})), [result]).exit_code
    assert (codes["u"], codes["*"]) == (1, 1)
    assert codes["v"] != 1


def test_no_guard_at_all_is_the_plainest_that_was_measured(whole, members):
    assert only(whole).free.name == "raw inputs"
    assert only(members).free.name == "plain training"


@pytest.mark.parametrize("target", [0.0, 8.0])
def test_a_tuned_guard_says_how_near_it_came(target):
    plain = {"name": "Unguarded", "epochs": 2, "encoder": TABLE}
    guard = {
        "name": "Tuned",
        "guard": {"name": "DPEncoder", "plain": plain},
        "like": GUARD,
        "values": [target],
    }
    result = run(cell(guard, sizes=FEW, secret="attribute", column="u"), people(600))
    tuned = result.found.tuned
    assert (tuned.strength, tuned.value) == ("scale", target)
    near = "at equal" if tuned.reached else "nearest in"
    assert only(result).settings[0].name == f"DPEncoder {near} utility"
    assert f"where {tuned.target:.3f} was sought" in words(KIND.tell([result]).body)


# The page


def test_pictures_come_with_a_warning_only_if_they_are_there_and_are_nothing_but_pictures(rebuilt, whole):
    body = KIND.tell([rebuilt]).body
    assert body.count("<img") == 2 * len(rebuilt.found.pictures) == 4
    assert "Private data." in body
    assert "Private data." not in KIND.tell([whole]).body
    for forged in ('" onerror="alert(1)', "javascript:", ""):
        with pytest.raises(ValidationError):
            RebuiltPicture(original=forged, reconstruction="aGk=", ssim=None)


def test_nearest_neighbours_of_the_same_value_are_counted():
    points = ((0.0, 0.0), (0.0, 1.0), (10.0, 0.0), (10.0, 1.0), (20.0, 0.0), (20.0, 0.5))
    cloud = Scatter(points, (0, 0, 1, 1, 0, 1), ("a", "b"))
    assert cloud.together == pytest.approx(4 / 6)
    assert cloud.by_chance == pytest.approx(12 / 30)


def test_a_map_of_many_values_names_the_most_common_and_the_others():
    records = people(600)
    who = torch.arange(600) % 10
    records = replace(records, private={"who": who}, values={"who": tuple(f"person {i}" for i in range(10))})
    sizes = SMALL | {"rehearsals": 300}
    result = run(cell(GUARD | {"column": "who"}, sizes=sizes, mapped=100, epochs=1), records)
    picture = only(result).mapped[1].after
    assert len(picture.values) == 7
    assert picture.values[-1] == "others"
    assert len(picture.points) == 100
