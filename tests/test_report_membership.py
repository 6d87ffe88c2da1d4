"""What is told of federations: of real cells, by the kind itself."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from builders import HOSTILE, Named, Page, record_digits

from leakscope import Transcript, tpr_at_fpr
from leakscope.audits.membership.found import MembershipFound
from leakscope.audits.membership.kind import KIND
from leakscope.audits.membership.seeds import watches
from leakscope.audits.membership.view import SUBSTANTIAL, ClientReading, pick_strongest
from leakscope.core.basis import Alarms
from leakscope.core.dataset import Dataset
from leakscope.data import load
from leakscope.results.averages import Average, needed
from leakscope.results.cell import Cell
from leakscope.results.kind import World, headline, numbers
from leakscope.results.result import Result, find_checks

LOCAL = {"name": "Local", "rate": 0.1, "batch": 20}
FROZEN = {"name": "Within", "defense": {"name": "Withhold"}, "layers": ["1.weight", "1.bias"]}
BLIND = {"name": "Cosine", "layer": "1"}  # looks at the layer that `FROZEN` withholds
LDP = {"name": "FlowerLocalDp", "clip": 1.0, "sensitivity": 1.0, "epsilon": 5.0, "delta": 1e-5}


def cell_of(*, attacks=({"name": "Cosine"},), cell=(), **game) -> Cell:
    game = {"clients": 3, "size": 50, "known": 200, "held": 120} | game
    game |= {"name": "MembershipAudit", "attacks": list(attacks), "local": LOCAL}
    tables = {"data": {"name": "digits"}, "model": {"name": "MLP", "hidden": [16]}, "game": game}
    return Cell.model_validate({"rounds": 3, "trials": 1_000} | tables | dict(cell))


def run(cell: Cell, seed: int = 0, records: Dataset | None = None) -> Result[MembershipFound]:
    measured = KIND.run(World(cell, seed, load("digits") if records is None else records))
    return Result(key=cell.key(seed), seed=seed, kind="membership", cell=cell, found=measured.found)


def fail(cell: Cell, seed: int = 0) -> Result[MembershipFound]:
    return Result(key=cell.key(seed), seed=seed, kind="membership", cell=cell, error="DataError: no records")


def page(*results: Result[MembershipFound]) -> Page:
    return Page(str(KIND.tell(results).body))


@pytest.fixture(scope="session")
def plain() -> tuple[Result[MembershipFound], Result[MembershipFound]]:
    """Two seeds of a federation without defense."""
    attacks = ({"name": "Cosine"}, {"name": "Whitened", "label": "predicted"}, {"name": "Zari"})
    return run(cell_of(attacks=attacks)), run(cell_of(attacks=attacks), 1)


@pytest.fixture(scope="session")
def filtered() -> Result[MembershipFound]:
    return run(cell_of(upload=LDP, cell={"observe": (2,)}))


@pytest.fixture(scope="session")
def frozen() -> Result[MembershipFound]:
    """An attack that looks at a layer nobody updates, on a model that learns: nothing can be found."""
    return run(cell_of(attacks=(BLIND,), clients=1, size=300, upload=FROZEN, cell={"rounds": 5}))


class Idle(Named):
    """Records one client as it trains, and the others as if they sent back what they were given."""

    def update(self, r, client, params, **facts):
        super().update(r, client, params, **facts)
        for name in self.names[1:]:
            self.recorder.update(r, name, self.params, samples=20)


class Foreign(Named):
    """Records updates of another training."""

    def update(self, r, client, params, **facts):
        rng = torch.Generator().manual_seed(r)
        other = {k: v + torch.randn(v.shape, generator=rng) for k, v in self.params.items()}
        super().update(r, client, other, **facts)


@pytest.fixture(scope="session")
def hospitals(tmp_path_factory) -> Result[MembershipFound]:
    """A recording of twelve clients, of whom one uploads what it learned and the others nothing."""
    folder = tmp_path_factory.mktemp("recorded") / "spring"
    names = ("hospital_a", HOSTILE, *(f"hospital_{i}" for i in "cdefghijkl"))
    candidates = record_digits(folder, names, 20, hidden=128, rounds=4, trained=1, by=Idle)
    game = {"name": "RecordingAudit", "recording": str(folder), "attacks": [{"name": "Whitened"}]}
    game |= {"known": 0.2, "held": 0.2}
    tables = {"data": {"name": "csv", "path": "/home/me/candidates.csv"}, "game": game, "note": HOSTILE}
    cell = Cell.model_validate(tables | {"model": {"name": "MLP", "hidden": [128]}, "trials": 2_000})
    return run(cell, records=candidates)


def average(value: float, low: float, high: float) -> Average:
    return Average(value, low, high, 0.95, 500, 1, None, "exact")


def reading(
    found=(0.01, 0.0, 0.029), auroc=(0.5, 0.4, 0.6), *, few=False, sound=True, taught=False, alike=True
):
    return ClientReading("A", taught, average(*found), average(*auroc), few, sound, alike)


@pytest.mark.parametrize(
    ("found", "auroc", "word"),
    [
        ((0.5, 0.1, 0.6), (0.9, 0.8, 0.95), "severe"),
        ((0.5, 0.099, 0.6), (0.9, 0.8, 0.95), "substantial"),
        ((0.05, 0.03, 0.1), (0.9, 0.8, 0.95), "substantial"),
        ((0.05, 0.029, 0.1), (0.9, 0.8, 0.95), "slight"),
        ((0.05, 0.01, 0.1), (0.6, 0.51, 0.7), "ranking"),
        ((0.05, 0.0, 0.1), (0.5, 0.4, 0.6), "inconclusive"),
        ((0.01, 0.0, 0.029), (0.5, 0.4, 0.6), "none"),
    ],
)
def test_the_word_follows_the_lower_limit_of_what_is_found_at_one_percent(found, auroc, word):
    assert reading(found, auroc).severity == word


def test_nothing_found_is_not_said_of_few_non_members_or_where_something_speaks_against_it():
    assert reading().severity == "none"
    assert reading(few=True).severity == reading(sound=False).severity == "inconclusive"
    lucky = reading((0.9, 0.5, 1.0), (0.7, 0.6, 0.8), few=True)
    assert lucky.severity == "ranking"  # what 1% of few non-members is nobody knows


def test_members_that_only_a_taught_attack_finds_are_not_passed_over():
    taught = reading((0.9, 0.8, 0.95), taught=True)
    assert pick_strongest([reading(), taught]) is taught
    assert pick_strongest([reading((0.2, 0.04, 0.4)), taught]).severity == "substantial"
    assert not pick_strongest([reading(), reading((0.0, 0.0, 0.02), taught=True)]).taught


def test_every_client_has_numbers_of_its_own_of_which_the_mean_is_the_mean(plain, hospitals):
    for result in (*plain, hospitals):
        for attempt in result.found.attacks:
            assert [client.name for client in attempt.clients] == list(result.found.watched)
            share = 2 if attempt.taught else 1  # the other half is told
            assert sum(client.members for client in attempt.clients) == result.found.members // share
            for name, estimate in attempt.scores.present():
                each = [dict(client.scores.present())[name] for client in attempt.clients]
                assert estimate.value == sum(e.value for e in each) / len(each)
                assert estimate.low == sum(e.low for e in each) / len(each)


def test_a_mean_over_clients_has_limits_at_any_error_and_a_ratio_has_not_those_of_its_rate(plain):
    for client in (plain[0].found.attacks[0], *plain[0].found.attacks[0].clients):
        for name in ("auroc", "tpr_at_1%"):
            estimate = dict(client.scores.present())[name]
            assert estimate.basis.low(0.025) == pytest.approx(estimate.low, abs=1e-9)
            assert estimate.basis.high(0.025) == pytest.approx(estimate.high, abs=1e-9)
            assert estimate.basis.high(0.0005) > estimate.high
        assert client.scores.plr_at_1.basis is None


def test_an_attack_says_what_it_uses_and_is_told(plain):
    told = [(a.uses, a.label, a.taught) for a in plain[0].found.attacks]
    assert told == [("updates", "known", False), ("updates", "predicted", False), ("updates", "known", True)]
    rows = {row[0] for row in page(plain[0]).rows if row}
    assert any("takes the one the model predicts" in name for name in rows)
    assert any("More knowledge: half of the members" in name for name in rows)


def test_numbers_are_flat_with_a_row_for_every_attack_client_and_measure(plain):
    rows = numbers(plain[0])
    parts = {row.part for row in rows if row.about == "leakage"}
    assert {"Cosine", "Cosine, client 0", "Cosine, client 2", "Zari, client 1"} <= parts
    assert len(parts) == 3 * (1 + 3)
    assert len({(row.about, row.part, row.measure) for row in rows}) == len(rows)
    assert {row.attack for row in rows} == {"", "Cosine", "Whitened(label='predicted')", "Zari"}
    assert all(row.bound == "estimate" and row.adaptive is None for row in rows)
    assert {row.measure for row in rows if row.about == "utility"} == {"accuracy", "trained"}
    assert headline(plain[0]).count("of members at 1% false alarms") == 3
    assert [where for where, _ in find_checks(plain[0].found)] == [a.name for a in plain[0].found.attacks]


def test_an_epsilon_covers_all_uploads_that_what_was_seen_comes_from(filtered):
    """One round was observed, and its global model comes from the uploads of the round before."""
    assert filtered.found.rounds == 1
    assert filtered.found.guarantee.releases == 2
    row, _ = [row for row in numbers(filtered) if row.about == "bound"]
    assert (row.measure, row.bound, row.covers, row.delta) == ("epsilon", "upper", "shown", 1e-5)
    assert row.value == filtered.found.guarantee.replaced > filtered.found.guarantee.replaced_each
    assert all(row.adaptive is False for row in numbers(filtered))


def test_noise_on_the_mean_of_clients_covers_no_upload():
    upload = {"name": "FlowerFixedClipping", "noise": 1.0, "clip": 1.0, "clients": 3}
    result = run(cell_of(upload=upload, cell={"rounds": 1}))
    assert result.found.guarantee.unit == "mean"
    assert {row.covers for row in numbers(result) if row.about == "bound"} == {"mean of clients"}
    assert "whoever else sees uploads, no ε holds" in page(result).text


def test_a_filter_that_statistics_pass_by_promises_nothing():
    """Batch statistics are uploaded as they are."""
    sites = {"clients": 2, "size": 40, "upload": LDP, "attacks": ({"name": "Loss"},)}
    small = {"name": "DenseNet", "depth": 10, "growth": 4}
    result = run(cell_of(**sites, cell={"rounds": 1, "model": small}))
    assert result.found.guarantee is None


def test_the_worst_client_decides_where_its_word_is_worse_than_the_mean(hospitals):
    (federation,) = watches([hospitals])[0].federations
    assert federation.sites[0].client == "hospital_a"
    assert federation.sites[0].severity == "severe"
    assert federation.strongest.severity != "severe"
    (verdict,) = KIND.tell([hospitals]).verdicts
    assert verdict.severity == "severe"
    assert "Most at client hospital_a: Whitened finds" in verdict.sentence
    assert verdict.average == federation.sites[0].found
    named = [row for row in page(hospitals).rows if row and row[0].startswith("hospital_")]
    rows = [row for row in named if "Whitened" in row]
    assert rows[0][0] == "hospital_a"
    assert len(rows) == 11
    assert len(named) == 22  # each is held against the others before its numbers
    assert {row[1] for row in rows} == {"20"}


def test_the_intervals_of_clients_are_wide_enough_for_their_number(plain, hospitals):
    for results in ([hospitals], list(plain)):
        (federation,) = watches(results)[0].federations
        for site in federation.sites:
            games = len(federation.sites) * len(federation.attacks)
            assert site.found.level == pytest.approx(1 - 0.05 / games)
    (client,) = [c for c in hospitals.found.attacks[0].clients if c.name == "hospital_a"]
    (site,) = [site for site in watches([hospitals])[0].federations[0].sites if site.client == client.name]
    assert site.found.low < client.scores.tpr_at_1.low
    assert site.auroc.low < client.scores.auroc.low


def test_nothing_found_is_said_of_what_was_looked_at_only(frozen):
    """That attack alone says "none"; one that looks where the same federation learns does not."""
    (verdict,) = KIND.tell([frozen]).verdicts
    assert verdict.severity == "none"
    assert "Someone" not in verdict.sentence.split(",")[0]  # the defense stands first
    cell = frozen.cell.model_copy(
        update={"game": frozen.cell.game | {"attacks": [BLIND, {"name": "Cosine", "layer": "3"}]}}
    )
    (both,) = KIND.tell([run(cell)]).verdicts
    assert both.severity != "none"
    (alone,) = KIND.tell([frozen, fail(cell, 1)]).verdicts
    assert "1 more federation failed and is not counted." in alone.notes


def test_a_model_that_learned_nothing_is_no_all_clear():
    withheld = run(cell_of(attacks=(BLIND,), clients=1, size=300, upload={"name": "Withhold"}))
    (verdict,) = KIND.tell([withheld]).verdicts
    assert withheld.found.attacks[0].scores.tpr_at_1.high < 0.03
    assert verdict.severity == "inconclusive"
    assert any("has learned nothing" in note for note in verdict.notes)


def test_a_client_of_whom_less_is_known_keeps_the_verdict_from_an_all_clear():
    result = run(cell_of(attacks=(BLIND,), size=160, upload=FROZEN, cell={"rounds": 5}))
    federation = watches([result])[0].worst
    assert federation.strongest.severity == "none"
    assert federation.severity == KIND.tell([result]).verdicts[0].severity == "inconclusive"


def test_a_recording_whose_updates_are_not_what_the_server_averaged_is_no_all_clear(hospitals, tmp_path):
    """The honest recording's idle clients take nothing from it."""
    assert hospitals.found.agreement > 0.99
    candidates = record_digits(tmp_path / "run", ("0",), 200, hidden=32, rounds=3, by=Foreign)
    game = hospitals.cell.game | {"recording": str(tmp_path / "run")}
    changes = {"game": game, "model": {"name": "MLP", "hidden": [32]}}
    result = run(hospitals.cell.model_copy(update=changes), records=candidates)
    assert result.found.agreement < 0.1
    assert "unknown" in result.found.server
    (verdict,) = KIND.tell([result]).verdicts
    assert verdict.severity == "inconclusive"
    assert any("little to do with the steps" in note for note in verdict.notes)


def test_few_non_members_give_no_number():
    seeds = [run(cell_of(cell={"trials": 198}), seed) for seed in (0, 1)]
    for results in (seeds[:1], seeds):
        chapter = KIND.tell(results)
        (verdict,) = chapter.verdicts
        assert "not enough evidence" in verdict.sentence
        assert "%" not in verdict.sentence.split("not enough")[0]
        assert verdict.severity in ("ranking", "inconclusive")
        assert verdict.measure == "auroc"
        clients = [row for row in Page(str(chapter.body)).rows if row and row[0] in ("0", "1", "2")]
        assert [row[4] for row in clients if "Cosine" in row] == ["not enough evidence"] * 3
        (remark,) = [text for text in chapter.remarks if "lower limit at 1% false alarms needs" in text]
        assert "for each client, and there were 99; raise --trials to" in remark
    assert "1% false alarms" not in headline(seeds[0])
    enough = run(cell_of(cell={"trials": 200}))
    assert "not enough evidence" not in KIND.tell([enough]).verdicts[0].sentence


def test_the_trials_that_a_remark_asks_for_can_decide_for_every_client_and_attack():
    """A perfect attack has a lower limit with so many non-members, at the level of the page, and none with
    fewer."""
    result = run(cell_of(attacks=({"name": "Cosine"}, {"name": "Loss"}), cell={"trials": 198}))
    text = " ".join(KIND.tell([result]).remarks)
    trials = int(re.search(r"raise --trials to (\d+)", text)[1])
    (watch,) = watches([result])
    worst = watch.worst
    errors = {1 - reading.found.level for reading in (*worst.attacks, *worst.sites)}
    assert len(errors) == 2  # a client shares the error with more intervals than the mean over them does
    assert min(errors) == pytest.approx(0.05 / len(result.found.attacks) / len(worst.sites))
    limits = [
        Alarms(1.0, (150,) * n, n, 150, 0.01).low(min(errors) / 2) for n in (trials // 2, trials // 2 - 1)
    ]
    assert limits[0] > SUBSTANTIAL
    assert limits[1] == 0.0


@pytest.mark.parametrize("fpr", [0.01, 0.001])
def test_as_many_non_members_are_asked_for_as_a_lower_limit_takes(fpr):
    wanted = needed(0.95, fpr)
    for others, enough in ((wanted - 1, False), (wanted, True)):
        secrets = torch.tensor([1] * 400 + [0] * others)
        chances = torch.full((2,), 0.5, dtype=torch.float64)
        assert (tpr_at_fpr(Transcript(secrets, secrets.double(), chances), fpr=fpr).low > 0) == enough


@pytest.mark.parametrize(
    ("seen", "sentence", "assumed"),
    [
        ("sum", "only the sum of 3 clients' updates", "secure aggregation"),
        ("broadcast", "only the global", ""),
    ],
)
def test_where_clients_are_not_told_apart_none_has_a_row(seen, sentence, assumed):
    result = run(cell_of(seen=seen))
    assert result.found.attacks[0].clients == ()
    assert {row.part for row in numbers(result) if row.about == "leakage"} == {"Cosine"}
    text = page(result).text
    assert sentence in KIND.tell([result]).verdicts[0].sentence
    assert "of their 150 records" in KIND.tell([result]).verdicts[0].sentence
    assert assumed in text
    assert "Client by client" not in text


def test_the_cell_says_what_was_in_place_and_a_recording_does_not(hospitals, plain):
    free, none, unsaid = cell_of(), KIND.ask(cell_of()), KIND.ask(hospitals.cell)
    assert (none.shields, none.protected, none.adaptive) == ((), False, None)
    assert (unsaid.protected, unsaid.adaptive) == (None, False)
    chain = {"name": "Chain", "defenses": [{"name": "Sign"}, LDP]}
    asked = KIND.ask(cell_of(upload=chain, virtual=2, cell={"defense": {"name": "DPSGD"}}))
    names = [shield["name"] for shield in asked.shields]
    assert names == ["DPSGD", "Chain", "Sign", "FlowerLocalDp", "virtual clients"]
    assert (asked.protected, asked.adaptive, asked.attack) == (True, False, "Cosine")
    assert (asked.secrets, asked.questions) == (("membership",), ("membership",))
    assert KIND.ask(free).attack == "Cosine"
    assert "The recording does not say" in page(hospitals).text


def test_a_defended_federation_stands_beside_the_one_without(plain):
    signed = run(cell_of(attacks=plain[0].cell.game["attacks"], upload={"name": "Sign"}, server_rate=0.003))
    (watch,) = watches([signed, *plain])
    assert [one.shield for one in watch.federations] == ["none", "Sign on every upload"]
    assert watch.undefended(watch.federations[1]) is watch.federations[0]
    assert watch.best_defended is watch.federations[1]
    assert KIND.tell([signed, *plain]).settings == 2


def test_federations_and_seeds_that_failed_say_so(plain):
    chapter = KIND.tell([fail(cell_of())])
    assert chapter.verdicts[0].severity == "failed"
    assert "1 federation failed" in chapter.lead
    assert "DataError: no records" in Page(str(chapter.body)).text
    half = KIND.tell([plain[0], fail(plain[0].cell, 1)])
    assert "failed" not in half.lead
    assert "Seed 1 failed and is in no number here: DataError: no records" in half.verdicts[0].notes


def test_a_test_that_the_held_out_records_cannot_make_is_named():
    result = run(cell_of(held=30))
    (federation,) = watches([result])[0].federations
    assert federation.untested == [(0.01, 99)]
    assert "No test at 1%: it needs 99 held-out records." in page(result).text
    assert any("needs 99 records of nobody, and there were 30" in r for r in KIND.tell([result]).remarks)


def test_a_rate_of_false_alarms_is_marked_where_luck_hardly_gives_it(plain):
    federation = watches(plain[:1])[0].worst  # 120 held-out records, 500 judged
    realised = federation.strongest.scores.conformal_fpr_at_5
    assert not federation.unlikely(0.05, replace(realised, value=0.08))
    assert federation.unlikely(0.05, replace(realised, value=0.16))


def test_no_name_of_a_client_becomes_markup_and_no_record_or_path_reaches_the_page(hospitals):
    shown = page(hospitals, fail(hospitals.cell, 1))
    assert not {"script", "img", "iframe"} & {tag for tag, _ in shown.seen}
    assert not [name for _, attrs in shown.seen for name in attrs if name in ("src", "href")]
    assert HOSTILE in shown.text
    assert "/home/me" not in shown.html


def test_the_same_results_give_the_same_page_in_any_order(plain, frozen, hospitals):
    results = [*plain, frozen, hospitals, fail(cell_of())]
    written = [Result[MembershipFound].model_validate_json(result.model_dump_json()) for result in results]
    first, again = KIND.tell(results), KIND.tell(written[::-1])
    assert (first.body, first.verdicts) == (again.body, again.verdicts)
    ids = [attrs["id"] for _, attrs in Page(str(first.body)).seen if "id" in attrs]
    assert {verdict.anchor for verdict in first.verdicts} <= set(ids)
    assert len(ids) == len(set(ids))
