"""Results folders that something has been at: reported as they were written, or refused in one sentence."""

from __future__ import annotations

import json

import pytest
from builders import FORMAT1, fail, game, golden, keep, refuses
from fuzzing import broken, files, fuzz, junk, nudged, scratched, works_or_says_why
from hypothesis import strategies as st

from leakscope.core.errors import PlanError, StoreError
from leakscope.report import overview, page
from leakscope.results import gate, kind, number, store
from leakscope.results.compare import compare
from leakscope.results.result import FORMAT

APPETITE = "".join(
    f'[[limit]]\nsecret = "*"\nmeasure = "{name}"\nat_most = 0.1\nadversary = "any"\n'
    for name in ("advantage", "auroc", "tpr_at_1%", "information", "epsilon")
)
LIMITS = gate.parse(APPETITE)
OLD = [path.name for path in sorted(FORMAT1.iterdir())]


@pytest.fixture
def folder(tmp_path):
    """A real result and a failed one, their plan, a risk appetite and a report."""
    keep(tmp_path / "out", [game(), fail(game("race"))])
    (tmp_path / "out" / gate.APPETITE).write_text(APPETITE)
    page.write(tmp_path / "out")
    return tmp_path / "out"


def unsigned(path):
    """A result as anybody could write it: without the fingerprint that ours have."""
    table = json.loads(path.read_text())
    del table[store.SIGNED]
    return table


def read_all(table):
    """What every reader does with a result."""
    result = store.parse(json.loads(json.dumps(table)), where="a file")
    rows = kind.numbers(result)
    number.as_csv(rows)
    number.as_json(rows, title="")
    kind.headline(result)
    page.render([result], plan="", title="")
    gate.as_json(gate.judge(LIMITS, [result]))
    compare([result], [result])


def test_a_result_is_what_was_written_or_is_refused(folder):
    path = folder / "cells" / f"{game().key}.json"
    whole, written = path.read_bytes(), store.load(folder, path.stem)

    def check(content):
        path.write_bytes(content)
        found = []
        works_or_says_why(lambda: found.append(store.load(folder, path.stem)))
        assert not found or found[0] == written

    fuzz("results that are loaded", scratched(whole), check)


@pytest.mark.parametrize("name", OLD)
def test_a_forged_or_damaged_result_is_read_by_all_or_refused_in_one_sentence(tmp_path, name):
    """Of every kind, in both formats."""
    now = golden(name)[-1].model_copy(update={"format": FORMAT})
    store.save(tmp_path, now)
    tables = [
        unsigned(path) for at in (tmp_path, FORMAT1 / name) for path in [at / "cells" / f"{now.key}.json"]
    ]

    def check(table):
        refused = works_or_says_why(lambda: read_all(table))
        assert refused is None or isinstance(refused, StoreError), refused

    cases = [broken(table) | nudged(table) for table in tables]
    fuzz("results that are reported", st.one_of(cases), check)


def test_a_broken_plan_appetite_or_result_leaves_the_report_as_it_was_or_whole(folder, tmp_path):
    paths = [folder / "plan.toml", folder / gate.APPETITE, *(folder / "cells").iterdir()]
    whole = {path: path.read_bytes() for path in paths}

    def check(case):
        path, content = case
        path.write_bytes(content)
        before = files(folder)
        refused = works_or_says_why(lambda: page.write(folder))
        after = files(folder)
        assert refused is None or (isinstance(refused, StoreError | PlanError) and after == before)
        assert before.keys() == after.keys()  # nothing half-written lies about
        assert after["report.html"].rstrip().endswith(b"</html>")
        works_or_says_why(lambda: gate.read_results(folder))
        overview.read_runs([folder], page=tmp_path / "summary.html")
        path.write_bytes(whole[path])

    cases = [st.tuples(st.just(path), scratched(content)) for path, content in whole.items()]
    foreign = junk.map(lambda value: json.dumps(value).encode())
    fuzz("folders that are reported", st.one_of(*cases, st.tuples(st.sampled_from(paths), foreign)), check)


def test_a_result_without_a_fingerprint_is_refused_unless_it_is_from_before_there_were_any(tmp_path):
    keep(tmp_path, [game()])
    path = tmp_path / "cells" / f"{game().key}.json"
    path.write_text(json.dumps(unsigned(path)))
    refuses(StoreError, "no fingerprint", store.load, tmp_path, path.stem)
    old = FORMAT1 / "inference"
    first = next((old / "cells").glob("*.json"))
    (tmp_path / "cells" / first.name).write_text(json.dumps(unsigned(first)))
    assert store.load(tmp_path, first.stem) == store.load(old, first.stem)
