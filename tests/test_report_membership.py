"""What the report says of federations: who was trained on, how surely, and what was assumed."""

from __future__ import annotations

import copy
import json
import re
from html import unescape

import pytest
import torch
from test_report import HOSTILE, Tags, failed, page, result, tables_after_figures
from test_report_defenses import audit

from leakscope import Transcript, tpr_at_fpr
from leakscope.averages import needed
from leakscope.federations import watches
from leakscope.summary import audits, summarise

LOCAL = {"name": "Local", "rate": 0.1, "batch": 20}
SIGN, DPSGD = {"name": "Sign"}, {"name": "DPSGD", "clip": 1.0}
NOMINAL = ("1%", "5%", "10%")


def measure(value, low, high, n=560):
    given = {"name": "m", "value": value, "low": low, "high": high, "level": 0.95, "n": n}
    return given | {"method": "exact, mean of 4 clients"}


def attacked(name="Cosine", *, found=(0.22, 0.12, 0.3), rare=(0.05, 0.0, 0.3), auroc=(0.8, 0.7, 0.9)):
    """One attack's entry of a result; ``found`` are value, low and high of the TPR at 1%."""
    estimates = {
        "plr_at_1%": measure(*(100 * part for part in found)),
        "plr_at_5%": measure(8.4, 3.6, 13.1),
        "auroc": measure(*auroc),
        "tpr_at_1%": measure(*found),
        "tpr_at_0.1%": measure(*rare),
    }
    for i, rate in enumerate(NOMINAL):
        estimates[f"conformal_fpr_at_{rate}"] = measure(0.009 * (1 + i), 0.001, 0.05)
        estimates[f"conformal_tpr_at_{rate}"] = measure(0.3 + 0.1 * i, 0.2, 0.6)
    roc = [[i / 500, min(1.0, 0.1 + i / 400)] for i in range(501)]
    deviation = dict.fromkeys(estimates, 0.0123)
    return {"attack": name, "estimates": estimates, "deviation": deviation, "clients": 4, "roc": roc}


def federation(*attacks, seed=0, name="digits", defense=None, accuracy=0.8, sizes=None, **game):
    facts = {"clients": 4, "members": 240, "others": 857, "known": 400, "held": 300, "rounds": 6}
    facts |= {"watched": ["0", "1", "2", "3"], "seen": game.get("seen", "uploads")}
    facts |= {"centred": game.get("centred", False)} | (sizes or {})
    game = {"name": "MembershipAudit", "clients": 4, "size": 60, "local": LOCAL} | game
    return {
        "key": "77aa" * 4,
        "seed": seed,
        "cell": {
            "data": {"name": name},
            "game": game,
            "model": {"name": "MLP"},
            "defense": defense,
            "rounds": 6,
            "trials": 1_000,
        },
        "membership": {"attacks": list(attacks) or [attacked()], **facts},
        "utility": {
            "accuracy": measure(accuracy, accuracy - 0.03, accuracy + 0.03),
            "trained": measure(0.91, 0.88, 0.94),
            "majority": 0.11,
        },
        "data": {"name": name, "label": "digit", "records": 1797, "inputs": 64, "classes": 10},
        "model": {"name": "MLP", "parameters": 4810},
        "versions": {"leakscope": "0.1.0"},
        "seconds": 5,
    }


def broken(**changes):
    whole = federation(**changes)
    return {key: whole[key] for key in ("key", "seed", "cell")} | {"error": "DataError: no records"}


def words(*results):
    return Tags(page(list(results))).text


def rows_of(html, head):
    """The cells, without tags, of the first table whose header has this word."""
    for table in re.findall(r"<table.*?</table>", html, re.S):
        if head in table:
            body = re.search(r"<tbody>(.*)</tbody>", table, re.S)[1]
            rows = re.findall(r"<tr.*?</tr>", body, re.S)
            return [
                [
                    " ".join(unescape(re.sub("<.*?>", " ", cell)).split())
                    for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.S)
                ]
                for row in rows
            ]
    raise AssertionError(head)


def test_the_verdict_says_what_is_found_and_what_guessing_finds():
    text = words(federation())
    assert "Severe" in text
    assert (
        "Someone who sees one client’s updates of 6 rounds finds 22% of its 60 records (95% interval 12–30%) "
        "while wrongly naming 1 in 100 others; guessing finds 1%." in text
    )


def test_a_federation_is_no_secret_and_no_audit_of_an_attribute():
    for one in (federation(), broken()):
        assert audits([one]) == summarise([one]) == []
        assert len(watches([one])) == 1
        assert "Differential privacy" not in words(one)
    assert watches([result(), failed(), audit()]) == []


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
    one = federation(attacked(found=found, auroc=auroc))
    (watch,) = watches([one])
    assert watch.worst.severity == word
    assert f'<li class="{word}">' in page([one])


def test_the_attack_that_is_told_of_is_the_one_with_the_best_evidence():
    lucky = attacked("Cosine", found=(0.03, 0.002, 0.2), auroc=(0.63, 0.55, 0.71))
    ranking = attacked("Whitened", found=(0.14, 0.0, 0.4), auroc=(0.88, 0.83, 0.92))
    sure = attacked("Loss", found=(0.05, 0.02, 0.1), auroc=(0.6, 0.51, 0.7))
    for attacks, name in (
        ((lucky, ranking), "Whitened"),
        ((sure, sure), "Loss"),
        ((sure, attacked()), "Cosine"),
    ):
        for order in (attacks, attacks[::-1]):
            assert watches([federation(*order)])[0].worst.strongest.name == name


def test_the_rule_behind_the_word_stands_on_the_page_beside_that_of_the_other_secrets():
    text = words(federation(), result())
    assert "the lower limit of the members found at 1% false alarms is 10% or more" in text
    assert "the lower limit is above 1%, what guessing finds, and below 3%" in text
    assert "the lower limit of the advantage is 0.5 or more" in text
    alone = words(federation())
    assert "the lower limit of the advantage" not in alone


def test_an_attack_that_is_taught_by_members_is_marked_and_does_not_decide():
    zari = attacked("Zari", found=(0.9, 0.8, 0.95))
    one = federation(attacked("Loss", found=(0.02, 0.0, 0.05), auroc=(0.5, 0.4, 0.6)), zari)
    (watch,) = watches([one])
    assert watch.worst.severity == "inconclusive"
    text = words(one)
    assert "finds 2% of its 60 records" in text
    assert "Zari More knowledge: taught by half of the members" in text
    assert "Zari knows more: half of the members, as members." in text
    alone = words(federation(zari))
    assert "updates of 6 rounds and is told half of the members finds 90%" in alone


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Cosine", "updates; knows the record's label"),
        ("Whitened(label='predicted')", "does not know the record's label: takes the one the model predicts"),
        ("Cosine(label='sum', layer='all')", "does not know the record's label: sums over all"),
        ("Cosine(label='max')", "does not know the record's label: tries each"),
        ("FedLoss", "global models only, no update; knows the record's label"),
    ],
)
def test_each_attack_says_whether_it_knows_the_label(name, told):
    assert rows_of(page([federation(attacked(name))]), "PLR at 1% FPR")[0][0].endswith(told)


@pytest.mark.parametrize(
    ("seen", "verdict", "assumed"),
    [
        ("uploads", "sees one client’s updates of 6 rounds", "The updates of one client at a time"),
        (
            "sum",
            "sees only the sum of 4 clients’ updates of 6 rounds finds 22% of their 240",
            "secure aggregation",
        ),
        (
            "broadcast",
            "sees only the global models of 6 rounds finds 22% of their 240",
            "the step from one to the next",
        ),
    ],
)
def test_what_is_seen_is_said_in_the_verdict_and_in_what_was_assumed(seen, verdict, assumed):
    text = words(federation(seen=seen))
    assert verdict in text
    assert assumed in text
    assert "taken off every update" not in text
    assert "taken off every update" in words(federation(seen=seen, centred=True))


def test_the_tables_hold_the_numbers_of_the_data():
    html = page([federation(attacked("Whitened"))])
    found = rows_of(html, "PLR at 1% FPR")[0]
    assert found[1] == "22.0 ± 0.0 12.0 to 30.0"
    assert found[2] == "0.800 ± 0.012 0.700 to 0.900"
    assert found[3].startswith("22.0% ± 1.2% 12.0% to 30.0%")
    assert found[4].startswith("5.0% ± 1.2% 0.0% to 30.0%")
    calls = rows_of(html, "Realised FPR")[0]
    assert calls[1::2] == [f"{rate:.1f}% ± 1.2% 0.1% to 5.0%" for rate in (0.9, 1.8, 2.7)]
    assert calls[2::2] == [f"{rate}.0% ± 1.2% 20.0% to 60.0%" for rate in (30, 40, 50)]
    text = Tags(html).text
    assert "nobody trained on: 80.0% (77.0% to 83.0%), on the clients’ own: 91.0% (88.0% to 94.0%)" in text
    assert "most common label: 11.0%." in text
    assert "400 records that nobody trained on" in text
    assert "with 240 records in all; watched: 0, 1, 2, 3." in text


def test_the_figure_has_its_numbers_under_it():
    one = federation()
    html = page([one])
    (table,) = tables_after_figures(html)
    measured = {
        (round(100 * fpr, 1), round(100 * tpr, 1)) for fpr, tpr in one["membership"]["attacks"][0]["roc"]
    }
    assert len(table) > 10
    assert {(float(fpr[:-1]), float(tpr[:-1])) for fpr, tpr in table} <= measured
    assert "members named" in html
    assert "Line: the whole curve, both the mean of" in Tags(html).text


def test_a_ratio_over_seeds_may_exceed_one_and_not_its_ceiling():
    two = [federation(attacked(found=(value, 0.1, 0.9)), seed=i) for i, value in enumerate((0.6, 0.8))]
    (watch,) = watches(two)
    ratio, rate = (watch.worst.strongest.estimates[name] for name in ("plr_at_1%", "tpr_at_1%"))
    assert ratio.value == pytest.approx(70)
    assert (ratio.low, ratio.high) == (0, 100)
    assert (rate.low, rate.high) == (0, 1)
    assert "over 2 seeds" in words(*two)


def test_defended_federations_stand_beside_the_undefended_one_of_the_same_data():
    weak = attacked(found=(0.02, 0.0, 0.05), auroc=(0.5, 0.4, 0.6))
    results = [
        federation(name="other"),
        federation(weak, upload=SIGN, server_rate=0.003, accuracy=0.6),
        federation(seen="broadcast"),
        federation(weak, defense=DPSGD, accuracy=0.7),
        federation(weak, virtual=3, repartition=True),
        federation(),
    ]
    first, second = watches(results)
    assert {len(watch.federations) for watch in (first, second)} == {1, 5}
    watch = max(first, second, key=lambda watch: len(watch.federations))
    shields = [(one.shield, one.seen) for one in watch.federations]
    kin = [shield for shield, seen in shields if seen == "uploads"]
    assert [seen for _, seen in shields].index("broadcast") in (0, 4)  # apart from those seen otherwise
    assert kin[0] == "none"
    assert set(kin[1:]) == {
        "Sign on every upload",
        "DPSGD (clip 1.0) in every local step",
        "3 virtual clients in each, dealt anew in every round",
    }
    text = words(federation(), federation(weak, upload=SIGN, accuracy=0.6))
    assert "With Sign on every upload, someone who sees one client’s updates of 6 rounds finds 2%" in text
    assert "Task accuracy 60.0%, without defense 80.0%." in text


@pytest.mark.parametrize("fpr", [0.01, 0.001])
def test_as_many_non_members_are_asked_for_as_a_lower_limit_takes(fpr):
    wanted = needed(0.95, fpr)
    for others, enough in ((wanted - 1, False), (wanted, True)):
        secrets = torch.tensor([1] * 400 + [0] * others)
        chances = torch.full((2,), 0.5, dtype=torch.float64)
        assert (tpr_at_fpr(Transcript(secrets, secrets.double(), chances), fpr=fpr).low > 0) == enough


def test_too_few_non_members_are_said_to_be_so():
    one = federation(attacked(rare=(0.05, 0.0, 0.3)))  # 500 of 857 are judged in 1,000 trials
    text = words(one)
    assert "too few non-members for a lower limit" in text
    assert "= 4,380 non-members for each client, and 500 were judged." in text
    assert "too few non-members to tell" in words(federation(attacked(rare=(0.05, 0.0, 1.0))))
    one["cell"]["trials"], one["membership"]["others"] = 10_000, 4_380
    assert "too few non-members" not in words(one)
    two = [federation(seed=seed) for seed in (0, 1)]
    assert (
        "of 500 non-members, at most 1 in 1,000 is none at all; one allowed false alarm takes 1,000."
        in words(*two)
    )


def test_a_test_that_the_held_out_records_cannot_make_is_named_and_one_that_fails_is_flagged():
    few = attacked()
    for part in ("fpr", "tpr"):
        del few["estimates"][f"conformal_{part}_at_1%"]
    text = words(federation(few, sizes={"held": 60}))
    assert "No test at 1%: it takes 99 held-out records." in text
    assert "No test at 5%" not in text
    assert "above nominal" not in text
    off = attacked()
    off["estimates"]["conformal_fpr_at_5%"] = measure(0.08, 0.058, 0.107)
    assert "above nominal" not in words(federation(off))  # 300 held-out records may do that
    off["estimates"]["conformal_fpr_at_5%"] = measure(0.12, 0.093, 0.152)
    assert "9.3% to 15.2% above nominal" in words(federation(off))


def test_federations_that_failed_say_so():
    text = words(broken(), result())
    assert "1 federation audited for who was trained on ; 1 federation failed" in text
    assert "who was trained on is not known: the measurement failed." in text
    assert "Seed 0 failed: DataError: no records" in text
    both = words(federation(), broken(upload=SIGN))
    assert "1 further federation failed and is not part of this." in both
    assert "failed: DataError: no records" in both
    half = words(federation(), federation(seed=1) | {"membership": None, "error": "out of memory"})
    assert "Seed 1 failed and is in no number here: out of memory" in half


def test_a_recording_is_called_by_its_folder_and_its_defense_is_not_known():
    one = federation(sizes={"watched": ["site-0", "site-1"], "clients": 2, "members": 96})
    one["cell"]["game"] = {
        "name": "RecordingAudit",
        "recording": "/home/me/runs/spring",
        "records": "/home/me/who.csv",
    }
    text = words(one)
    assert "The recording spring : 2 clients with 96 records in all; watched: site-0, site-1." in text
    assert "Not said by the recording" in text
    assert "of its roughly 48 records" in text
    assert "/home/me" not in text


def test_the_page_holds_no_more_of_an_audit_than_its_means():
    """Whatever else a result might hold of single records does not reach the page."""
    one = federation()
    one["membership"]["scores"] = {"f5ae53510aad32b4": 0.35}
    one["membership"]["attacks"][0]["scores"] = [["f5ae53510aad32b4", 0.353026]]
    assert page([one]) == page([federation()])


def test_no_name_in_a_federation_becomes_markup():
    one = federation(
        attacked(HOSTILE),
        attacked(f"Cosine(label='{HOSTILE}')"),
        attacked("Zari"),
        name=HOSTILE,
        seen=HOSTILE,
    )
    one["membership"]["watched"] = [HOSTILE] * 2
    one["cell"] |= {"defense": {"name": HOSTILE, HOSTILE: HOSTILE}, "note": HOSTILE, "id": HOSTILE}
    one["cell"]["game"] |= {"upload": {"name": HOSTILE}, "virtual": HOSTILE}
    recorded = copy.deepcopy(one)
    recorded["cell"]["game"] = {"name": "RecordingAudit", "recording": f"/x/{HOSTILE}"}
    for measured in one["membership"]["attacks"][0]["estimates"].values():
        measured["method"] = HOSTILE
    html = page([one, recorded, broken(name=HOSTILE) | {"error": HOSTILE}], title=HOSTILE, plan=HOSTILE)
    tags = Tags(html)
    assert "<script" not in html
    assert not {"script", "img", "iframe"} & {tag for tag, _ in tags.seen}
    assert not [name for _, attrs in tags.seen for name in attrs if name.startswith("on")]
    assert "<script>alert(1)</script>" in tags.text


def test_a_page_of_games_audits_and_federations_holds_together():
    html = page([result(), audit(), federation(), federation(upload=SIGN), broken(name="x"), failed()])
    seen = Tags(html).seen
    ids = [attrs["id"] for _, attrs in seen if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {attrs["href"][1:] for _, attrs in seen if "href" in attrs} <= set(ids)
    assert not re.findall(r"https?:|url\(|@import|src=", html)


def test_the_same_results_give_the_same_page_in_any_order():
    results = [federation(), federation(upload=SIGN), federation(seen="sum"), federation(name="other")]
    assert page(results) == page(json.loads(json.dumps(results)))
    assert page(results) == page(results[::-1])
