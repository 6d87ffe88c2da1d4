"""Transformer encoders for texts: torch's own, and BERT as Hugging Face's files have it.

Both give a vector to every word, take the mean over the words of a text, padding left out, and put one linear
layer on it. Word 0 is padding: no word sees it, and it has no gradient. Nothing is dropped at random unless a
setting says so.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core import files
from leakscope.core.dataset import Dataset
from leakscope.core.errors import DataError, require
from leakscope.models.frozen import keep_as_buffers
from leakscope.models.layers import vocabulary
from leakscope.models.weights import read

MOST = 2**20  # bytes of a file of settings
SETTINGS = {
    "vocab_size": "words",
    "hidden_size": "width",
    "num_attention_heads": "heads",
    "num_hidden_layers": "layers",
    "intermediate_size": "inner",
    "max_position_embeddings": "positions",
    "type_vocab_size": "types",
}


def visible(x: Tensor) -> Tensor:
    """Which words (n, length) are no padding; of a text without words the first place."""
    seen = x != 0
    first = torch.arange(x.shape[1], device=x.device) == 0
    return seen | (first & ~seen.any(1, keepdim=True))


def place_of(x: Tensor) -> Tensor:
    """The place (n, length) of every word."""
    return torch.arange(x.shape[1], device=x.device).expand(x.shape)


def mean_over(words: Tensor, seen: Tensor) -> Tensor:
    """The mean (n, width) of the vectors (n, length, width) of words that are seen."""
    weight = seen.to(words.dtype) / seen.sum(1, keepdim=True)
    return torch.einsum("nl,nld->nd", weight, words)


class Places(nn.Module):
    """A vector for each word, and one for its place, which is added."""

    def __init__(self, words: int, length: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(length, width)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.words(x) + self.places(place_of(x))
        return found


class Transformer(nn.Module):
    """Words, torch's encoder, the mean, and a linear layer."""

    def __init__(self, embedding: Places, encoder: nn.TransformerEncoder, outputs: int) -> None:
        super().__init__()
        self.embedding, self.encoder = embedding, encoder
        self.fc = nn.Linear(embedding.words.embedding_dim, outputs)

    def forward(self, x: Tensor) -> Tensor:
        seen, h = visible(x), self.embedding(x)
        hidden = torch.zeros_like(h[..., 0]).masked_fill(~seen, -torch.inf)
        found: Tensor = self.fc(mean_over(self.encoder(h, src_key_padding_mask=hidden), seen))
        return found


@dataclass(frozen=True)
class TextTransformer:
    """A small transformer encoder for texts, torch's own, with learned places.

    ``frozen``: the vectors of words and places are public and stay as they are, so that no gradient of them
    is released. Weights start as torch has them."""

    width: int = 64
    heads: int = 4
    layers: int = 2
    inner: int = 128
    dropout: float = 0.0
    frozen: bool = True

    def __post_init__(self) -> None:
        _check_sizes(self.width, self.heads, self.layers, self.inner, self.dropout, "TextTransformer")

    def __call__(self, data: Dataset) -> nn.Module:
        words, length = vocabulary(data, "TextTransformer", 1)
        block = nn.TransformerEncoderLayer(self.width, self.heads, self.inner, self.dropout, batch_first=True)
        encoder = nn.TransformerEncoder(block, self.layers, enable_nested_tensor=False)
        net = Transformer(Places(words, length, self.width), encoder, data.task.outputs)
        for part in encoder.modules():  # torch copies one block, and all would start alike
            if isinstance(part, nn.MultiheadAttention):
                part._reset_parameters()
            elif isinstance(part, nn.Linear):
                part.reset_parameters()
        if self.frozen:
            keep_as_buffers(net.embedding)
        return net


class BertEmbeddings(nn.Module):
    """Words, their places and the first kind of sentence, added and normalised."""

    def __init__(
        self, words: int, positions: int, types: int, width: int, eps: float, dropout: float
    ) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(words, width, padding_idx=0)
        self.position_embeddings = nn.Embedding(positions, width)
        self.token_type_embeddings = nn.Embedding(types, width)
        self.LayerNorm = nn.LayerNorm(width, eps=eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        places = self.position_embeddings(place_of(x)) + self.token_type_embeddings(torch.zeros_like(x))
        found: Tensor = self.dropout(self.LayerNorm(self.word_embeddings(x) + places))
        return found


class BertHeads(nn.Module):
    """Queries, keys and values, and what heads make of them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, h: Tensor, seen: Tensor) -> Tensor:
        q, k, v = (
            part(h).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen[:, None, None, :], -torch.inf)
        return torch.flatten((torch.softmax(scores, -1) @ v).transpose(1, 2), 2)


class BertOutput(nn.Module):
    """A linear layer, added to what it was computed from and normalised."""

    def __init__(self, inner: int, width: int, eps: float, dropout: float) -> None:
        super().__init__()
        self.dense = nn.Linear(inner, width)
        self.LayerNorm = nn.LayerNorm(width, eps=eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, inside: Tensor, h: Tensor) -> Tensor:
        found: Tensor = self.LayerNorm(h + self.dropout(self.dense(inside)))
        return found


class BertAttention(nn.Module):
    def __init__(self, width: int, heads: int, eps: float, dropout: float) -> None:
        super().__init__()
        self.add_module("self", BertHeads(width, heads))
        self.output = BertOutput(width, width, eps, dropout)

    def forward(self, h: Tensor, seen: Tensor) -> Tensor:
        found: Tensor = self.output(self.get_submodule("self")(h, seen), h)
        return found


class BertIntermediate(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, inner)

    def forward(self, h: Tensor) -> Tensor:
        return F.gelu(self.dense(h))


class BertLayer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, eps: float, dropout: float) -> None:
        super().__init__()
        self.attention = BertAttention(width, heads, eps, dropout)
        self.intermediate = BertIntermediate(width, inner)
        self.output = BertOutput(inner, width, eps, dropout)

    def forward(self, h: Tensor, seen: Tensor) -> Tensor:
        h = self.attention(h, seen)
        found: Tensor = self.output(self.intermediate(h), h)
        return found


class BertEncoder(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, inner: int, eps: float, dropout: float) -> None:
        super().__init__()
        self.layer = nn.ModuleList(BertLayer(width, heads, inner, eps, dropout) for _ in range(layers))

    def forward(self, h: Tensor, seen: Tensor) -> Tensor:
        for layer in self.layer:
            h = layer(h, seen)
        return h


class BertNet(nn.Module):
    """BERT, the mean over words, and a linear layer; parameters are called as Hugging Face's are."""

    def __init__(self, embeddings: BertEmbeddings, encoder: BertEncoder, outputs: int) -> None:
        super().__init__()
        self.embeddings, self.encoder = embeddings, encoder
        self.fc = nn.Linear(embeddings.LayerNorm.weight.numel(), outputs)

    def forward(self, x: Tensor) -> Tensor:
        seen = visible(x)
        found: Tensor = self.fc(mean_over(self.encoder(self.embeddings(x), seen), seen))
        return found


class Adapted(nn.Module):
    """A linear layer that stays as it is, and a product of two thin ones beside it (LoRA, Hu et al., ICLR
    2022). ``lora_A`` starts as torch has it, ``lora_B`` with ``start`` times as much: at 0 the layer starts
    as it was, and the first gradient of ``lora_A`` is 0."""

    def __init__(self, layer: nn.Linear, rank: int, start: float) -> None:
        super().__init__()
        self.base = layer
        keep_as_buffers(self.base)
        self.lora_A = nn.Linear(layer.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, layer.out_features, bias=False)
        with torch.no_grad():
            self.lora_B.weight.mul_(start)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.base(x) + self.lora_B(self.lora_A(x))
        return found


@dataclass(frozen=True)
class Bert:
    """BERT as Hugging Face's files have it, the mean over a text's words, and one linear layer.

    ``path`` is a folder with config.json and model.safetensors, whose numbers are read without any code of
    theirs; without one, sizes are as given here, the vocabulary is that of the data, and weights are drawn as
    BERT's are. ``frozen``: words, places and their normalisation stay as they are. ``adapters``: LoRA of this
    rank on queries and values, all else but the last layer frozen, with ``start`` of `Adapted`."""

    path: str = ""
    width: int = 64
    heads: int = 4
    layers: int = 2
    inner: int = 128
    dropout: float = 0.0
    frozen: bool = True
    adapters: int = 0
    start: float = 0.0

    def __post_init__(self) -> None:
        _check_sizes(self.width, self.heads, self.layers, self.inner, self.dropout, "Bert")
        require(self.adapters >= 0, "Bert.adapters", "at least 0", self.adapters)
        require(math.isfinite(self.start), "Bert.start", "a number", self.start)

    def __call__(self, data: Dataset) -> nn.Module:
        words, length = vocabulary(data, "Bert", 1)
        sizes: dict[str, Any] = {"words": words, "positions": length, "types": 1, "width": self.width}
        sizes |= {"heads": self.heads, "layers": self.layers, "inner": self.inner, "eps": 1e-12}
        if self.path:
            sizes = read_sizes(Path(self.path))
            require(words == sizes["words"], "Bert.path", f"of a vocabulary of {words} words", sizes["words"])
            require(length <= sizes["positions"], "Bert.path", f"of {length} places", sizes["positions"])
        net = self._net(sizes, data.task.outputs)
        if self.path:
            _fill(net, Path(self.path))
        if self.frozen or self.adapters:
            keep_as_buffers(net.embeddings)
        if self.adapters:
            self._adapt(net.encoder)
        return net

    def _net(self, sizes: dict[str, Any], outputs: int) -> BertNet:
        width, eps = sizes["width"], sizes["eps"]
        embeddings = BertEmbeddings(
            sizes["words"], sizes["positions"], sizes["types"], width, eps, self.dropout
        )
        encoder = BertEncoder(sizes["layers"], width, sizes["heads"], sizes["inner"], eps, self.dropout)
        net = BertNet(embeddings, encoder, outputs)
        for part in [*embeddings.modules(), *encoder.modules()]:
            if isinstance(part, nn.Linear | nn.Embedding):
                nn.init.normal_(part.weight, std=0.02)
            if isinstance(part, nn.Linear):
                nn.init.zeros_(part.bias)
        return net

    def _adapt(self, encoder: BertEncoder) -> None:
        for layer in encoder.layer:
            assert isinstance(layer, BertLayer)
            heads = layer.attention.get_submodule("self")
            assert isinstance(heads, BertHeads)
            adapted = {
                name: Adapted(getattr(heads, name), self.adapters, self.start) for name in ("query", "value")
            }
            keep_as_buffers(layer)
            for name, part in adapted.items():
                setattr(heads, name, part)


def read_sizes(folder: Path) -> dict[str, Any]:
    """What config.json says of a BERT's sizes."""
    file = folder / "config.json"
    try:
        content = json.loads(files.read(file, most=MOST))
    except (OSError, ValueError) as error:
        raise DataError(f"{file} is no file of a model's settings ({error}); check Bert.path.") from None
    known = isinstance(content, dict) and content.get("model_type") == "bert"
    known = known and all(isinstance(content.get(key), int) and content[key] >= 1 for key in SETTINGS)
    if not known or content.get("hidden_act", "gelu") != "gelu" or _places(content) != "absolute":
        raise DataError(
            f"{file} must be of a BERT with absolute places and gelu, with {', '.join(SETTINGS)}, and it is "
            f"not; only such encoders are read."
        )
    sizes = {name: content[key] for key, name in SETTINGS.items()}
    require(
        sizes["width"] % sizes["heads"] == 0, f"{file}: hidden_size", "a multiple of heads", sizes["width"]
    )
    return sizes | {"eps": float(content.get("layer_norm_eps", 1e-12))}


def _places(content: dict[str, Any]) -> Any:
    return content.get("position_embedding_type", "absolute")


def _fill(net: BertNet, folder: Path) -> None:
    """Put the file's numbers into the net; heads of other tasks and lists of places are left out."""
    state = {name.removeprefix("bert."): value for name, value in read(folder / "model.safetensors").items()}
    own = {name: value for name, value in net.state_dict().items() if not name.startswith("fc.")}
    lacking = [name for name in own if name not in state or state[name].shape != own[name].shape]
    if lacking:
        raise DataError(
            f"{folder / 'model.safetensors'} must hold {lacking[0]!r} of shape "
            f"{tuple(own[lacking[0]].shape)}, and it does not; give the folder of a BERT encoder."
        )
    net.load_state_dict({name: state[name].float() for name in own}, strict=False)


def _check_sizes(width: int, heads: int, layers: int, inner: int, dropout: float, who: str) -> None:
    for name, value in (("width", width), ("heads", heads), ("layers", layers), ("inner", inner)):
        require(value >= 1, f"{who}.{name}", "at least 1", value)
    require(width % heads == 0, f"{who}.width", f"a multiple of {who}.heads = {heads}", width)
    require(0 <= dropout < 1, f"{who}.dropout", "in [0, 1)", dropout)
