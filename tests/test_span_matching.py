"""Records fitted where proofs end: the kernel against torch's own training, and confidence that holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from builders import cell, refuses
from test_row_space import LOCAL, PUBLIC, gradients, net, table, uploads
from torch.nn import functional as F

import leakscope as ls
from leakscope.attacks.encoding import Encoding
from leakscope.attacks.matching import cosine
from leakscope.attacks.open_numbers import Shifting, free_directions
from leakscope.attacks.reliability import Reliability
from leakscope.attacks.soft_records import SoftTable, settle
from leakscope.attacks.span_matching import SpanMatching
from leakscope.attacks.unrolled import Unrolled
from leakscope.core.errors import ArgumentError
from leakscope.core.nouns import CERTIFIED, NOT_FOUND, PLAUSIBLE, View
from leakscope.games import Reconstruction
from leakscope.measures.records import match, transcribe
from leakscope.report.page import render
from leakscope.results.cell import Cell
from leakscope.run import experiment
from leakscope.training import Local

FITTED = SpanMatching(algebra=None, iterations=120, restarts=3, rehearsals=3, least=40)


def played(attack, game, channel, *, believed=None, trials: int = 3):
    knowledge = ls.Knowledge(game.on(PUBLIC), believed or channel)
    return ls.play(game, channel, attack, knowledge, trials=trials, rng=ls.seeded(5))


# --- everything and nothing


def test_fitted_records_are_those_behind_a_gradient_and_confidence_says_so():
    """Without any proof."""
    game = Reconstruction(table(300, 2), batch=4)
    transcript = played(FITTED, game, gradients(net()), trials=2)
    assert transcript.status.eq(PLAUSIBLE).all()
    cells, mode = ls.right_cells(transcript, PUBLIC)["all"]
    assert cells.value > 0.95 > 2 * mode.value
    called, right = ls.confident_cells(transcript, PUBLIC)
    assert called.value > 0.5
    assert right.value >= 0.95


def test_what_the_algebra_certifies_stands_and_is_not_counted_as_confident():
    game = Reconstruction(table(300, 2), batch=6)
    transcript = played(SpanMatching(), game, gradients(net()))
    assert transcript.status.eq(CERTIFIED).all()
    assert transcript.confidence.eq(1).all()
    assert ls.exact_records(transcript, PUBLIC).value == 1.0
    assert ls.confident_cells(transcript, PUBLIC)[0].value == 0.0


def test_through_silence_nothing_is_found_and_no_cell_is_called():
    game = Reconstruction(table(300, 2), batch=4)
    for believed in (ls.Silent(), gradients(net())):
        transcript = played(FITTED, game, ls.Silent(), believed=believed)
        assert transcript.status.eq(NOT_FOUND).all()
        assert transcript.guesses.equal(game.on(PUBLIC).mean.expand_as(transcript.secrets))
        assert transcript.confidence.eq(0).all()


def test_behind_much_noise_no_cell_is_called_wrongly():
    game = Reconstruction(table(300, 2), batch=4)
    transcript = played(replace(FITTED, iterations=60), game, gradients(net(), defense=ls.Noise(1.0)))
    called, right = ls.confident_cells(transcript, PUBLIC)
    assert called.value * (1 - right.value) < 0.01
    cells, mode = ls.right_cells(transcript, PUBLIC)["all"]
    assert cells.value < mode.value + 0.1


def test_the_private_rows_are_nowhere_in_what_the_adversary_knows():
    """What it says of a release is the same whoever else the game could have dealt."""
    game, channel = Reconstruction(table(300, 2), batch=3), gradients(net())
    view, secrets = game.deal(channel, 1, ls.seeded(0))
    copied = Reconstruction(
        ls.Dataset(secrets[0], torch.zeros(3).long(), {}, columns=PUBLIC.columns), batch=3
    )
    quick = replace(FITTED, iterations=20, rehearsals=2, least=2)
    said = [
        quick.prepare(ls.Knowledge(one.on(PUBLIC), channel), ls.seeded(1))(View(view.releases))
        for one in (game, copied)
    ]
    assert said[0].records.equal(said[1].records)
    assert said[0].confidence.equal(said[1].confidence)


# --- the kernel


@pytest.mark.parametrize(
    "local",
    [
        Local(rate=0.1, batch=3, epochs=2, momentum=0.9, decay=0.01),
        Local(rate=0.01, batch=8, epochs=3, optimiser="adam", decay=0.0),
    ],
    ids=["sgd", "adam"],
)
def test_an_unrolled_upload_is_what_torch_trains(local):
    data, model = table(6, 2), net().double()
    own = dict(model.named_parameters())
    sgd = torch.optim.SGD(own.values(), lr=local.rate, momentum=local.momentum, weight_decay=local.decay)
    adam = torch.optim.Adam(own.values(), lr=local.rate, weight_decay=local.decay)
    optimiser = sgd if local.optimiser == "sgd" else adam
    start = {name: tensor.detach().clone() for name, tensor in own.items()}
    x = data.x.double()
    for _ in range(local.epochs):
        for rows in torch.arange(6).split(local.batch):
            optimiser.zero_grad()
            F.cross_entropy(model(x[rows]), data.y[rows]).backward()
            optimiser.step()
    moved = {name: start[name] - tensor.detach() for name, tensor in own.items()}
    said = Unrolled(model, F.cross_entropy, (), cosine, local).gradients(start, x[None], data.y[None], moved)
    for name, tensor in moved.items():
        torch.testing.assert_close(said[name][0], tensor, rtol=1e-6, atol=1e-9)


def test_soft_records_are_the_means_of_their_options_and_only_of_possible_ones():
    encoding = Encoding.of(PUBLIC, pinned=0)
    soft = SoftTable(encoding)
    active = PUBLIC.x[:5].abs().sum(0) > 0
    possible = soft.possible(active)
    x = soft.soften(torch.randn(7, soft.width, generator=ls.seeded(0)), possible)
    for group in encoding.groups:
        assert torch.allclose(x[:, group.positions].sum(1), torch.ones(7))
    assert x[:, : encoding.numbers[0]][:, ~active[: encoding.numbers[0]]].eq(0).all()
    hard = soft.harden(x)
    assert hard[:, : encoding.numbers[0]].sum(1).eq(len(encoding.groups)).all()


def test_numbers_settle_where_the_space_has_them():
    """Records span a space; told their categories alone, their numbers come back."""
    encoding = Encoding.of(PUBLIC, pinned=0)
    x = torch.cat([PUBLIC.x[:6].double(), torch.ones(6, 1).double()], dim=1)
    v = torch.linalg.svd(x, full_matrices=False)[2].T
    blurred = x.clone()
    blurred[:, encoding.numbers] = 0
    settled, off = settle(blurred, v, encoding.numbers, 1e-4)
    torch.testing.assert_close(settled, x, atol=1e-4, rtol=0)
    assert off.max() < 1e-3
    wrong = blurred.clone()
    wrong[:, :9] = F.one_hot((x[:, :9].argmax(1) + 1) % 9, 9).double()
    assert settle(wrong, v, encoding.numbers, 1e-4)[1].min() > 0.1


def test_two_records_alike_in_every_category_leave_all_numbers_open_but_to_the_whole_gradient():
    """Along what they differ in, every record can be moved without leaving the space."""
    rows = table(5, 23)
    x = rows.x.clone()
    numbers = Encoding.of(PUBLIC, pinned=0).numbers
    fixed = torch.ones(x.shape[1], dtype=torch.bool)
    fixed[numbers] = False
    x[1, fixed] = x[0, fixed]
    game, channel = Reconstruction(replace(rows, x=x), batch=5), gradients(net())
    found = played(FITTED, game, channel, trials=1)
    assert ls.exact_records(found, PUBLIC).value == 1.0
    stayed = played(replace(FITTED, rounds=0), game, channel, trials=1)
    assert ls.exact_records(stayed, PUBLIC).value < 0.5


def test_free_directions_move_no_category():
    encoding = Encoding.of(PUBLIC, pinned=0)
    x = torch.cat([PUBLIC.x[:6].double(), torch.ones(6, 1).double()], dim=1)
    assert not len(free_directions(torch.linalg.svd(x, full_matrices=False)[2].T, encoding.numbers, 0.03))
    twin = x[:1].clone()
    twin[:, encoding.numbers] += torch.tensor([0.5] * len(encoding.numbers)).double()
    v = torch.linalg.svd(torch.cat([x, twin]), full_matrices=False)[2].T
    (free,) = free_directions(v, encoding.numbers, 0.03)
    torch.testing.assert_close(free.abs(), (twin - x[:1])[0].abs() / (twin - x[:1]).norm())


def test_records_are_moved_out_of_valleys_and_those_that_are_known_stand():
    truth = torch.tensor([[1.3], [-0.9], [0.0], [0.6]], dtype=torch.float64)

    def losses(moves: torch.Tensor) -> torch.Tensor:
        off = moves - truth
        return (0.1 * off.square() + 1 - (6 * off).cos()).sum((1, 2))

    start, movable = torch.zeros(2, 4, 1, dtype=torch.float64), torch.tensor([True, True, False, True])
    found, far = Shifting(0.03, 4, 41, 2.0, 300, 0.05, 1e-6).move(losses, start, movable)
    torch.testing.assert_close(found, truth.expand(2, 4, 1), atol=1e-2, rtol=0)
    assert found[:, 2].eq(0).all()
    assert far.max() < 1e-2


def test_confidence_is_the_share_of_such_cells_that_were_right():
    rng = ls.seeded(0)
    features, batches = torch.rand(4_000, 2, generator=rng).double(), torch.arange(4_000) % 8
    right = torch.rand(4_000, generator=rng) < features[:, 0]
    known = Reliability.learn(features[:2_000], right[:2_000], batches[:2_000], 100)
    said = known.rate(features[2_000:])
    for low in (0.0, 0.25, 0.5, 0.75):
        some = (said >= low) & (said < low + 0.25)
        assert abs(float(right[2_000:][some].double().mean()) - float(said[some].mean())) < 0.07
    assert float(said.max()) < 1
    assert Reliability.learn(features[:50], right[:50], batches[:50], 100) is None
    assert Reliability.learn(features[:200], right[:200], torch.zeros(200), 100) is None


# --- uploads


def test_a_small_clients_upload_is_unrolled():
    """Two of its local steps on all of its records, each of which moves the model far."""
    local = Local(rate=0.5, batch=8, epochs=3, momentum=0.0, decay=0.0)
    game = Reconstruction(table(300, 2), batch=4)
    transcript = played(replace(FITTED, rehearsals=0), game, uploads(net(), local), trials=2)
    cells, _ = ls.right_cells(transcript, PUBLIC)["all"]
    assert cells.value > 0.9
    assert transcript.confidence.eq(0).all()


def test_what_it_cannot_unroll_is_refused():
    game = Reconstruction(table(300, 2), batch=8)
    long = uploads(net(), replace(LOCAL, epochs=30))
    refuses(ArgumentError, "at most 20 local steps, got 60", played, FITTED, game, long)
    refuses(ArgumentError, "SpanMatching.restarts must be at least 0", SpanMatching, restarts=-1)


# --- the audit


def test_uploads_of_adam_are_fitted_where_proofs_refuse_them_and_pass_nothing():
    """Of one record: columns of the upload that are 0 leave one option of every category."""
    tiny = cell("records")
    local = {"name": "Local", "rate": 0.01, "batch": 8, "epochs": 2, "optimiser": "adam", "decay": 0.0}
    attack = {"name": "SpanMatching", "iterations": 60, "restarts": 1, "rehearsals": 0}
    game = dict(tiny.game) | {"batches": [1], "local": local, "reconstruct": attack}
    result = experiment.run(Cell.model_validate(tiny.described | {"game": game, "trials": 3}), 0)
    size = result.found.sizes[0]
    right = {column.name: column.right.value for column in size.columns}
    assert {right[column.name] for column in ls.load("heart").columns if column.values} == {1.0}
    assert size.mode.value < size.cells.value
    assert (size.certified.value, size.search.short, size.search.fitted) == (0.0, 0, 3)
    assert not size.search.whole
    proofs = game | {"reconstruct": {"name": "RowSpace"}}
    one = Cell.model_validate(tiny.described | {"game": proofs})
    refuses(ArgumentError, "reads uploads of SGD", experiment.run, one, 0)


def test_the_page_tells_confident_from_certified_and_what_was_fitted_passes_nothing():
    tiny = cell("records")
    attack = {"name": "SpanMatching", "iterations": 30, "restarts": 1, "rehearsals": 2, "least": 20}
    attack["algebra"] = {"name": "RowSpace", "branches": 1, "tried": 0}
    game = dict(tiny.game) | {"batches": [6], "reconstruct": attack}
    result = experiment.run(Cell.model_validate(tiny.described | {"game": game}), 0)
    size = result.found.sizes[0]
    assert size.search.fitted == size.search.batches
    assert not size.search.whole
    assert size.confident.above == 0.95
    page = render([result], plan="", title="x")
    assert "Confident" in page
    assert "the rest was fitted, which ends in no proof" in page
    assert "A confident cell is no certificate" in page


def test_confident_cells_are_counted_beside_a_loop():
    game = Reconstruction(table(300, 2), batch=3)
    secrets = game.data.x[:6].view(2, 3, -1)
    said = secrets.flip(1).clone()
    said[0, 0, -1] += 9  # one cell is wrong
    sure = torch.full((2, 3, 8), 0.5)
    sure[0, 0] = 0.99
    sure[1, 1, :2] = 0.97
    status = torch.full((2, 3), PLAUSIBLE)
    status[1, 2] = CERTIFIED
    sure[1, 2] = 1.0
    called, right = match(transcribe(secrets, said, status, sure), PUBLIC).confident()
    assert called.value == pytest.approx(10 / 48)
    assert right.value == pytest.approx(9 / 10)


def test_a_certified_record_that_is_said_twice_is_no_false_certificate():
    """Searches may end at a record that is proven already: the proof is not less true for that."""
    secrets = table(300, 2).x[:3][None]
    said = torch.stack([secrets[0, 0], secrets[0, 0], secrets[0, 2]])[None]
    for status in ([PLAUSIBLE, CERTIFIED, PLAUSIBLE], [CERTIFIED, PLAUSIBLE, PLAUSIBLE]):
        transcript = transcribe(secrets, said, torch.tensor([status]))
        assert ls.false_certificates(transcript, PUBLIC).value == 0.0
        assert ls.certified_records(transcript, PUBLIC).value == pytest.approx(1 / 3)
