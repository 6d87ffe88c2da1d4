"""Audits by site: members are held against other records of the same site, and nobody who was never trained on
is found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from builders import measure, refuses
from scipy import stats
from sklearn.metrics import roc_auc_score

import leakscope as ls
from leakscope.attacks.losses import Loss
from leakscope.attacks.whitened import Whitened
from leakscope.audits.inference.request import request_audit
from leakscope.audits.membership import MembershipAudit
from leakscope.audits.membership.judged import (
    Roster,
    WatchedFederation,
    compare_sides,
    gather,
    judge,
    measure_worth,
)
from leakscope.audits.membership.kind import KIND as MEMBERS
from leakscope.audits.membership.seeds import watches
from leakscope.audits.membership.simulated import record, roster, settle
from leakscope.audits.sites.audit import SiteAudit, _believe
from leakscope.audits.sites.kind import KIND
from leakscope.core.dataset import Dataset, joined
from leakscope.core.errors import ArgumentError, DataError
from leakscope.core.nouns import Defense
from leakscope.core.rng import seeded
from leakscope.data import load
from leakscope.games import Distribution
from leakscope.measures.exchangeability import PERMUTATIONS, _areas, exchangeability
from leakscope.models import MLP, build
from leakscope.results import gate
from leakscope.results.cell import Cell
from leakscope.results.chapter import LEAKS
from leakscope.results.kind import World, numbers
from leakscope.results.result import Result
from leakscope.training import Local, cut_parts, cut_sites

LOCAL = Local(0.1, batch=32)
GAME = {"name": "MembershipAudit", "how": "site", "column": "site", "attacks": [{"name": "Whitened"}]}
GAME |= {"local": {"name": "Local", "rate": 0.1, "batch": 32, "epochs": 3}}
LIMIT = '[[limit]]\nsecret="membership"\nmeasure="auroc"\nat_most={}'


def noise(n: int, seed: int, *, shift: float = 0.0, width: int = 12) -> Dataset:
    rng = seeded(seed, "noise")
    x = torch.randn(n, width, generator=rng)
    x[:, :4] += shift
    return Dataset(x, torch.randint(2, (n,), generator=rng), {"person": torch.arange(n) // 10})


# Whether members differ from non-members in more than membership


def test_areas_are_those_of_sklearn_ties_counting_half():
    rng = np.random.default_rng(0)
    scores, labels = rng.integers(0, 6, (40, 5)).astype(float), rng.integers(0, 2, (40, 5))
    found = _areas(torch.tensor(scores), torch.tensor(labels, dtype=torch.float64))
    assert found.tolist() == pytest.approx([roc_auc_score(labels[:, i], scores[:, i]) for i in range(5)])


def test_exchangeable_records_fail_as_often_as_is_said_and_shifted_ones_nearly_always():
    """Of 100 at 5%, 12 or more fail with a chance below 0.5%."""
    failed = [not exchangeability(noise(40, i), noise(40, 500 + i), rng=seeded(i)).passed for i in range(100)]
    assert stats.binom.sf(sum(failed) - 1, 100, 0.05) > 0.005
    apart = [exchangeability(noise(40, i), noise(40, 50 + i, shift=1.0), rng=seeded(i)) for i in range(10)]
    assert not any(one.passed for one in apart)
    assert min(one.area for one in apart) > 0.7


def test_a_difference_that_is_in_no_single_input_is_seen():
    """Members lie on two sides of the others: no line tells them apart."""
    far = noise(100, 0)
    x = far.x.clone()
    x[:, 0] = 3 * x[:, 0].sign() + 0.1 * x[:, 0]
    assert not exchangeability(replace(far, x=x), noise(100, 1), rng=seeded(0)).passed


def test_losses_that_differ_are_seen_and_are_one_test_of_two():
    same = noise(60, 0), noise(60, 1)
    low, high = torch.rand(60), 1 + torch.rand(60)
    apart = exchangeability(*same, low, high, rng=seeded(0))
    assert apart.loss < 1 / PERMUTATIONS
    assert apart.p == min(1.0, 2 * min(apart.loss, apart.records))
    assert not apart.passed
    assert exchangeability(*same, rng=seeded(0)).loss is None


def test_people_are_relabelled_as_a_whole():
    """Every person has one place of their own: records of other people differ, and that is no shift."""

    def people(seed: int) -> Dataset:
        data = noise(100, seed)
        place = torch.randn(10, 12, generator=seeded(seed, "place"))[data.private["person"]]
        return replace(data, x=place + 0.1 * data.x, private={"person": data.private["person"] + 10 * seed})

    checks = [
        [
            exchangeability(people(2 * i), people(2 * i + 1), rng=seeded(i), people=by).passed
            for i in range(12)
        ]
        for by in ("person", None)
    ]
    assert sum(checks[0]) >= 9
    assert sum(checks[1]) <= 3


# Placebo members: never trained on


def placebo(data: Dataset, which: str, seed: int) -> Result:
    """An audit of a site whose members never took part, held against records of nobody from all sites."""
    rng, names, members, rest = seeded(seed, "split"), [], [], []
    for name, part in cut_sites(data, "site"):
        order = torch.randperm(len(part), generator=rng)
        names.append(name)
        members.append(part.take(order[: len(part) // 2]))
        rest.append(part.take(order[len(part) // 2 :]))
    private, place = joined(members), names.index(which)
    entered = rest[place].take(torch.arange(len(rest[place]) // 2)).standardised(private)
    rest[place] = rest[place].take(torch.arange(len(rest[place]) // 2, len(rest[place])))
    pool = joined(rest).standardised(private)
    pool = pool.take(torch.randperm(len(pool), generator=rng))
    known, held, others = (pool.take(rows) for rows in torch.arange(len(pool)).tensor_split([80, 120]))
    trained = Roster(tuple(part.standardised(private) for part in members), known, held, others)
    audit = MembershipAudit((Whitened(), Loss()), LOCAL, clients=len(names))
    model = build(MLP((16,)), trained.members[0], seeded(seed, "model"))
    federation = record(audit, model, trained, 1, (0,), defense=Defense(), rng=seeded(seed, "training"))
    with federation as (recording, history):
        watched = WatchedFederation(recording, settle(model, history), (str(place),), names=(which,))
        who = replace(trained, members=(entered,))
        found = gather(
            judge(audit.attacks, watched, who, trials=1_000, seed=seed),
            watched,
            who,
            trials=1_000,
            utility=measure_worth(model, history[-1], who),
            alike=compare_sides(watched, who, history[0], seed=seed),
        )
    cell = Cell.model_validate({"data": {"name": "heart"}, "game": GAME | {"how": "iid"}, "rounds": 1})
    return Result(key=cell.key(seed), seed=seed, kind="membership", cell=cell, found=found)


def shifted(seed: int) -> Dataset:
    """Four sites of made-up patients, of whom those of the first are others."""
    data, site = noise(1_000, seed), torch.arange(1_000) % 4
    x = data.x + 0.7 * (site == 0)[:, None]
    return Dataset(x, (x.sum(1) > 0).long(), {"site": site}, values={"site": ("a", "b", "c", "d")})


@pytest.fixture(scope="module")
def placebos() -> list[Result]:
    heart = load("heart").distinct()
    swiss = [placebo(heart, "switzerland", seed) for seed in range(100, 104)]
    return swiss + [placebo(shifted(seed), "a", seed) for seed in range(100, 104)]


def test_patients_who_were_never_trained_on_are_not_found(placebos):
    without = [
        one.model_copy(update={"found": one.found.model_copy(update={"alike": ()})}) for one in placebos
    ]
    words = [watches([one])[0].worst.severity for one in placebos]
    assert set(words) == {"inconclusive"}
    fooled = [watches([one])[0].worst.severity in LEAKS for one in without]
    assert sum(fooled) >= 5  # what the check is there for


def test_where_members_are_no_others_there_is_no_number_and_the_gate_neither_passes_nor_fails(placebos):
    one = placebos[0]
    rows = [row for row in numbers(one) if row.about == "leakage"]
    assert rows
    assert all(row.error and row.value is None for row in rows)
    for limit in (0.0, 1.0):
        assert gate.judge(gate.parse(LIMIT.format(limit)), [one]).exit_code == 3
    chapter = MEMBERS.tell([one])
    (verdict,) = chapter.verdicts
    assert "cannot say it" in verdict.sentence
    assert verdict.average is None
    assert "no number" in MEMBERS.headline(one.cell, one.found)
    assert f"{one.found.attacks[0].scores.auroc.value:.3f}" not in str(chapter.body)


def test_a_client_whose_members_differ_takes_nothing_from_the_others_findings():
    found = run().found
    unlike = replace(found.alike[0], records=1e-9)
    mixed = found.model_copy(update={"alike": (unlike, *found.alike[1:])})
    cell = cell_of()
    result = Result(key=cell.key(0), seed=0, kind="membership", cell=cell, found=mixed)
    parts = {row.part: row.error for row in numbers(result) if row.about == "leakage"}
    assert parts[f"Whitened, client {unlike.client}"]
    assert not parts[f"Whitened, client {found.alike[1].client}"]
    assert gate.judge(gate.parse(LIMIT.format(0.0)), [result]).exit_code == 1  # another client leaks
    assert gate.judge(gate.parse(LIMIT.format(1.0)), [result]).exit_code == 3


# Sites as clients


def cell_of(**game) -> Cell:
    tables = {"data": {"name": "heart"}, "game": GAME | game, "model": {"name": "MLP", "hidden": [16]}}
    return Cell.model_validate(tables | {"rounds": 2, "trials": 1_000})


def run(**game):
    return MEMBERS.run(World(cell_of(**game), 0, load("heart")))


def test_every_site_is_a_client_and_its_non_members_are_its_own():
    audit = MembershipAudit((Whitened(),), LOCAL, how="site", column="site")
    data = load("heart")
    who = roster(audit, data, seeded(0, "split"))
    assert who.names == ("cleveland", "hungarian", "switzerland", "va")
    for i, member in enumerate(who.members):
        held, others = who.outsiders(slice(i, i + 1))
        for part in (member, held, others):
            assert set(part.private["site"].tolist()) == {i}
    parts = [*who.members, who.known, who.held, who.others]
    keys = [key for part in parts for key in part.hashes]
    assert len(keys) == len(set(keys)) == len(data.distinct())


@pytest.mark.parametrize("seen", ["uploads", "sum"])
def test_each_site_is_named_with_its_interval_whatever_is_seen(seen):
    found = run(seen=seen).found
    cell = cell_of(seen=seen)
    result = Result(key=cell.key(0), seed=0, kind="membership", cell=cell, found=found)
    names = {"cleveland", "hungarian", "switzerland", "va"}
    assert {check.client for check in found.alike} == names
    (verdict,) = MEMBERS.tell([result]).verdicts
    rows = {row.part: row for row in numbers(result) if row.measure == "auroc"}
    for name in names:
        assert f"{name} " in verdict.sentence.partition("By site:")[2]
        assert rows[f"Whitened, client {name}"].low is not None
    assert "switzerland not enough evidence" in verdict.sentence
    assert "switzerland AUROC 0." in MEMBERS.headline(cell, found)


def test_whose_an_update_is_and_what_a_site_holds():
    result = measure("sites")
    origin, content = result.found.questions
    assert origin.scores.success.low > origin.guessing == 0.25
    assert {site.name for site in origin.sites} == {"cleveland", "hungarian", "switzerland", "va"}
    asked = {site.name: site.scores for site in content.sites}
    assert asked["switzerland"] is asked["va"] is None  # 10 and 6 women
    assert asked["cleveland"].success.level == pytest.approx(1 - 0.05 / 4)
    errors = {row.part: row.error for row in numbers(result) if row.question == "distribution"}
    assert errors["site va"]
    limit = '[[limit]]\nsecret="sex"\nmeasure="auroc"\nat_most=1.0'
    assert gate.judge(gate.parse(limit), [result]).exit_code == 3  # nobody knows of two sites
    page = str(KIND.tell([result]).body)
    assert page.count("not enough evidence") == 2


def test_through_noise_no_update_tells_its_site():
    shield = {"name": "Noise", "std": 1000.0}
    cell = Cell.model_validate(measure("sites").cell.described | {"defense": shield, "trials": 200})
    found = KIND.run(World(cell, 0, load("heart"))).found
    assert found.questions[0].scores.success.low <= 0.25
    assert found.questions[1].sites[0].scores.success.low <= 1 / 6


def test_ranges_of_a_share():
    game = Distribution(load("heart"), "sex")
    assert [game.place(having, 100) for having in (0, 1, 20, 21, 100)] == [0, 1, 1, 2, 5]
    assert [game.span(*ends) for ends in ((0, 0), (1, 1), (1, 5))] == [(0, 0), (0, 0.2), (0, 1)]
    assert _believe(torch.tensor([0.01, 0.5, 0.4, 0.09])) == (1, 3)
    assert _believe(torch.tensor([0.0, 0.97, 0.03, 0.0])) == (1, 1)


# What is asked of a table


def test_membership_is_asked_of_every_table_and_several_secrets_at_once():
    plan, _ = request_audit("adult", label=None, secret=["sex", "race"])
    ids = [cell["id"] for cell in plan["cell"]]
    games = ("attribute", "property", "distribution")
    assert ids == [*(f"{game}, {s}" for s in ("sex", "race") for game in games), "records", "membership"]
    single, _ = request_audit("adult", label=None, secret="sex")
    assert [cell["id"] for cell in single["cell"]] == [*games, "records", "membership"]
    assert plan["cell"][-1]["game"]["attacks"][0] == {"name": "FedMIA"}


def test_a_table_of_people_has_other_people_as_non_members():
    data = noise(400, 0)
    data = replace(data, private={"person": data.private["person"], "u": data.y})
    plan, _ = request_audit(data, label=None, secret="u", user="person", batch=2)
    (cell,) = [cell for cell in plan["cell"] if cell["id"] == "membership"]
    assert cell["game"]["how"] == "user"
    made = MembershipAudit((Whitened(),), LOCAL, **{k: v for k, v in cell["game"].items() if k in KEPT})
    who = roster(made, data, seeded(0, "split"))
    inside = {int(p) for member in who.members for p in member.private["person"]}
    assert not inside & {int(p) for part in (who.known, who.held, who.others) for p in part.private["person"]}
    assert who.people == "person"


def test_a_table_of_people_has_clients_as_small_and_as_many_judged_records_as_one_of_records():
    data = noise(4_000, 0)
    data = replace(data, private={"person": data.private["person"], "u": data.y})
    for person in ("person", None):
        plan, _ = request_audit(data, label=None, secret="u", person=person, batch=2)
        (cell,) = [cell for cell in plan["cell"] if cell["id"] == "membership"]
        made = MembershipAudit((Whitened(),), LOCAL, **{k: v for k, v in cell["game"].items() if k in KEPT})
        who = roster(made, data, seeded(0, "split"))
        assert abs(sum(map(len, who.members)) - made.clients * made.size) <= 20, person
        assert len(who.others) >= made.judged, person


def test_what_is_dealt_at_random_is_not_tested_and_what_is_not_is():
    sizes = {"clients": 2, "size": 60, "known": 60, "held": 60, "column": None}
    assert run(how="iid", **sizes).found.alike == ()
    assert len(run(how="dirichlet", **sizes).found.alike) == 2


def test_rare_values_do_not_tell_members_from_others():
    """Were they rare by the members' own counts, members would have fewer of them."""
    rng = np.random.default_rng(100)
    codes = {f"code {i}": [f"v{value}" for value in rng.integers(220, size=1_200)] for i in range(4)}
    coins = {name: rng.integers(2, size=1_200) for name in ("y", "s")}
    table = pd.DataFrame(coins | codes | {"age": rng.normal(size=1_200)})
    data = ls.from_csv(table, label="y", secrets=["s"])
    assert any(column.frequent for column in data.columns)
    chances = []
    for seed in range(100, 106):
        sizes = {"clients": 2, "size": 200, "known": 150, "held": 150}
        who = roster(MembershipAudit((Whitened(),), LOCAL, **sizes), data, seeded(seed))
        sides = joined(who.members), joined((who.held, who.others))
        chances.append(exchangeability(*sides, rng=seeded(seed)).records)
    assert sum(chance < 0.05 for chance in chances) < 3, chances  # 3 of 6 by chance once in 450


KEPT = ("clients", "size", "known", "held", "judged", "how", "column")


def consortium() -> Dataset:
    """Three sites of 40 people who have 1 to 7 records each."""
    person = torch.arange(120).repeat_interleave(torch.arange(120) % 7 + 1)
    data = noise(len(person), 0)
    return replace(data, private={"person": person, "site": person % 3, "u": data.y})


def deal(data: Dataset) -> Roster:
    audit = MembershipAudit((Whitened(),), LOCAL, how="site", column="site", person="person")
    return roster(audit, data, seeded(0))


def test_people_of_a_site_stay_together():
    data = consortium()
    plan, _ = request_audit(data, label=None, secret="u", site="site", person="person", batch=2)
    cells = {cell["id"]: cell for cell in plan["cell"]}
    assert {cells[name]["game"]["person"] for name in ("membership, uploads", "sites")} == {"person"}
    assert plan["defaults"]["data"]["by"] == "person"
    who = deal(data)
    parts = [*who.members, who.known, *(part for pair in who.apart for part in pair)]
    people = [set(part.private["person"].tolist()) for part in parts]
    assert sum(map(len, people)) == len(set.union(*people)) == 120
    assert sum(map(len, parts)) == len(data)
    assert who.people == "person"
    for member in who.members:  # half of a site's records, but for one person
        site = int(member.private["site"][0])
        assert abs(len(member) - int((data.private["site"] == site).sum()) / 2) <= 7
    cell = Cell.model_validate({"data": {"name": "heart"}, "game": cells["sites"]["game"]})
    made = SiteAudit("site", LOCAL, ("u",), person="person")
    for site in made.cut(World(cell, 0, data)):
        assert not {*site.private.private["person"].tolist()} & {*site.public.private["person"].tolist()}


def test_whole_people_are_drawn_at_random_and_records_as_ever():
    data = consortium()
    order = torch.randperm(len(data), generator=seeded(1))
    first, rest = cut_parts(data, [100], seeded(1))
    assert torch.equal(torch.cat([first.x, rest.x]), data.x[order])
    shares = torch.zeros(120)
    for seed in range(200):
        shares[cut_parts(data, [len(data) // 4], seeded(seed), person="person")[0].private["person"]] += 1
    assert stats.chi2.sf(float(((shares - 50) ** 2 / 37.5).sum()), 120) > 0.001


def test_people_at_two_sites_or_a_site_of_few_people_are_refused():
    data = consortium()
    moved = replace(data, private=data.private | {"site": torch.arange(len(data)) % 3})
    ask = {"label": None, "secret": "u", "site": "site", "person": "person"}
    refuses(DataError, "must be at one site of 'site', and 102 are at more", request_audit, moved, **ask)
    few = replace(data, private=data.private | {"person": data.private["site"]})
    refuses(DataError, "people for 4 parts, each person whole, and 'person' has 1 there", deal, few)
    refuses(ArgumentError, "MembershipAudit.person", MembershipAudit, (Whitened(),), LOCAL, person="person")


def test_a_column_that_is_no_set_of_sites_is_refused_in_one_sentence():
    ask = {"label": None, "secret": None}
    refuses(ArgumentError, "'sex' is named by --secret too", request_audit, "heart", **ask, site="sex")
    refuses(ArgumentError, "'disease' is named by --label too", request_audit, "heart", **ask, site="disease")
    both = {"label": "site", "secret": ["site"]}
    refuses(ArgumentError, "--label and --secret", request_audit, "heart", **both, site="site")
    refuses(DataError, "no private column 'ward'", request_audit, "heart", **ask, site="ward")
    refuses(ArgumentError, "name people by --person", request_audit, "heart", **ask, site="site", user="x")
    data = load("heart").distinct()
    few = data.take(
        torch.cat([(data.private["site"] == i).nonzero()[:n, 0] for i, n in enumerate((50, 50, 9, 8))])
    )
    refuses(DataError, "'switzerland' has 9, 'va' has 8", request_audit, few, **ask, site="site")
    refuses(DataError, "at least 2 sites", request_audit, data.take(torch.arange(200)), **ask, site="site")


def test_heart_ships_with_what_is_missing_said():
    data = ls.load("heart")
    assert len(data) == 920
    assert data.x.isfinite().all()
    sites = torch.bincount(data.private["site"]).tolist()
    assert dict(zip(data.value_names("site"), sites, strict=True)) == {
        "cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200,
    }  # fmt: skip
    swiss = data.take((data.private["site"] == 2).nonzero()[:, 0])
    no = data.positions("chol measured")[0]  # a cholesterol of 0 is none
    assert swiss.x[:, no].all()
    assert int(data.y.sum()) == 509
    assert not data.has("site")


def test_the_audit_of_sites_refuses_its_own_column_as_a_secret():
    refuses(ArgumentError, "column of sites", SiteAudit, "site", LOCAL, ("site",))
