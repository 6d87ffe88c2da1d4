"""The options of functions and commands, in the words of the commands' help: each is declared here, or in the
signature of the function in `leakscope.run.api` that alone has it, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import click
import typer

Table = dict[str, Any]
TYPED: dict[Any, Any] = {  # what a function takes, and the part of it that can be typed
    Sequence[str]: list[str] | None,
    Sequence[float]: list[float] | None,
    Sequence[str | Table]: list[str] | None,
    str | Table | None: str | None,
    str | Path | None: Path | None,
}


def option(words: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, help=words, **{"show_default": False, **settings})


column = partial(option, metavar="COLUMN")
number = partial(option, metavar="X", show_default=True)
count = partial(option, metavar="N", show_default=True, min=1)

TRAINED = (  # options about a model that is trained for its audit
    "--secret", "--user", "--known", "--batch", "--rounds", "--rehearsals", "--rate", "--defense", "--attack",
    "--dp", "--clip", "--noise", "--delta",
)  # fmt: skip
RECORDED = ("--client", "--seen", "--centred", "--records", "--preprocessing")  # options about a recording

# Arguments are described in the commands' own texts: click 8.5 loses the words typer gives to them.
Data = Annotated[str, typer.Argument(hidden=True)]
Place = Annotated[Path, typer.Argument(hidden=True)]
Label = Annotated[str | None, column("The column the model learns to predict; needed for a file.")]
Secret = Annotated[str | None, column("The private column the adversary is after; needed for a file.")]
User = Annotated[
    str | None,
    column("The column that says whose record it is. It adds user inference, and splits by person."),
]
Drop = Annotated[Sequence[str], column("A column to keep out of the model's inputs; can be repeated.")]
Known = Annotated[
    Sequence[str],
    column(
        "A column whose mean over the batch the adversary knows, for an attribute or a property only "
        "('*': all but the secret); can be repeated."
    ),
]
Model = Annotated[
    str | Table | None,
    option(
        "A model (see: leakscope list), with settings as for a defense, or your own torch.nn.Module, such as "
        "my_nets.Net, with --trust my_nets. Layer sizes of a recorded MLP come from the recording.",
        metavar="MODEL",
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
Trials = Annotated[
    int, count("Challenges the adversary answers. More of them make the intervals narrower.", min=2)
]
Rehearsals = Annotated[int, count("Challenges the adversary practises with, on public records.", min=2)]
Batch = Annotated[int, count("Records behind one gradient.")]
Seeds = Annotated[int, count("Repetitions with new splits and training.")]
Rate = Annotated[float, number("Learning rate of the victim's SGD.")]
Client = Annotated[
    str | None,
    column("With --recording: the column that names the client who trained on a record, if any did."),
]
Seen = Annotated[
    str,
    option(
        "With --recording: whether the adversary sees each upload, only their sum or only the broadcast.",
        click_type=click.Choice(("uploads", "sum", "broadcast")),
        show_default=True,
    ),
]
Centred = Annotated[
    bool, option("With --recording: subtract the global model's change from each update.", "--centred")
]
Preprocessing = Annotated[
    str | None,
    option(
        "With --recording: how the candidates were prepared, in the words that the recording declares.",
        metavar="WORDS",
    ),
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
