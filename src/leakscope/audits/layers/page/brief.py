"""What audits layer by layer say on the first page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leakscope.audits.layers.page.maps import LayerMap
from leakscope.report.pages import listed, plural
from leakscope.results.chapter import Brief, Scene, explain

INPUTS = "the inputs themselves"


def brief(maps: Sequence[LayerMap]) -> Brief:
    """The first page's part."""
    advised = [advice for one in maps if (advice := one.advice) and advice.sentences]
    return Brief(
        asked=tuple(f"Which layer of {one.title} gives away {_secrets(one)}?" for one in maps),
        meaning=tuple(explain(one.severity, _secrets(one), _harm(one)) for one in maps),
        helps=tuple(sentence for advice in advised for sentence in advice.sentences),
        assumed=(
            "The adversary sees the gradient of one layer or of all layers, and knows the model. It "
            "practises on public records of the same kind.",
        ),
        untested=tuple(_omit(maps)),
        scene=next((_scene(one) for one in maps if one.keys), None),
    )


def _secrets(one: LayerMap) -> str:
    names = [latent.secret for latent in one.found.latent] + [INPUTS] * bool(one.found.original)
    return listed(names or one.cell.game.get("secrets") or ["a secret"])


def _harm(one: LayerMap) -> str:
    harm = ""
    if one.found.latent:
        names = listed(latent.secret for latent in one.found.latent)
        harm = f"Whoever sees the updates learns something about {names} of the people behind them."
    if one.found.original:
        harm += " Inputs, such as pictures of people, were rebuilt from updates, some better than others."
    return harm.strip() or "Layers react to their inputs, so updates depend on single records."


def _omit(maps: Sequence[LayerMap]) -> Iterator[str]:
    if bare := [one.title for one in maps if one.keys and not (one.advice and one.advice.sentences)]:
        yield f"No measure to protect a layer was tried for {listed(bare)}."
    if whole := [one.title for one in maps if one.keys and not one.found.original]:
        yield f"Nobody tried to rebuild the inputs of {listed(whole)}."
    if any(one.lacking for one in maps):
        yield "The adversary did not use all layers at once as well as it could. A better one may learn more."
    yield "Only one update of a batch was shown. More updates of the same records may tell more."
    yield "No adversary changed the model or the training."


def _scene(one: LayerMap) -> Scene:
    batch = one.setting("batch")
    return Scene(
        holder="A client holds the records",
        records=(f"Data: {one.cell.source}. They never leave.",),
        crosses=(
            f"Sent: the gradient of {plural(len(one.found.layers), 'layer')}",
            f"computed on {batch} records",
            f"Defense: {one.defense or 'none'}",
        ),
        listener="A curious server, or whoever listens",
        knows=("the model", "public records of the same kind"),
        wants=f"{_secrets(one)}, from one layer or all",
    )
