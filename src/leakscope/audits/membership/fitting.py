"""Whether candidates, model and recording belong together: what does not fit is refused."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from leakscope.audits.membership.judged import Roster
from leakscope.core.dataset import Dataset, joined
from leakscope.core.errors import ArgumentError, DataError
from leakscope.core.task import is_number
from leakscope.training import logits
from leakscope.training.recording import Recording
from leakscope.training.recording.codes import check_codes
from leakscope.training.recording.index import listed


def check_members(model: nn.Module, recording: Recording, who: Roster) -> None:
    """Refuse labels that are coded in another order than the last global model has them."""
    own = joined(who.members)
    if not is_number(own.y):
        outputs = logits(model, recording.global_model(recording.rounds[-1]), own)
        check_codes(outputs, own.y, own.values.get(own.label, ()))


def fit_model(recording: Recording, model: nn.Module, candidates: Dataset) -> None:
    """Refuse candidates and models that are not those of the recording."""
    try:
        recording.check(model)
    except DataError:
        name, shape = next(iter(recording.layers.items()))
        width = candidates.x[0].numel()
        if len(shape) == 2 and shape[1] != width:
            raise DataError(
                f"{candidates.name} has records of {width:,} inputs, and layer {name!r} of the recording "
                f"takes {shape[1]:,}; encode the candidates as the clients did, or give the model that was "
                f"trained."
            ) from None
        raise
    outputs, task = model(candidates.x[:1])[0].numel(), candidates.task
    if is_number(candidates.y) and outputs != task.outputs:
        raise DataError(
            f"{candidates.name} has a number for a label, {candidates.label!r}, and the model {outputs} "
            f"outputs for a record; give the label that it was trained on."
        )
    if outputs != task.outputs and (outputs, task.outputs) != (1, 2):  # one sigmoid logit
        raise DataError(
            f"{candidates.name} has {candidates.classes} values of label {candidates.label!r}, and the model "
            f"tells {outputs} classes apart; give candidates of every class, so that their codes are the "
            f"model's."
        )


def settle_model(model: nn.Module, recording: Recording) -> None:
    """Give a model the batch statistics of the last global model; refused where a recording lacks those."""
    for name, module in model.named_modules():
        normed = isinstance(module, _NormBase) and module.running_mean is not None
        if normed and f"{name}.running_mean" not in recording.buffers:
            raise ArgumentError(
                f"model.{name} must not need running statistics, which this recording does not hold, got "
                f"{type(module).__name__}; record the module or its state_dict, or use GroupNorm."
            )
    model.load_state_dict(recording.statistics(recording.rounds[-1]), strict=False)


def refuse_misnamed(names: Sequence[str], clients: Collection[str], column: str) -> None:
    """Refuse a name that is a client's but for case, signs or zeros: its members would pass for nobody's."""

    def plain(name: str) -> str:
        if name.startswith("-"):  # a number below 0 is a usual mark of nobody
            return name
        return re.sub(r"[^a-z0-9]|(?<![0-9])0+(?=[0-9])", "", name.lower().removesuffix(".0"))

    known = {plain(client): client for client in clients if plain(client)}
    meant = [(n, known[plain(n)]) for n in names if n not in clients and plain(n) in known]
    if meant:
        pairs = ", ".join(f"{name!r} for {client!r}" for name, client in meant[:8])
        raise DataError(
            f"column {column!r} names no client of the recording, but nearly does: {pairs}; "
            f"name them alike, or call records of nobody otherwise."
        )


def refuse_strangers(names: Sequence[str], codes: Tensor, clients: Collection[str], column: str) -> None:
    """Refuse several words for nobody where clients have no candidates: one may be a client's other name."""
    present = {name for i, name in enumerate(names) if bool((codes == i).any())}
    strangers, absent = sorted(present - {*clients}), sorted({*clients} - present)
    if len(strangers) > 1 and absent:
        raise DataError(
            f"column {column!r} has several words that are no client's, {listed(map(repr, strangers))}, and "
            f"these clients have no candidates: {listed(map(repr, absent))}; name clients as the recording "
            f"does, and call records of nobody by one word."
        )


def refuse_two_sided(data: Dataset, nobody: Tensor) -> None:
    """Refuse a record that is said to be a client's and to be nobody's."""
    first: dict[str, int] = {}
    for i, key in enumerate(data.hashes):
        j = first.setdefault(key, i)
        if bool(nobody[i]) != bool(nobody[j]):
            raise DataError(
                f"candidates {j} and {i} are the same record, once a client's and once nobody's; what is a "
                f"member cannot be a non-member: leave one out."
            )
