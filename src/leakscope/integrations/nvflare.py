"""NVFlare: write down what a federation's server sees, by a filter on what it sends and on what it gets.

    for way in (FilterType.TASK_DATA, FilterType.TASK_RESULT):                       # in the job
        job.to_server(RecordingFilter("/results/run", rate=0.1), filter_type=way, tasks=["train"])

Any controller will do. The recording is what `leakscope.Recording` reads; the filter changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch

from leakscope.core.errors import DataError, LeakscopeError, MissingExtra
from leakscope.training.recording import Recorder, Recording
from leakscope.training.recording.index import INDEX

try:
    from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
    from nvflare.apis.filter import Filter, FilterChainType, FilterContextKey
    from nvflare.apis.fl_constant import ReturnCode
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable
    from nvflare.app_common.app_constant import AppConstants
except ImportError as error:
    raise MissingExtra(
        'leakscope.integrations.nvflare needs NVFlare 2.5 or later; run: pip install "leakscope[nvflare]"'
    ) from error

__all__ = ["RecordingFilter"]

FAILURES = (LeakscopeError, OSError, ValueError, TypeError, LookupError, RuntimeError, MemoryError)


class RecordingFilter(Filter):  # type: ignore[misc]
    """Writes every training round to ``folder``, a path on the server: the model of each task that goes out,
    and each client's result as it comes in, weights or differences, before the controller sees it.

    A client is called by its site's name. What it is worth in the mean is what NVFlare weights it by, the
    steps of its round. Training never stops for the recording: what cannot be recorded is logged.
    """

    def __init__(
        self,
        folder: str,
        model_name: str = "model",
        rate: float | None = None,
        local_steps: int | None = None,
    ) -> None:
        super().__init__()
        self.folder, self.model_name, self.rate, self.local_steps = folder, model_name, rate, local_steps

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        if shareable.get_return_code() == ReturnCode.OK:
            try:
                self._record(shareable, fl_ctx)
            except FAILURES as error:
                self.log_error(fl_ctx, f"leakscope has not recorded this: {error}")
        return shareable

    def _record(self, shareable: Shareable, fl_ctx: FLContext) -> None:
        dxo, r = from_shareable(shareable), _round_of(shareable, fl_ctx)
        if dxo.data_kind not in (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF):
            raise DataError(f"round {r} carries {dxo.data_kind}; weights and their differences are recorded.")
        if self.get_prop(FilterContextKey.CHAIN_TYPE) == FilterChainType.TASK_DATA_CHAIN:
            if not (Path(self.folder) / INDEX).exists():
                model = {name: torch.as_tensor(array) for name, array in dxo.data.items()}
                self._recorder_of(model).global_model(r, dxo.data)
            else:
                self._recorder.global_model(r, dxo.data)  # as another client was sent it, or it is refused
        else:
            recorder = replace(self._recorder, delta=dxo.data_kind == DataKind.WEIGHT_DIFF)
            client = fl_ctx.get_peer_context().get_identity_name()
            recorder.update(r, client, dxo.data, samples=_weight_of(dxo))

    def _recorder_of(self, model: dict[str, torch.Tensor]) -> Recorder:
        return Recorder(
            Path(self.folder),
            model,
            model_name=self.model_name,
            writer="nvflare",
            rate=self.rate,
            local_steps=self.local_steps,
        )

    @cached_property
    def _recorder(self) -> Recorder:
        """Of the model that the other filter, on what goes out, has recorded first."""
        begun = Recording(Path(self.folder))
        first = begun.rounds[0]
        return self._recorder_of({**begun.global_model(first), **begun.statistics(first)})


def _round_of(shareable: Shareable, fl_ctx: FLContext) -> int:
    said = shareable.get_header(AppConstants.CURRENT_ROUND)
    if said is None:
        said = shareable.get_cookie(AppConstants.CONTRIBUTION_ROUND)
    if said is None:
        said = fl_ctx.get_prop(AppConstants.CURRENT_ROUND)
    if said is None:
        raise DataError("a task says of no round that it is part of it; record tasks of training.")
    return int(said)


def _weight_of(dxo: DXO) -> int:
    return max(1, int(dxo.get_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND, 1)))
