"""Tables: Adult, and any CSV."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from builders import refuses

from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, DataError
from leakscope.core.rng import seeded
from leakscope.core.task import Classes, Quantity
from leakscope.data import from_csv, load, tabled
from leakscope.data.files import free_memory
from leakscope.data.ranges import cut
from leakscope.data.tabular import read_as, rows_as

GOOD = "age,sex,job,income\n" + "".join(
    f"{20 + i},{'FM'[i % 2]},{['clerk', 'cook', ''][i % 3]},{['low', 'high'][i % 5 == 0]}\n"
    for i in range(30)
)


@pytest.fixture(scope="module")
def adult() -> Dataset:
    return load("adult")


def written(folder: Path, text: str | bytes, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_adult_has_all_its_rows_and_108_inputs(adult: Dataset) -> None:
    assert adult.x.shape == (48_842, 108)
    assert adult.x.dtype == torch.float32
    assert adult.y.dtype == adult.private["sex"].dtype == torch.int64
    assert sum(column.standardised for column in adult.columns) == 6
    assert len(adult.positions("*")) == 108
    assert not adult.has("income")
    assert not adult.has("split")
    assert torch.isfinite(adult.x).all()


def test_adult_codes_are_alphabetical(adult: Dataset) -> None:
    assert adult.value_names("sex") == ("Female", "Male")
    assert adult.values["income"] == ("<=50K", ">50K")
    assert set(adult.private) == {"sex", "race", "marital-status"}
    assert adult.private["sex"].double().mean().item() == pytest.approx(0.6685, abs=5e-5)
    assert adult.y.double().mean().item() == pytest.approx(0.2393, abs=5e-5)


def test_adult_keeps_question_marks_as_a_category(adult: Dataset) -> None:
    workclass = next(column for column in adult.columns if column.name == "workclass")
    assert workclass.values[0] == "?"
    assert adult.x[:, workclass.start].sum().item() == 2_799


def test_dummies_say_what_the_codes_say(adult: Dataset) -> None:
    assert torch.equal(adult.x[:, adult.positions("sex")].argmax(1), adult.private["sex"])
    assert torch.equal(adult.x[:, adult.positions("race")].sum(1), torch.ones(len(adult)))


def test_adult_label_encoding_has_14_inputs() -> None:
    adult = load("adult", encoding="label")
    assert adult.x.shape == (48_842, 14)
    assert all(column.standardised for column in adult.columns)
    assert torch.equal(adult.x[:, adult.positions("sex")][:, 0].long(), adult.private["sex"])


def test_without_takes_a_secret_out_of_x_and_leaves_it_private(adult: Dataset) -> None:
    property_only = adult.without("sex")
    assert property_only.x.shape[1] == 106
    assert not property_only.has("sex")
    assert torch.equal(property_only.private["sex"], adult.private["sex"])
    for column in property_only.columns:
        before, after = adult.positions(column.name), property_only.positions(column.name)
        assert torch.equal(adult.x[:, before], property_only.x[:, after])


def test_the_census_of_paper_003_has_42_inputs(adult: Dataset) -> None:
    census = load("census42")
    widths = {column.name: column.stop - column.start for column in census.columns}
    assert census.x.shape == (48_842, 42)
    assert sum(widths.values()) == 42
    expected = {"workclass": 6, "occupation": 12, "race": 3, "sex": 2, "marital-status": 7, "relationship": 6}
    assert {name: width for name, width in widths.items() if width > 1} == expected
    assert not {"education", "native-country"} & set(widths)
    assert list(census.private) == ["sex", "race", "marital-status"]
    assert census.value_names("race") == ("Black", "Other", "White")
    assert torch.equal(census.y, adult.y)
    for name in ("sex", "marital-status"):
        assert torch.equal(census.private[name], adult.private[name])


def test_the_census_is_encoded_as_pandas_would(adult: Dataset) -> None:
    """get_dummies gives no dummy to missing cells; pandas' std divides by n - 1."""
    table = pd.read_csv(
        Path(__file__).parents[1] / "src/leakscope/data/adult.csv.gz", na_values="?", skipinitialspace=True
    )
    table["race"] = table["race"].replace(["Asian-Pac-Islander", "Amer-Indian-Eskimo"], "Other")
    pruned = {"Never-worked", "Without-pay", "Priv-house-serv", "Armed-Forces"}
    census = load("census42")
    for column in census.columns:
        cells = table[column.name]
        if column.values:
            dummies = pd.get_dummies(cells)
            assert set(dummies.columns) - pruned == set(column.values)
            theirs = dummies[list(column.values)].to_numpy(dtype="float32")
        elif column.name in ("fnlwgt", "capital-gain", "capital-loss"):
            theirs = ((cells - cells.mean()) / cells.std()).to_numpy()[:, None]
        else:
            theirs = ((cells - cells.min()) / cells.max()).to_numpy()[:, None]
        ours = census.x[:, column.start : column.stop].numpy()
        assert abs(ours - theirs).max() < 1e-6 * max(1.0, abs(theirs).max()), column.name


def test_splitting_the_census_does_not_scale_it_again() -> None:
    census = load("census42")
    for part in census.split(seeded(0, "split"), secret="sex", train=2_000):
        assert set(part.hashes[:50]) <= set(census.hashes)


def test_adult_splits_into_parts_as_large_as_the_papers(adult: Dataset) -> None:
    train, test, public = adult.split(seeded(0, "split"), secret="sex")
    assert (len(train), len(public), len(test)) == (5_000, 1_000, 42_842)
    shares = [part.private["sex"].double().mean().item() for part in (adult, public, test)]
    assert shares == pytest.approx([shares[0]] * 3, abs=1e-3)  # the paper's 1,000 hold 500 of each


def test_uci_files_give_the_same_table(tmp_path: Path, adult: Dataset) -> None:
    with gzip.open(Path(__file__).parents[1] / "src/leakscope/data/adult.csv.gz", "rt") as file:
        rows = list(csv.reader(file))[1:]
    train, test = rows[:400], rows[-300:]
    (tmp_path / "adult.data").write_text("".join(", ".join(row[:-1]) + "\n" for row in train) + "\n")
    (tmp_path / "adult.test").write_text(
        "|1x3 Cross validator\n" + "".join(", ".join(row[:-1]) + ".\n" for row in test) + "\n"
    )
    uci = load("uci-adult", path=tmp_path, encoding="label")
    assert uci.x.shape == (700, 14)
    expected = torch.cat([adult.y[:400], adult.y[-300:]])
    assert torch.equal(uci.y, expected)
    assert uci.values["income"] == ("<=50K", ">50K")
    assert torch.equal(
        uci.private["sex"],
        torch.cat([adult.private["sex"][part] for part in (slice(400), slice(-300, None))]),
    )


@pytest.mark.parametrize(
    ("data", "test"),
    [("", "|1x3\n1, 2\n"), ("1, 2, 3\n", "|1x3\n"), ("1," * 17 + "\n", "|1x3\n" + "1," * 14)],
)
def test_uci_files_of_another_shape_are_refused(tmp_path: Path, data: str, test: str) -> None:
    (tmp_path / "adult.data").write_text(data)
    (tmp_path / "adult.test").write_text(test)
    refuses(DataError, r"adult\.(data|test)", load, "uci-adult", path=tmp_path)


def test_a_csv_keeps_numbers_and_encodes_words(tmp_path: Path) -> None:
    table = from_csv(written(tmp_path, GOOD), label="income", secrets="sex")
    expected = [("age", ()), ("sex", ("F", "M")), ("job", ("?", "clerk", "cook"))]
    assert [(column.name, column.values) for column in table.columns] == expected
    assert table.x[0].tolist() == [20, 1, 0, 0, 1, 0]
    assert table.values["income"] == ("high", "low")
    assert table.name == "table"
    assert table.label == "income"


def test_a_gzipped_csv_reads_as_the_plain_one(tmp_path: Path) -> None:
    plain = from_csv(written(tmp_path, GOOD), label="income", secrets=["sex"])
    packed = from_csv(
        written(tmp_path, gzip.compress(GOOD.encode()), "t.csv.gz"), label="income", secrets=["sex"]
    )
    misnamed = from_csv(
        written(tmp_path, gzip.compress(GOOD.encode()), "u.csv"), label="income", secrets=["sex"]
    )
    assert torch.equal(plain.x, packed.x)
    assert torch.equal(plain.x, misnamed.x)
    assert packed.name == "t"


def test_pieces_do_not_change_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(
        tmp_path, "a,b,c,y\n" + "".join(f"{i / 2},{i % 7},w{i % 11},{i % 2}\n" for i in range(997))
    )
    whole = from_csv(path, label="y", secrets=("b", "c"))
    monkeypatch.setattr("leakscope.data.delimited.CHUNK", 1)
    pieces = from_csv(path, label="y", secrets=("b", "c"))
    assert torch.equal(whole.x, pieces.x)
    assert torch.equal(whole.private["c"], pieces.private["c"])


def test_a_byte_order_mark_and_spaces_after_commas_are_not_part_of_names(tmp_path: Path) -> None:
    path = written(tmp_path, "\ufeffy, s, n\n1, a, 5\n0, b, 6\n")
    assert from_csv(path, label="y", secrets="s").positions("s", "n").tolist() == [0, 1, 2]


def test_markup_in_names_and_values_is_kept_verbatim(tmp_path: Path) -> None:
    tag = "<script>alert(1)</script>"
    table = from_csv(written(tmp_path, f"y,{tag},n\n1,{tag},5\n0,b,6\n"), label="y", secrets=tag)
    assert table.columns[0].name == tag
    assert table.value_names(tag) == (tag, "b")


def test_the_user_is_private_and_never_in_x(tmp_path: Path) -> None:
    path = written(tmp_path, "y,who,n\n" + "".join(f"{i % 2},p{i},{i / 2}\n" for i in range(500)))
    for role in ("user", "person"):
        table = from_csv(path, label="y", secrets=(), **{role: "who"})
        assert [column.name for column in table.columns] == ["n"]
        assert len(table.value_names("who")) == 500


def test_numeric_secrets_and_labels_are_coded_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    path = written(tmp_path, "y,s,n\n10,1.0,5\n9,02,6\n10,,7\n9,1,8\n")
    table = from_csv(path, label="y", secrets="s")
    assert table.values["y"] == ("9", "10")
    assert table.value_names("s") == ("1", "2", "?")
    assert table.private["s"].tolist() == [0, 1, 2, 0]


def test_a_secret_of_many_numbers_is_asked_in_ranges_and_stays_a_number_among_the_inputs(tmp_path) -> None:
    path = written(tmp_path, "y,age,n\n" + "".join(f"{i % 2},{i % 100},{i}\n" for i in range(1000)))
    table = from_csv(path, label="y", secrets="age")
    assert table.values["age"] == ("below 20", "20 to 40", "40 to 60", "60 to 80", "80 or more")
    assert table.private["age"].bincount().tolist() == [200] * 5
    assert table.x[:, table.positions("age")][:, 0].tolist() == [float(i % 100) for i in range(1000)]
    assert table.ordered == {"age"}
    assert "quantiles of all rows" in next(fate.reason for fate in table.fates if fate.column == "age")
    edged = from_csv(path, label="y", secrets="age", bins={"age": [18, 65]})
    assert edged.values["age"] == ("below 18", "18 to 65", "65 or more")
    assert edged.private["age"].bincount().tolist() == [180, 470, 350]
    assert edged.private["age"][18] == 1  # an edge belongs to the range above it
    few = from_csv(path, label="y", secrets="age", bins={"age": 2}, kinds={"age": "number"})
    assert few.values["age"] == ("below 50", "50 or more")


def test_rows_without_a_number_are_a_range_of_their_own_and_the_secret_then_has_no_order(tmp_path) -> None:
    gaps = "".join(f"{i % 2},{i % 100 if i % 10 else ''},{i}\n" for i in range(1000))
    table = from_csv(written(tmp_path, "y,age,n\n" + gaps), label="y", secrets="age")
    assert table.values["age"][-1] == "?"
    assert int((table.private["age"] == 5).sum()) == 100
    assert table.ordered == frozenset()


def test_a_label_of_many_numbers_is_one_to_come_near_to_unless_it_is_told_otherwise(tmp_path) -> None:
    rows = [(i % 14 + 1, i / 7) for i in range(400)]
    path = written(
        tmp_path, "days,cost,s,n\n" + "".join(f"{d},{c},{i % 2},{i}\n" for i, (d, c) in enumerate(rows))
    )
    assert from_csv(path, label="days", secrets="s", drop="cost").classes == 14
    asked = from_csv(path, label="days", secrets="s", drop="cost", kinds={"days": "number"})
    assert asked.task == Quantity()
    assert asked.y.tolist() == [float(d) for d, _ in rows]
    cost = from_csv(path, label="cost", secrets="s", drop="days")
    assert cost.task == Quantity()
    assert from_csv(path, label="cost", secrets="s", drop="days", bins={"cost": 3}).task == Classes(3)
    told = {fate.column: fate.reason for fate in from_csv(path, label="days", secrets="s").fates}
    assert "--as days=number" in told["days"]


def test_edges_are_rounded_as_far_as_the_ranges_stay_about_the_same() -> None:
    numbers = np.random.default_rng(0).normal(1_234.5678, 100, size=5_000)
    codes, names = cut(numbers, 4, "secret 's'")
    edges = [float(names[0].removeprefix("below ")), *(float(name.split(" to ")[1]) for name in names[1:-1])]
    assert all(edge == round(edge) for edge in edges)  # 1,170, not 1,167.4: nobody's own value
    assert max(abs(codes.bincount() / 5_000 - 0.25)) < 0.03
    zeros = np.where(np.arange(100) < 90, 0.0, np.arange(100))
    refuses(DataError, "some are too frequent", cut, zeros, None, "secret 's'")


def test_a_label_may_number_a_hundred_classes(tmp_path: Path) -> None:
    path = written(tmp_path, "y,s,n\n" + "".join(f"{i % 100},{i % 2},{i}\n" for i in range(300)))
    assert from_csv(path, label="y", secrets="s").classes == 100


def test_dropped_columns_are_not_looked_at(tmp_path: Path) -> None:
    path = written(
        tmp_path, ",y,s,note,n\n" + "".join(f"{i},{i % 2},{i % 3},text {i},{i / 2}\n" for i in range(300))
    )
    table = from_csv(path, label="y", secrets="s", drop=("", "note"))
    assert [column.name for column in table.columns] == ["s", "n"]


def test_true_and_false_are_categories(tmp_path: Path) -> None:
    table = from_csv(written(tmp_path, "y,s\nTrue,a\nFalse,b\n"), label="y", secrets="s")
    assert table.values["y"] == ("False", "True")


MANY = "y,s,n\n" + "".join(f"{i % 2},{i % 3},{i / 2}\n" for i in range(300))
REFUSED = {
    "missing label": (MANY, r"no column 'yy' \(did you mean 'y'\?\); it has 'y'", {"label": "yy"}),
    "missing secret": (MANY, "no column 'sex'", {"secrets": "sex"}),
    "label of no name": (MANY, "no column ''; it has 'y'", {"label": ""}),
    "secret of no name": (MANY, "no column ''; it has 'y'", {"secrets": ""}),
    "missing drop": (MANY, "no column 'q'; it has 'y', 's', 'n'", {"drop": "q"}),
    "missing user": (MANY, "no column 'who'", {"user": "who"}),
    "missing names": (
        MANY,
        r"no column 'yy' .*, 'q'; it has",
        {"label": "yy", "drop": "q"},
    ),
    "unknown kind": (MANY, "--as n must be one of number, category", {"kinds": {"n": "float"}}),
    "kind of the secret": (MANY, "--as s must be number or category", {"kinds": {"s": "text"}}),
    "words as numbers": (
        MANY.replace("\n", ",a\n").replace("n,a", "n,t"),
        "'t' .* no numbers; leave --as t=number out",
        {"kinds": {"t": "number"}},
    ),
    "numbers as dates": (MANY, "'n' .* no dates", {"kinds": {"n": "date"}}),
    "label and secret constant": ("y;s;n\n1;2;3\n", r"2 reasons: \(1\) label 'y' .* \(2\) secret 's'"),
    "empty file": ("", "is empty"),
    "blank lines only": ("\n\n", "empty|rows|no column"),
    "header only": ("y,s,n\n", "rows below its header"),
    "two secrets of one name": ("y,s,s\n1,2,3\n", "column 's' of .* must be one column"),
    "constant label": ("y,s,n\n1,a,1\n1,b,2\n", "label 'y' must have at least 2 values, and every row"),
    "constant secret": ("y,s,n\n1,a,1\n0,a,2\n", "secret 's' must have at least 2 values"),
    "constant user": ("y,s,n,u\n1,a,1,p\n0,b,2,p\n", "user 'u' must have at least 2", {"user": "u"}),
    "one label but for gaps": (
        "y,s,n\n1,a,1\n,b,2\n1,b,3\n",
        "'y' must have at least 2 values among the rows",
    ),
    "truncated gzip": (gzip.compress(MANY.encode())[:-20], "gzip"),
    "corrupt gzip": (b"\x1f\x8b\x08" + b"\x00" * 7 + b"nonsense" * 9, "gzip"),
    "gzip in name only": (MANY, "gzip", {"name": "t.csv.gz"}),
    "not text": (b"\x89PNG\xff\xfe\x00\n\xff,\xfe\n", "must be text in UTF-8"),
    "broken Parquet": (b"PAR1" + b"nonsense" * 9, "cannot be read as a table"),
    "broken Feather": (b"ARROW1" + b"nonsense" * 9, "cannot be read as a table"),
    "broken Excel": (b"PK\x03\x04" + b"nonsense" * 9, "is not an Excel file"),
    "long row": ("y,s,n\n1,2,3\n1,2,3,4\n", "Expected 3 fields in line 3, saw 4"),
    "long first row": ("y,s,n\n1,2,3,4\n1,2,3,4\n", "first row has more"),
    "cut off": ("y,s,n\n1,a,x\n0,b,z\n1,a\n", "row 4 has 2"),
    "open quote": ('y,s,n\n1,a,"x\n0,b,z\n', "inside string"),
    "infinite secret": ("y,s,n\n1,1,1\n0,inf,3\n", "secret 's' must be finite"),
    "label is secret": (MANY, "'y' must have one role", {"secrets": ("y",)}),
    "secret is dropped": (MANY, "'s' .* --secret and --drop", {"drop": ("s",)}),
    "user is secret": (MANY, "'s' .* --secret and --user", {"user": "s"}),
    "person is label": (MANY, "'y' .* --label and --person", {"person": "y"}),
    "words in bins": (
        MANY.replace(",1,", ",w,"),
        "--bins is for numbers, and secret 's'",
        {"bins": {"s": 2}},
    ),
    "bins of a column": (MANY, "--bins is for the label and the secrets, and 'n'", {"bins": {"n": 2}}),
    "bins beyond its values": (MANY, "'s' cannot be cut into 5 ranges .* 3 distinct", {"bins": {"s": 5}}),
    "edges that fall": (MANY, "edges that grow", {"secrets": "n", "bins": {"n": [50, 30]}}),
    "edge beyond all": (MANY, "'400 or more' has none", {"secrets": "n", "bins": {"n": [50, 400]}}),
    "infinite label": (MANY.replace("149.5", "inf"), "label 'n' must be finite", {"label": "n"}),
    "label of one number": ("y,s,n\n" + "2.5,a,1\n2.5,b,2\n" * 9, "label 'y' must have at least 2 values"),
    "label of words as a number": (
        "y,s,n\n" + "".join(f"{'uvw'[i % 3]},{i % 2},{i}\n" for i in range(30)),
        "label 'y' cannot be used: its cells are no numbers",
        {"kinds": {"y": "number"}},
    ),
    "label of 150 words": ("y,s\n" + "".join(f"w{i},{i % 2}\n" for i in range(150)), "at most 100 values"),
    "wide secret": ("y,s\n" + "".join(f"{i % 2},t{i}\n" for i in range(201)), "secret 's' .* merge"),
    "nothing to learn from": (
        "y,s\n1,a\n0,b\n",
        "column to learn label 'y' from",
        {"secrets": (), "drop": "s"},
    ),
    "nothing but identifiers": (
        "y,id\n" + "".join(f"{i % 2},{i}\n" for i in range(99)),
        "'id' .*an identifier.*--keep",
        {"secrets": ()},
    ),
    "too large": (MANY, "needs about .* GB .* sample", {"memory": 1e-6}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_csv_is_refused_in_one_sentence_if_it_has(tmp_path: Path, case: str) -> None:
    text, said, *changes = REFUSED[case]
    options = {"label": "y", "secrets": "s"} | dict(*changes)
    path = written(tmp_path, text, str(options.pop("name", "table.csv")))
    with pytest.raises(DataError, match=said) as caught:
        from_csv(path, **options)  # type: ignore[arg-type]
    message = str(caught.value).replace(str(path), "PATH")
    assert "\n" not in message
    assert message.endswith(".")


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.csv does not exist"):
        from_csv(tmp_path / "nowhere.csv", label="y", secrets="s")
    refuses(DataError, "is a folder", from_csv, tmp_path, label="y", secrets="s")


def test_an_unknown_encoding_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="encoding must be 'onehot' or 'label', got 'hash'"):
        from_csv(written(tmp_path, MANY), label="y", secrets="s", encoding="hash")


def test_a_packed_file_that_unpacks_too_large_is_refused(tmp_path: Path) -> None:
    lines = b"1,a,5\n0,b,6\n" * 500_000
    path = written(tmp_path, gzip.compress(b"y,s,n\n" + lines, 1), "bomb.csv.gz")
    with pytest.raises(DataError, match=r"bomb\.csv\.gz needs about 0\.0\d+ GB"):
        from_csv(path, label="y", secrets="s", memory=0.005)


def test_free_memory_is_known_or_unlimited() -> None:
    free = free_memory()
    assert free is None or free > 1e6


def test_a_large_csv_is_read_in_seconds(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n = 200_000
    frame = pd.DataFrame({f"n{i}": rng.normal(size=n).round(3) for i in range(4)})
    frame["sex"] = np.where(rng.random(n) < 0.5, "F", "M")
    frame["y"] = rng.integers(2, size=n)
    frame.to_csv(tmp_path / "large.csv", index=False)
    table = from_csv(tmp_path / "large.csv", label="y", secrets="sex")
    assert table.x.shape == (n, 6)
    assert np.allclose(table.x[:, 0].numpy(), frame["n0"], atol=1e-6)


def test_an_unknown_name_lists_the_known_ones() -> None:
    refuses(DataError, r"one of adult, heart, digits, .*got 'imagenet'", load, "imagenet")


def test_an_unknown_option_lists_the_known_ones() -> None:
    with pytest.raises(ArgumentError, match="adult has no option 'encode'; it has: path, encoding"):
        load("adult", encode="label")
    refuses(ArgumentError, "digits has no option 'path'", load, "digits", path="digits.npz")


def test_rows_are_encoded_by_columns_that_are_known_from_others(tmp_path):
    whole = tmp_path / "whole.csv"
    whole.write_text("age,ward,sex,y\n50,A,f,0\n60,B,m,1\n70,C,f,0\n")
    known = from_csv(whole, label="y", secrets=("sex",))
    some = tmp_path / "some.csv"
    some.write_text("note,ward,age,sex\nlong story,C,70,f\n")  # one row, another order, no label
    assert torch.equal(rows_as(some, known.columns), known.x[2:])
    assert torch.equal(rows_as(whole, known.columns), known.x)
    one = from_csv(whole, label="y", secrets=("sex",), encoding="label")
    assert torch.equal(rows_as(some, one.columns), one.x[2:])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("age\n70\n", r"no column 'ward', 'sex'; it has"),
        (
            "age,ward,sex\n" + 20 * "70,D,f\n",
            "column 'ward' holds no value that is known in 20 rows: .*another",
        ),
        ("age,ward,sex\nold,C,f\n", "'age' must hold a number in every row, and it does not in row 1;"),
        ("age,ward,sex\n,C,f\nold,C,x\n", r"'age' must hold a number in every row, .* row 1, 2;"),
    ],
)
def test_rows_that_do_not_fit_known_columns_are_refused(text, words, tmp_path):
    whole, some = tmp_path / "whole.csv", tmp_path / "some.csv"
    whole.write_text("age,ward,sex,y\n50,A,f,0\n60,B,m,1\n70,C,f,0\n")
    some.write_text(text)
    known = from_csv(whole, label="y", secrets=("sex",))
    refuses(DataError, words, rows_as, some, known.columns)


def test_a_category_that_is_not_known_is_none_of_the_known_ones_and_is_counted(tmp_path):
    whole, some = tmp_path / "whole.csv", tmp_path / "some.csv"
    whole.write_text("age,ward,sex,y\n50,A,f,0\n60,B,m,1\n70,C,f,0\n")
    some.write_text("age,ward,sex\n70,D,f\n70,C,f\n7,E,m\n")
    known = from_csv(whole, label="y", secrets=("sex",))
    (rows,) = read_as(some, known.columns, ["ward"])
    assert rows.x[:, known.positions("ward")].tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 0]]
    assert (rows.unseen, list(rows.beside["ward"])) == ({"ward": 2}, ["D", "C", "E"])
    label = from_csv(whole, label="y", secrets=("sex",), encoding="label")
    refuses(DataError, "'ward' must hold one of its known values .* row 1, 3", rows_as, some, label.columns)


def test_a_table_is_read_once_for_all_cells_and_again_when_it_has_changed(tmp_path, monkeypatch):
    path = written(tmp_path, GOOD)
    table = {"name": "csv", "path": str(path), "label": "income", "secrets": ["sex"]}
    first = tabled(table)
    assert tabled(table | {"without": ["sex"]}).x.shape[1] == first.x.shape[1] - 2
    assert tabled(table).x is first.x
    written(tmp_path, GOOD.replace("20,F", "21,F"))  # as long as before
    assert not torch.equal(tabled(table).x, first.x)
    assert tabled({"name": "adult"}).x is tabled({"name": "adult"}).x
    monkeypatch.setattr("leakscope.data.LOADERS", {"adult": lambda: first})
    assert tabled({"name": "adult"}).x is first.x
