"""What kinds of audit share: records that are split, a victim that is trained, what it is worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd

from leakscope.core.dataset import Dataset
from leakscope.core.errors import PlanError
from leakscope.core.fingerprints import keyed
from leakscope.core.nouns import Defense, Estimate, Params
from leakscope.core.rng import seeded
from leakscope.core.tables import construct
from leakscope.games import UserInference
from leakscope.gradients.joint import draws, mixes
from leakscope.measures.utility import accuracy, linear, majority, task_auroc
from leakscope.models import build, parameters, weights
from leakscope.results.kind import World
from leakscope.results.result import Net, RecordsUsed
from leakscope.results.scores import Worth
from leakscope.training import fit, logits
from leakscope.training.step import changes, parts, refuse_clipping, state


@dataclass(frozen=True, eq=False)
class Parts:
    """The records of a cell and a seed, split."""

    records: Dataset
    train: Dataset
    test: Dataset
    public: Dataset

    @property
    def described(self) -> RecordsUsed:
        sizes = {"train": len(self.train), "test": len(self.test), "public": len(self.public)}
        whole = describe(self.train, digest=keyed(self.records.digest))
        return whole.model_copy(update=sizes | {"records": sum(sizes.values())})


@dataclass(frozen=True, eq=False)
class Victim:
    """A model trained under its defense, and its parameters after every round."""

    model: nn.Module
    defense: Defense
    history: tuple[Params, ...]


def describe(records: Dataset, *, digest: str | None = None) -> RecordsUsed:
    """Records that are not split."""
    return RecordsUsed(
        name=records.name,
        label=records.label,
        records=len(records),
        inputs=records.x[0].numel(),
        classes=records.classes,
        digest=keyed(records.digest) if digest is None else digest,
        fates=records.fates,
    )


def split(
    world: World, records: Dataset | None = None, *, standardise: bool = True, balanced: bool = True
) -> Parts:
    """By record, or, where the game is about people or the data says whose a record is, by person. Parts are
    ``balanced``, each with the secret's values as often as all records have them, or drawn as they come."""
    records, game = world.records if records is None else records, world.cell.game
    playable = records
    if game.get("user"):  # only those who can give two batches are split (paper 000, 5.1.4)
        playable = records.frequent(game["user"], 2 * game.get("batch", UserInference.batch))
    people = game.get("user") or game.get("people") or world.cell.data.get("by")
    secret = next((game[key] for key in ("secret", "column", "attribute") if game.get(key)), None)
    secret = next(iter(game.get("secrets", ())), secret)
    options: Any = {
        "secret": secret if balanced and not people else None,
        "by": people,
        "train": world.cell.train,
        "public": world.cell.public,
        "standardise": standardise,
    }
    known = {} if world.splits is None else world.splits
    key = (id(records), world.seed, game.get("user"), game.get("batch"), *options.values())
    if key not in known:
        known[key] = Parts(records, *playable.split(seeded(world.seed, "split"), **options))
    parts: Parts = known[key]
    return parts


def defend(world: World) -> Defense:
    """The defense that the cell names, or none."""
    table = world.cell.defense
    defense: Defense = construct(table, "defense", trusted=world.trusted) if table else Defense()
    return defense


def build_model(world: World, train: Dataset, defense: Defense | None = None) -> nn.Module:
    """The cell's model for these records before it is trained here, with the weights that it came with and in
    the mode in which it is trained."""
    defense = defense or Defense()
    if world.cell.weights is not None:
        _refuse_layers(defense)
    cell = world.cell
    starting = weights.starting(cell.model, cell.weights, world.net, trusted=world.trusted)

    def built(data: Dataset) -> nn.Module:
        model: nn.Module = starting(data)
        return model.train(cell.training.mode == "train")

    model = build(built, train, seeded(world.seed, "model"), defense=defense)
    refuse_clipping(defense, model)
    return model


def _refuse_layers(defense: Defense) -> None:
    """Refuse a defense that adds layers to a model that is already trained: they would not be."""
    for part in parts(defense):
        if changes(part, "model"):
            raise PlanError(
                f"{part!r} adds layers to the model, which the weights it came with do not have; leave the "
                f"defense out, or train the model with it."
            )


def train_victim(world: World, train: Dataset, defense: Defense) -> Victim:
    """The cell's model, trained under a defense."""
    model, cell = build_model(world, train, defense), world.cell
    history = fit(
        model,
        train,
        rounds=cell.rounds,
        rng=seeded(world.seed, "training"),
        rate=cell.training.rate,
        batch=cell.training.batch,
        defense=defense,
    )
    return Victim(model, defense, history)


def measure_worth(victim: Victim, test: Dataset, train: Dataset | None = None) -> Worth[Estimate]:
    """What the trained model is worth on records nobody trained on, beside a logistic regression of the same
    ``train``, where they are given."""
    predicted = logits(victim.model, victim.history[-1], test)
    return Worth[Estimate](
        accuracy=accuracy(predicted, test.y),
        auroc=task_auroc(predicted, test.y),
        majority=majority(test.y),
        linear=linear(train, test) if train is not None else None,
    )


def describe_model(
    world: World, model: nn.Module, data: Dataset | None = None, *, test: Dataset | None = None
) -> Net:
    """The model in words for the page. What it does with batches is asked of it on ``data``; what it was
    worth with weights of its own, before any training here, on ``test`` records."""
    given, params, every = world.cell.weights is not None, parameters(model), list(model.modules())
    drawn = data is not None and draws(model, params, data.x)
    normed = any(
        isinstance(part, _BatchNorm) and (part.training or part.running_mean is None) for part in every
    )
    joined = data is not None and (normed or (not drawn and mixes(model, params, data.x, data.y)))
    net = Net(
        name=str(world.cell.model["name"]) if world.net is None else type(world.net).__name__,
        parameters=count_parameters(model),
        given=given,
        joins=joined,
        draws=drawn,
        statistics=any(
            isinstance(part, _NormBase) and part.training and part.running_mean is not None for part in every
        ),
        still=world.cell.training.mode == "eval"
        and any(isinstance(part, _NormBase | _DropoutNd) for part in every),
    )
    if not given or test is None:
        return net
    start = accuracy(logits(model, state(model), test), test.y)
    return net.model_copy(update={"start": start.value, "idle": start.low <= majority(test.y)})


def count_parameters(model: nn.Module) -> int:
    return sum(tensor.numel() for tensor in parameters(model).values())


def passes_whole(model: nn.Module) -> bool:
    """Whether all that is sent of a model goes through a filter: numbers without a shape and running
    statistics do not."""
    statistics = any(buffer.is_floating_point() for buffer in model.buffers())
    return not statistics and all(tensor.dim() for tensor in parameters(model).values())
