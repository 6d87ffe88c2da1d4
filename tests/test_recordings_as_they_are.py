"""Recordings with gaps, failures, parts, other names and other forms: each is handled and said, or refused."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, replace

import builders
import numpy as np
import pytest
import torch
from builders import refuses
from safetensors.torch import save_file
from torch import nn

from leakscope import Recorder, Recording, audit_recording, seeded
from leakscope.audits.membership.kind import KIND
from leakscope.audits.membership.names import _fit_others
from leakscope.audits.membership.request import request_recording
from leakscope.audits.membership.seeds import list_unlike, watches
from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, DataError
from leakscope.results.cell import Cell
from leakscope.results.kind import World
from leakscope.results.result import Result
from leakscope.run import experiment
from leakscope.training.recording.checks import check_recording
from leakscope.training.recording.codes import check_codes
from leakscope.training.recording.folder import convert_folder

SITES, SIZE, INPUTS = 3, 30, 40
NETS = {
    "tanh": lambda: nn.Sequential(nn.Linear(INPUTS, 16), nn.Tanh(), nn.Linear(16, 2)),
    "plain": lambda: nn.Sequential(nn.Linear(INPUTS, 16), nn.ReLU(), nn.Linear(16, 2)),
    "normed": lambda: nn.Sequential(
        nn.Linear(INPUTS, 16), nn.BatchNorm1d(16, momentum=0.5), nn.ReLU(), nn.Linear(16, 2)
    ),
}


def plain(inputs: int, classes: int) -> nn.Module:
    return NETS["plain"]()


def normed(inputs: int, classes: int) -> nn.Module:
    return NETS["normed"]()


@dataclass
class Loop:
    """A training loop of anybody's own, whose uploads can be changed before they are recorded."""

    net: str = "plain"
    rounds: int = 4
    frozen: tuple[str, ...] = ()
    labels: tuple[int, ...] = (0, 1)
    shift: float = 0.0  # by which records of one origin differ from those of the next

    def candidates(self) -> Dataset:
        """Records whose labels are coin flips, so that a model can only know those it has seen."""
        n, rng = SITES * SIZE + 500, seeded(100, "data")
        x, y = torch.randn(n, INPUTS, generator=rng), torch.randint(2, (n,), generator=rng)
        whose = torch.arange(n).div(SIZE, rounding_mode="floor").clamp(max=SITES)
        origin = torch.where(whose < SITES, whose, torch.arange(n) % SITES)
        names = (*(f"site-{i}" for i in range(SITES)), "nobody")
        x[:, :5] += self.shift * origin[:, None]
        private = {"client": whose, "origin": origin}
        return Dataset(
            x, y, private, name="candidates", values={"client": names, "origin": ("north", "south", "west")}
        )

    def train(self, record) -> None:
        """``record(r, sent, trained)``: states by client."""
        data = self.candidates()
        sites = [data.take(torch.arange(i * SIZE, (i + 1) * SIZE)) for i in range(SITES)]
        torch.manual_seed(100)
        model, order = NETS[self.net](), torch.tensor(self.labels)
        for r in range(self.rounds):
            trained = {}
            for i, site in enumerate(sites):
                local = copy.deepcopy(model)
                for name, p in local.named_parameters():
                    p.requires_grad_(name not in self.frozen)
                free = [p for p in local.parameters() if p.requires_grad]
                optimiser = torch.optim.SGD(free, lr=0.5)
                for _ in range(10):
                    optimiser.zero_grad()
                    nn.functional.cross_entropy(local(site.x), order[site.y]).backward()
                    optimiser.step()
                trained[f"site-{i}"] = {n: t.clone() for n, t in local.state_dict().items()}
            record(r, {n: t.clone() for n, t in model.state_dict().items()}, trained)
            states = list(trained.values())
            model.load_state_dict({n: sum(s[n] for s in states) / len(states) for n in states[0]})
        record(self.rounds, {n: t.clone() for n, t in model.state_dict().items()}, {})


def keep(folder, loop: Loop, upload=lambda r, client, sent, state: state, *, model=None, **options):
    """Record the loop; an upload of None failed."""
    module = NETS[loop.net]()
    recorder = Recorder(folder, module if model is None else model, model_name="net", **options)

    def record(r, sent, trained):
        recorder.global_model(r, sent)
        for client, state in trained.items():
            if (given := upload(r, client, sent, state)) is not None:
                recorder.update(r, client, given, samples=SIZE)

    loop.train(record)
    return Recording(folder)


def measure(folder, loop: Loop) -> Result:
    game = {"name": "RecordingAudit", "recording": str(folder), "attacks": [{"name": "Whitened"}]}
    model = {"name": f"{__name__}.{loop.net}"}
    cell = Cell.model_validate({"data": {"name": "c"}, "model": model, "trials": 200, "game": game})
    return experiment.run(cell, 0, records=loop.candidates(), trusted=(__name__,))


def audit(folder, loop: Loop, candidates: Dataset | None = None, **game):
    game = {"name": "RecordingAudit", "recording": str(folder), "attacks": [{"name": "Cosine"}]} | game
    model = {"name": f"{__name__}.{loop.net}"}
    cell = {"data": {"name": "candidates"}, "model": model, "trials": 200, "game": game}
    world = World(Cell.model_validate(cell), 0, candidates or loop.candidates(), (__name__,))
    KIND.check(world)
    return KIND.run(world).found


def area(found) -> float:
    return found.attacks[0].scores.auroc.value


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    folder = tmp_path_factory.mktemp("honest") / "run"
    keep(folder, Loop())
    return folder, area(audit(folder, Loop()))


def test_an_honest_recording_tells_its_members(honest):
    assert honest[1] > 0.8


def test_little_found_behind_batch_normalisation_is_no_all_clear(tmp_path):
    """Of a net without it nothing is doubted."""
    for net in ("plain", "normed"):
        loop = Loop(net=net, rounds=2)
        keep(tmp_path / net, loop)
        result = measure(tmp_path / net, loop)
        assert result.found.batchwise == (net == "normed")
        (watch,) = watches([result])
        (federation,) = watch.federations
        doubts = " ".join(federation.doubts)
        assert ("does not show that little leaks" in doubts) == (net == "normed")
        assert [site.sound for site in federation.sites] == [net == "plain"] * SITES


# Numbers that would be low because something does not fit


@pytest.mark.parametrize("seen", ["uploads", "sum", "broadcast"])
def test_labels_in_another_order_are_refused_with_the_order(tmp_path, seen):
    keep(tmp_path / "run", Loop(labels=(1, 0)))
    named = replace(
        Loop().candidates(), label="died", values=dict(Loop().candidates().values) | {"died": ("no", "yes")}
    )
    with pytest.raises(DataError, match=r"output 0 is 'yes' \(code 1\), 1 is 'no' \(code 0\); code them as"):
        audit(tmp_path / "run", Loop(), named, seen=seen)


def test_codes_are_refused_only_where_another_order_is_clearly_better():
    rng = seeded(100)
    y = torch.randint(5, (400,), generator=rng)
    right = nn.functional.one_hot(y, 5).double() + 0.3 * torch.randn(400, 5, generator=rng)
    check_codes(right, y)
    order = torch.tensor([2, 0, 1, 4, 3])
    with pytest.raises(DataError, match=r"96% if its output 0 is '2' \(code 2\), 1 is '0' \(code 0\), 2 is"):
        check_codes(right[:, order], y)
    alarms = 0
    for seed in range(100, 200):  # a model that knows nothing, of many classes and few records
        rng = seeded(seed)
        labels = torch.randint(10, (40,), generator=rng)
        try:
            check_codes(torch.randn(40, 10, generator=rng), labels)
        except DataError:
            alarms += 1
    assert alarms == 0
    constant = torch.zeros(400, 5)
    constant[:, 3] = 1  # says one label always, and another is the most frequent
    check_codes(constant, torch.cat([torch.zeros(300), torch.arange(100) % 5]).long())


def test_candidates_that_are_scaled_otherwise_are_never_an_all_clear(tmp_path, honest):
    """Shifted and stretched, the model is no better on members than the most frequent label."""
    records = Loop().candidates()
    found = audit(honest[0], Loop(), replace(records, x=1e-3 * records.x - 5))
    assert any("not coded as the clients" in doubt for doubt in found.doubts)
    assert not audit(honest[0], Loop()).doubts


def test_a_client_under_another_name_is_not_taken_for_nobody(honest):
    records = Loop().candidates()
    other = replace(records, values={"client": ("site-0", "site-1", "north", "nobody")})
    with pytest.raises(DataError, match="several words that are no client's, 'nobody', 'north', and these"):
        audit(honest[0], Loop(), other, seen="sum")


def ask_for_perceptron(folder, loop: Loop, upload=lambda r, client, sent, state: state):
    """The cell of an audit whose model is known by its name alone."""
    keep(folder / "run", loop, upload)
    records = loop.candidates()
    names = np.array(records.values["client"])[records.private["client"]]
    np.savez(folder / "c.npz", x=records.x.numpy(), y=records.y.numpy(), client=names)
    asked = {"client": "client", "label": "y", "seen": "uploads", "centred": False, "records": False}
    sizes = {"drop": (), "trials": 200, "seeds": 1, "trust": ()}
    given = str(folder / "c.npz")
    (cell,) = request_recording(given, recording=folder / "run", model="MLP", **asked, **sizes)["cell"]
    return cell


@pytest.mark.parametrize("net", ["plain", "tanh"])
def test_the_activation_that_shapes_do_not_say_is_the_one_that_fits(tmp_path, net):
    """Under another one, gradients would be others and most members missed."""
    cell = ask_for_perceptron(tmp_path, Loop(net=net))
    assert cell["model"] == {"name": "MLP", "hidden": [16]} | (
        {"activation": "tanh"} if net == "tanh" else {}
    )
    assert ("tanh, under which what was recorded fits" in cell["note"]) == (net == "tanh")


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_noise_is_not_taken_for_another_activation(tmp_path, scale):
    """A net of ReLUs with noise has a lower loss if its units were sigmoids, which cannot grow."""
    rng = seeded(100)

    def noisy(r, client, sent, state):
        return {n: t + scale * torch.randn(t.shape, generator=rng) for n, t in state.items()}

    with pytest.raises(ArgumentError, match="does not tell it: losses are lower under sigmoid than under"):
        ask_for_perceptron(tmp_path, Loop(), noisy)


def test_noise_along_a_clients_records_does_not_exchange_its_name():
    """It lies along nobody's records that are like them as well; what was trained on does not."""
    rng = seeded(100)
    scores = [0.1 * torch.randn(2, 30, generator=rng) + torch.tensor([[c], [1 - c]]) for c in (0, 1)]
    noise = [0.1 * torch.randn(2, 30, generator=rng) + torch.tensor([[c], [1 - c]]) for c in (0, 1)]
    nothing = [0.1 * torch.randn(2, 30, generator=rng) for _ in (0, 1)]
    assert _fit_others(scores, nothing, 1e-4) == {0: 1, 1: 0}
    assert _fit_others(scores, noise, 1e-4) == {}


@pytest.mark.parametrize("order", [(1, 2, 0), (1, 0, 2)])
def test_clients_that_are_called_by_each_others_names_are_refused(honest, order):
    """Each would be looked for in another's uploads, and little would be found."""
    names = [f"site-{i}" for i in order]
    other = replace(Loop().candidates(), values={"client": (*names, "nobody")})
    with pytest.raises(DataError, match="those of 'site-1' those of 'site-0'"):
        audit(honest[0], Loop(), other)


def test_clients_that_are_called_otherwise_in_every_round_are_refused(tmp_path):
    """In the first round all are called as they should be, and in the mean nobody fits another."""
    recorder = Recorder(tmp_path / "run", NETS["plain"](), model_name="net")

    def record(r, sent, trained):
        recorder.global_model(r, sent)
        for i, state in enumerate(trained.values()):
            recorder.update(r, f"site-{(i + r) % SITES}", state, samples=SIZE)

    Loop().train(record)
    with pytest.raises(DataError, match="in round 1: those of 'site-0' those of 'site-1'"):
        audit(tmp_path / "run", Loop())


def test_members_who_show_in_anothers_uploads_only_are_no_exchanged_names(tmp_path):
    """The other client's own members show there too."""
    kept, rng = {}, seeded(100)

    def upload(r, client, sent, state):
        kept[client] = state
        if client == "site-0":
            return {name: t + 0.1 * torch.randn(t.shape, generator=rng) for name, t in sent.items()}
        both = {name: (t + kept["site-0"][name]) / 2 for name, t in state.items()}
        return both if client == "site-1" else state

    keep(tmp_path / "run", Loop(), upload)
    names = replace(Loop().candidates(), values={"client": ("site-0", "site-1", "site-2", "nobody")})
    assert area(audit(tmp_path / "run", Loop(), names, clients=("site-0",))) < 0.6
    audit(tmp_path / "run", Loop(), names)


def test_uploads_that_tell_nothing_of_members_are_no_exchanged_names(tmp_path):
    """In none of forty federations of noise."""
    from leakscope.audits.membership.judged import Roster, WatchedFederation
    from leakscope.audits.membership.names import refuse_exchanged

    records, model = Loop().candidates(), NETS["plain"]()
    sites = [records.take(torch.arange(i * SIZE, (i + 1) * SIZE)) for i in range(SITES)]
    nobody = records.take(torch.arange(SITES * SIZE, len(records)))
    for seed in range(40):
        rng, recorder = seeded(seed), Recorder(tmp_path / str(seed), model, model_name="net")
        recorder.global_model(0, model)
        for i in range(SITES):
            noise = {n: p + 0.1 * torch.randn(p.shape, generator=rng) for n, p in model.named_parameters()}
            recorder.update(0, f"site-{i}", noise, samples=SIZE)
        watched = WatchedFederation(
            Recording(tmp_path / str(seed)), model, tuple(f"site-{i}" for i in range(SITES))
        )
        refuse_exchanged(watched, Roster(tuple(sites), nobody, nobody, nobody))


def test_members_are_told_from_others_of_the_same_site_where_the_column_is_named(tmp_path):
    """Against records of all sites there would be no number, since members differ from them anyway."""
    loop = Loop(shift=1.0)
    keep(tmp_path / "run", loop)
    mixed, apart = (audit(tmp_path / "run", loop, site=site) for site in (None, "origin"))
    assert len(list_unlike([mixed])) > 1
    assert list_unlike([apart]) == ()
    assert area(apart) > 0.8
    assert apart.judged == 51  # of the 166 or 167 of each site, three tenths
    assert apart.known + apart.held <= 500
    few = loop.candidates()
    few = few.take(((few.private["client"] < SITES) | (few.private["origin"] != 1)).nonzero()[:, 0])
    with pytest.raises(DataError, match="0 candidates of nobody are of origin='south', where members are"):
        audit(tmp_path / "run", loop, few, site="origin")


def test_candidates_of_clients_who_are_not_looked_at_are_no_non_members(honest):
    found = audit(honest[0], Loop(), clients=("site-1",))
    assert found.watched == ("site-1",)
    assert found.known + found.held + found.others == 500
    assert any("about whom nothing is said: site-0, site-2" in remark for remark in found.remarks)


@pytest.mark.parametrize(("first", "told"), [(0, True), (1, True), (2, False)])
def test_losses_are_compared_under_the_model_that_a_federation_began_with(tmp_path, first, told):
    """Flower counts rounds from 1; a later model has seen members. Which rounds are looked at is no matter."""
    recorder = Recorder(tmp_path / "run", NETS["plain"](), model_name="net")

    def record(r, sent, trained):
        recorder.global_model(first + r, sent)
        for client, state in trained.items():
            recorder.update(first + r, client, state, samples=SIZE)

    Loop(rounds=2).train(record)
    for rounds in ((), (first + 1,)):
        found = audit(tmp_path / "run", Loop(), rounds=rounds)
        assert [check.loss is not None for check in found.alike] == [told] * SITES


# What is missing


def test_gaps_failed_rounds_and_uploads_that_are_not_finite_are_left_out_and_said(tmp_path, honest):
    def upload(r, client, sent, state):
        if r == 2:
            return None
        if (r, client) == (1, "site-0"):
            return {name: torch.full_like(tensor, torch.nan) for name, tensor in state.items()}
        return state

    keep(tmp_path / "run", Loop(), upload)
    found = audit(tmp_path / "run", Loop())
    assert "Rounds without an upload: 2." in found.remarks
    assert "Left out, since values are not finite: round 1, client site-0." in found.remarks
    assert found.rounds == 2  # site-0 is seen in rounds 0 and 3
    assert area(found) > 0.7
    index = tmp_path / "run" / "recording.json"
    kept = json.loads(index.read_text())
    del kept["rounds"]["2"]
    index.write_text(json.dumps(kept))
    assert "Missing rounds: 2." in audit(tmp_path / "run", Loop()).remarks


def test_a_global_model_that_is_not_finite_leaves_its_round_out(tmp_path):
    recorder = Recorder(tmp_path / "run", NETS["plain"](), model_name="net")

    def record(r, sent, trained):
        broken = {name: tensor * torch.nan for name, tensor in sent.items()}
        recorder.global_model(r, broken if r == 1 else sent)
        for client, state in trained.items():
            recorder.update(r, client, state, samples=SIZE)

    Loop().train(record)
    found = audit(tmp_path / "run", Loop())
    assert "Left out, since values are not finite: round 1, the global model." in found.remarks
    assert found.rounds == 3


def test_rounds_are_chosen_and_a_damaged_file_hurts_only_who_is_asked_about(tmp_path):
    keep(tmp_path / "run", Loop())
    assert audit(tmp_path / "run", Loop(), rounds=(1, 3)).rounds == 2
    refuses(
        DataError, "has no round 7, 9; it has: 0, 1, 2, 3, 4", audit, tmp_path / "run", Loop(), rounds=(9, 7)
    )
    for r, client in ((0, 2), (1, 2), (2, 1)):
        (tmp_path / "run" / f"round-00000{r}-client-site-{client}.safetensors").unlink()
    with pytest.raises(
        DataError, match=r"round-000000-client-site-2.*round-000001-client-site-2.*-client-site-1"
    ):
        audit(tmp_path / "run", Loop())
    found = audit(tmp_path / "run", Loop(), clients=("site-0",))
    assert any(
        "the file is damaged or missing: round 0, client site-2, round 1, client site-2, round 2, client site-1"
        in remark
        for remark in found.remarks
    )
    with pytest.raises(DataError, match="it is missing"):
        audit(tmp_path / "run", Loop(), clients=("site-0",), seen="sum")
    audit(tmp_path / "run", Loop(), rounds=(3,), seen="sum")


def test_global_models_alone_are_audited_of_the_clients_that_are_named(tmp_path):
    recorder = Recorder(tmp_path / "run", NETS["plain"](), model_name="net")
    Loop(rounds=6).train(lambda r, sent, trained: recorder.global_model(r, sent))
    with pytest.raises(DataError, match="says of no client that it trained; name those of column 'client'"):
        audit(tmp_path / "run", Loop(), seen="broadcast")
    found = audit(tmp_path / "run", Loop(), seen="broadcast", clients=("site-0", "site-1", "site-2"))
    assert found.rounds == 6
    assert area(found) > 0.6


def test_sums_alone_are_audited_as_sums_with_who_was_behind_them(tmp_path, honest):
    recorder = Recorder(tmp_path / "run", NETS["plain"](), model_name="net")

    def record(r, sent, trained):
        recorder.global_model(r, sent)
        if trained:
            states = list(trained.values())
            mean = {name: sum(state[name] for state in states) / len(states) for name in sent}
            recorder.sum(r, trained, mean, samples=SIZE * len(states))

    Loop().train(record)
    recording = Recording(tmp_path / "run")
    assert recording.clients_in(2) == ("site-0", "site-1", "site-2")
    assert "FedAvg" in check_recording(recording).server
    found = audit(tmp_path / "run", Loop(), seen="sum")
    assert area(found) == pytest.approx(area(audit(honest[0], Loop(), seen="sum")), abs=1e-3)
    refuses(
        ArgumentError,
        "holds sums of uploads, got 'uploads'; give --seen sum",
        audit,
        tmp_path / "run",
        Loop(),
    )
    refuses(DataError, "uploads or their sum", recorder.update, 0, "site-0", NETS["plain"](), samples=1)


# What is uploaded


def test_a_head_alone_is_uploaded_and_the_rest_is_the_global_model(tmp_path):
    loop = Loop(frozen=("0.weight", "0.bias"))
    heads = keep(
        tmp_path / "run", loop, lambda r, client, sent, state: {n: t for n, t in state.items() if n[0] == "2"}
    )
    whole = keep(tmp_path / "whole", loop)
    for r in range(4):
        assert builders.same(heads.update(r, "site-1"), whole.update(r, "site-1"))
    found = audit(tmp_path / "run", loop)
    assert any(
        "never change, or are not uploaded, and tell nothing: 0.weight, 0.bias" in r for r in found.remarks
    )
    assert found == audit(tmp_path / "whole", loop)


def test_adapters_alone_are_sent_both_ways_after_the_first_round(tmp_path):
    loop = Loop(frozen=("0.weight", "0.bias"))
    whole = keep(tmp_path / "whole", loop)
    recorder = Recorder(tmp_path / "run", NETS["plain"](), model_name="net")

    def record(r, sent, trained):
        recorder.global_model(r, sent if r == 0 else {n: t for n, t in sent.items() if n[0] == "2"})
        for client, state in trained.items():
            recorder.update(r, client, {n: t for n, t in state.items() if n[0] == "2"}, samples=SIZE)

    loop.train(record)
    found = Recording(tmp_path / "run")
    later = found.choose((3, 4))
    torch.testing.assert_close(later.global_model(4), whole.global_model(4))
    torch.testing.assert_close(later.update(3, "site-2"), whole.update(3, "site-2"))
    strange = {"head.weight": torch.ones(2, 16)}
    refuses(
        DataError,
        r"'head.weight' is \(2, 16\) in what was given and absent",
        recorder.update,
        0,
        "x",
        strange,
        samples=1,
    )


def test_differences_are_read_as_parameters_where_it_is_said(tmp_path, honest):
    def difference(r, client, sent, state):
        return {name: state[name] - sent[name] for name in state}

    whole = Recording(honest[0])
    for folder, options in (("said", {"delta": True}), ("not", {})):
        keep(tmp_path / folder, Loop(), difference, **options)
    said, late = Recording(tmp_path / "said"), Recording(tmp_path / "not").choose(delta=True)
    for name, update in whole.update(1, "site-0").items():
        for other in (said, late):
            torch.testing.assert_close(other.update(1, "site-0")[name], update, atol=1e-6, rtol=1e-4)
    with pytest.raises(DataError, match=r"differences, not parameters\. Say so"):
        audit(tmp_path / "not", Loop())
    for folder, options in (("said", {}), ("not", {"differences": True})):
        assert area(audit(tmp_path / folder, Loop(), **options)) == pytest.approx(honest[1], abs=1e-3)
    keep(
        tmp_path / "turned",
        Loop(),
        lambda r, c, sent, state: {n: sent[n] - state[n] for n in state},
        delta=True,
    )
    with pytest.raises(DataError, match="goes the other way"):
        audit(tmp_path / "turned", Loop())


def test_parameters_said_to_be_differences_are_refused(honest):
    with pytest.raises(DataError, match="parameters, and are said to be differences"):
        audit(honest[0], Loop(), differences=True)


def test_layers_of_another_name_are_renamed_when_written_or_read(tmp_path, honest):
    def wrapped(r, client, sent, state):
        return {f"module.{name}": tensor for name, tensor in state.items()}

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = NETS["plain"]()

    recorder = Recorder(tmp_path / "other", Wrapped(), model_name="net")
    Loop().train(
        lambda r, sent, trained: [
            recorder.global_model(r, wrapped(r, "", sent, sent)),
            *(
                recorder.update(r, c, wrapped(r, c, sent, state), samples=SIZE)
                for c, state in trained.items()
            ),
        ]
    )
    with pytest.raises(DataError, match="does not fit the model"):
        audit(tmp_path / "other", Loop())
    assert area(audit(tmp_path / "other", Loop(), rename=("module.=",))) == honest[1]
    refuses(
        ArgumentError, "RecordingAudit.rename must be old=new", audit, honest[0], Loop(), rename=("module",)
    )
    written = Recorder(tmp_path / "new", NETS["plain"](), model_name="net", rename={"module.": ""})
    written.global_model(0, Wrapped())
    assert list(Recording(tmp_path / "new").layers) == list(Recording(honest[0]).layers)
    plainly = Recorder(tmp_path / "plain", NETS["plain"](), model_name="net")
    refuses(DataError, "or say their other names", plainly.global_model, 0, Wrapped())


def test_numpy_arrays_and_numbers_are_recorded(tmp_path, honest):
    def arrays(r, client, sent, state):
        return {name: tensor.numpy() for name, tensor in state.items()}

    recorder = Recorder(tmp_path / "run", NETS["plain"](), model_name="net")
    Loop().train(
        lambda r, sent, trained: [
            recorder.global_model(np.int64(r), arrays(r, "", sent, sent)),
            *(
                recorder.update(
                    np.int64(r), c, arrays(r, c, sent, s), samples=np.int64(SIZE), rate=np.float32(0.5)
                )
                for c, s in trained.items()
            ),
        ]
    )
    found = Recording(tmp_path / "run")
    assert builders.same(found.update(2, "site-1"), Recording(honest[0]).update(2, "site-1"))
    assert (found.samples(0, "site-0"), found.rate(0, "site-0")) == (SIZE, 0.5)
    refuses(
        ArgumentError, "a tensor or a NumPy array", recorder.update, 0, "x", {"0.weight": [1.0]}, samples=1
    )
    integers = {"0.weight": np.zeros((16, INPUTS), dtype=np.int8)}
    refuses(ArgumentError, "floating point", recorder.update, 0, "x", integers, samples=1)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_sparse_and_quantised_uploads_are_the_values_they_stand_for(tmp_path):
    recorder = Recorder(tmp_path / "run", NETS["plain"](), model_name="net", delta=True)
    start = NETS["plain"]()
    recorder.global_model(0, start)
    few = torch.zeros(16, INPUTS)
    few[3, 4] = 0.5
    coarse = torch.quantize_per_tensor(torch.linspace(-1, 1, 32).view(2, 16), 0.1, 0, torch.qint8)
    recorder.update(0, "a", {"0.weight": few.to_sparse(), "2.weight": coarse}, samples=1)
    found = Recording(tmp_path / "run").update(0, "a")
    torch.testing.assert_close(found["0.weight"], -few, atol=1e-7, rtol=0)
    torch.testing.assert_close(found["2.weight"], -coarse.dequantize(), atol=1e-6, rtol=0)
    assert not found["2.bias"].any()


def test_half_precision_is_audited(tmp_path, honest):
    keep(tmp_path / "run", Loop(), lambda r, c, sent, state: {n: t.half() for n, t in state.items()})
    assert area(audit(tmp_path / "run", Loop())) > honest[1] - 0.1


# What stands beside the parameters


def test_batch_statistics_are_recorded_and_candidates_pass_through_them(tmp_path):
    loop = Loop("normed")
    found = keep(tmp_path / "run", loop)
    assert found.buffers == ("1.running_mean", "1.running_var")
    assert list(found.layers) == [name for name, _ in NETS["normed"]().named_parameters()]
    states = []
    loop.train(lambda r, sent, trained: states.append(sent))
    for name, tensor in found.statistics(4).items():
        assert torch.equal(tensor, states[4][name])
    seen = audit(tmp_path / "run", loop)
    assert area(seen) > 0.8
    assert seen.utility.trained.value > 0.9  # the recorded statistics, not those of a new model
    bare = {name: p.detach() for name, p in NETS["normed"]().named_parameters()}
    recorder = Recorder(tmp_path / "bare", bare, model_name="net")
    loop.train(
        lambda r, sent, trained: [
            recorder.global_model(r, {n: sent[n] for n in bare}),
            *(recorder.update(r, c, {n: s[n] for n in bare}, samples=SIZE) for c, s in trained.items()),
        ]
    )
    with pytest.raises(
        ArgumentError, match="must not need running statistics, which this recording does not"
    ):
        audit(tmp_path / "bare", loop)


def test_statistics_that_never_change_are_said(tmp_path):
    recorder, start = (
        Recorder(tmp_path / "run", NETS["normed"](), model_name="net"),
        NETS["normed"]().state_dict(),
    )

    def record(r, sent, trained):
        still = {name: start[name] if name.startswith("1.r") else tensor for name, tensor in sent.items()}
        recorder.global_model(r, still)
        for client, state in trained.items():
            recorder.update(r, client, state, samples=SIZE)

    Loop("normed").train(record)
    assert any(
        "never change. It seems that clients keep their" in r
        for r in check_recording(Recording(tmp_path / "run")).remarks
    )


def test_control_variates_are_recorded_and_attacked_too(tmp_path, honest):
    """What SCAFFOLD's clients send beside noised weights tells who was trained on."""
    recorder = Recorder(tmp_path / "run", NETS["plain"](), model_name="net")
    rng = seeded(100)

    def record(r, sent, trained):
        recorder.global_model(r, sent)
        for client, state in trained.items():
            control = {name: (sent[name] - state[name]) / 5 / 0.2 for name in state}
            noised = {name: t + torch.randn(t.shape, generator=rng) for name, t in state.items()}
            recorder.update(
                r, client, noised, samples=SIZE, further={"control": control, "seed": {"n": torch.ones(1)}}
            )

    Loop().train(record)
    found = Recording(tmp_path / "run")
    assert set(found.arrays) == {"control", "seed"}
    weights, control = (audit(tmp_path / "run", Loop(), array=array) for array in ("", "control"))
    assert area(control) > 0.8 > area(weights) + 0.1
    assert any("Those called control are attacked too" in remark for remark in weights.remarks)
    assert any("Those called seed are NOT audited" in remark for remark in weights.remarks)
    refuses(
        ArgumentError, "array must be one of control, seed", audit, tmp_path / "run", Loop(), array="other"
    )


def test_one_command_attacks_the_arrays_beside_the_parameters(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recorder, records = Recorder("run", NETS["plain"](), model_name="net"), Loop().candidates()

    def record(r, sent, trained):
        recorder.global_model(r, sent)
        for client, state in trained.items():
            recorder.update(r, client, state, samples=SIZE, further={"control": state})

    Loop(rounds=2).train(record)
    names = np.array(records.values["client"])[records.private["client"]]
    np.savez("candidates.npz", x=records.x.numpy(), y=records.y.numpy(), client=names)
    report = audit_recording(
        "run", "candidates.npz", client="client", label="y", model="MLP", trials=100, quiet=True, output="out", jobs=1,
        rounds="0-1", clients=["site-0,site-1"],
    )  # fmt: skip
    games = [result.cell.game for result in report.results]
    assert [game.get("array", "") for game in games] == ["", "control"]
    assert all(game["rounds"] == [0, 1] and game["clients"] == ["site-0", "site-1"] for game in games)


# A recording that is said layer by layer


def test_layers_that_are_zero_in_every_model_are_named(tmp_path):
    recorder = Recorder(tmp_path / "run", NETS["plain"](), model_name="net")

    def record(r, sent, trained):
        recorder.global_model(r, sent | {"2.weight": torch.zeros(2, 16)})
        for client, state in trained.items():
            recorder.update(r, client, state | {"2.weight": torch.zeros(2, 16)}, samples=SIZE)

    Loop().train(record)
    remarks = check_recording(Recording(tmp_path / "run")).remarks
    assert any("zero in every global model: 2.weight" in remark for remark in remarks)


# A folder of state_dicts


@pytest.mark.parametrize("delta", [False, True])
def test_a_folder_of_state_dicts_that_anything_wrote_becomes_a_recording(tmp_path, honest, leakscope, delta):
    def record(r, sent, trained):
        place = tmp_path / "states" / f"round-{r}"
        place.mkdir(parents=True)
        save_file(sent, place / "global.safetensors")
        for client, state in trained.items():
            given = {name: state[name] - sent[name] for name in state} if delta else state
            save_file(given, place / f"{client}.safetensors", metadata={"samples": str(SIZE)})

    Loop().train(record)
    said = ["--differences"] if delta else []
    code, out, err = leakscope(
        "recording", tmp_path / "states", "--convert", tmp_path / "run", "--check", *said
    )
    assert (code, "Server: FedAvg" in out) == (0, True), err
    assert area(audit(tmp_path / "run", Loop())) == pytest.approx(honest[1], abs=1e-3)


def test_a_folder_that_holds_no_rounds_or_no_states_is_refused(tmp_path):
    (tmp_path / "notes").mkdir()
    refuses(DataError, "must hold a folder for each round", convert_folder, tmp_path, tmp_path / "run")
    (tmp_path / "states" / "r1").mkdir(parents=True)
    refuses(DataError, "is missing; a round needs", convert_folder, tmp_path / "states", tmp_path / "run")
    (tmp_path / "states" / "r1" / "global.safetensors").write_bytes(b"none")
    refuses(DataError, "is no safetensors file", convert_folder, tmp_path / "states", tmp_path / "run")
    state = NETS["plain"]().state_dict()
    save_file(state, tmp_path / "states" / "r1" / "global.safetensors")
    save_file(state, tmp_path / "states" / "r1" / "a.safetensors", metadata={"samples": "many"})
    refuses(DataError, "says samples 'many'", convert_folder, tmp_path / "states", tmp_path / "run")
