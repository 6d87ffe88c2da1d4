"""The layer map: what each layer gives away, panel above panel over one row of layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from leakscope import svg
from leakscope.averages import Average
from leakscope.layer_maps.maps import LayerMap
from leakscope.layer_maps.measures import Latent, Layer, Original, Risk
from leakscope.layer_maps.order import informed, nats, order, rebuilt, scaled
from leakscope.svg import LEFT, RIGHT, Whisker

PANEL, HEAD, GAP, FOOT = 170, 52, 46, 46  # heights: of a panel, above the first, between two, below the last
LETTER = 6.6  # about the width of one
SHOWN = 6  # secrets that are drawn, those that leak most
STEP = 12  # between the marks of one layer
TIPS = 90  # marks up to which each shows its words for the keyboard too
KINDS = {"convolution": "conv", "linear": "linear", "embedding": "embedding"}
NORMS = {"relative": "relative sensitivity, F-norm over that of the gradient", "F": "sensitivity, F-norm"}


@dataclass(frozen=True)
class Mark:
    """An estimate over the columns from ``start`` to ``stop``, ``shift`` beside their middle."""

    start: int
    stop: int
    shift: float
    shape: int
    filled: bool
    share: Whisker  # of the most that is possible
    tip: str


@dataclass(frozen=True)
class Panel:
    title: str
    marks: tuple[Mark, ...]
    trend: tuple[tuple[int, float], ...] = ()  # column and share

    @property
    def highest(self) -> float:
        return max(mark.share[2] for mark in self.marks)

    @property
    def top(self) -> float:
        """The highest share on the axis."""
        highest = self.highest
        return next((top for top in (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8) if highest <= top), 1.0)

    @property
    def ceiling(self) -> float:
        """An interval may reach above 100%, of the largest or by sampling."""
        return max(self.top, min(self.highest, 1.25))

    @property
    def floor(self) -> float:
        """As far below 0 as there are estimates, but never so far that it takes the panel."""
        return max(-self.top / 3, min(0.0, *(mark.share[1] for mark in self.marks)))


def drawn(one: LayerMap) -> list[Latent]:
    """The secrets in the chart: all, or those whose layers leak most."""
    every = list(one.found.latent)
    leaks = sorted(
        every, key=lambda latent: -max(r.information.low / latent.most for r in latent.layers.values())
    )
    return [latent for latent in every if latent in leaks[:SHOWN]]


def chart(one: LayerMap, title: str) -> str:
    """Original and latent risk, one above the other; where inputs were not rebuilt, how sensitive each
    layer is to them. All in shares of the most that is possible, with intervals."""
    panels = [panel for panel in (_inputs(one), _secrets(one)) if panel]
    layers, extras = one.found.layers, _extras(one)
    slots = len(drawn(one)) or 1
    count = len(layers) + len(extras)
    wide = max(STEP * slots + 8.0, 54.0, min(92.0, 560 / count))
    middles = [LEFT + (i + 0.5) * wide + (10 if i >= len(layers) else 0) for i in range(count)]
    right = middles[-1] + wide / 2
    height = HEAD + len(panels) * (PANEL + GAP) + FOOT - 16
    tips = sum(len(panel.marks) for panel in panels) <= TIPS
    parts = list(_heads(layers, extras, middles, wide))
    for i, panel in enumerate(panels):
        top = HEAD + i * (PANEL + GAP) + GAP - 12.0
        edge = middles[len(layers)] - wide / 2 - 5 if extras else None
        parts += _panel(panel, top, right, middles, wide, edge)
        if panel.trend:
            places = [(middles[column], _level(share, panel, top)) for column, share in panel.trend]
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
            parts.append(
                f'<path d="M{path}" class="series second"><title>trend over all secrets</title></path>'
            )
        parts += [
            _mark(mark, panel, top, middles, wide, (right, height) if tips else None) for mark in panel.marks
        ]
    names = [*(layer.name for layer in layers), *(extra[0] for extra in extras)]
    for name, middle in zip(names, middles, strict=True):
        parts.append(svg.text(middle, height - 28, _fitted(name, wide), "middle"))
    desc = "What each layer gives away, as a share of the most that is possible, with intervals. Data below."
    size = f'viewBox="0 0 {right + RIGHT:.0f} {height}" width="{right + RIGHT:.0f}" height="{height}"'
    return (
        f'<svg class="map" {size} role="img"><title>{escape(title)}</title><desc>{desc}</desc>'
        f"{''.join(parts)}</svg>"
    )


def _extras(one: LayerMap) -> list[tuple[str, str, str]]:
    """Columns beside the layers: all of them together, and what needs no layer."""
    secrets = drawn(one)
    whole = any(latent.together for latent in secrets) or bool(
        one.found.original and one.found.original.whole
    )
    labels = any(latent.labels for latent in secrets)
    found = [("all", "layers", "at once")] if whole else []
    return found + ([("labels", "counted,", "no layer")] if labels else [])


def _heads(
    layers: Sequence[Layer], extras: Sequence[tuple[str, str, str]], middles: Sequence[float], wide: float
) -> Iterator[str]:
    heads = [(layer.name, KINDS.get(layer.kind, "other"), _counted(layer.parameters)) for layer in layers]
    for words, middle in zip([*heads, *extras], middles, strict=True):
        for i, word in enumerate(words):
            text = svg.text(middle, 14 + 16 * i, _fitted(word, wide), "middle")
            yield text.replace("<text ", '<text class="name" ', 1) if i == 0 else text


def _counted(parameters: int) -> str:
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if parameters >= size:
            return f"{parameters / size:.3g}{unit}"
    return str(parameters)


def _fitted(name: str, wide: float) -> str:
    """The end of a name that is too long, since names differ there."""
    most = int(wide / LETTER)
    return name if len(name) <= most else "…" + name[1 - most :]


def _inputs(one: LayerMap) -> Panel | None:
    if one.found.original:
        return _rebuilt(one.found.original, one)
    norm = next((norm for norm in NORMS if one.found.sensitivity.get(norm)), None)
    return _sensitive(one.found.sensitivity[norm], NORMS[norm], one) if norm else None


def _rebuilt(original: Original, one: LayerMap) -> Panel | None:
    places = {layer: i for i, layer in enumerate(one.found.names)}
    best = informed(rebuilt(original))
    marks = []
    for each in (*original.sets, *([original.whole] if original.whole else [])):
        whole = each is original.whole
        columns = [len(places)] if whole else [places[name] for name in each.layers if name in places]
        filled = bool(best and each.name == best.first and each.risk.shown)
        if columns:
            tip = _tip(each.name, "inputs", each.risk)
            share = _share(each.risk.information, original.most)
            marks.append(Mark(min(columns), max(columns), 0.0, 1, filled, share, tip))
    title = "original: the inputs themselves, rebuilt from the layers under each line"
    return Panel(title, tuple(marks)) if marks else None


def _sensitive(values: Mapping[str, Average], name: str, one: LayerMap) -> Panel | None:
    place = order(values)
    if place is None or place.highest.value <= 0:
        return None
    marks = []
    for i, layer in enumerate(one.found.names):
        if layer in values:
            value = values[layer]
            tip = f"{layer}: {value.value:.3g} ({value.low:.3g} to {value.high:.3g})"
            share = _share(value, place.highest.value)
            marks.append(Mark(i, i, 0.0, 1, layer == place.first, share, tip))
    return Panel(f"inputs were not rebuilt; {name}, share of the largest", tuple(marks))


def _secrets(one: LayerMap) -> Panel | None:
    secrets, heads = drawn(one), [extra[0] for extra in _extras(one)]
    marks = []
    for slot, latent in enumerate(secrets):
        place = informed(latent.layers)
        beside = {"all": ("all layers", latent.together), "labels": ("labels counted", latent.labels)}
        views: list[tuple[str, Risk | None, tuple[int, int] | None]]
        views = [(name, risk, one.found.columns(name)) for name, risk in latent.layers.items()]
        for i, head in enumerate(heads, start=len(one.found.names)):
            views.append((*beside[head], (i, i)))
        for name, risk, columns in views:
            if risk and columns:
                filled = bool(place and name == place.first and risk.shown)
                shift = STEP * (slot - (len(secrets) - 1) / 2)
                share, tip = _share(risk.information, latent.most), _tip(name, latent.secret, risk)
                marks.append(Mark(*columns, shift, slot + 1, filled, share, tip))
    columns_of = {name: one.found.columns(name) for name in one.found.trend if len(secrets) > 1}
    trend = [(place[0], one.found.trend[name]) for name, place in columns_of.items() if place]
    title = "latent: secrets that the model is not trained for" + (
        "; the line is their trend" if trend else ""
    )
    return Panel(title, tuple(marks), tuple(trend)) if marks else None


def _share(average: Average, most: float) -> Whisker:
    share = scaled(average, most)
    return share.value, share.low, share.high


def _tip(name: str, secret: str, risk: Risk) -> str:
    value = risk.information
    about = f"{svg.shortened(name, 24)}, {svg.shortened(secret, 24)}"
    return f"{about}: {nats(value.value)} nats ({nats(value.low)} to {nats(value.high)})"


def _level(share: float, panel: Panel, top: float) -> float:
    inside = min(max(share, panel.floor), panel.ceiling)
    return top + (panel.ceiling - inside) / (panel.ceiling - panel.floor) * PANEL


def _panel(
    panel: Panel, top: float, right: float, middles: Sequence[float], wide: float, edge: float | None
) -> Iterator[str]:
    """Its grid, and a wash over the layers that tell most."""
    bottom = top + PANEL
    for start, stop in sorted({(mark.start, mark.stop) for mark in panel.marks if mark.filled}):
        left, end = middles[start] - wide / 2, middles[stop] + wide / 2
        yield f'<path d="M{left:.1f} {top:.1f}H{end:.1f}V{bottom:.1f}H{left:.1f}Z" class="goal"/>'
    for share in (panel.top, panel.top / 2, 0.0):
        y = _level(share, panel, top)
        yield svg.line(LEFT, right, y, "rule" if share else "axis")
        yield svg.text(LEFT - 7, y + 4, f"{100 * share:g}%", "end")
    if edge:
        yield f'<path d="M{edge:.1f} {top:.1f}V{bottom:.1f}" class="chance"/>'
    yield svg.text(LEFT, top - 9, panel.title, "start")


def _mark(
    mark: Mark,
    panel: Panel,
    top: float,
    middles: Sequence[float],
    wide: float,
    tip: tuple[float, float] | None,
) -> str:
    """A point with its interval, and a line over the layers it spans; ``tip`` is where its words show."""
    x = (middles[mark.start] + middles[mark.stop]) / 2 + mark.shift
    value, low, high = (_level(share, panel, top) for share in mark.share)
    style = "first" if mark.filled else "hollow"
    lines = f'<path d="M{x:.1f} {low:.1f}V{high:.1f}" class="whisker"/>'
    if mark.start < mark.stop:
        left, end = middles[mark.start] - wide * 0.3, middles[mark.stop] + wide * 0.3
        lines += f'<path d="M{left:.1f} {value - 4:.1f}v8m0-4H{end:.1f}m0-4v8" class="whisker"/>'
    shape = svg.SHAPES[1 + (mark.shape - 1) % (len(svg.SHAPES) - 1)]
    lines += f'<path d="M{x:.1f} {value:.1f}{shape}" class="dot {style}"/>'
    words = escape(mark.tip)
    if tip is None:
        return f"<g><title>{words}</title>{lines}</g>"
    text = f'<text x="{tip[0]:.1f}" y="{tip[1] - 6:.1f}" class="tip">{words}</text>'
    return f'<g class="point" tabindex="0"><title>{words}</title>{lines}{text}</g>'
