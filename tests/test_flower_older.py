"""Flower's older strategies decide as before, and what they see is recorded."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

with warnings.catch_warnings():  # Flower imports typer, which asks click for a name that click retires
    warnings.simplefilter("ignore", DeprecationWarning)
    pytest.importorskip("flwr", reason='Flower is not installed; run: pip install "leakscope[flower]"')

from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import Server, SimpleClientManager
from flwr.server import strategy as older_strategies
from flwr.server.client_proxy import ClientProxy

from leakscope import Recorder, Recording
from leakscope.core.rng import initialised, seeded
from leakscope.integrations.flower import recording_strategy
from leakscope.training.recording.checks import check_recording

ROUNDS = 3


def net() -> nn.Sequential:
    return initialised(lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), seeded(0, "net"))


def trained(received, client: int, r: int) -> dict[str, torch.Tensor]:
    rng = seeded(0, client, r)
    return {name: t + 0.1 * torch.randn(t.shape, generator=rng) for name, t in received.items()}


class Proxy(ClientProxy):
    """A client of Flower's older API, which trains as the others here do."""

    def fit(self, ins, timeout, group_id):
        r, names = ins.config["r"], list(net().state_dict())
        received = dict(
            zip(names, map(torch.from_numpy, parameters_to_ndarrays(ins.parameters)), strict=True)
        )
        arrays = [tensor.numpy() for tensor in trained(received, int(self.cid), r).values()]
        said = {"site": f"site-{self.cid}"}
        return FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), 10 * int(self.cid), said)

    def get_properties(self, *_):
        raise NotImplementedError

    get_parameters = evaluate = reconnect = get_properties


def run_older(strategy):
    """Flower's own server, with three clients in this process."""
    server = Server(client_manager=SimpleClientManager(), strategy=strategy)
    for i in (1, 2, 3):
        server.client_manager().register(Proxy(str(i)))
    server.fit(num_rounds=ROUNDS, timeout=None)
    return parameters_to_ndarrays(server.parameters)


def older(name, **options):
    started = ndarrays_to_parameters([p.detach().numpy() for p in net().parameters()])
    settings = {"fraction_evaluate": 0.0, "on_fit_config_fn": lambda r: {"r": r}, "min_available_clients": 3}
    return getattr(older_strategies, name)(initial_parameters=started, **settings, **options)


@pytest.mark.parametrize("name", ["FedAvg", "FedAdam"])
def test_an_older_strategy_decides_the_same_and_is_recorded(name, tmp_path):
    plain = run_older(older(name))
    wrapped = recording_strategy(older(name), tmp_path / "run", model=net(), rate=0.1, client="site")
    for ours, theirs in zip(run_older(wrapped), plain, strict=True):  # replies come in any order
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    recording = Recording(tmp_path / "run")
    recording.complete()
    assert recording.rounds == (1, 2, 3, 4)
    for r in range(1, ROUNDS + 1):
        assert sorted(recording.clients_in(r)) == ["site-1", "site-2", "site-3"]
        for i in (1, 2, 3):
            expected = trained(recording.global_model(r), i, r)
            torch.testing.assert_close(recording.uploaded(r, f"site-{i}"), expected)
            assert recording.samples(r, f"site-{i}") == 10 * i
    last = recording.global_model(4).values()
    for ours, theirs in zip(last, plain, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-5, atol=1e-6)
    assert name in check_recording(recording).server


def test_an_older_training_goes_on_where_it_cannot_be_recorded(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(Recorder, "update", lambda *_, **__: (_ for _ in ()).throw(OSError("disk full")))
    plain = run_older(older("FedAvg"))
    found = run_older(recording_strategy(older("FedAvg"), tmp_path / "run", model=net()))
    for ours, theirs in zip(found, plain, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert "has not recorded the reply of node 1 in round 1: disk full" in caplog.text
