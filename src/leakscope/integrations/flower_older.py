"""Flower's older strategies (``flwr.server.strategy``), as ServerAppComponents and Server take them, recorded
by `leakscope.flower.recording_strategy` like those of its message API."""

from __future__ import annotations

from typing import Any

from leakscope.core.errors import ArgumentError, DataError, MissingExtra
from leakscope.integrations.flower import Book, logged

try:
    from flwr.app import ArrayRecord
    from flwr.common import FitIns, FitRes, Parameters, Scalar, parameters_to_ndarrays
    from flwr.server.client_manager import ClientManager
    from flwr.server.client_proxy import ClientProxy
    from flwr.server.strategy import Strategy
except ImportError as error:
    raise MissingExtra(
        'leakscope.integrations.flower_older needs Flower 1.38 or later; run: pip install "leakscope[flower]"'
    ) from error

__all__ = ["record_older"]


def record_older(strategy: object, book: Book, client: str | None) -> Strategy:
    """The same strategy, which also writes every training round."""
    if not isinstance(strategy, Strategy):
        raise ArgumentError(
            f"recording_strategy.strategy must be one of flwr.serverapp.strategy or flwr.server.strategy, "
            f"got {type(strategy).__module__}.{type(strategy).__name__}; call leakscope.Recorder in your own "
            f"loop."
        )
    return _RecordedOlder(strategy, book, client)


class _RecordedOlder(Strategy):
    """A strategy whose training rounds are written down; whatever it decides stays its own."""

    def __init__(self, strategy: Strategy, book: Book, client: str | None) -> None:
        self.strategy, self._book, self._client = strategy, book, client

    def __getattr__(self, name: str) -> Any:
        """What a server asks of this strategy in particular."""
        if name == "strategy":  # not there yet, as while it is copied
            raise AttributeError(name)
        return getattr(self.strategy, name)

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters | None:
        return self.strategy.initialize_parameters(client_manager)

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        orders = list(self.strategy.configure_fit(server_round, parameters, client_manager))
        if orders:
            with logged(f"round {server_round}"):
                sent = orders[0][1].parameters
                if any(order.parameters != sent for _, order in orders[1:]):
                    raise DataError(
                        "clients are sent different models, and a recording has one global model per round; "
                        "record a strategy that sends one."
                    )
                self._book.write_sent(server_round, self._read(sent))
        return orders

    def aggregate_fit(
        self, server_round: int, results: list[tuple[ClientProxy, FitRes]], failures: list[Any]
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        for proxy, reply in results:
            with logged(f"the reply of node {proxy.cid} in round {server_round}"):
                self._receive(server_round, proxy, reply)
        return self.strategy.aggregate_fit(server_round, results, failures)

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, Any]]:
        return self.strategy.configure_evaluate(server_round, parameters, client_manager)

    def aggregate_evaluate(
        self, server_round: int, results: list[tuple[ClientProxy, Any]], failures: list[Any]
    ) -> tuple[float | None, dict[str, Scalar]]:
        return self.strategy.aggregate_evaluate(server_round, results, failures)

    def evaluate(self, server_round: int, parameters: Parameters) -> tuple[float, dict[str, Scalar]] | None:
        """It is given what a round led to, which the last one sends to nobody."""
        if self._book.recorder is not None:
            with logged(f"what round {server_round} led to"):
                self._book.write_sent(server_round + 1, self._read(parameters))
        return self.strategy.evaluate(server_round, parameters)

    def _receive(self, server_round: int, proxy: ClientProxy, reply: FitRes) -> None:
        if self._book.recorder is None:
            raise DataError("it answers no recorded round; call configure_fit first.")
        name = reply.metrics.get(self._client) if self._client else None
        if reply.num_examples:
            client = str(proxy.cid if name is None else name)
            arrays = self._read(reply.parameters)
            self._book.recorder.update(server_round, client, arrays, samples=reply.num_examples)

    def _read(self, parameters: Parameters) -> dict[str, Any]:
        """By Flower's own conversion, which never unpickles."""
        return self._book.tensors(ArrayRecord(parameters_to_ndarrays(parameters)))
