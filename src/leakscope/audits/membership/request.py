"""The audit of a recording, typed at the command line: everything is checked before anything is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from scipy.stats import ttest_1samp
from torch import Tensor, nn

from leakscope.audits.asked import parse_part, stem
from leakscope.audits.membership.judged import drops_out
from leakscope.audits.membership.kind import KIND
from leakscope.audits.membership.recorded import HEADER
from leakscope.audits.membership.strongest import find_spans, list_attacks, list_loss_free
from leakscope.core import files
from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, DataError
from leakscope.core.fingerprints import keyed
from leakscope.core.nouns import Params
from leakscope.core.rng import seeded
from leakscope.core.tables import architecture
from leakscope.core.task import as_logits, columns, is_number, task_loss
from leakscope.data import tabled
from leakscope.data.files import sha256
from leakscope.data.reading import ENDINGS
from leakscope.gradients import moments
from leakscope.models import build, parameters
from leakscope.models.layers import ACTIVATIONS
from leakscope.results.cell import Cell, Table
from leakscope.results.kind import World
from leakscope.training import logits
from leakscope.training.recording import Recording
from leakscope.training.recording.index import Shapes, digest_index

FILES = (*ENDINGS, ".npz")
SOME = 8  # clients by whose uploads the activation is told
USUAL, DOUBT = "relu", 1e-3  # the activation, and the chance that another one is taken for it
PERCEPTRONS = {"MLP": ("hidden", 1), "SharedEncoder": ("widths", 0)}  # a setting, and layers it leaves out


def request_recording(
    data: str,
    *,
    recording: Path,
    client: str | None,
    label: str | None,
    model: str | None,
    seen: str,
    centred: bool,
    records: bool,
    drop: Sequence[str],
    trials: int,
    seeds: int,
    trust: Sequence[str],
    preprocessing: str | None = None,
    rounds: Sequence[int] | str | int = (),
    clients: Sequence[str] = (),
    rename: Sequence[str] = (),
    differences: bool = False,
    private: Sequence[str] = (),
    secret: str | None = None,
    site: str | None = None,
) -> Table:
    """The plan of the audit of one recording, after a rehearsal of all that can go wrong with it."""
    held = Recording(recording)
    for option, given in (("--client", client), ("--label", label), ("--model", model)):
        if given is None:
            calls = f"; the recording calls its model {held.model_name!r}" if option == "--model" else ""
            raise ArgumentError(f"--recording needs {option} beside it{calls}.")
    choice: Table = {
        "rounds": _rounds(rounds),
        "clients": _names(clients, held),
        "rename": list(rename),
        "differences": differences,
    }
    if all("=" in rule for rule in rename):
        held = held.choose(rename=dict(rule.split("=", 1) for rule in rename))
    table = _table(data, label=str(label), client=str(client), private=private, secret=secret, drop=drop)
    candidates = tabled(table)
    chosen, notes = _model(str(model), held, candidates, str(client))
    built = build(architecture(chosen, trusted=trust), candidates, seeded(0, "model")).eval()
    attacks, left_out = _attacks(
        built, candidates, chosen["name"], held.choose(choice["rounds"]), seen, choice["clients"]
    )
    game: Table = {
        "name": "RecordingAudit",
        "recording": str(recording.resolve()),
        "digest": digest_index(recording),
        "attacks": attacks,
        "column": client,
        "seen": seen,
        "centred": centred,
        **{name: given for name, given in choice.items() if given},
    }
    if preprocessing is not None:
        game["preprocessing"] = preprocessing
    if records:
        game["records"] = True
    if site is not None:
        game["site"] = site
    cell: Table = {"id": "membership", "game": game, "data": table, "model": chosen, "trials": trials}
    if notes or left_out:
        cell["note"] = " ".join([*notes, *left_out])
    KIND.check(World(Cell.model_validate(cell), 0, candidates, tuple(trust)))
    cells = [
        cell,
        *(_beside(cell, array) for array in ([] if seen == "broadcast" or centred else held.gradients)),
    ]
    return {"name": f"Audit of {stem(data)}", "seeds": list(range(seeds)), "cell": cells}


def _beside(cell: Table, array: str) -> Table:
    """The same audit of what clients uploaded beside their parameters."""
    return cell | {"id": f"membership {array}", "game": cell["game"] | {"array": array}}


def _rounds(given: Sequence[int] | str | int) -> list[int]:
    """Rounds as they are typed: 3, 1-5,8, or numbers."""
    if not isinstance(given, str):
        return [given] if isinstance(given, int) else list(given)
    found: list[int] = []
    for part in given.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) < int(first):
            raise ArgumentError(f"--rounds must be rounds of the recording, such as 1-5,8, got {given!r}.")
        found += range(int(first), int(last or first) + 1)
    return sorted(set(found))


def _names(given: Sequence[str], recording: Recording) -> list[str]:
    """Clients as they are typed: a,b; a name may have a comma of its own."""
    names = [given] if isinstance(given, str) else given
    return [n for name in names for n in ([name] if name in recording.clients else name.split(","))]


def _table(
    data: str, *, label: str, client: str, private: Sequence[str], secret: str | None, drop: Sequence[str]
) -> Table:
    """The candidates: the column of clients beside the inputs, never among them, as are other ``private``
    columns that questions are about. A ``secret`` of a table is an input too."""
    path = Path(data)
    if path.suffix not in FILES:
        raise ArgumentError(
            f"with --recording DATA must be a file of candidates that ends in {', '.join(FILES)}, got "
            f"{data!r}."
        )
    if label == client:
        raise ArgumentError(f"--label and --client must name two columns, got {label!r} for both.")
    own = [secret] if secret else []
    file = {"path": str(path.resolve()), "sha256": keyed(sha256(path))}
    if path.suffix == ".npz":
        if drop:
            raise ArgumentError(
                f"--drop is for the columns of a table, and {data} holds arrays; leave it out."
            )
        return {"name": "npz", **file, "y": label, "secrets": [*dict.fromkeys([client, *private, *own])]}
    if len(private) > 1:
        raise ArgumentError(
            f"a table can have one column of people, canaries or sites beside --client, got "
            f"{', '.join(private)}; "
            f"give arrays (.npz), or ask one after the other."
        )
    table = {"name": "csv", **file, "label": label, "secrets": own, "user": client, "keep": ["*"]}
    table |= {"person": private[0]} if private else {}
    return table | ({"drop": list(drop)} if drop else {})


def _model(text: str, recording: Recording, candidates: Dataset, client: str) -> tuple[Table, list[str]]:
    """The model's table; what shapes say of a fully connected one is taken from the recording, and what they
    do not say from how uploads fit the clients' records."""
    table = parse_part(text, "--model", 'MLP:activation="tanh"')
    setting, outputs = PERCEPTRONS.get(table["name"], ("", 0))
    widths = _widths(recording.layers)
    if not setting or setting in table or widths is None:
        return table, []
    widths = widths[: len(widths) - outputs]
    table |= {setting: list(widths)}
    said, why = table.get("activation", USUAL), ""
    if "activation" not in table and outputs:
        said, why = _activation(table, recording, candidates, client)
        table |= {"activation": said} if why else {}
    note = f"Layer sizes {list(widths)} come from the recording. The activation is taken to be {said}{why}."
    return table, [note]


def _activation(table: Table, recording: Recording, candidates: Dataset, client: str) -> tuple[str, str]:
    """The activation under which trained models fit the clients' records clearly better than under the usual
    one, and that they do; else the usual one. Noise on uploads is less felt under another one than the true:
    refused where the models do not clearly fit, or are right less often."""
    losses: dict[str, Tensor] = {}
    right: dict[str, float] = {}
    try:
        fitted = list(_fitted(recording, candidates, client))
        y = torch.cat([data.y for _, data in fitted]) if fitted else candidates.y
        for activation in ACTIVATIONS if fitted else ():
            net = build(architecture(table | {"activation": activation}), candidates, seeded(0, "model"))
            recording.check(net)
            outputs = torch.cat([columns(logits(net, own, data)) for own, data in fitted])
            losses[activation] = task_loss(outputs, y, reduction="none").double()
            hits = -losses[activation] if is_number(y) else as_logits(outputs).argmax(1) == y
            right[activation] = float(hits.double().mean())
    except DataError:  # what does not fit, or is damaged, is said by the checks that follow
        return USUAL, ""
    best = min(losses, key=lambda name: float(losses[name].mean()), default=USUAL)
    if best == USUAL or not _exceeds(losses[USUAL], losses[best]):
        return USUAL, ""
    if right[best] < right[USUAL] or not _exceeds(_lose_always(y), losses[best]):
        raise ArgumentError(
            f"nobody says the activation, and what was recorded does not tell it: losses are lower under "
            f"{best} than under {USUAL}, but the model fits the clients' records under neither. Say it, such "
            f"as --model '{table['name']}:activation=\"{USUAL}\"'; if that is right, look whether "
            f"candidates are coded as the clients' records were."
        )
    return best, ", under which what was recorded fits the clients' records best"


def _exceeds(more: Tensor, less: Tensor) -> bool:
    """Whether one is clearly larger than the other in the mean, record by record."""
    gaps = (more - less).numpy()
    if len(gaps) < 2 or gaps.std() == 0:
        return False
    return bool(ttest_1samp(gaps, 0.0, alternative="greater").pvalue <= DOUBT)


def _lose_always(y: Tensor) -> Tensor:
    """The losses (n,) of the best answer that is the same for every record."""
    answer = y.double().mean()[None] if is_number(y) else torch.bincount(y, minlength=2).double().log()
    return task_loss(answer.expand(len(y), -1), y, reduction="none").double()


def _fitted(recording: Recording, candidates: Dataset, client: str) -> Iterator[tuple[Params, Dataset]]:
    """The last upload of some clients with their records; where no upload is recorded, the last global model
    with those of all."""
    names, codes = candidates.value_names(client), candidates.secret(client)
    last = {name: r for r in recording.rounds for name in recording.parts_in(r) if name in names}
    for name in [*last][:SOME]:
        own = candidates.take((codes == names.index(name)).nonzero()[:, 0])
        yield recording.uploaded(last[name], name), own
    trained = torch.tensor([name in recording.clients for name in names])
    if not last and recording.rounds and bool(trained.any()):
        everyone = candidates.take(trained[codes].nonzero()[:, 0])
        yield recording.global_model(recording.rounds[-1]), everyone


def _widths(layers: Shapes) -> tuple[int, ...] | None:
    """The widths of a net whose layers are named and shaped as `MLP` has them, the last one's too."""
    weights = {name: shape for name, shape in layers.items() if name.endswith(".weight")}
    places = [name.removesuffix(".weight") for name in weights]
    shapes = list(weights.values())
    first = int(places[0] == "1") if places else 0  # records of more than one dimension are flattened first
    expected = [f"{first + 2 * i}.{part}" for i in range(len(places)) for part in ("weight", "bias")]
    if list(layers) != expected or any(len(shape) != 2 for shape in shapes):
        return None
    return tuple(shape[0] for shape in shapes)


def _attacks(
    model: nn.Module,
    candidates: Dataset,
    name: str,
    recording: Recording,
    seen: str,
    clients: Sequence[str],
) -> tuple[list[Table], list[str]]:
    """The strongest attacks on what is seen that the model allows, and in words why some are left out."""
    followed = {r for r in recording.rounds if r + 1 in recording.rounds}
    rounds = [
        r for r in recording.rounds if (r in followed if seen == "broadcast" else recording.clients_in(r))
    ]
    there = [{*recording.clients_in(r)} for r in rounds]
    some, notes = candidates.take(torch.arange(2)), []
    spans, beyond = _spans(model, some, recording, seen)
    if (loss := recording.declared("loss")) not in (None, *candidates.task.losses):
        if not (attacks := list_loss_free(model, some, spans)):
            raise DataError(
                f"the recording declares the loss {loss!r}, and attacks that need none look at a first "
                f"linear layer, which {name} has not; audit the training as a game with its own loss."
            )
        note = f"Clients descend a loss called {loss}, whose gradients a server cannot take. "
        return attacks, [f"{note}Only attacks that need none are played.", *filter(None, [beyond])]
    try:
        moments(model, parameters(model), some.x, some.y)
    except ArgumentError:
        notes = [f"Whitened attacks are left out: {name} has layers that cannot be whitened."]
    asked = {*clients} or set().union(*there)
    drop_out = drops_out(recording, rounds, asked)
    attacks = list_attacks(
        seen,
        whitens=not notes,
        spans=spans,
        several=any(len(names) > 1 for names in there),
        drop_out=drop_out,
        steady=not drop_out or bool(asked.intersection(*there)),
        quick=False,
    )
    return attacks, [*notes, *filter(None, [beyond])]


def _spans(model: nn.Module, some: Dataset, recording: Recording, seen: str) -> tuple[Table | None, str]:
    """The attack by row spaces, by the fewest records behind anything that is seen."""
    parts = {r: recording.parts_in(r) for r in recording.rounds}
    counts = [[recording.samples(r, part) for part in there] for r, there in parts.items() if there]
    behind = [min(samples) if seen == "uploads" else sum(samples) for samples in counts]
    steps = [recording.steps(r, part) or 0 for r, there in parts.items() for part in there]
    return find_spans(
        model,
        some,
        records=min(behind, default=0),
        rounds=len(parts),
        steps=max(steps, default=0) or None,
    )


def writable(records: Path, seeds: int) -> None:
    """Refuse a place for the table of records where it would overwrite anything but its like."""
    if seeds > 1:
        raise ArgumentError(f"--records lists one audit, got --seeds {seeds}; leave one of them out.")
    if not records.parent.is_dir() or records.is_dir():
        raise DataError(f"--records must be a file in a folder that exists, got {str(records)!r}.")
    if records.exists():
        try:
            first = files.read(records).partition(b"\n")[0].decode().strip()
        except (OSError, UnicodeDecodeError):
            first = ""
        if first != ",".join(HEADER):
            raise DataError(f"--records would overwrite {str(records)!r}, which holds something else.")
