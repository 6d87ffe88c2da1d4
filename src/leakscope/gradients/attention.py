"""Self-attention as two linear layers with a product between them, each with the records in front.

``F.multi_head_attention_forward`` hides its layers, and puts positions before records. What is not an
attention of one batch of sequences over itself is not taken apart, and vmap will do.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def self_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    *,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,  # then in_proj_weight is None
    average_attn_weights: bool = True,
    is_causal: bool = False,  # a hint that attn_mask is the causal one
    **others: Any,
) -> tuple[Tensor, Tensor | None] | None:
    """``F.multi_head_attention_forward`` of (positions, n, width), or None where it is something else."""
    if in_proj_weight is None or query is not key or key is not value or query.dim() != 3:
        return None
    more = [bias_k, bias_v, *others.values()]  # keys and values that do not come from the input
    if add_zero_attn or any(part is not None for part in more) or (training and dropout_p > 0):
        return None
    x = query.transpose(0, 1)
    mask = _mask(attn_mask, key_padding_mask, x, num_heads)
    split = F.linear(x, in_proj_weight, in_proj_bias).unflatten(-1, (3, num_heads, -1))
    q, k, v = split.permute(2, 0, 3, 1, 4).unbind(0)  # each (n, heads, positions, width of a head)
    weights = None
    if need_weights:
        scores = q @ k.mT / q.shape[-1] ** 0.5
        weights = torch.softmax(scores if mask is None else scores + mask, -1)
        found = weights @ v
        weights = weights.mean(1) if average_attn_weights else weights
    else:
        found = F.scaled_dot_product_attention(q, k, v, mask)
    out = F.linear(found.transpose(1, 2).flatten(2), out_proj_weight, out_proj_bias)
    return out.transpose(0, 1), weights


def _mask(attn_mask: Tensor | None, padding: Tensor | None, x: Tensor, heads: int) -> Tensor | None:
    """Both masks as what is added to the scores (n, heads, positions, positions); True hides."""
    parts = []
    if attn_mask is not None:
        parts.append(attn_mask.unflatten(0, (-1, heads)) if attn_mask.dim() == 3 else attn_mask)
    if padding is not None:
        parts.append(padding[:, None, None, :])
    added = [
        x.new_zeros(part.shape).masked_fill(part, -torch.inf) if part.dtype == torch.bool else part
        for part in parts
    ]
    return sum(added[1:], added[0]) if added else None
