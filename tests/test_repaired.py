"""Repaired: groups have one distribution, whoever encodes must know the group, and what is refused."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from builders import refuses
from guard_cells import TABLE, cell, people, run
from scipy import stats

from leakscope import Dataset, Repaired, TableEncoder, Unguarded, load_encoder, seeded
from leakscope.attacks.mixture import Mixture
from leakscope.attacks.representations import Fisher
from leakscope.audits.guards import evaluation
from leakscope.audits.guards.evaluation import try_holdings
from leakscope.audits.guards.page import tell
from leakscope.audits.guards.trial import Trial
from leakscope.core.errors import ArgumentError, DataError
from leakscope.guards.exporting import export
from leakscope.guards.preparation import Preparation
from leakscope.guards.repaired import tell_secret
from leakscope.models.repair import learn_repair, repair

PLAIN = Unguarded(encoder=TableEncoder((16, 8)), epochs=3, batch=64)
GUARD = Repaired("u", plain=PLAIN)


@pytest.fixture
def one_attack(monkeypatch):
    monkeypatch.setattr(evaluation, "choose_attacks", lambda *_: (Fisher(),))


def marks_of(codes: torch.Tensor, groups: int = 2) -> torch.Tensor:
    return torch.nn.functional.one_hot(codes, groups).double()


def test_one_number_goes_to_the_mean_of_the_groups_quantiles():
    """Two normal laws of one number have the barycentre N(mean of means, (mean of deviations)^2)."""
    rng = seeded(0)
    codes = torch.arange(40_000) % 2
    r = torch.where(codes == 1, 3.0, 1.0)[:, None] * torch.randn(40_000, 1, generator=rng).double()
    r += 4.0 * codes[:, None]
    maps = learn_repair(r, codes, groups=2, levels=200, rounds=1, rng=rng)
    moved = repair(r, marks_of(codes), *maps)[:, 0]
    for code in (0, 1):
        assert stats.kstest(moved[codes == code][::8].numpy(), stats.norm(2, 2).cdf).pvalue > 0.01
    inner = (r[:, 0] - 4.0 * codes).abs() < 1  # away from the ends, where knots are means of far values
    expected = 2 + 2 * (r[:, 0] - 4.0 * codes) / torch.where(codes == 1, 3.0, 1.0)
    assert float((moved - expected)[inner].abs().max()) < 0.1
    assert stats.ks_2samp(moved[codes == 0].numpy(), moved[codes == 1].numpy()).statistic < 0.01


def test_several_numbers_become_alike_in_every_direction_and_not_in_each_number_alone():
    rng = seeded(1)
    codes = torch.arange(6_000) % 2
    r = torch.randn(6_000, 2, generator=rng).double()
    r[:, 1] = (
        torch.where(codes == 1, 1.0, -1.0) * 0.9 * r[:, 0] + 0.4 * r[:, 1]
    )  # the groups' marginals agree
    maps = learn_repair(r, codes, groups=2, levels=64, rounds=24, rng=rng)
    once, moved = (repair(r, marks_of(codes), *(part[:k] for part in maps)) for k in (1, 24))
    products = [abs(stats.pearsonr(*one[codes == 1].numpy().T).statistic) for one in (r, once, moved)]
    assert products[0] > 0.8
    assert products[1] > 0.8
    assert products[2] < 0.1


def test_values_that_are_equal_stay_so_and_no_knot_is_one_record():
    codes = torch.arange(400) % 2
    r = (torch.arange(400) // 100).double()[:, None] + codes[:, None]
    maps = learn_repair(r, codes, groups=2, levels=8, rounds=1, rng=seeded(0))
    moved = repair(r, marks_of(codes), *maps)
    for code in (0, 1):
        own = codes == code
        assert len(moved[own].unique()) == len(r[own].unique()) == 4
    assert float((moved[codes == 0] - moved[codes == 1]).abs().max()) < 1e-9


def test_the_amount_is_how_far_it_goes_and_0_is_plain_training():
    data = tell_secret(people(600), "u")
    alone = replace(PLAIN, encoder=TableEncoder((16, 1)))(data.without("u"), seeded(0))
    plain = alone.encoder(data.without("u").x)
    none, half, whole = (replace(GUARD, amount=a)(data, seeded(0)).encoder(data.x) for a in (0.0, 0.5, 1.0))
    assert torch.equal(none, plain)
    assert torch.allclose(half, (none + whole) / 2, atol=1e-5)
    apart = [
        float((r[data.private["u"] == 1].mean() - r[data.private["u"] == 0].mean()).abs())
        for r in (none, half, whole)
    ]
    assert apart[0] > apart[1] > 10 * apart[2]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    data = people(600)
    told = tell_secret(data, "u")
    preparation = Preparation.learned(told)
    made = replace(GUARD, width=3, rounds=4, noise=0.1)(preparation.apply(told), seeded(0)).encoder
    encoder = replace(made, preparation=preparation)
    return encoder, encoder.save(tmp_path_factory.mktemp("repaired")), told


def test_it_is_saved_loaded_and_exported_like_others(saved, tmp_path):
    encoder, folder, told = saved
    again = load_encoder(folder)
    draws = torch.randn(len(told), 3, generator=seeded(3)).double()
    assert torch.equal(again(told.x, draws), encoder(told.x, draws))
    assert again.fingerprint == encoder.fingerprint
    program = torch.export.load(export(again, tmp_path / "encoder.pt2")).module()
    assert float((program(told.x, draws) - encoder(told.x, draws)).abs().max()) <= 1e-6
    frame = to_frame(told)
    assert torch.allclose(again(frame, draws), encoder(told.x, draws), atol=1e-5)


def test_onnx_says_the_same_to_a_millionth_and_no_number_of_a_group_that_was_never_seen(saved, tmp_path):
    encoder, _, told = saved
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = export(encoder, tmp_path / "encoder.onnx")
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    x, draws = told.x.clone(), torch.randn(len(told), 3, generator=seeded(3)).double()
    x[5, -2:] = 0
    names = [one.name for one in session.get_inputs()]
    (found,) = session.run(None, dict(zip(names, (x.numpy(), draws.numpy()), strict=True)))
    assert np.isnan(found[5]).all()
    assert np.nanmax(np.abs(found - encoder(x, draws).numpy())) <= 1e-6


def to_frame(told: Dataset):
    import pandas as pd

    numbers = pd.DataFrame(told.x[:, :10].numpy(), columns=[f"x{i}" for i in range(10)])
    return numbers.assign(u=np.array(told.value_names("u"))[told.private["u"].numpy()])


def test_whoever_does_not_know_the_secret_is_refused(saved):
    encoder, _, told = saved
    frame = to_frame(told)
    refuses(DataError, "'u'", encoder.read, frame.drop(columns="u"))
    unknown = encoder.read(frame.assign(u=["maybe", *frame["u"][1:]]))
    refuses(DataError, "must be told 'u' of every record", encoder, unknown, rng=seeded(0))
    assert bool(encoder(unknown, torch.zeros(len(unknown), 3))[0].isnan().all())  # as exported programs say
    data = people(600)
    refuses(ArgumentError, "must be marked among the inputs", GUARD, data, seeded(0))
    rare = replace(told, private={**told.private, "u": torch.arange(600).eq(0).long()})
    refuses(DataError, "at least 10 training records", GUARD, tell_secret(rare, "u"), seeded(0))
    ranges = replace(data, ordered=frozenset({"u"}))
    refuses(ArgumentError, "categories", tell_secret, ranges, "u")
    refuses(ArgumentError, r"amount must be in \[0, 1\]", Repaired, "u", amount=1.5)
    refuses(ArgumentError, "normed must be False", Repaired, "u", plain=replace(PLAIN, normed=True))


def test_one_release_hides_what_plain_training_gives_away_and_the_rows_say_that_two_do_not():
    """The groups' maps differ, and so does how far a changed record moves."""
    train, test, public = (tell_secret(people(3_000, shift=1.0, seed=i), "u") for i in range(3))
    trial = Trial(train, test, public, "attribute", "u", trials=2_000, rehearsals=2_000)
    kept = replace(PLAIN, epochs=2)
    scores = []
    for amount in (0.0, 1.0):
        guard = replace(GUARD, amount=amount, plain=kept)
        leaky = replace(train, y=train.private["u"])  # a task that is the secret
        first, second = (guard(leaky, seeded(i)).encoder for i in (0, 1))
        rows = try_holdings(first, trial, queries=4, near=4, second=second, attacks=(Fisher(), Mixture()))
        scores.append({row.title: row.attack.scores.auroc.value for row in rows})
    plain, repaired = scores
    several = {"two encoders", "changed record"}
    assert set(repaired) == {
        "label alone",
        "one draw and the label",
        *several,
        *(f"{one} and the label" for one in several),
    }
    assert plain["one draw and the label"] > 0.7
    assert repaired["one draw and the label"] < 0.54
    assert repaired["changed record"] > 0.58


def test_the_page_says_who_must_know_the_secret_and_plain_training_beside_it_is_not_repaired(one_attack):
    plain = {"name": "Unguarded", "encoder": TABLE, "epochs": 2}
    guard = {"name": "Repaired", "column": "u", "plain": plain}
    result = run(cell(guard, baselines=True, epochs=2))
    assert result.found is not None
    assert result.found.told == "u"
    (judged,) = result.found.judged
    assert [one.name for one in judged.baselines] == ["raw inputs", "without u", "plain training"]
    assert judged.baselines[0].strongest.scores.auroc.value == 1  # records as they are have it marked
    chapter = tell([result])
    assert "must know u of each record" in " ".join(chapter.verdicts[0].notes)
    assert "must know u of each record" in str(chapter.body)
