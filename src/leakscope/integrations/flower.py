"""Flower: write down what a live federation's server sees, and defend what its clients send.

    strategy = recording_strategy(FedAvg(), "run", model=net, rate=0.1)       # in the ServerApp
    app = ClientApp(mods=[defense_mod(Pruning(0.99))])                        # in the ClientApp

The recording is what `leakscope.Recording` reads. Both are made for Flower's message API
(``flwr.serverapp.strategy``, ``flwr.clientapp``), and neither changes what Flower does beyond that. Its older
strategies (``flwr.server.strategy``) are recorded too, see `leakscope.integrations.flower_older`.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from leakscope.core.errors import DataError, LeakscopeError, MissingExtra, require
from leakscope.core.nouns import Defense, Params
from leakscope.core.rng import seeded
from leakscope.training.recording import Recorder
from leakscope.training.recording.index import INDEX, STATISTICS
from leakscope.training.step import on_updates

try:
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
    from flwr.clientapp.typing import ClientAppCallable, Mod
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Result, Strategy
except ImportError as error:
    raise MissingExtra(
        'leakscope.integrations.flower needs Flower 1.38 or later; run: pip install "leakscope[flower]"'
    ) from error

__all__ = ["defense_mod", "recording_strategy"]

FAILURES = (LeakscopeError, OSError, ValueError, TypeError, LookupError, RuntimeError, MemoryError)
LOG = logging.getLogger("leakscope")
SAMPLES = "num-examples"  # Flower's own key for the number of records a client trained on
S = TypeVar("S")  # a strategy, of Flower's message API or an older one
UPLOADS = "leakscope.uploads"  # where a client's state counts what it has sent


def recording_strategy(
    strategy: S,
    folder: str | Path,
    *,
    model: nn.Module | None = None,
    model_name: str = "model",
    rate: float | None = None,
    local_steps: int | None = None,
    client: str | None = None,
    loss: str | None = None,
) -> S:
    """The same strategy, which also writes every training round to ``folder``: the model that was
    sent out, each reply as it came in, before the strategy can change it, and the final model as the
    round after the last.

    Give the outermost strategy, such as Flower's own differential privacy around FedAvg: what it
    wraps sees clipped updates. ``model`` tells parameters from buffers and names arrays that were
    sent as a list; without it every array is a layer. ``rate`` and ``local_steps`` are what the
    clients train with, if they all do; ``loss`` is what they descend, and an audit that takes another is
    refused. A client is called by its node id or by what its reply says
    under the key ``client``, in a metric or a config record. Replies that are errors, or that say
    they trained on no record, are left out. Array records beside the one with the parameters, such as
    control variates, are recorded too. A folder holds one run.

    Training never stops for the recording: what cannot be recorded is logged, and left out.
    """
    options = {"model_name": model_name, "rate": rate, "local_steps": local_steps, "loss": loss}
    if not isinstance(strategy, Strategy):
        from leakscope.integrations.flower_older import record_older

        return cast(S, record_older(strategy, Book(Path(folder), model, options), client))
    return cast(S, _Recorded(strategy, Book(Path(folder), model, options), client))


@dataclass
class Book:
    """The recording of one run, which begins with the first model that is sent out."""

    folder: Path
    model: nn.Module | None
    options: dict[str, Any]
    recorder: Recorder | None = None

    def __post_init__(self) -> None:
        if (self.folder / INDEX).exists():
            raise DataError(f"folder {str(self.folder)!r} already holds a recording; choose another.")

    def tensors(self, record: ArrayRecord) -> dict[str, Tensor]:
        return _tensors(record, self.model)

    def write_sent(self, server_round: int, tensors: dict[str, Tensor]) -> None:
        """The global model of a round."""
        if self.recorder is None:
            for name, tensor in tensors.items():
                named = name.rpartition(".")[2] in STATISTICS
                if self.model is None and not named and not tensor.is_floating_point():
                    raise DataError(
                        f"array {name!r} holds {tensor.dtype}, so it is no parameter that can be updated; "
                        f"give recording_strategy the model, so that it can tell parameters from buffers."
                    )
            layers = tensors if self.model is None else self.model
            self.recorder = Recorder(self.folder, layers, writer="flower", **self.options)
        self.recorder.global_model(server_round, tensors)


class _Recorded(Strategy):
    """A strategy whose training rounds are written down; whatever it decides stays its own."""

    def __init__(self, strategy: Strategy, book: Book, client: str | None) -> None:
        self.strategy, self._book, self._client = strategy, book, client
        self._configure, self._aggregate = strategy.configure_train, strategy.aggregate_train
        self._counted, self._last = _counting_key(strategy), 0

    def start(self, *arguments: Any, **options: Any) -> Result:
        """The strategy's own loop, which need not be Flower's, over the two recording methods."""
        ours = {"configure_train": self.configure_train, "aggregate_train": self.aggregate_train}
        vars(self.strategy).update(ours)
        try:
            result = self.strategy.start(*arguments, **options)
        finally:
            for name in ours:
                del vars(self.strategy)[name]
        if self._book.recorder is not None and result.arrays:
            with logged("the final model"):
                self._book.write_sent(self._last + 1, self._book.tensors(result.arrays))
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = list(self._configure(server_round, arrays, config, grid))
        if messages:
            self._last = server_round
            with logged(f"round {server_round}"):
                self._sent(server_round, messages)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        for reply in replies:
            if not reply.has_error():
                with logged(f"the reply of node {reply.metadata.src_node_id} in round {server_round}"):
                    self._received(server_round, reply)
        return self._aggregate(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        self.strategy.summary()

    def _sent(self, server_round: int, messages: list[Message]) -> None:
        """The round's global model, taken from what is sent: it must be the same for every client."""
        sent = [_model_in(message.content, f"the model for round {server_round}") for message in messages]
        if any(other != sent[0] for other in sent[1:]):
            raise DataError(
                f"round {server_round} sends clients different models, and a recording has one global model "
                f"per round; record a strategy that sends one, or write a recording per client with Recorder."
            )
        self._book.write_sent(server_round, self._book.tensors(sent[0]))

    def _received(self, server_round: int, reply: Message) -> None:
        node = reply.metadata.src_node_id
        whose = f"the reply of node {node} in round {server_round}"
        tensors, records = self._book.tensors(_model_in(reply.content, whose)), reply.content.array_records
        main, recorder = _model_key(reply.content, whose), self._book.recorder
        further = {key: self._book.tensors(record) for key, record in records.items() if key != main}
        if recorder is None:
            raise DataError(f"{whose} answers no recorded round; call configure_train first.")
        name = _said(reply.content, self._client) if self._client else None
        samples = _samples(reply, whose, self._counted)
        if samples:
            client = str(node if name is None else name)
            recorder.update(server_round, client, tensors, samples=samples, further=further)


@contextmanager
def logged(what: str) -> Iterator[None]:
    """Training goes on whatever becomes of the recording."""
    try:
        yield
    except FAILURES as error:
        LOG.error("leakscope has not recorded %s: %s", what, error)


def _counting_key(strategy: Strategy) -> str:
    """The key under which a strategy, or the one that it wraps, reads how many records a reply is worth."""
    while (inner := getattr(strategy, "strategy", None)) is not None:
        strategy = inner
    return str(getattr(strategy, "weighted_by_key", SAMPLES))


def defense_mod(defense: Defense, *, seed: int | None = None, scale: float = 1.0) -> Mod:
    """A client mod that sends received − defended Γ in place of its parameters, for the update
    Γ = received − trained of the message it answers; see `leakscope.defenses`.

    The defense is given Γ / ``scale``, and ``scale`` times what it makes of it is sent. At 1 it acts
    on the update itself: the standard deviation of `Noise` is then in units of parameters, and `Sign`
    moves every parameter by 1 a round. The learning rate (times the local steps) as scale lets it act
    on what one step's gradient is: `Sign` then moves parameters by that much.

    Every floating-point array is defended but batch statistics (``running_mean``, ``running_var``), which
    a defense of updates would make meaningless: they and the metrics are sent AS THEY ARE, and tell of the
    client's records what they tell. Where something does not fit, the client answers with an error and
    sends nothing. Noise is drawn from the system by default. Whoever knows ``seed``, as the server does that
    ships the app, can take the noise away: it is for experiments, where the n-th upload of a partition then
    has the same noise in every run.

    What acts inside training (DPSGD, VIB) is refused: give it to the client's own training, such as
    ``leakscope.training.fit(..., defense=...)``. Clipping and noising a whole update protects no single
    record as DPSGD does, and is not offered under its name.
    """
    on_updates(defense, "defense_mod.defense")
    require(0 < scale < float("inf"), "defense_mod.scale", "positive and finite", scale)

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if message.metadata.message_type.split(".")[0] != MessageType.TRAIN:
            return call_next(message, context)
        received = _tensors(_model_in(message.content, "the message to train on"))  # the app may empty it
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        if len(records := dict(reply.content.array_records)) != 1:
            raise DataError(
                f"a defended reply must hold one array record, as others would go out undefended, and it "
                f"holds {len(records)}; send the parameters only."
            )
        ((key, record),) = records.items()
        trained, rng = _tensors(record), _generator(seed, context)
        samples = _samples(reply, "the client's reply", SAMPLES)
        sent = _defended(defense, received, trained, rng, scale=scale, batch=max(1, samples))
        reply.content[key] = ArrayRecord(sent)
        return reply

    return mod


def _defended(
    defense: Defense, received: Params, trained: Params, rng: torch.Generator, *, scale: float, batch: int
) -> dict[str, Tensor]:
    """What is sent in place of ``trained``; an entry the defense leaves alone keeps its every bit."""
    for name, tensor in trained.items():
        shape = tuple(received[name].shape) if name in received else None
        if shape != tuple(tensor.shape):
            raise DataError(
                f"array {name!r} has shape {tuple(tensor.shape)} in the reply and {shape} in the message it "
                f"answers, so it has no update to defend; send back arrays that were received."
            )
    update = {
        name: (received[name].double() - tensor.double())[None] / scale
        for name, tensor in trained.items()
        if tensor.is_floating_point() and name.rpartition(".")[2] not in STATISTICS
    }
    released = defense.release(update, None, rng, batch=batch)
    sent = dict(trained)
    for name, before in update.items():
        moved = (received[name].double() - scale * released[name][0]).to(trained[name].dtype)
        sent[name] = torch.where(released[name][0] == before[0], trained[name], moved)
    return sent


def _generator(seed: int | None, context: Context) -> torch.Generator:
    """Another one for every upload: noise that came twice would cancel in the difference of two."""
    if seed is None:
        return torch.Generator().manual_seed(secrets.randbits(63))
    counted = context.state.config_records.get(UPLOADS, ConfigRecord({"n": 0}))
    n = int(str(counted["n"]))
    context.state[UPLOADS] = ConfigRecord({"n": n + 1})
    return seeded(seed, "defense", str(context.node_config.get("partition-id", context.node_id)), n)


def _model_in(content: RecordDict, whose: str) -> ArrayRecord:
    """The one array record of a message, or of several the one with Flower's default name."""
    return content.array_records[_model_key(content, whose)]


def _model_key(content: RecordDict, whose: str) -> str:
    records = dict(content.array_records)
    if len(records) != 1 and "arrays" not in records:
        raise DataError(
            f"{whose} must hold one array record, or one called 'arrays', and it holds "
            f"{', '.join(records) or 'none'}; name the parameters 'arrays'."
        )
    return "arrays" if "arrays" in records else next(iter(records))


def _tensors(record: ArrayRecord, model: nn.Module | None = None) -> dict[str, Tensor]:
    """By Flower's own conversion, which never unpickles; a list of arrays gets the model's names."""
    tensors = dict(record.to_torch_state_dict())
    names = [] if model is None else list(model.state_dict())
    numbered = [str(i) for i in range(len(names))]
    return dict(zip(names, tensors.values(), strict=True)) if [*tensors] == numbered else tensors


def _said(content: RecordDict, key: str) -> object:
    """What a reply says under a key, a whole number as such; None if it says nothing."""
    said: dict[str, object] = {}
    for settings in content.config_records.values():
        said.update(settings)
    for metrics in content.metric_records.values():
        said.update(metrics)
    value = said.get(key)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _samples(reply: Message, whose: str, key: str) -> int:
    said = _said(reply.content, key)
    if not isinstance(said, int) or isinstance(said, bool) or said < 0:
        raise DataError(
            f"{whose} must say in its metrics, under {key!r}, how many records it trained on, got "
            f"{said!r}; add MetricRecord({{{key!r}: n}})."
        )
    return said
