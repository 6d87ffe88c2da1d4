"""NVFlare's server is recorded by a filter: what it sends, and what it gets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from leakscope import Recording
from leakscope.training.recording.checks import check_recording

pytest.importorskip("nvflare", reason='NVFlare is not installed; run: pip install "leakscope[nvflare]"')

SITES = """
import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.executor import Executor
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.workflows.fedavg import FedAvg


class Site(Executor):
    def __init__(self, differences=False):
        super().__init__()
        self.differences = differences

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        received = from_shareable(shareable).data
        i = int(fl_ctx.get_identity_name().rpartition("-")[2])
        sent = {name: np.full_like(np.asarray(array), 0.1 * i) for name, array in received.items()}
        if not self.differences:
            sent = {name: np.asarray(received[name]) + sent[name] for name in sent}
        kind = DataKind.WEIGHT_DIFF if self.differences else DataKind.WEIGHTS
        return DXO(kind, data=sent, meta={MetaKey.NUM_STEPS_CURRENT_ROUND: i}).to_shareable()


class Server(FedAvg):
    def load_model(self):
        zeros, ones = np.zeros((2, 3), np.float32), np.ones(2, np.float32)
        return FLModel(params={"0.weight": zeros, "0.bias": ones, "1.running_mean": zeros[0]})

    def save_model(self, model):
        pass
"""
JOB = """
import sys
from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType
from leakscope.integrations.nvflare import RecordingFilter
from sites import Server, Site

if __name__ == "__main__":
    folder, work, differences = sys.argv[1], sys.argv[2], sys.argv[3] == "True"
    job = FedJob(name="recorded", min_clients=2)
    job.to_server(Server(num_clients=2, num_rounds=2, persistor_id=""))
    for way in (FilterType.TASK_DATA, FilterType.TASK_RESULT):
        job.to_server(RecordingFilter(folder, rate=0.1), filter_type=way, tasks=["train"])
    job.to_clients(Site(differences=differences), tasks=["train"])
    job.simulator_run(work, n_clients=2, threads=2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("differences", [False, True])
def test_a_simulated_federation_is_recorded_as_it_was(tmp_path, differences):
    (tmp_path / "sites.py").write_text(SITES)
    (tmp_path / "job.py").write_text(JOB)
    places = [str(tmp_path), *(str(path) for path in sys.path if path)]
    done = subprocess.run(
        [sys.executable, "job.py", str(tmp_path / "run"), str(tmp_path / "work"), str(differences)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (tmp_path / "run").exists(), done.stdout + done.stderr
    found = Recording(tmp_path / "run")
    assert found.rounds == (0, 1)
    assert list(found.layers) == ["0.weight", "0.bias"]
    assert found.buffers == ("1.running_mean",)
    for r in found.rounds:
        assert sorted(found.clients_in(r)) == ["site-1", "site-2"]
        for i in (1, 2):
            assert found.samples(r, f"site-{i}") == i
            for update in found.update(r, f"site-{i}").values():
                torch.testing.assert_close(update, torch.full_like(update, -0.1 * i))
    assert "FedAvg" in check_recording(found).server


def test_what_cannot_be_recorded_is_logged_and_passes_as_it_is(tmp_path, caplog):
    from nvflare.apis.dxo import DXO, DataKind
    from nvflare.apis.filter import FilterChainType, FilterContextKey
    from nvflare.apis.fl_context import FLContext
    from nvflare.app_common.app_constant import AppConstants

    from leakscope.integrations.nvflare import RecordingFilter

    filtered = RecordingFilter(str(tmp_path / "run"))
    filtered.set_prop(FilterContextKey.CHAIN_TYPE, FilterChainType.TASK_DATA_CHAIN)
    for kind, data, r, words in (
        (DataKind.METRICS, {"loss": 1.0}, 0, "METRICS; weights and their differences"),
        (DataKind.WEIGHTS, {"w": np.ones(2)}, None, "says of no round"),
        (DataKind.WEIGHTS, {"w": np.ones(2, dtype=np.int64)}, 0, "floating point"),
        (DataKind.WEIGHTS, {"w": np.array(["words"])}, 0, "leakscope has not recorded this"),
    ):
        caplog.clear()
        shareable = DXO(kind, data=data).to_shareable()
        if r is not None:
            shareable.set_header(AppConstants.CURRENT_ROUND, r)
        assert filtered.process(shareable, FLContext()) is shareable
        assert words in caplog.text
    assert not list(Path(tmp_path).glob("run/*.safetensors"))
