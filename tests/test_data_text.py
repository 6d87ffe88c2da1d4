"""Texts: how words are numbered, the reviews in both of their forms, and CSVs with a column of text."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import needs_files, refuses

from leakscope.core.dataset import Dataset, joined
from leakscope.core.errors import ArgumentError, DataError
from leakscope.core.rng import seeded
from leakscope.data import load
from leakscope.data.text import tokens

REVIEWS: dict[str, Any] = {
    "train": {
        "text": ["Bad, bad film!<br /><br />Bad.", "A film.", "It isn't bad: good good good good", "good"],
        "label": [0, 0, 1, 1],
        "rating": [1, 4, 7, 10],
    },
    "test": {"text": ["Never seen a BAD_film 2 times", "..."], "label": [1, 0], "rating": [10, 3]},
}


def packed(folder: Path, content: object = REVIEWS) -> Path:
    file = folder / "imdb.json.gz"
    with gzip.open(file, "wt", encoding="utf-8") as out:
        json.dump(content, out)
    return file


def published(folder: Path) -> Path:
    """The same reviews as files of their own, among other files."""
    for part, reviews in REVIEWS.items():
        for i, text in enumerate(reviews["text"]):
            kind = folder / part / ("neg", "pos")[reviews["label"][i]]
            kind.mkdir(parents=True, exist_ok=True)
            (kind / f"{i}_{reviews['rating'][i]}.txt").write_text(text, encoding="utf-8")
            (kind / "urls.html").write_text("none")
    return folder


def test_words_are_runs_of_letters_and_digits_in_lower_case() -> None:
    expected = ["don't", "stop", "me", "now", "r2", "d2's", "café"]
    assert tokens("Don't — STOP_me<br />now, R2-D2's  café") == expected
    assert tokens("it\u2019s 'quoted' end'") == ["it's", "quoted", "end"]
    assert tokens("... !? <BR>") == []


def test_words_are_numbered_by_how_often_training_reviews_have_them(tmp_path: Path) -> None:
    data = load("imdb", path=packed(tmp_path), words=3, length=6)
    # good 5, bad 4, film 2; a, it and isn't once each
    assert data.columns[0].values == ("<padding>", "<unknown>", "good", "bad", "film")
    assert data.x.dtype == torch.int64
    assert data.x.tolist() == [
        [3, 3, 4, 3, 0, 0],
        [1, 4, 0, 0, 0, 0],
        [1, 1, 3, 2, 2, 2],
        [2, 0, 0, 0, 0, 0],
        [1, 1, 1, 3, 4, 1],
        [0, 0, 0, 0, 0, 0],
    ]
    assert data.y.tolist() == [0, 0, 1, 1, 1, 0]
    assert data.values["sentiment"] == ("negative", "positive")
    # the training lengths are 4, 2, 7 and 1, their median is 3; the cut to 6 words does not count
    assert data.private["length"].tolist() == [1, 0, 1, 0, 1, 0]
    assert data.private["rating"].tolist() == [1, 0, 0, 1, 1, 0]
    assert data.value_names("rating") == ("moderate", "extreme")


def test_ties_are_numbered_alphabetically_and_few_words_are_all_kept(tmp_path: Path) -> None:
    data = load("imdb", path=packed(tmp_path), length=3)
    assert data.columns[0].values[2:] == ("good", "bad", "film", "a", "isn't", "it")


def test_the_parts_of_the_reviews_share_the_training_words(tmp_path: Path) -> None:
    file = packed(tmp_path)
    both = load("imdb", path=file, words=4, length=5)
    train, test = (load("imdb", path=file, words=4, length=5, part=part) for part in ("train", "test"))
    assert (len(train), len(test)) == (4, 2)
    assert both.digest == joined([train, test]).digest
    assert train.columns == test.columns == both.columns
    with pytest.raises(ArgumentError, match="part must be 'train', 'test' or 'all', got 'val'"):
        load("imdb", path=file, part="val")


def test_the_published_folder_gives_the_same_reviews(tmp_path: Path) -> None:
    (tmp_path / "packed").mkdir()
    one = load("imdb", path=packed(tmp_path / "packed"), words=4, length=5)
    for path in (published(tmp_path / "aclImdb"), tmp_path):
        other = load("imdb", path=path, words=4, length=5)
        assert other.columns == one.columns
        order = torch.tensor([0, 1, 2, 3, 5, 4])  # the negative ones come first
        assert other.digest == one.take(order).digest


BROKEN: dict[str, tuple[Any, str]] = {
    "no parts": ([1, 2], "must hold 'train' with the lists text, label and rating"),
    "no test part": ({"train": REVIEWS["train"]}, "must hold 'test'"),
    "a list too short": (REVIEWS | {"test": REVIEWS["test"] | {"label": [1]}}, "must hold 'test'"),
    "no texts": (REVIEWS | {"train": REVIEWS["train"] | {"text": [1, 2, 3, 4]}}, "must hold 'train'"),
    "nothing": (REVIEWS | {"train": {"text": [], "label": [], "rating": []}}, "must hold 'train'"),
    "other labels": (
        REVIEWS | {"test": REVIEWS["test"] | {"label": [0, 2]}},
        "must be integers from 0 to 1, one for each class, and they go from 0 to 2",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_file_that_is_none_of_reviews_is_refused(tmp_path: Path, case: str) -> None:
    content, said = BROKEN[case]
    with pytest.raises(DataError, match=said) as caught:
        load("imdb", path=packed(tmp_path, content))
    assert "\n" not in str(caught.value)


def test_broken_files_of_reviews_are_refused(tmp_path: Path) -> None:
    file = packed(tmp_path)
    file.write_bytes(file.read_bytes()[:-20])
    refuses(DataError, "is not a JSON file that gzip packed", load, "imdb", path=file)
    file.write_text("{}")
    refuses(DataError, "is not a JSON file that gzip packed", load, "imdb", path=file)
    refuses(DataError, "must hold train/neg, and does not", load, "imdb", path=tmp_path)
    folder = published(tmp_path / "aclImdb")
    (folder / "train/neg/0_1.txt").write_bytes(b"caf\xe9")
    refuses(DataError, r"0_1\.txt is not a text that can be read", load, "imdb", path=folder)
    for review in (folder / "test").glob("*/*.txt"):
        review.unlink()
    (folder / "train/neg/0_1.txt").write_text("fine")
    refuses(DataError, r"test must hold reviews named like pos/0_9\.txt", load, "imdb", path=folder)
    for setting in ({"words": 0}, {"length": 0}):
        with pytest.raises(ArgumentError, match=f"{next(iter(setting))} must be at least 1, got 0"):
            load("imdb", path=folder, part="train", **setting)


GOOD = """id,body,sentiment,veracity,author
1,"Een goed boek, echt goed",pos,true,anna
2,"Slecht.
Heel slecht",neg,true,bert
3,goed,pos,false,anna
4,Niet zo goed,neg,false,carla
"""


def test_a_csv_of_texts_has_the_columns_that_are_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "csi.csv"
    file.write_text(GOOD)
    options: dict[str, Any] = {"text": "body", "label": "sentiment", "length": 4}
    data = load("text-csv", path=file, secrets="veracity", user="author", words=2, **options)
    assert data.name == "csi"
    assert data.columns[0].values == ("<padding>", "<unknown>", "goed", "slecht")
    assert data.x.tolist() == [[1, 2, 1, 1], [3, 1, 3, 0], [2, 0, 0, 0], [1, 1, 2, 0]]
    assert data.y.tolist() == [1, 0, 1, 0]
    assert data.values["sentiment"] == ("neg", "pos")
    assert list(data.private) == ["veracity", "author", "length"]
    assert data.private["author"].tolist() == [0, 1, 0, 2]
    assert data.private["length"].tolist() == [1, 0, 0, 0]  # 5, 3, 1 and 3 words
    with gzip.open(tmp_path / "csi.csv.gz", "wt") as out:
        out.write(GOOD)
    plain, packed_one = (
        load("text-csv", path=tmp_path / name, **options) for name in ("csi.csv", "csi.csv.gz")
    )
    assert packed_one.digest == plain.digest
    assert list(plain.private) == ["length"]


def test_a_column_called_length_is_not_replaced(tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    file.write_text("text,label,length\nbig words here,a,small\nwords,b,large\n")
    assert not load("text-csv", path=file).private
    own = load("text-csv", path=file, secrets="length")
    assert own.value_names("length") == ("large", "small")


def test_a_csv_of_texts_is_refused_in_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "bad.csv"
    refused: list[tuple[str, dict[str, Any], str]] = [
        (GOOD, {}, "has no column 'label'"),
        (GOOD, {"label": "sentiment"}, "has no column 'text'"),
        (GOOD, {"label": "sentiment", "text": "boddy"}, "did you mean 'body'"),
        (GOOD, {"label": "sentiment", "text": "body", "secrets": ("truth",)}, "has no column 'truth'"),
        (GOOD, {"label": "sentiment", "text": "body", "secrets": "sentiment"}, "must have one role"),
        ("text,label\n", {}, "must have rows below its header"),
        ("text,label\na b,x\nc d,x\n", {}, "label 'label' must have at least 2 values"),
        ("text,label\n...,x\n!,y\n", {}, "the texts must hold words"),
    ]
    for content, options, said in refused:
        file.write_text(content)
        with pytest.raises(DataError, match=said) as caught:
            load("text-csv", path=file, **options)
        assert "\n" not in str(caught.value)
    file.write_text(GOOD)
    with pytest.raises(ArgumentError, match="text must be a column that is neither label, secret nor user"):
        load("text-csv", path=file, label="sentiment", text="sentiment")


@pytest.fixture
def many(tmp_path: Path) -> Dataset:
    """Forty texts, a few of them twice."""
    rows = [f"word{i % 37} and word{i % 5},{'ab'[i % 2]},{'xyz'[i % 3]}\n" for i in range(40)]
    (tmp_path / "many.csv").write_text("text,label,kind\n" + "".join([*rows, *rows[:4]]))
    return load("text-csv", path=tmp_path / "many.csv", secrets="kind", length=5)


def test_texts_are_split_and_their_numbers_are_never_scaled(many: Dataset) -> None:
    parts = many.split(seeded(0, "split"), secret="kind", train=20, public=9)
    assert [part.x.dtype for part in parts] == [torch.int64] * 3
    assert sum(map(len, parts)) == len(many) == 44
    counted = Counter(key for part in parts for key in part.hashes)
    assert counted == Counter(many.hashes)  # every text is as it was
    assert all(part.columns == many.columns for part in parts)
    assert parts[0].standardised(parts[1]).digest == parts[0].digest


def test_texts_can_be_taken_and_told_apart(many: Dataset) -> None:
    assert len(many.distinct()) == 40
    assert many.take(torch.tensor([3, 1])).x.tolist() == [many.x[3].tolist(), many.x[1].tolist()]
    assert many.take(torch.arange(44)).digest == many.digest != many.take(torch.arange(43)).digest
    words = many.columns[0].values
    assert [words[i] for i in many.x[7]] == ["word7", "and", "word2", "<padding>", "<padding>"]


@needs_files
def test_imdb_has_its_reviews_and_ten_thousand_words() -> None:
    train = load("imdb", part="train")
    assert train.x.shape == (6_000, 200)
    assert train.y.bincount().tolist() == [3_000, 3_000]
    assert train.private["rating"].bincount().tolist() == [3_683, 2_317]
    assert abs(train.private["length"].double().mean().item() - 0.5) < 0.01
    words = train.columns[0].values
    assert len(words) == 10_002
    assert words[2:5] == ("the", "and", "a")
    assert int(train.x.max()) < 10_002
    assert load("imdb", part="test", length=50).x.shape == (2_000, 50)
