"""Releases that add up to nothing: whose draw it is, what is rounded, what a ledger counts, what is saved."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from builders import refuses
from collecting import (
    ChangedRecord,
    KnownKey,
    ManyEncoders,
    ManyKeys,
    Neighbours,
    OneRelease,
)
from released import dataset, deployed, patients, separates
from torch import nn

from leakscope import Column, Dataset, Inf2Guard, Perturbation, load_encoder, seeded
from leakscope.core.errors import ArgumentError, DataError
from leakscope.guards.encoder import Encoder, name_people
from leakscope.guards.keys import Key, rehearsed_key
from leakscope.guards.ledger import ReleaseLedger
from leakscope.guards.preparation import Preparation, cells

KEY = rehearsed_key(0)
FRAME = patients()
ENCODER = deployed(FRAME)
X = ENCODER.read(FRAME)


# Whose draw it is


def told(n: int = 4_000) -> tuple[torch.Tensor, torch.Tensor, Encoder, Encoder]:
    """Records of which two encoders show a secret in another direction, under noise of deviation 2."""
    rng = seeded(0, "told")
    codes = (torch.rand(n, generator=rng) < 0.5).long()
    x = torch.randn(n, 4, generator=rng)
    x[:, 0] = codes.float() / 2 + x[:, 0] / 50
    one, other = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    with torch.no_grad():
        one.weight.copy_(torch.eye(4))
        other.weight.copy_(-torch.eye(4))
    noise = Perturbation("gaussian", 2.0)
    return x, codes, Encoder(one, {}, noise), Encoder(other, {}, noise)


def test_two_encoders_under_one_key_share_no_noise():
    x, codes, one, other = told()
    first, second = ManyEncoders([other])(one, x, seeded(0, "key"))
    left = first - second - (one.clean(x) - other.clean(x))
    assert float(left.var()) == pytest.approx(2 * 2.0**2, rel=0.05)  # 0 if the draws were the same
    draws = one.draws(x, KEY), other.draws(x, KEY)
    assert abs(float((draws[0] * draws[1]).mean())) < 0.03
    clean = separates(one.clean(x) - other.clean(x), codes)
    assert clean > 0.999  # what a difference without noise tells
    assert separates(first - second, codes) < 0.6


def test_the_noise_of_another_scale_is_another_draw_and_a_head_changes_nothing():
    x, _, one, _ = told(50)
    louder = replace(one, perturbation=Perturbation("gaussian", 3.0))
    assert not torch.equal(one.draws(x, KEY), louder.draws(x, KEY))
    assert torch.equal(one.draws(x, KEY), replace(one, head=nn.Linear(4, 2)).draws(x, KEY))
    assert not torch.equal(one.draws(x, KEY), one.draws(x, rehearsed_key(1)))


def test_float_dust_gets_no_second_draw_and_no_second_release():
    near = FRAME.assign(age=FRAME["age"] + 1e-5, height=FRAME["height"] - 1e-5)
    assert not torch.equal(ENCODER.read(near), X)
    assert torch.equal(ENCODER(near, key=KEY), ENCODER(FRAME, key=KEY))
    shown = Neighbours(8, 1e-5)(ENCODER, X, seeded(0, "key"))
    assert all(torch.equal(one, shown[0]) for one in shown)
    far = Neighbours(8, 5.0)(ENCODER, X, seeded(0, "key"))  # what the grid cannot hold, and the docs say so
    assert not torch.equal(far[1], far[0])


def test_a_birthday_keeps_the_draw_of_a_person_who_has_an_id():
    older = ENCODER.read(FRAME.assign(age=FRAME["age"] + 1))
    before, after = ChangedRecord(older)(ENCODER, X, seeded(0, "key"))
    grid = ENCODER.output_step * ENCODER.perturbation.scale
    moved = ENCODER.clean(older) - ENCODER.clean(X)
    assert float((after - before - moved).abs().max()) <= grid + 1e-6
    before, after = ChangedRecord(older, named=False)(ENCODER, X, seeded(0, "key"))
    assert float((after - before - moved).std()) > 1  # without ids it is another person
    ids = list(FRAME["patient"])
    assert torch.equal(ENCODER.draws(X, KEY, ids), ENCODER.draws(older, KEY, ids))


def test_a_person_is_one_however_the_id_is_written_and_nobody_is_refused():
    few = X[:3]
    shown = ENCODER(few, key=KEY, people=[7, 8, 9])
    for ids in (["7", "8 ", "9"], np.asarray([7.0, 8.0, 9.0]), ["7.0", "8", "9.00"]):
        assert torch.equal(ENCODER(few, key=KEY, people=ids), shown)
    assert not torch.equal(ENCODER(few, key=KEY, people=["07", "8", "9"]), shown)
    for ids in (["a", "", "b"], [1, None, 2], [1.0, float("nan"), 2.0]):
        refuses(DataError, "must have an id .* record 2 has none", ENCODER, few, key=KEY, people=ids)
    refuses(ArgumentError, "one for each of 3 records, got 2", ENCODER, few, key=KEY, people=[1, 2])


def test_keys_average_away_and_a_known_key_takes_the_noise_off():
    many = ManyKeys(64)(ENCODER, X, seeded(0, "key"))
    (one,) = OneRelease()(ENCODER, X, seeded(0, "key"))
    clean = ENCODER.clean(X)
    assert float((one - clean).std()) == pytest.approx(1, rel=0.05)
    assert float((torch.stack(many).mean(0) - clean).std()) == pytest.approx(1 / 8, rel=0.1)
    (bare,) = KnownKey()(ENCODER, X, seeded(0, "key"))
    assert float((bare - clean).abs().max()) <= ENCODER.output_step / 2 + 1e-6


def test_a_number_is_no_key_of_a_table():
    refuses(ArgumentError, "key must be a Key of at least 128 bits, from a file, got 7", ENCODER, X, key=7)


# What is rounded


def test_releases_stand_on_a_grid_so_that_their_last_bits_reject_no_candidate():
    """A sum of floats tells by its last bits what was added: for another candidate's representation there
    would be no noise that gives this very sum. On the grid there is, for every candidate alike."""
    r, grid = ENCODER(X, key=KEY), ENCODER.output_step * ENCODER.perturbation.scale
    assert torch.equal((r / grid).round() * grid, r)
    coarse = replace(ENCODER, output_step=0.5)(X, key=KEY)
    assert len(coarse.unique()) < 30
    fine = replace(ENCODER, output_step=0.0)(X, key=KEY)
    assert len(fine.unique()) > 0.99 * fine.numel()


def test_a_release_does_not_hang_on_the_records_beside_it():
    """Otherwise the ledger would see a new release where a sum's last bit was rounded the other way."""
    fine = replace(ENCODER, output_step=1e-5)
    together = fine(X, key=KEY)
    for size in (1, 7, 64):
        assert torch.equal(torch.cat([fine(part, key=KEY) for part in X.split(size)]), together)


def test_numbers_of_few_digits_are_far_from_the_borders_of_their_cells():
    for step in (0.01, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 50.0):
        numbers = step / 10 * torch.arange(-500.0, 500.0, dtype=torch.float64)
        for dust in (1e-5, -1e-5):
            assert torch.equal(cells(numbers, step), cells(numbers + dust * step, step))
        points = step * torch.arange(-50.0, 50.0, dtype=torch.float64)
        assert torch.equal(cells(points, step) * step, points)


def test_the_grid_and_k_are_settings_that_are_saved(tmp_path):
    records = dataset(FRAME)
    coarse = Preparation.learned(records, grid=0.5, fewest=100)
    known = {c.name: c for c in coarse.columns}
    assert float(coarse.step[known["age"].start]) >= 5
    encoder = replace(deployed(FRAME), input_step=0.25, output_step=0.125)
    loaded = load_encoder(encoder.save(tmp_path))
    assert (loaded.input_step, loaded.output_step) == (0.25, 0.125)
    assert (loaded.preparation.grid, loaded.preparation.fewest) == (0.05, 5)
    assert torch.equal(loaded(FRAME, key=KEY), encoder(FRAME, key=KEY))
    assert loaded.fingerprint == encoder.fingerprint
    refuses(ArgumentError, "grid must be above 0", Preparation.learned, records, grid=0.0)
    refuses(ArgumentError, "fewest must be at least 1", Preparation.learned, records, fewest=0)
    refuses(ArgumentError, "output_step must be from 0 to 1", replace, encoder, output_step=2.0)


# What is saved


def test_dates_are_read_as_they_were_when_it_is_loaded(tmp_path):
    days = pd.date_range("2020-01-01", periods=400).strftime("%d.%m.%Y")
    frame = FRAME.assign(seen=days)
    encoder = deployed(frame)
    loaded = load_encoder(encoder.save(tmp_path))
    assert loaded.preparation.columns == encoder.preparation.columns
    assert torch.equal(loaded(frame.iloc[1:3], key=KEY), encoder(frame.iloc[1:3], key=KEY))


def test_one_patients_rare_diagnosis_is_not_in_the_saved_files(tmp_path):
    assert (FRAME["diagnosis"] == "kuru").sum() == 1
    ENCODER.save(tmp_path)
    for file in tmp_path.iterdir():
        assert b"kuru" not in file.read_bytes(), file.name
    assert b"sepsis" in (tmp_path / "encoder.json").read_bytes()
    (column,) = (c for c in ENCODER.preparation.columns if c.name == "diagnosis")
    assert column.values == ("asthma", "fracture", "sepsis")
    assert X[3, column.start : column.stop].tolist() == [0, 0, 0]


def test_people_count_and_not_their_records():
    records = dataset(FRAME)
    few = torch.arange(400) // 100  # four people
    one = replace(records, private={**records.private, "who": few})
    folded = Preparation.learned(one, person="who")
    assert all(column.values in ((), ("other",)) for column in folded.columns)
    assert not torch.isfinite(folded.scale).all()  # of four people there is no number to tell
    many = Preparation.learned(replace(one, private={"who": torch.arange(400)}), person="who")
    assert torch.equal(many.scale, Preparation.learned(records).scale)


def test_no_exact_number_of_few_is_saved():
    """One outlier decides neither shift nor scale, and nothing else is exact either."""
    plain = Preparation.learned(dataset(FRAME))
    age = next(c.start for c in plain.columns if c.name == "age")
    height = next(c.start for c in plain.columns if c.name == "height")
    outlier = FRAME.assign(age=FRAME["age"].where(FRAME.index != 5, 100_000))
    told_of = Preparation.learned(dataset(outlier))
    assert torch.equal(plain.shift, told_of.shift)
    assert torch.equal(plain.scale, told_of.scale)
    assert torch.equal(plain.step, told_of.step)
    mean, deviation = FRAME["height"].mean(), FRAME["height"].std(ddof=0)
    assert float(plain.shift[height]) != pytest.approx(mean, abs=1e-6)
    assert float(plain.shift[height]) == pytest.approx(mean, abs=0.05 * deviation)
    assert float(plain.scale[height]) == pytest.approx(deviation, rel=0.05)
    assert len(f"{float(plain.scale[age]):g}".replace(".", "").strip("0")) <= 2  # two digits
    pulse = next(c for c in plain.columns if c.name == "pulse")
    assert pulse.fill == pytest.approx(
        float(cells(torch.tensor(pulse.fill), plain.step[pulse.start])) * float(plain.step[pulse.start])
    )


def test_a_number_in_which_few_differ_tells_the_network_nothing():
    x = torch.zeros(100, 2)
    x[:4, 0] = torch.tensor([9e4, 8e4, 7e4, 6e4])
    x[:, 1] = torch.arange(100.0)
    data = Dataset(x, torch.arange(100) % 2, {}, columns=(Column("rare", 0, 1), Column("n", 1, 2)))
    prepared = Preparation.learned(data).apply(data)
    assert float(prepared.x[:, 0].abs().max()) == 0
    assert float(prepared.x[:, 1].std()) == pytest.approx(1, rel=0.05)


def test_an_encoder_of_the_first_format_is_refused_in_one_sentence(tmp_path):
    encoder = Inf2Guard(column="u", epochs=1)(
        Dataset(
            torch.randn(40, 3, generator=seeded(0)), torch.arange(40) % 2, {"u": torch.arange(40) // 2 % 2}
        ),
        seeded(0),
    ).encoder
    encoder.save(tmp_path)
    table = json.loads((tmp_path / "encoder.json").read_text())
    (tmp_path / "encoder.json").write_text(json.dumps(table | {"format": 1}))
    refuses(
        DataError, "format 1, which may name rare values .* train the guard again", load_encoder, tmp_path
    )


# Keys


def test_a_key_is_a_file_of_256_bits_for_its_owner_alone(tmp_path):
    path = tmp_path / "hospital.key"
    made = Key.new(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(made.secret) == 32
    assert Key.read(path).secret == made.secret
    assert made.secret.hex() not in repr(made)
    before = path.read_bytes()
    refuses(ArgumentError, "exists, and releases under it", Key.new, path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["hospital.key"]


def test_a_key_that_is_none_is_refused_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuses(ArgumentError, "name of a file, got the number 7, which a command line's history", Key.read, "7")
    refuses(ArgumentError, r"cannot be read \(No such file", Key.read, "nowhere.key")
    path = tmp_path / "short.key"
    path.write_text("0123456789abcdef")
    path.chmod(0o600)
    refuses(ArgumentError, "at least 128 bits, got 64; make one by: leakscope key new", Key.read, path)
    path.write_text("correct horse battery staple")
    refuses(ArgumentError, "must hold hexadecimal digits", Key.read, path)
    path.write_text(32 * "ab")
    path.chmod(0o644)
    refuses(ArgumentError, "by its owner alone, and its mode is 0644; run: chmod 600", Key.read, path)


def test_what_is_derived_from_a_key_depends_on_where_its_parts_end():
    assert KEY.derive("ab", "c") != KEY.derive("a", "bc")
    assert KEY.derive("ab") != rehearsed_key(1).derive("ab")


# The ledger


def release(ledger: ReleaseLedger, encoder: Encoder, frame, key: Key = KEY, **people):
    ids = [f"person {i}".encode() for i in frame["patient"]]
    r = encoder(frame, key=key, people=list(frame["patient"]))
    with ledger.open(key, **{"named": True, **people}) as entry:
        entry.add(encoder.fingerprint, ids, r)
    return entry


def test_a_ledger_counts_different_releases_of_a_person_and_refuses_more(tmp_path):
    ledger, few = ReleaseLedger(tmp_path / "ledger"), FRAME.head(20)
    assert release(ledger, ENCODER, few).new == 20
    assert ledger.path.stat().st_mode & 0o777 == 0o600
    assert release(ledger, ENCODER, few).new == 0  # the same release again
    older = few.assign(age=few["age"] + 30 * (few.index < 3))
    before = ledger.path.read_bytes()
    refuses(ArgumentError, "at most 1 different releases of a person, and 3 would be more", release, ledger,
            ENCODER, older)  # fmt: skip
    assert release(ledger, ENCODER, few).new == 0
    other = deployed(FRAME, seed=1)
    refuses(ArgumentError, "and 20 would be more", release, ledger, other, few)
    assert ledger.path.read_bytes() == before
    assert release(replace(ledger, most=2), other, few).new == 20
    warned = release(replace(ledger, most=2, beyond="warn"), ENCODER, older)
    assert (warned.new, warned.beyond) == (3, 3)
    refuses(ArgumentError, "most must be at least 1", ReleaseLedger, tmp_path / "l", most=0)
    refuses(
        ArgumentError, "beyond must be one of refuse, warn", ReleaseLedger, tmp_path / "l", beyond="ignore"
    )


def test_a_ledger_belongs_to_one_key_and_to_people_known_in_one_way(tmp_path):
    ledger, few = ReleaseLedger(tmp_path / "ledger"), FRAME.head(5)
    release(ledger, ENCODER, few)
    refuses(ArgumentError, "belongs to another key", release, ledger, ENCODER, few, rehearsed_key(1))
    refuses(
        ArgumentError, "knows people by their ids.*give --person", release, ledger, ENCODER, few, named=False
    )


def test_a_ledger_tells_nothing_of_a_record(tmp_path):
    ledger, few = ReleaseLedger(tmp_path / "ledger"), FRAME.head(50)
    release(ledger, ENCODER, few)
    content = ledger.path.read_bytes()
    for text in (*few["patient"], *few["diagnosis"], ENCODER.fingerprint, "person", "sepsis"):
        assert text.encode() not in content.replace(b"person BLOB", b"").replace(b"PRIMARY KEY (person", b"")
    assert bytes.fromhex(ENCODER.fingerprint) not in content
    assert KEY.secret not in content


def test_what_is_no_ledger_is_refused_and_stays_as_it_is(tmp_path):
    path = tmp_path / "ledger"
    path.write_bytes(b"a diary, and no database at all" * 100)
    before = path.read_bytes()
    refuses(DataError, "is no ledger that can be used", release, ReleaseLedger(path), ENCODER, FRAME.head(2))
    assert path.read_bytes() == before
    nowhere = ReleaseLedger(tmp_path / "no" / "ledger")
    refuses(DataError, "cannot be opened", release, nowhere, ENCODER, FRAME.head(2))
    with pytest.raises(ZeroDivisionError), ReleaseLedger(tmp_path / "new").open(KEY, named=True):
        raise ZeroDivisionError
    assert (tmp_path / "new").read_bytes() == b""  # it is not deleted: another process may have it open


def test_without_ids_a_ledger_counts_one_encoder_alone(tmp_path):
    """Two encoders round the same record to other grids, so that neither knows the other's names."""
    older = FRAME.assign(age=FRAME["age"] * 3)
    other = deployed(older, seed=1)
    assert ENCODER.name_records(X)[:5] != other.name_records(other.read(FRAME))[:5]

    def share(encoder: Encoder, ledger: ReleaseLedger):
        x = encoder.read(FRAME.head(20))
        with ledger.open(KEY, named=False) as entry:
            entry.add(encoder.fingerprint, encoder.name_records(x), encoder(x, key=KEY))
        return entry.new

    ledger = ReleaseLedger(tmp_path / "ledger")
    assert share(ENCODER, ledger) == 20
    assert share(ENCODER, ledger) == 0
    before = ledger.path.read_bytes()
    for way in ("refuse", "warn"):
        refuses(ArgumentError, "another encoder.*--person", share, other, replace(ledger, beyond=way))
    assert ledger.path.read_bytes() == before
    assert share(ENCODER, ledger) == 0


def test_of_two_that_begin_together_the_refused_one_deletes_nothing(tmp_path, monkeypatch):
    """The second has found no ledger before the first makes one."""
    ledger, few = ReleaseLedger(tmp_path / "ledger"), FRAME.head(5)
    release(ledger, ENCODER, few)
    with monkeypatch.context() as patch:
        patch.setattr(type(ledger.path), "exists", lambda path: False)
        refuses(ArgumentError, "and 5 would be more", release, ledger, deployed(FRAME, seed=1), few)
    assert ledger.path.is_file()
    refuses(ArgumentError, "and 5 would be more", release, ledger, deployed(FRAME, seed=1), few)


@pytest.mark.parametrize("missing", [None, pd.NA, pd.NaT, float("nan"), "", " "])
def test_who_has_no_id_is_refused_by_the_record(missing):
    refuses(DataError, "record 2 has none", name_people, [1, missing])
