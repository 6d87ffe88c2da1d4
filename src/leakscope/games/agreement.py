"""Whether the adversary's world is the victim's: the model it knows, the loss, how records were scaled.

An adversary who rehearses with another model, loss or scaling than the victim's finds less than there is, and
an audit that says so is wrong in the comfortable direction. So a mismatch is an error, not a weaker attack.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError
from leakscope.core.nouns import Channel, Game, Knowledge, Params
from leakscope.games.channels import GradientChannel, Summed, Through

PROBED, EACH = 20, 2  # classes, and records of each, on which two losses are compared


def agree(game: Game, channel: Channel, knowledge: Knowledge) -> None:
    """Refuse knowledge of another world. What the adversary believes of a defense is its own affair."""
    private, public = _records(game), _records(knowledge.game)
    for one, other in ((one, other) for one in private for other in public):
        _alike(one, other)
    real, believed = _inner(channel), _inner(knowledge.channel)
    if isinstance(real, GradientChannel) and isinstance(believed, GradientChannel):
        _same_model(real.rounds, believed.rounds)
        if private:
            _same_loss(real, believed, private[0])


def _records(game: Game) -> list[Dataset]:
    """The records a game is played on."""
    found = (getattr(game, name, None) for name in ("data", "members", "others"))
    return [records for records in found if isinstance(records, Dataset) and len(records)]


def _inner(channel: Channel) -> Channel:
    while isinstance(channel, Through | Summed):
        channel = channel.channel
    return channel


def _alike(private: Dataset, public: Dataset) -> None:
    if private.x.shape[1:] != public.x.shape[1:] or private.x.dtype != public.x.dtype:
        raise ArgumentError(
            f"the adversary's records must be of the victim's form, got shape {tuple(public.x.shape[1:])} of "
            f"{public.x.dtype} where the victim has {tuple(private.x.shape[1:])} of {private.x.dtype}; take "
            f"both from one Dataset.split."
        )
    if private.scaling != public.scaling:
        raise ArgumentError(
            f"the adversary's records must be scaled as the victim's, got scaling {public.scaling or 'none'} "
            f"where the victim has {private.scaling or 'none'}; take both from one Dataset.split, or "
            f"standardise both by the same records."
        )


def _same_model(real: tuple[Params, ...], believed: tuple[Params, ...]) -> None:
    if len(real) != len(believed):
        raise ArgumentError(
            f"knowledge.channel must have the channel's rounds, got {len(believed)} where {len(real)} are "
            f"observed; make it by channel.undefended() or from the same rounds."
        )
    for r, (own, known) in enumerate(zip(real, believed, strict=True)):
        if own is known:
            continue
        for name in dict.fromkeys([*own, *known]):
            if not _same(own.get(name), known.get(name)):
                raise ArgumentError(
                    f"knowledge.channel must have the model that is sent out, got another {name!r} in round "
                    f"{r}; make it by channel.undefended() or from the same rounds."
                )


def _same(own: Tensor | None, known: Tensor | None) -> bool:
    return own is known or (own is not None and known is not None and torch.equal(own, known))


def _same_loss(real: GradientChannel, believed: GradientChannel, data: Dataset) -> None:
    """By what both say of some records, since a defense makes a new function each time it is asked."""
    if real.model is not believed.model or (real.loss is believed.loss and real.defense is believed.defense):
        return
    rows = [(data.y == label).nonzero()[:EACH, 0] for label in data.y.unique()[:PROBED]]
    few = data.take(torch.cat(rows))  # of every class, since a loss may weigh them
    modes = {module: module.training for module in real.model.modules()}
    try:
        with torch.no_grad():
            out = torch.func.functional_call(real.model.eval(), dict(real.rounds[0]), (few.x,))
    finally:
        for module, mode in modes.items():
            module.training = mode
    said = [float(one.trained_with(out, few.y)) for one in (real, believed)]
    if abs(said[0] - said[1]) > 1e-5 * max(1.0, abs(said[0])):
        raise ArgumentError(
            f"knowledge.channel must have the victim's loss, got one that is {said[1]:.6g} where the "
            f"victim's is {said[0]:.6g} on the same records; make it by channel.undefended() or with its "
            f"loss."
        )
