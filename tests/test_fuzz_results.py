"""Results folders that something has been at: reported as they were written, or refused in one sentence."""

from __future__ import annotations

import json

import pytest
import tomli_w
from fuzzing import broken, files, fuzz, junk, nudged, scratched, works_or_says_why
from hypothesis import strategies as st
from test_fuzz_plans import APPETITE
from test_gate import game
from test_report import failed, result
from test_report_defenses import audit
from test_report_guards import guarded
from test_report_membership import federation

from leakscope import gating, report, store
from leakscope.plan import parse

PLAN = tomli_w.dumps(
    {
        "name": "Results",
        "cell": [{"data": {"name": "adult"}, "game": {"name": "Inference", "secret": "sex", "batch": 16}}],
    }
)
KEY = parse(PLAN).cell[0].key(0)


@pytest.fixture
def folder(tmp_path):
    """Results of several kinds, their plan and a risk appetite."""
    made = [result(), failed(), audit(), federation(), guarded(), game()]
    for i, one in enumerate(made):
        store.save(tmp_path / "out", one | {"key": f"{i:016x}" if i else KEY})
    store.write(tmp_path / "out" / "plan.toml", PLAN)
    store.write(tmp_path / "out" / gating.APPETITE, tomli_w.dumps(APPETITE))
    report.write(tmp_path / "out")
    return tmp_path / "out"


def reported(folder) -> None:
    """The report is written whole, or what was there stays as it was."""
    before = files(folder)
    refused = works_or_says_why(lambda: report.write(folder))
    after = files(folder)
    if refused:
        assert after == before
    assert before.keys() == after.keys()  # nothing half-written lies about
    assert after["report.html"].rstrip().endswith(b"</html>")


def test_a_result_is_what_was_written_or_is_refused(folder):
    path = folder / "cells" / f"{KEY}.json"
    whole, written = path.read_bytes(), store.load(folder, KEY)

    def check(content):
        path.write_bytes(content)
        found = []
        works_or_says_why(lambda: found.append(store.load(folder, KEY)))
        assert not found or found[0].items() >= written.items()

    fuzz("results that are loaded", scratched(whole), check)


def test_a_folder_with_a_broken_result_is_reported_or_refused(folder):
    cells = sorted((folder / "cells").iterdir())
    whole = {path: path.read_bytes() for path in cells}

    def check(case):
        path, document = case
        path.write_text(json.dumps(document), encoding="utf-8", errors="surrogatepass")
        reported(folder)
        works_or_says_why(
            lambda: gating.verdict(gating.parse(tomli_w.dumps(APPETITE)), gating.results(folder))
        )
        path.write_bytes(whole[path])

    documents = {path: json.loads(content) for path, content in whole.items()}
    cases = [
        st.tuples(st.just(p), broken(d["cell"]).map(lambda c, d=d: d | {"cell": c}))
        for p, d in documents.items()
    ]
    cases += [st.tuples(st.just(path), nudged(document)) for path, document in documents.items()]
    fuzz("results that are reported", st.one_of(cases) | st.tuples(st.sampled_from(cells), junk), check)


def test_a_folder_with_a_broken_plan_or_appetite_is_reported_or_refused(folder):
    whole = {folder / name: (folder / name).read_bytes() for name in ("plan.toml", gating.APPETITE)}

    def check(case):
        path, content = case
        path.write_bytes(content)
        reported(folder)
        works_or_says_why(lambda: gating.results(folder))
        path.write_bytes(whole[path])

    cases = [st.tuples(st.just(path), scratched(content)) for path, content in whole.items()]
    fuzz("folders that are reported", st.one_of(cases), check)


def test_a_result_from_before_there_were_fingerprints_is_read_as_it_is(folder):
    path = folder / "cells" / f"{KEY}.json"
    written, document = store.load(folder, KEY), json.loads(path.read_text())
    assert document.pop(store.SIGNED)
    path.write_text(json.dumps(document))
    assert store.load(folder, KEY) == written
