"""The options of functions and commands, in the words of the commands' help: each is declared here, or in the
signature of the function in `leakscope.run.api` that alone has it, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click
import typer

if TYPE_CHECKING:
    from torch.nn import Module
else:
    Module = Any  # nothing heavy is imported for the command line

Table = dict[str, Any]
TYPED: dict[Any, Any] = {  # what a function takes, and the part of it that can be typed
    Sequence[str]: list[str] | None,
    Sequence[float]: list[float] | None,
    Sequence[int]: list[int] | None,
    Mapping[str, str] | Sequence[str]: list[str] | None,
    Mapping[str, int | Sequence[float]] | Sequence[str]: list[str] | None,
    Sequence[str | Table]: list[str] | None,
    str | Sequence[str] | None: list[str] | None,
    str | Sequence[int]: str | None,
    str | Table | None: str | None,
    str | Table | Module | None: str | None,
    Literal["train", "eval"]: str,
    str | Path | None: Path | None,
}


def option(words: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, help=words, **{"show_default": False, **settings})


column = partial(option, metavar="COLUMN")
number = partial(option, metavar="X", show_default=True)
count = partial(option, metavar="N", show_default=True, min=1)


def training(rate: float, mode: str) -> Table:
    """The plan's table of how the victim is trained."""
    return {"rate": rate} | ({"mode": mode} if mode != "train" else {})


TRAINED = (  # options about a model that is trained for its audit
    "--user", "--keep", "--as", "--bins", "--train", "--public", "--known", "--rehearsals",
    "--defense", "--attack", "--weights", "--mode", "--raw", "--dp", "--clip",
    "--noise",
)  # fmt: skip
RECORDED = (  # options about a recording
    "--client", "--centred", "--records", "--preprocessing", "--clients", "--rename", "--differences",
    "--ask", "--canary", "--promised", "--engine", "--address",
)  # fmt: skip

# Arguments are described in the commands' own texts: click 8.5 loses the words typer gives to them.
Data = Annotated[str, typer.Argument(hidden=True)]
Place = Annotated[Path, typer.Argument(hidden=True)]
Label = Annotated[str | None, column("The column the model learns to predict; needed for a file.")]
Secret = Annotated[str | None, column("The private column the adversary is after; needed for a file.")]
Secrets = Annotated[
    str | Sequence[str] | None,
    column("A private column the adversary is after; needed for a file; can be repeated."),
]
Site = Annotated[
    str | None,
    column(
        "The column that names the site, such as a hospital: every site is a client of a federation, and the "
        "audit says what the server learns of each site and of its people. With --recording it says of every "
        "candidate from where it is, and members are told from others of the same site."
    ),
]
User = Annotated[
    str | None,
    column("Ask whose records a batch holds too: the column that says it. It splits by person as well."),
]
Person = Annotated[
    str | None,
    column("The column that says whose record it is: all records of a person are private, public or test."),
]
Drop = Annotated[Sequence[str], column("A column to keep out of the model's inputs; can be repeated.")]
Keep = Annotated[
    Sequence[str],
    column(
        "A column to keep that would be left out, or a label or secret whose rare values are to be kept; "
        "can be repeated."
    ),
]
Kinds = Annotated[
    Mapping[str, str] | Sequence[str],
    option(
        "What a column is: number, category, date, text or identifier (the last two are left out); can be "
        "repeated.",
        "--as",
        metavar="COLUMN=KIND",
    ),
]
Bins = Annotated[
    Mapping[str, int | Sequence[float]] | Sequence[str],
    option(
        "Into how many quantile ranges the numbers of a secret, or of the label, are cut, or at which edges: "
        "age=5 or age=30,50,70; can be repeated. Without it a secret of many numbers has 5 ranges, and a "
        "label of many is learned as a number.",
        metavar="COLUMN=RANGES",
    ),
]
Train = Annotated[
    int | None,
    count(
        "Records the model learns from.",
        show_default="5,000, of your own table 20,000, or what a smaller one allows",
        min=2,
    ),
]
Public = Annotated[
    int | None,
    count(
        "Records the adversary has to practise with.",
        show_default="1,000, of your own table 10,000, or what a smaller one allows",
        min=2,
    ),
]
Known = Annotated[
    Sequence[str],
    column(
        "A column whose mean over the batch the adversary knows, for an attribute or a property only "
        "('*': all but the secret); can be repeated."
    ),
]
Model = Annotated[
    str | Table | Module | None,
    option(
        "A model (see: leakscope list), with settings as for a defense, or your own torch.nn.Module, such as "
        "my_nets.Net, with --trust my_nets. Layer sizes of a recorded MLP come from the recording.",
        metavar="MODEL",
    ),
]
Weights = Annotated[
    str | Path | None,
    option(
        "The weights of --model as you trained it: a safetensors file, or a state_dict that torch saved. "
        "It is audited at these and trained on from there.",
        metavar="FILE",
    ),
]
Mode = Annotated[
    Literal["train", "eval"],
    option(
        "The mode in which gradients are taken: train, as clients do, has batch statistics and dropout, "
        "eval has neither.",
        click_type=click.Choice(("train", "eval")),
        show_default=True,
    ),
]
Raw = Annotated[
    bool,
    option(
        "Give the model numbers as they are, not scaled to mean 0 and deviation 1: for a model whose inputs "
        "you prepared yourself.",
        "--raw",
    ),
]
Defenses = Annotated[
    Sequence[str | Table],
    option(
        "A defense to audit too, such as Sign or Pruning:rate=0.99 (see: leakscope list), or none. The "
        "adversary knows it. Can be repeated.",
        "--defense",
        metavar="DEFENSE",
        show_default="a short list, on the first question",
    ),
]
Attack = Annotated[
    str | Table | None,
    option(
        "The attack to play, such as Posterior or Joint:components=30 (see: leakscope list). Without it, "
        "several are tried on public records and the strongest is played.",
        metavar="ATTACK",
    ),
]
Rounds = Annotated[int, count("Rounds of training, an epoch each; the adversary sees a gradient of each.")]


class _Rounds(click.ParamType[Any]):
    """How many rounds, or of a recording which."""

    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        try:
            return int(value)
        except ValueError:
            return str(value)


AuditRounds = Annotated[
    int,
    option(
        "Rounds of training, an epoch each; the adversary sees a gradient of each. With --recording: the "
        "rounds to look at, such as 1-5,8.",
        click_type=_Rounds(),
        show_default=True,
    ),
]
Observed = Annotated[
    str | Sequence[int],
    option("With --recording: the rounds to look at, such as 1-5,8; all if left out.", metavar="ROUNDS"),
]
Trials = Annotated[
    int, count("Challenges the adversary answers. More of them make the intervals narrower.", min=2)
]
Rehearsals = Annotated[int, count("Challenges the adversary practises with, on public records.", min=2)]
Batch = Annotated[int, count("Records behind one gradient.")]
Width = Annotated[int, count("Units of the model's first layer, where no --model is given.", min=2)]
Batches = Annotated[
    Sequence[int],
    count("Records behind one gradient or upload; can be repeated.", "--batch", show_default="8, 16 and 32"),
]
LocalEpochs = Annotated[
    int | None, count("Read uploads after so many local epochs.", show_default="none: gradients are read")
]
LocalBatch = Annotated[int, count("Records of one local step, with --local-epochs.")]
Optimiser = Annotated[
    str,
    option(
        "What clients train with, with --local-epochs.",
        click_type=click.Choice(("sgd", "adam")),
        show_default=True,
    ),
]
Together = Annotated[int, count("Clients that release together, --batch records each.")]
Sums = Annotated[bool, option("With --clients: the server sees the sum of what they release only.", "--sums")]
Seeds = Annotated[int, count("Repetitions with new splits and training.")]
Rate = Annotated[float, number("Learning rate of the victim's SGD.")]
Client = Annotated[
    str | None,
    column("With --recording: the column that names the client who trained on a record, if any did."),
]
Seen = Annotated[
    str,
    option(
        "Of a federation: whether the adversary sees each upload, only their sum or only the broadcast.",
        click_type=click.Choice(("uploads", "sum", "broadcast")),
        show_default=True,
    ),
]
Centred = Annotated[
    bool, option("With --recording: subtract the global model's change from each update.", "--centred")
]
Clients = Annotated[
    Sequence[str],
    option("With --recording: the clients to ask about, such as a,b; all if left out.", metavar="NAMES"),
]
Rename = Annotated[
    Sequence[str],
    option(
        "With --recording: what the model calls a recorded layer, or what begins so (module.=); can be "
        "repeated.",
        metavar="OLD=NEW",
    ),
]
Differences = Annotated[
    bool,
    option(
        "With --recording: uploads were recorded as differences, trained minus received.", "--differences"
    ),
]
Preprocessing = Annotated[
    str | None,
    option(
        "With --recording: how the candidates were prepared, in the words that the recording declares.",
        metavar="WORDS",
    ),
]
Ask = Annotated[
    Sequence[str],
    option(
        "With --recording: a question beside who was trained on: which client holds a known member (source), "
        "whether a person took part by several records (person), which client is behind an update without a "
        "name (provenance), in which range the share of a --secret lies at each client (property), or who "
        "was trained on by the sums of uploads alone, in a second audit (sums). Can be repeated.",
        click_type=click.Choice(("source", "person", "provenance", "property", "sums")),
    ),
]
Canary = Annotated[
    str | None,
    column("With --recording: the column that names canaries, whose coins lie beside the recording."),
]
Promised = Annotated[
    float | None,
    number("With --canary: the epsilon that the training is said to promise, to stand beside what is found."),
]
Jobs = Annotated[int | None, count("Cells run at the same time.", show_default="as many as there are cores")]
Engine = Annotated[
    str,
    option(
        "Who runs the cells: processes of this machine (loky) or the workers of a Ray cluster (ray).",
        click_type=click.Choice(("loky", "ray")),
        show_default=True,
    ),
]
Address = Annotated[
    str | None,
    option(
        "With --engine ray: the cluster, as HOST:PORT or ray://HOST:PORT; its machines need leakscope too.",
        show_default="one that is started here and ended with the run",
        metavar="ADDRESS",
    ),
]
TRUST = option("A Python module whose code may be run; can be repeated.", metavar="MODULE")
Trust = Annotated[Sequence[str], TRUST]
Shown = Annotated[
    bool,
    option(
        "Put originals and reconstructions into the report. It is then as private as they are.",
        "--show-reconstructions",
    ),
]
OUTPUT = option(
    "Folder for results and report. Interrupted work goes on there.",
    "--output",
    "-o",
    show_default="a folder here, named after what is run",
)
Output = Annotated[str | Path | None, OUTPUT]
