"""Audits layer by layer (`LayerAudit`, paper 001): which layers give a secret away, what to do about it,
and what became of the paper's claims; in words, numbers and one chart."""

from leakscope.layer_maps.chart import chart, drawn
from leakscope.layer_maps.claims import RARE
from leakscope.layer_maps.maps import LayerMap, layer_maps, lines

__all__ = ["RARE", "LayerMap", "chart", "drawn", "layer_maps", "lines"]
