"""What may leave: one folder about some runs, whole, in step with them, and without any record or score."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from pathlib import Path

import builders
import numpy as np
import pandas as pd
import pytest
import tomli_w
from builders import fail, game, golden, keep, refuses
from chromium import program
from markupsafe import Markup

import leakscope as ls
from leakscope.core.errors import StoreError
from leakscope.report import paper, sheet
from leakscope.report.dossier import MANIFEST, PDF, STATEMENT, write_dossier
from leakscope.results.chapter import SEVERITIES, Verdict
from leakscope.results.result import FORMAT
from leakscope.run import api

BROWSER = program()  # before it is hidden from the tests
EXAMPLES = Path(__file__).parents[1] / "examples" / "ci"
LIMIT = {"secret": "*", "measure": "advantage", "at_most": 0.1, "attack": "any"}


@pytest.fixture(autouse=True)
def no_browser(monkeypatch):
    monkeypatch.setattr(paper.shutil, "which", lambda name: None)


def appetite(tmp_path, **more):
    path = tmp_path / "appetite.toml"
    path.write_text(tomli_w.dumps({"limit": [LIMIT]} | more))
    return path


def texts(folder):
    return {
        p.relative_to(folder).as_posix(): p.read_bytes().decode() for p in folder.rglob("*") if p.is_file()
    }


def test_a_dossier_is_whole_and_its_manifest_says_so(tmp_path):
    runs = [keep(tmp_path / "one", [builders.game()]), keep(tmp_path / "two", [builders.game("race")])]
    declared = {"epsilon": 3.0, "delta": 1e-5, "neighbours": "add or remove"}
    names, told = write_dossier(runs, tmp_path / "out", appetite=appetite(tmp_path, declared=declared))
    found = texts(tmp_path / "out")
    assert set(found) == set(names)
    hashes = json.loads(found[MANIFEST])["sha256"]
    assert set(hashes) == set(found) - {MANIFEST}
    assert all(hashlib.sha256(found[name].encode()).hexdigest() == value for name, value in hashes.items())
    assert {"one/report.html", "two/results.csv", "gate.json", "gate.svg", "index.html"} <= set(found)
    assert "No PDF" in told
    said = json.loads(found[STATEMENT])
    assert said["verdict"] == json.loads(found["gate.json"])["verdict"] == "fail"
    assert said["declared"] == declared
    assert [run["name"] for run in said["runs"]] == ["one", "two"]
    measured = {(row["secret"], row["measure"]): row["value"] for row in said["runs"][0]["measured"]}
    assert measured["sex", "success"] == builders.game().found.scores.success.value
    assert all(run["threat model"]["not tested"] for run in said["runs"])
    assert "Not tested" in found["model-card.md"]
    assert 'href="one/report.html"' in found["index.html"]
    page = Markup(found["index.html"]).striptags()
    assert "Declared risk appetite: fail." in page
    assert "Declared by the operator: epsilon 3.0, delta 1e-05, neighbours add or remove. Nobody" in page
    for run in said["runs"]:
        assert run["plan"]["sha256"][:8] in page
        assert all(data["digest"][:8] in page for data in run["data"])
        assert all(sentence in page for sentence in run["threat model"]["not tested"])
        assert run["found"][0]["told"] in page
    assert {"readings", "made"} <= set(said)
    assert all("our reading" in reading["by"] for reading in said["readings"])


def test_without_an_appetite_nothing_is_judged_and_nothing_passes(tmp_path):
    run = keep(tmp_path / "one", [builders.game(rate=0.5, n=4_000)])
    write_dossier([run], tmp_path / "out")
    found = texts(tmp_path / "out")
    assert "gate.json" not in found
    assert json.loads(found[STATEMENT])["verdict"] is None
    assert not re.search(r"\bpass(ed)?\b", found["model-card.md"], re.IGNORECASE)
    assert "nothing here passes or fails" in found["index.html"]


def test_what_failed_or_was_not_run_is_in_every_part_of_it(tmp_path):
    run = keep(tmp_path / "one", [builders.game(rate=0.5, n=4_000), builders.fail(builders.game("race"))])
    write_dossier([run], tmp_path / "out", appetite=appetite(tmp_path))
    found = texts(tmp_path / "out")
    assert json.loads(found[STATEMENT])["verdict"] == "not enough evidence"
    assert "failed" in found["model-card.md"]
    assert "1 failed" in found["index.html"]


def test_no_record_and_no_score_of_a_person_leaves(tmp_path):
    rng = np.random.default_rng(0)
    n = 400
    numbers = rng.normal(size=(n, 3)).round(6)
    frame = pd.DataFrame(numbers, columns=["a", "b", "c"])
    frame["name"] = [f"person-{rng.integers(1 << 40):x}" for _ in range(n)]
    frame["ill"] = np.where(numbers[:, 0] + rng.normal(size=n) > 0, "yes", "no")
    frame["sex"] = np.where(numbers[:, 1] > 0, "f", "m")
    frame.to_csv(tmp_path / "own.csv", index=False)
    ls.audit(tmp_path / "own.csv", label="ill", secret="sex", rounds=1, trials=40, rehearsals=40,
             defenses=["none"], output=tmp_path / "run", quiet=True)  # fmt: skip
    write_dossier([tmp_path / "run"], tmp_path / "out")
    every = "\n".join(texts(tmp_path / "out").values())
    assert not [name for name in frame["name"] if name in every]
    told = set(re.findall(r"-?\d\.\d{4,6}\b", every))
    assert not {f"{value:g}" for value in numbers.ravel()} & told
    assert str(tmp_path) not in every


def test_scores_of_persons_that_lie_beside_results_stay_there(tmp_path):
    run = keep(tmp_path / "one", [builders.game()])
    key = next((run / "cells").iterdir()).stem
    (run / "files" / key).mkdir(parents=True)
    (run / "files" / key / "scores.csv").write_text("person,score\nanna,0.123456\n")
    write_dossier([run], tmp_path / "out")
    assert not [
        name for name, text in texts(tmp_path / "out").items() if "anna" in text or "scores.csv" in name
    ]


def test_runs_that_show_records_and_folders_of_something_else_are_refused_at_once(tmp_path):
    one = builders.game()
    shown = one.cell.model_copy(update={"game": one.cell.game | {"shown": 6}})
    runs = [
        keep(tmp_path / "a" / "run", [one]),
        keep(tmp_path / "b" / "run", [one.model_copy(update={"cell": shown, "key": shown.key(0)})]),
    ]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "letter.txt").write_text("mine")
    for words in ("called run", "--show-reconstructions", "--output must be new"):
        refuses(StoreError, words, write_dossier, runs, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["letter.txt"]


def test_a_dossier_is_replaced_as_a_whole(tmp_path):
    first = keep(tmp_path / "first", [builders.game(rate=0.5, n=4_000)])
    second = keep(tmp_path / "second", [builders.game()])
    write_dossier([first], tmp_path / "out", appetite=appetite(tmp_path))
    assert "first/report.html" in texts(tmp_path / "out")
    write_dossier([second], tmp_path / "out")
    found = texts(tmp_path / "out")
    assert not [name for name in found if name.startswith(("first", "gate", "appetite"))]
    assert set(json.loads(found[MANIFEST])["sha256"]) == set(found) - {MANIFEST}
    (tmp_path / "out" / "note.txt").write_text("mine")
    refuses(StoreError, "--output must be new", write_dossier, [second], tmp_path / "out")


def test_runs_about_different_secrets_share_a_dossier_and_each_is_judged_by_its_own_limits(tmp_path):
    runs = [
        keep(tmp_path / "sex", [builders.game(rate=0.5, n=4_000)]),
        keep(tmp_path / "race", [builders.game("race")]),
    ]
    path = tmp_path / "appetite.toml"
    path.write_text(tomli_w.dumps({"limit": [LIMIT | {"secret": "sex"}, LIMIT | {"secret": "race"}]}))
    write_dossier(runs, tmp_path / "out", appetite=path)
    said = json.loads(texts(tmp_path / "out")[STATEMENT])
    assert [run["verdict"] for run in said["runs"]] == ["pass", "fail"]
    assert said["verdict"] == "fail"


def test_words_of_the_data_are_no_markup(tmp_path):
    run = keep(tmp_path / "one", [builders.game("<img src=x>")])
    write_dossier([run], tmp_path / "out")
    card = texts(tmp_path / "out")["model-card.md"]
    assert "<img" not in card.replace("\\<img", "")


def test_ten_runs_make_a_small_dossier(tmp_path):
    runs = [keep(tmp_path / f"run{i}", builders.grid(6)) for i in range(10)]
    write_dossier(runs, tmp_path / "out", appetite=appetite(tmp_path))
    assert sum(p.stat().st_size for p in (tmp_path / "out").rglob("*") if p.is_file()) < 2_000_000


def make_ten(folder):
    """Ten runs: of every kind some, that leak, that do not, that failed, and one in which nothing was run."""
    kinds = ("guards", "inference", "layers", "mechanism", "membership")
    runs = [
        keep(folder / f"of-{kind}", [one.model_copy(update={"format": FORMAT}) for one in golden(kind)])
        for kind in kinds
    ]
    runs += [keep(folder / f"site-{i}", [game(rate=0.5 + 0.1 * i), fail(game("race"))]) for i in range(3)]
    return [*runs, keep(folder / "same", [game(rate=0.5)]), keep(folder / "empty", [])]


def test_a_front_sheet_tells_equal_sentences_once_and_loses_no_verdict(tmp_path):
    write_dossier(make_ten(tmp_path), tmp_path / "out", appetite=appetite(tmp_path))
    found = texts(tmp_path / "out")
    page = " ".join(Markup(found["index.html"]).striptags().split())
    said = json.loads(found[STATEMENT])
    every = {verdict["told"] for run in said["runs"] for verdict in run["found"]}
    every |= {
        sentence
        for run in said["runs"]
        for sentence in (*run["threat model"]["assumed"], *run["threat model"]["not tested"])
    }
    assert max(page.count(sentence) for sentence in every) == 1
    section = found["index.html"].partition('id="found"')[2].partition('id="rests"')[0]
    listed = " ".join(Markup(section).striptags().split())
    items = [" ".join(Markup(item).striptags().split()) for item in section.split("<li>")]
    for i, run in enumerate(said["runs"], start=1):
        for verdict in run["found"]:
            named = re.escape(f"{verdict['about']}, {verdict['data']}") + r" \((.*?)\)"
            own = [item for item in items if item.startswith(verdict["reading"])]
            assert any(covers(runs, i) for item in own for runs in re.findall(named, item)), verdict
        assert not run["found"] or run["found"][0]["told"] in listed
        lost = [
            one for one in run["threat model"]["not tested"] if "failed" in one or "Nobody has run" in one
        ]
        assert all(sentence in listed for sentence in lost)
    assert "Run 10: nothing has been run yet." in listed
    assert "1 limit passed" in page
    assert "Fail: every secret, Advantage at most 0.1" in page
    assert "in the details below" not in page


def covers(runs, number):
    """Whether ``all runs`` or ``runs 1 to 3 and 7`` speaks of this one."""
    if runs == "all runs":
        return True
    parts = re.findall(r"(\d+)(?: to (\d+))?", runs)
    return any(int(first) <= number <= int(last or first) for first, last in parts)


def test_what_has_no_room_is_counted_by_its_reading_and_its_place_is_told():
    told = [Verdict("severe", f"column {i}", "adult", f"It leaks {i}.") for i in range(sheet.NAMED + 3)]
    quiet = [Verdict("none", f"row {i}", "adult", f"Nothing {i}.") for i in range(6)]
    found = sheet.sort_out([[*told, *quiet], told])
    assert [verdict.about for verdict, _ in found.told] == [f"column {i}" for i in range(sheet.EACH)]
    assert [(severity, len(names)) for severity, names in found.named.items()] == [("severe", sheet.NAMED)]
    assert found.named["severe"][0] == "column 3, adult (all runs)"
    assert found.left == f"6 more verdicts: 6 {SEVERITIES['none'].lower()}. See the reports of run 1."


@pytest.mark.parametrize(
    ("numbers", "name"),
    [((1, 2, 3), "all runs"), ((2,), "run 2"), ((1, 2), "runs 1 and 2"), ((1, 3), "runs 1 and 3")],
)
def test_runs_are_named_by_their_numbers(numbers, name):
    assert sheet.name_runs(numbers, 3) == name
    assert sheet.name_runs((1, 2, 3, 4, 7), 9) == "runs 1 to 4 and 7"


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed here")
def test_ten_runs_are_two_printed_pages(tmp_path, monkeypatch):
    monkeypatch.setattr(paper.shutil, "which", lambda name: BROWSER)
    runs = make_ten(tmp_path)
    for given in (runs[-3:-2], runs):
        out = tmp_path / f"out{len(given)}"
        _, told = write_dossier(given, out, appetite=appetite(tmp_path))
        printed = (out / PDF).read_bytes()
        assert told == f"PDF: {PDF}, 2 pages."
        assert len(re.findall(rb"/Type */Page\b", printed)) == 2
        assert b"file:" not in printed


def steps(name):
    """The commands of ours that an example of a pipeline runs, in their order."""
    lines = re.findall(r"^ *(?:- )?(?:run: )?leakscope (.*)$", (EXAMPLES / name).read_text(), re.MULTILINE)
    return [shlex.split(line) for line in lines]


@pytest.mark.parametrize("name", ["github.yml", "gitlab.yml"])
def test_the_examples_of_pipelines_run(name, tmp_path, monkeypatch, leakscope):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "appetite.toml").write_text((EXAMPLES / "appetite.toml").read_text())
    few = ["--rounds", "2", "--trials", "200", "--rehearsals", "100", "--defense", "none", "--train", "1000"]
    for command in steps(name):
        said = leakscope(*command, *(few if command[0] == "audit" else ()))
        assert said.code in ((0, 1, 3) if command[0] == "gate" else (0,)), said.err
    assert (tmp_path / "gate.xml").exists()
    assert (tmp_path / "dossier" / STATEMENT).exists()


def test_the_command_and_the_function_write_the_same(tmp_path, leakscope):
    run = keep(tmp_path / "one", [builders.game()])
    assert leakscope("dossier", run, "-o", tmp_path / "a").code == 0
    api.dossier([run], tmp_path / "b")
    first, second = texts(tmp_path / "a"), texts(tmp_path / "b")
    assert first.keys() == second.keys()
    assert first["one/report.html"] == second["one/report.html"]
