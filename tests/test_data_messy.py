"""Tables as hospitals have them: each is audited at the first attempt, or refused once with all reasons."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from builders import hastened

import leakscope
from leakscope import Local, from_csv, seeded
from leakscope.attacks.losses import Loss
from leakscope.audits.membership.simulated import MembershipAudit, roster
from leakscope.core.columns import FEW, OTHER
from leakscope.core.dataset import Dataset
from leakscope.core.errors import DataError, LeakscopeError
from leakscope.data.reading import open_table
from leakscope.data.table import FREQUENT
from leakscope.data.tabular import rows_as
from leakscope.report.report import Report

ROWS = 240
TINY = {"rounds": 1, "trials": 40, "rehearsals": 60, "batch": 2, "attack": "Posterior", "quiet": True}


def patients(rows: int = ROWS, seed: int = 100) -> pd.DataFrame:
    """A label that depends on a number, a secret and two ordinary columns."""
    rng = np.random.default_rng(seed)
    age = rng.integers(20, 90, rows)
    return pd.DataFrame(
        {
            "age": age,
            "pulse": rng.normal(75, 10, rows).round(1),
            "ward": rng.choice(["north", "south", "östlich"], rows),
            "gender": rng.choice(["Female", "Male"], rows),
            "died": np.where(rng.random(rows) < age / 120, "yes", "no"),
        }
    )


def separated(mark: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / "table.csv"
        patients().to_csv(path, index=False, sep=mark, decimal="," if mark != "," else ".")
        return path

    return write


def encoded(letters: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / "table.csv.gz"
        path.write_bytes(gzip.compress(patients().to_csv(index=False).encode(letters)))
        return path

    return write


def csv(frame: pd.DataFrame, **options: object) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        frame.to_csv(folder / "table.csv", **{"index": False, **options})  # type: ignore[call-overload]
        return folder / "table.csv"

    return write


def dated() -> pd.DataFrame:
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(ROWS) % 97, unit="D")
    seen = pd.Series(days.strftime("%Y-%m-%d %H:%M:%S"))
    seen[::9] = ""
    return patients().assign(admitted=days.strftime("%d.%m.%Y"), seen=seen, us=days.strftime("%m/%d/%Y"))


def identified() -> pd.DataFrame:
    rng = np.random.default_rng(101)
    return patients().assign(
        encounter=np.arange(ROWS) + 7_000_000,
        patient_nbr=rng.integers(0, 10**8, 150)[np.arange(ROWS) % 150],
        name=[f"Name {i}" for i in range(ROWS)],
        note=[f"seen on ward, pulse {i}, sent home" for i in range(ROWS)],
    )


def coded() -> pd.DataFrame:
    rng = np.random.default_rng(102)
    codes = np.array([f"I{i:03d}" for i in range(400)])
    chances = 1 / np.arange(1, 401)
    return patients(3_000).assign(diagnosis=rng.choice(codes, 3_000, p=chances / chances.sum()))


def gappy() -> pd.DataFrame:
    frame = patients().astype(object)
    rng = np.random.default_rng(103)
    for name in ("age", "pulse", "ward"):
        frame.loc[rng.random(ROWS) < 0.2, name] = None
    return frame


def mixed() -> pd.DataFrame:
    frame = patients(600).astype(object)
    frame["value"] = pd.Series((np.arange(600) * 0.37).round(2), dtype=object)
    frame.loc[::50, "value"] = ">200"
    frame.loc[7, "value"] = "unclear"
    frame["flag"] = np.arange(600) % 3 == 0
    return frame


def wide() -> pd.DataFrame:
    rng = np.random.default_rng(104)
    return pd.concat([patients(), pd.DataFrame(rng.normal(size=(ROWS, 300))).add_prefix("lab")], axis=1)


def twice_named() -> pd.DataFrame:
    frame = patients().assign(again=1.5 * np.arange(ROWS), constant="same", empty="")
    return frame.rename(columns={"again": "age"})


ALIKE = {  # they give the same records
    "semicolons and decimal commas": separated(";"),
    "tabs": separated("\t"),
    "bars": separated("|"),
    "UTF-16, packed": encoded("utf-16"),
    "Latin-1, packed": encoded("latin-1"),
    "UTF-8 with its mark": encoded("utf-8-sig"),
}
AUDITED = {
    "UTF-16, packed": ALIKE["UTF-16, packed"],
    "dates": csv(dated()),
    "identifiers and notes": csv(identified()),
    "codes": csv(coded()),
    "gaps": csv(gappy()),
    "mixed types": csv(mixed()),
    "300 columns more": csv(wide()),
    "40 rows": csv(patients(40)),
    "names twice, constant, empty, an index": csv(twice_named(), index=True),
}


@pytest.mark.parametrize("case", AUDITED)
def test_a_messy_table_is_audited_at_the_first_attempt(tmp_path, case):
    path = AUDITED[case](tmp_path)
    report = leakscope.audit(path, label="died", secret="gender", defenses=["none"], **TINY)
    assert not report.failed, report
    (table,) = report.tables
    header = open_table(path).header
    told = [row for row in table.rows if row[0] != "(the table)"]
    assert len(told) == len(header)
    page = report.html()
    assert "What became of each column" in page
    for column, kind, _, reason in table.rows:
        assert kind in ("number", "category", "date", "left out", "label", "secret", "read")
        assert reason
        assert f"<td>{column}</td>" in page


def fates(path: Path | pd.DataFrame, **options: object) -> dict[str, tuple[str, int]]:
    table = from_csv(path, **{"label": "died", "secrets": "gender", **options})  # type: ignore[arg-type]
    return {fate.column: (fate.kind, fate.inputs) for fate in table.fates}


def test_all_separators_and_letters_give_the_same_records(tmp_path):
    plain = from_csv(csv(patients())(tmp_path), label="died", secrets="gender")
    for case, write in ALIKE.items():
        table = from_csv(write(tmp_path), label="died", secrets="gender")
        kinds, expected = (
            [(fate.column, fate.kind, fate.inputs) for fate in one.fates if fate.kind != "read"]
            for one in (table, plain)
        )
        assert kinds == expected, case
        assert torch.equal(table.x, plain.x), case
        assert table.columns == plain.columns
        assert torch.equal(table.y, plain.y)


def test_how_a_file_was_read_is_said(tmp_path):
    cases = ALIKE | {"dates": AUDITED["dates"]}
    said = {case: from_csv(cases[case](tmp_path), label="died", secrets="gender").fates[0] for case in cases}
    assert said["semicolons and decimal commas"].reason == "text, separated by ';'"
    assert said["tabs"].reason == "text, separated by tabs"
    assert said["UTF-16, packed"].reason == "text, in UTF-16"
    assert said["Latin-1, packed"].reason == "text, in Latin-1 (Windows-1252)"
    assert said["dates"].column == "age"


@pytest.mark.parametrize("form", ["parquet", "feather", "xlsx", "frame", "pair"])
def test_other_forms_of_a_table_give_the_same_records(tmp_path, form):
    frame = dated().drop(columns="us").assign(seen=pd.to_datetime(dated()["seen"]))
    frame.loc[3, "pulse"] = np.nan
    plain = from_csv(csv(frame)(tmp_path), label="died", secrets="gender")
    path = tmp_path / f"table.{form}"
    if form == "parquet":
        pytest.importorskip("pyarrow", reason="pyarrow comes with leakscope[parquet]")
        frame.to_parquet(path)
    elif form == "feather":
        pytest.importorskip("pyarrow", reason="pyarrow comes with leakscope[parquet]")
        frame.to_feather(path)
    elif form == "xlsx":
        pytest.importorskip("openpyxl", reason="openpyxl comes with leakscope[excel]")
        frame.to_excel(path, index=False)
    table = from_csv(path if path.exists() else frame, label="died", secrets="gender")
    if form == "pair":
        from leakscope.audits.asked import open_data

        pair = (frame.drop(columns="died"), frame["died"])
        _, table, held = open_data(pair, label=None, secrets=["gender"])
        assert held is table
    assert table.columns == plain.columns
    assert torch.equal(table.x.nan_to_num(-1), plain.x.nan_to_num(-1))
    assert torch.equal(table.y, plain.y)
    assert torch.equal(table.secret("gender"), plain.secret("gender"))


def test_a_pair_of_arrays_is_audited():
    frame = patients()
    inputs = frame[["age", "pulse"]].assign(sex=(frame["gender"] == "Male").astype(int)).to_numpy()
    report = leakscope.audit((inputs, (frame["died"] == "yes").to_numpy()), secret="x2", **TINY)
    assert not report.failed
    assert [row[0] for row in report.tables[0].rows] == ["x0", "x1", "x2", "label"]


def test_a_table_is_read_in_pieces_however_it_is_kept(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow", reason="pyarrow comes with leakscope[parquet]")
    gappy().to_parquet(tmp_path / "table.parquet")
    whole = from_csv(gappy(), label="died", secrets="gender")
    monkeypatch.setattr("leakscope.data.delimited.CHUNK", 1)
    for source in (gappy(), tmp_path / "table.parquet"):
        assert len(list(open_table(source).pieces())) == 3
        pieces = from_csv(source, label="died", secrets="gender")
        assert torch.equal(pieces.x.nan_to_num(-1), whole.x.nan_to_num(-1))


def test_dates_become_days_and_the_order_of_day_and_month_is_told_by_all_of_them():
    table = from_csv(dated(), label="died", secrets="gender")
    days = torch.arange(ROWS) % 97 + 18_262  # of 2020-01-01 since 1970
    for name in ("admitted", "us"):
        assert torch.equal(table.x[:, table.positions(name)[0]].long(), days)
    seen = table.x[:, table.positions("seen")]
    assert torch.equal(seen[:, 1].bool(), torch.arange(ROWS) % 9 == 0)
    assert torch.equal(seen[:, 0].isnan(), torch.arange(ROWS) % 9 == 0)
    reasons = {fate.column: fate.reason for fate in table.fates}
    assert "day-month-year" in reasons["admitted"]
    assert "month-day-year" in reasons["us"]
    assert "27 gaps" in reasons["seen"]


def test_identifiers_notes_row_numbers_and_constants_are_left_out(tmp_path):
    kinds = fates(identified())
    assert {name for name, (kind, _) in kinds.items() if kind == "left out"} == {
        "encounter", "patient_nbr", "name", "note",
    }  # fmt: skip
    kinds = fates(csv(twice_named(), index=True)(tmp_path))
    assert [name for name, (kind, _) in kinds.items() if kind == "left out"] == [
        "column 1",
        "constant",
        "empty",
    ]
    assert kinds["age (7)"] == ("number", 1)


def test_an_identifier_that_repeats_is_said_to_be_people_perhaps():
    said = {fate.column: fate.reason for fate in from_csv(identified(), label="died", secrets="gender").fates}
    assert said["patient_nbr"].endswith("some values repeat: if they are people, name the column by --person")
    assert "--person" not in said["encounter"]


@pytest.mark.parametrize("scale", [1, 7, 1e9])
def test_measured_numbers_are_no_identifiers(scale):
    """Of numbers drawn at random from a range some are equal, or the range is so wide that none need be."""
    rng = np.random.default_rng(105)
    for rows in (40, 100, 1_000):
        frame = patients(rows).assign(cost=rng.integers(0, int(scale * rows) + 1, rows))
        assert fates(frame)["cost"][0] == "number"


def test_what_is_asked_goes_before_the_rules():
    frame = identified()
    assert fates(frame, keep="encounter")["encounter"] == ("number", 1)
    assert fates(frame, drop="age")["age"] == ("left out", 0)
    assert fates(frame, kinds={"age": "category"})["age"] == ("category", frame["age"].nunique())
    assert fates(frame, kinds={"ward": "text"})["ward"] == ("left out", 0)
    assert fates(mixed(), kinds={"value": "category"})["value"][0] == "category"
    assert fates(mixed())["value"] == ("number", 2)


def test_codes_among_late_numbers_are_read_again(tmp_path, monkeypatch):
    """The first pieces hold nothing but numbers, and more of them than are kept as categories."""
    codes = [f"{i % 300}.5" for i in range(2_000)] + [f"V{i % 40}" for i in range(2_000)]
    frame = patients(4_000).assign(diagnosis=codes)
    whole = from_csv(frame, label="died", secrets="gender")
    monkeypatch.setattr("leakscope.data.delimited.CHUNK", 6_000)
    pieces = from_csv(csv(frame)(tmp_path), label="died", secrets="gender")
    assert whole.columns == pieces.columns
    assert torch.equal(whole.x, pieces.x)
    assert next(c for c in whole.columns if c.name == "diagnosis").frequent == FREQUENT


def test_medians_and_frequent_codes_are_learned_from_training_records_alone():
    """Checked against pandas; other records are changed, and nothing that is learned does."""
    frame = coded()
    frame.loc[::7, "pulse"] = np.nan
    table = from_csv(frame, label="died", secrets="gender")
    train, test, public = table.split(seeded(0, "split"), secret="gender", train=1_000, standardise=False)
    numbers = next(column for column in train.columns if column.name == "pulse")
    marked = train.x[:, numbers.stop - 1].bool()
    assert numbers.fill == pytest.approx(float(np.median(train.x[~marked, numbers.start])))
    assert torch.equal(
        train.x[marked, numbers.start].unique(), torch.tensor([numbers.fill], dtype=torch.float32)
    )
    codes = next(column for column in train.columns if column.name == "diagnosis")
    sums = train.x[:, codes.start : codes.stop].sum(0)
    assert codes.values[-1] == OTHER
    assert len(codes.values) == FREQUENT + 1
    assert (sums[:-1] >= FEW).all()
    for part in (train, test, public):
        assert part.x.isfinite().all()
        assert torch.equal(part.x[:, codes.start : codes.stop].sum(1), torch.ones(len(part)))
        assert part.columns == train.columns
        assert part.fates == train.fates
    other = table.take(torch.arange(len(table)))
    rows = torch.tensor([i for i in range(len(table)) if i % 2])
    other.x[rows] = other.x[rows].flip(0)
    half = table.take(torch.arange(0, len(table), 2))
    assert table.completed(half).columns == other.completed(half).columns


def test_a_complete_table_is_what_it_was_before_it_is_split():
    table = from_csv(patients(), label="died", secrets="gender")
    assert all(column.learned for column in table.columns)
    assert table.completed(table) is table


def test_a_model_of_records_that_are_not_complete_is_refused():
    from leakscope.models import build
    from leakscope.models.small import MLP

    table = from_csv(gappy(), label="died", secrets="gender")
    with pytest.raises(DataError, match=r"must be complete, and gaps or codes of 'age', 'pulse'"):
        build(MLP(), table, seeded(0))


def rare(values: dict[str, int]) -> pd.DataFrame:
    words = [word for word, count in values.items() for _ in range(count)]
    return patients(len(words)).assign(gender=np.random.default_rng(106).permutation(words))


def told(frame: pd.DataFrame, **options: object) -> tuple[Dataset, str]:
    table = from_csv(frame, **{"label": "died", "secrets": "gender", **options})  # type: ignore[arg-type]
    return table, next(fate.reason for fate in table.fates if fate.column == "gender")


def test_rare_values_of_a_secret_are_left_out_or_merged_and_never_shrink_the_public_records():
    table, reason = told(rare({"Female": 900, "Male": 700, "Unknown": 3}))
    assert table.value_names("gender") == ("Female", "Male")
    assert len(table) == 1_600
    assert "fewer than 5 records of 1 rare value were left out" in reason
    assert "Unknown" not in repr(table.fates)
    assert len(table.split(seeded(0), secret="gender")[2]) == int(0.4 * 1_600)
    table, reason = told(rare({"Female": 900, "Male": 700, "a": 12, "b": 13}))
    assert table.value_names("gender") == ("Female", "Male", "other")
    assert len(table) == 1_625
    assert "2 rare values became 'other'" in reason
    table, _ = told(rare({"Female": 900, "Male": 700, "Unknown": 3}), keep="gender")
    assert table.value_names("gender") == ("Female", "Male", "Unknown")
    table, _ = told(rare({"Female": 9, "Male": 7, "Unknown": 3}))
    assert len(table.value_names("gender")) == 3  # a table of nothing but few is left alone


def test_records_without_a_label_or_a_person_are_left_out_and_said():
    frame = patients().assign(who=[f"p{i // 2}" for i in range(ROWS)])
    frame.loc[:9, "died"] = None
    frame.loc[5:11, "who"] = None
    table = from_csv(frame, label="died", secrets="gender", person="who")
    assert len(table) == ROWS - 12
    reasons = {fate.column: fate.reason for fate in table.fates}
    assert "10 records without one were left out" in reasons["died"]
    assert "fewer than 5 records without one" in reasons["who"]


def test_members_and_others_are_different_once_rare_codes_are_one():
    audit = MembershipAudit((Loss(),), Local(0.1), clients=2, size=300, known=300, held=300)
    data = from_csv(coded(), label="died", secrets="gender")
    who = roster(audit, data, seeded(0))
    parts = [*who.members, who.known, who.held, who.others]
    keys = [key for part in parts for key in part.hashes]
    assert len(set(keys)) == len(keys) < len(data.distinct())
    frame = coded()[["diagnosis", "gender"]].assign(died=np.arange(3_000) % 2)
    alike = from_csv(frame, label="died", secrets="gender").without("gender")
    few = replace(audit, size=40, known=40, held=40)
    with pytest.raises(DataError, match="too few records are different to tell members from others"):
        roster(few, alike, seeded(0))


def test_no_fate_names_a_value(tmp_path):
    for case, write in (ALIKE | AUDITED).items():
        table = from_csv(write(tmp_path), label="died", secrets="gender")
        words = repr(table.fates)
        assert "north" not in words, case
        assert "Female" not in words, case
        assert "Name 1" not in words, case


def test_all_records_of_a_person_stay_together_and_nobody_needs_two(monkeypatch):
    people = [f"p{i}" for i in range(120)] + [f"p{i}" for i in range(0, 120, 2)] * 2
    frame = patients(len(people)).assign(who=people)
    report = leakscope.audit(frame, label="died", secret="gender", person="who", **TINY)
    assert not report.failed
    assert {result.cell.data.get("by") for result in report.results} == {"who"}
    asked = {"attribute", "property", "distribution", "attribute, DPSGD", "records", "membership"}
    assert {result.cell.id for result in report.results} == asked
    table = from_csv(frame, label="died", secrets="gender", person="who")
    cell = report.results[0].cell
    parts = table.split(seeded(0), by="who", train=cell.train, public=cell.public)
    groups = [set(part.secret("who").tolist()) for part in parts]
    assert sum(map(len, groups)) == len(set().union(*groups)) == 120


def made(report: Report) -> set[tuple[int | None, int | None]]:
    """The sizes that the games were played with; a federation deals its records itself."""
    *games, federation = report.results
    assert federation.cell.id == "membership"
    return {(game.made.records.train, game.made.records.public) for game in games}


def test_sizes_are_those_that_were_asked_for_and_count_records():
    frame = patients(2_000)
    report = leakscope.audit(frame, label="died", secret="gender", train=300, public=200, **TINY)
    assert made(report) == {(300, 200)}
    report = leakscope.audit(frame, label="died", secret="gender", **TINY)
    assert min(map(min, made(report))) > 600


def test_a_table_that_is_too_small_for_its_batches_is_refused_with_the_way_out(tmp_path):
    with pytest.raises(LeakscopeError, match=r"fewer than 2 x batch = 32; lower the batch size \(--batch\)"):
        leakscope.audit(patients(40), label="died", secret="gender", **{**TINY, "batch": 16})


def test_a_refusal_has_all_its_reasons_at_once(tmp_path):
    frame = patients().assign(died="no", gender=[f"Name {i}" for i in range(ROWS)])
    path = csv(frame)(tmp_path)
    with pytest.raises(DataError) as caught:
        leakscope.audit(path, label="died", secret="gender", kinds=["ward=date", "pulse=date"], **TINY)
    words = str(caught.value)
    assert "for 4 reasons: (1) label 'died'" in words
    assert "(2) secret 'gender'" in words
    assert "--as ward=date" in words
    assert "--as pulse=date" in words
    with pytest.raises(DataError, match=r"no column 'dead' .*, 'sex', 'q'; it has"):
        leakscope.audit(path, label="dead", secret="sex", drop=["q"], **TINY)


def test_a_frame_without_roles_is_told_its_columns():
    with pytest.raises(
        LeakscopeError, match=r"say which column is which; it has 'age', 'pulse', 'ward', 'gen"
    ):
        leakscope.audit(patients())


def test_rows_are_given_as_others_were_learned(tmp_path):
    """What `encode` does: medians, marks of gaps and "other" are those of the training records."""
    frame = coded()
    frame.loc[::7, "pulse"] = np.nan
    table = from_csv(frame, label="died", secrets="gender")
    train = table.split(seeded(0, "split"), secret="gender", train=1_000, standardise=False)[0]
    expected = table.completed(table).x
    own = rows_as(csv(frame)(tmp_path), table.completed(table).columns)
    assert torch.equal(own, expected)
    new = frame.head(2).assign(diagnosis="never seen", pulse=np.nan, extra="ignored")
    rows = rows_as(new, train.columns)
    codes, pulse = (next(c for c in train.columns if c.name == name) for name in ("diagnosis", "pulse"))
    assert (rows[:, codes.stop - 1] == 1).all()
    assert rows[:, pulse.start].tolist() == pytest.approx([pulse.fill] * 2)
    assert (rows[:, pulse.stop - 1] == 1).all()


def test_dates_of_new_rows_are_read_as_the_known_ones_were():
    """Of 03.02.2020 alone nobody can tell day and month; what was learned says it."""
    table = from_csv(dated(), label="died", secrets="gender")
    columns = table.completed(table).columns
    assert torch.equal(rows_as(dated(), columns), table.completed(table).x)
    assert torch.equal(rows_as(dated().iloc[31:40], columns), table.completed(table).x[31:40])
    wrong = dated().assign(us="31/12/2020", admitted="soon")
    with pytest.raises(DataError, match=r"2 reasons: .*'admitted' must hold dates.* 'us' must hold dates"):
        rows_as(wrong, columns)


def test_a_guard_of_a_messy_table_encodes_rows_it_has_not_seen(tmp_path):
    from leakscope.audits.guards.encoding import encode
    from leakscope.guards.keys import Key

    frame = coded().head(900)
    frame.loc[::7, "pulse"] = np.nan
    path = csv(frame)(tmp_path)
    sizes = {"train": 300, "public": 300, "trials": 40, "rehearsals": 60, "epochs": 1, "lams": [0.5]}
    out = tmp_path / "out"
    with hastened():
        report = leakscope.guard(path, label="died", secret="gender", output=out, quiet=True, **sizes)
    assert not report.failed
    folder = next((out / "files").glob("*"))
    new = frame.head(3).assign(diagnosis="never seen", pulse=np.nan)
    target = tmp_path / "r.npz"
    Key.new(tmp_path / "key")
    asked = {"label": "died", "key": tmp_path / "key", "labels": True}
    done = encode(str(csv(new)(tmp_path)), folder, target, **asked)
    assert (done.count, done.unseen) == (3, {"diagnosis": 3})
    with np.load(target) as arrays:
        assert np.isfinite(arrays["r"]).all()
        assert len(arrays["died"]) == 3
