"""What the first attention of a transformer takes: a vector for every word at every place, known before.

Until the first attention no word sees another. So what it takes at a place is a function of the word there
and of the place alone, and who knows the model can go through all words of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from leakscope.core.errors import ArgumentError
from leakscope.core.nouns import Params

PROBED = 50  # words on which it is tried whether words and places are added
CLOSE = 1e-4  # of the largest number, up to which what is added is the sum


class _ReachedError(RuntimeError):
    """The pass has come to where it was to go."""


@dataclass(frozen=True, eq=False)
class Additive:
    """What the first attention takes of words at places: ``words`` (v, d) are the vectors of all words,
    ``places`` (p, d) what a place adds to them, 0 at the first. The sum is normalised with ``scale`` and
    ``shift`` (d,) and ``eps``, or, where ``scale`` is None, taken as it is."""

    words: Tensor
    places: Tensor
    scale: Tensor | None
    shift: Tensor
    eps: float

    def take(self, words: Tensor, dtype: torch.dtype = torch.float64) -> Additive:
        """The same of some words."""
        scale = None if self.scale is None else self.scale.to(dtype)
        parts = (self.words[words], self.places, self.shift)
        own, places, shift = (part.to(dtype) for part in parts)
        return Additive(own, places, scale, shift, self.eps)

    def split(self, size: int) -> list[Additive]:
        """The same in blocks of at most so many words."""
        return [replace(self, words=words) for words in self.words.split(size)]

    def parts(self) -> tuple[Tensor, Tensor]:
        """The two parts, of words (v, d) and of places (p, d), that the vectors are sums of, before they are
        divided by their spread."""
        if self.scale is None:
            return self.words, self.places
        found = [(part - part.mean(1, keepdim=True)) * self.scale for part in (self.words, self.places)]
        return found[0], found[1]

    def spread(self) -> Tensor:
        """What (v, p) the vectors of words at places are divided by."""
        if self.scale is None:
            return self.words.new_ones(len(self.words), len(self.places))
        places = self.places - self.places.mean(1, keepdim=True)
        own = self.words.var(1, correction=0)[:, None]
        rest = (2 * self.words @ places.T + places.square().sum(1)) / self.words.shape[1]
        return torch.sqrt(own + rest + self.eps)

    def vectors(self) -> Tensor:
        """What the attention takes (v, p, d)."""
        words, places = self.parts()
        both = words[:, None] + places
        return both if self.scale is None else both / self.spread()[..., None] + self.shift

    def along(self, directions: Tensor) -> Tensor:
        """What the attention takes, along directions (d, k): (v, p, k)."""
        if self.scale is None:
            return (self.words @ directions)[:, None] + self.places @ directions
        turned = self.scale[:, None] * directions
        turned = turned - turned.mean(0)  # so nothing as long as the words is centred
        both = (self.words @ turned)[:, None] + self.places @ turned
        both /= self.spread()[..., None]
        both += self.shift @ directions
        return both


@dataclass(frozen=True, eq=False)
class FirstAttention:
    """The first attention of a ``model``: its module's ``name``, in how many ``heads`` it looks, and the
    names of the parameters of queries, keys and values (weights and biases), of those that take the words'
    vectors and may be released (``inside``), and of the weight that takes what heads give (``output``)."""

    model: nn.Module
    name: str
    heads: int
    weights: tuple[str, ...]
    inside: tuple[str, ...]
    output: str

    @staticmethod
    def find(model: nn.Module) -> FirstAttention | None:
        """Torch's or BERT's, whichever the model has first; None: it has neither."""
        for name, part in model.named_modules():
            if isinstance(part, nn.MultiheadAttention) and part.in_proj_weight is not None:
                both = (f"{name}.in_proj_weight", f"{name}.in_proj_bias")
                return FirstAttention(model, name, part.num_heads, both, both[:1], f"{name}.out_proj.weight")
            if all(hasattr(part, key) for key in ("query", "key", "value")):
                return FirstAttention._of_bert(model, name, part)
        return None

    @staticmethod
    def _of_bert(model: nn.Module, name: str, part: nn.Module) -> FirstAttention:
        heads: Any = getattr(part, "heads", None) or getattr(part, "num_attention_heads", 1)
        weights, inside = [], []
        for key in ("query", "key", "value"):
            layer = part.get_submodule(key)
            base = f"{name}.{key}.base" if hasattr(layer, "base") else f"{name}.{key}"
            weights += [f"{base}.weight", f"{base}.bias"]
            inside.append(f"{name}.{key}.lora_A.weight" if hasattr(layer, "lora_A") else f"{base}.weight")
        owner = name.rpartition(".")[0]
        return FirstAttention(
            model, name, int(heads), tuple(weights), tuple(inside), f"{owner}.output.dense.weight"
        )

    def inputs(self, params: Params, x: Tensor) -> Tensor:
        """What the attention takes (n, length, d) of texts."""
        return self._taken(params, x, self.model.get_submodule(self.name))

    def additive(self, params: Params, words: int, length: int, who: str) -> Additive:
        """What words and places add to each other; refused where they do not, or where more than a
        normalisation follows."""
        every = torch.arange(words)
        norm = self._normalisation(params, every[:2, None].expand(-1, length))
        part = self.model.get_submodule(norm or self.name)
        first = self._taken(params, every[:, None], part)[:, 0]
        some = torch.linspace(0, words - 1, min(words, PROBED)).long()
        grid = self._taken(params, some[:, None].expand(-1, length), part)
        places = grid[0] - grid[0, :1]
        if float((grid - first[some, None] - places).abs().max()) > CLOSE * float(grid.abs().max()):
            raise ArgumentError(
                f"{who} reads models in which words and places are vectors that are added, got "
                f"{type(self.model).__name__}, in which they are not; what others give away is not known."
            )
        if norm is None:
            return Additive(first, places, None, first.new_zeros(first.shape[1]), 0.0)
        eps = float(getattr(part, "eps", 0.0))
        return Additive(first, places, params[f"{norm}.weight"], params[f"{norm}.bias"], eps)

    def heads_of(self, params: Params, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (n, heads, width) of vectors (n, d)."""
        if len(self.weights) == 2:
            both = F.linear(h, params[self.weights[0]], params[self.weights[1]]).chunk(3, -1)
        else:
            both = tuple(
                F.linear(h, params[weight], params[bias])
                for weight, bias in zip(self.weights[::2], self.weights[1::2], strict=True)
            )
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in both)
        return q / q.shape[-1] ** 0.5, k, v

    def _normalisation(self, params: Params, x: Tensor) -> str | None:
        """The name of the normalisation whose output is what the attention takes, if there is one."""
        h = self.inputs(params, x)
        for name, part in self.model.named_modules():
            if isinstance(part, nn.LayerNorm) and f"{name}.bias" in params:
                before = self._taken(params, x, part)
                weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
                out = F.layer_norm(before, before.shape[-1:], weight, bias, part.eps)
                return name if out.shape == h.shape and torch.allclose(out, h, atol=CLOSE) else None
        return None

    def _taken(self, params: Params, x: Tensor, part: nn.Module) -> Tensor:
        return inputs_of(self.model, params, x, {"part": part})["part"]


def inputs_of(
    model: nn.Module, params: Params, x: Tensor, parts: Mapping[str, nn.Module]
) -> dict[str, Tensor]:
    """What parts of a model take, in the order in which they are called; the pass ends with the last."""
    taken: dict[str, Tensor] = {}

    def watch(name: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def keep(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            taken[name] = given[0] if given else named["query"]
            if len(taken) == len(parts):
                raise _ReachedError

        return keep

    hooks = [part.register_forward_pre_hook(watch(name), with_kwargs=True) for name, part in parts.items()]
    try:
        with torch.no_grad():
            functional_call(model, dict(params), (x,))
    except _ReachedError:
        pass
    finally:
        for hook in hooks:
            hook.remove()
    return taken
