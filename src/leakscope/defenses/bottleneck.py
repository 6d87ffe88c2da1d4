"""The variational information bottleneck: a noisy representation, and a price on what it says."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Defense, Loss


@dataclass(frozen=True)
class VIB(Defense):
    """A Gaussian bottleneck before the last layer, and ``beta`` times its divergence in the loss.

    Paper 000, 6.1: L + beta KL(p(h | x) || N(0, I)) with a bottleneck as wide as the last hidden
    layer (beta 0.01; also 0.1 and 0.001). beta = 0 leaves the noise without its price; the null
    object is no VIB at all.
    """

    beta: float = 0.01

    def __post_init__(self) -> None:
        require(0 <= self.beta < float("inf"), "VIB.beta", "finite and at least 0", self.beta)

    def model(self, model: nn.Module) -> nn.Module:
        layers = list(model.children())
        if not isinstance(model, nn.Sequential) or len(layers) < 2 or not isinstance(layers[-1], nn.Linear):
            raise ArgumentError(
                f"VIB needs a Sequential model that ends in a linear layer, got {type(model).__name__}; put "
                f"its layers into nn.Sequential."
            )
        return Bottleneck(nn.Sequential(*layers[:-1]), layers[-1], self.beta)

    def loss(self, loss: Loss) -> Loss:
        def priced(out: Tensor, y: Tensor) -> Tensor:
            return loss(out[:, :-1], y) + self.beta * out[:, -1].mean()

        return priced


class Bottleneck(nn.Module):
    """Encoder, Gaussian latent, decoder. The output's last column is each record's divergence.

    The latent's draw is a hash of the record and of the parameters: a record has one draw at one
    model, so its gradient is one gradient however often it is computed, and a new one after each
    step. In evaluation mode the latent is its mean.
    """

    beside = 1  # columns that are no output of the task

    def __init__(self, encoder: nn.Sequential, decoder: nn.Linear, price: float = 0.0) -> None:
        super().__init__()
        self.price = price  # of the divergence in the loss
        width = decoder.in_features
        self.encoder = encoder
        self.mean = nn.Linear(width, width)
        self.spread = nn.Linear(width, width)
        self.decoder = decoder

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.spread(hidden)
        latent = mean
        if self.training:
            latent = mean + (log_variance / 2).exp() * _draw(x, self.mean.bias, mean.shape[1])
        divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1, keepdim=True) / 2
        return torch.cat([self.decoder(latent), divergence], dim=1)


_ODD = 0x9E3779B97F4A7C15 - 2**64  # 2^64 over the golden ratio, as a signed integer


def _mix(key: Tensor) -> Tensor:
    """The finaliser of splitmix64: every bit of the key moves about half of the bits."""
    key = (key ^ ((key >> 30) & 0x3FFFFFFFF)) * (0xBF58476D1CE4E5B9 - 2**64)
    key = (key ^ ((key >> 27) & 0x1FFFFFFFFF)) * (0x94D049BB133111EB - 2**64)
    return key ^ ((key >> 31) & 0x1FFFFFFFF)


def _draw(x: Tensor, salt: Tensor, width: int) -> Tensor:
    """Standard normal numbers (n, width) that depend on nothing but the bits of ``x`` and ``salt``."""
    with torch.no_grad():
        record = _hash(x.flatten(1).detach())
        model = _hash(salt.detach().flatten()[None])
        place = torch.arange(1, width + 1, device=x.device) * _ODD
        key = _mix(record[:, None] ^ _mix(model + place))
        uniform = ((key >> 11) & 0x1FFFFFFFFFFFFF).double().add(0.5) / 2**53
        drawn: Tensor = torch.special.ndtri(uniform).to(x.dtype)
        return drawn


def _hash(numbers: Tensor) -> Tensor:
    """(n, d) numbers -> (n,) integers: the bits, each mixed with its place, added up."""
    bits = numbers.double().view(torch.int64)
    return _mix(_mix(bits + torch.arange(1, bits.shape[1] + 1, device=bits.device) * _ODD).sum(1))
