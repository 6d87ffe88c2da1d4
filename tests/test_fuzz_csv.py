"""Tables that anybody could export: they are read, or refused in one sentence."""

from __future__ import annotations

import gzip
from functools import partial

import pytest
from fuzzing import files, fuzz, scratched, works_or_says_why
from hypothesis import strategies as st

from leakscope import from_csv, seeded

LINES = [
    "gender,ward,age,mark",
    *(f"{'fm'[i % 2]},{'ABC'[i % 3]},{20 + i}.5,{'yn'[i // 2 % 2]}" for i in range(60)),
]
WHOLE = "\n".join(LINES).encode()
CELLS = (
    "", " ", "?", "NA", "nan", "NaN", "null", "None", "inf", "-inf", "1e999", "-0", "0", "1", "2.5", "1_000", "1,5",
    "0x10", "٣", "½", "yes", "no", "f", "m", "TRUE", "true", "'", '"', '"a"', "a\nb", "a\r\nb", "a\rb", "\x00", "\x1b[31m",
    "<script>alert(1)</script>", "=1+1", "\u202ekcab", "\ufeff", "é", "日本", "😀", "x" * 5_000, "9" * 400, "#", ";", "\t",
)  # fmt: skip
PLAIN = (["f", "m"], ["yes", "no"], ["0", "1", "2"], ["1.5", "2", "3e1", "-4"], ["a"], ["x", "y", "", "z"])
NAMES = (
    "age",
    "ward",
    "gender",
    "mark",
    "",
    " ",
    "age ",
    "0",
    "x",
    "naïve",
    "a,b",
    'q"q',
    "n\nl",
    "<b>",
    "\u202e",
    "x" * 9_000,
)


def quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"'


ODD = (
    "cells",
    "cells",
    "name",
    "same name",
    "ragged",
    "rows",
    "mark",
    "comma",
    "end",
    "bom",
    "encoding",
    "gzip",
)


@st.composite
def tables(draw: st.DrawFn) -> tuple[bytes, list[str], str]:
    """The bytes of a table with up to three oddities, its header, and how its file name ends."""
    odd = set(draw(st.lists(st.sampled_from(ODD), max_size=3)))
    header = ["gender", "ward", "age", "mark"]
    columns = [
        draw(st.sampled_from(PLAIN[:3])),
        *(draw(st.sampled_from(PLAIN)) for _ in range(2)),
        ["y", "n"],
    ]
    if "cells" in odd:
        columns[draw(st.integers(0, 3))] = draw(st.lists(st.sampled_from(CELLS), min_size=1))
    if odd & {"name", "same name"}:
        header[draw(st.integers(0, 3))] = draw(st.sampled_from(NAMES if "name" in odd else header))
    rows = draw(st.sampled_from((0, 1, 2, 3, 12, 3_000))) if "rows" in odd else 60
    lines = [
        [column[i * 7 // (j + 2) % len(column)] for j, column in enumerate(columns)] for i in range(rows)
    ]
    if "ragged" in odd and lines:
        line = draw(st.sampled_from(lines))
        line[:] = line[:-1] if draw(st.booleans()) else [*line, "more"]
    comma = draw(st.sampled_from((", ", ";", "\t", "|"))) if "comma" in odd else ","
    end = draw(st.sampled_from(("\r\n", "\r", "\n\n", "\x1a"))) if "end" in odd else "\n"
    write = str if "mark" in odd else quoted
    text = end.join(comma.join(write(cell) for cell in line) for line in [header, *lines])
    text = "\ufeff" + text if "bom" in odd else text
    content = text.encode(
        draw(st.sampled_from(("latin-1", "utf-16"))) if "encoding" in odd else "utf-8", "replace"
    )
    kind = ".csv"
    if "gzip" in odd:
        kind = draw(st.sampled_from((".csv.gz", ".gz.csv", ".cut.csv.gz", ".plain.csv.gz")))
        content = content if "plain" in kind else gzip.compress(content, mtime=0)
    return content[: len(content) * 2 // 3] if "cut" in kind else content, header, kind


def read(path, header, *, encoding="onehot") -> None:
    """The records, checked and split as an audit does."""
    found = from_csv(path, label=header[-1], secrets=header[0], encoding=encoding)
    assert not found.x.isinf().any()  # gaps are filled when it is split
    assert len(found) == len(found.y) == len(found.secret(header[0]))
    assert len(found.positions("*")) == found.x.shape[1]
    assert int(found.y.max()) < found.classes >= 2
    assert found.secret(header[0]).max() < len(found.value_names(header[0]))
    train, test, public = found.split(seeded(0), secret=header[0])
    assert len(train) + len(test) + len(public) == len(found)
    assert train.x.isfinite().all()


def test_a_table_of_any_cells_is_read_or_refused_in_one_sentence(tmp_path):
    refused = []

    def check(case):
        content, header, kind = case
        path = tmp_path / f"table{kind}"
        path.write_bytes(content)
        for encoding in ("onehot", "label"):
            call = partial(read, path, header, encoding=encoding)
            refused.append(works_or_says_why(call) is not None)
        path.unlink()

    fuzz("tables", tables(), check)
    assert 0.2 < sum(refused) / len(refused) < 0.9  # of either there are enough
    assert files(tmp_path) == {}


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_scratched_bytes_of_a_table_are_read_or_refused_in_one_sentence(tmp_path, name):
    path, whole = tmp_path / name, gzip.compress(WHOLE, mtime=0) if name.endswith("gz") else WHOLE
    path.write_bytes(whole)
    read(path, LINES[0].split(","))

    def check(content):
        path.write_bytes(content)
        works_or_says_why(lambda: read(path, LINES[0].split(",")))

    fuzz("bytes of tables", scratched(whole), check)
    assert files(tmp_path).keys() == {name}


@pytest.mark.parametrize(
    "name", ["a\nb.csv", "\x1b[31mred.csv", "\u202evsc.csv", "x" * 300 + ".csv", "<b>.csv", "a\x00b.csv"]
)
def test_a_file_name_that_does_not_print_is_told_in_one_printable_sentence(tmp_path, name):
    assert works_or_says_why(lambda: from_csv(tmp_path / name, label="mark", secrets="gender")) is not None
