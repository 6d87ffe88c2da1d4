"""From a folder of state_dicts, written by anything, to a recording.

states/3/global.safetensors     the model that was sent out in round 3
states/3/alice.safetensors      what alice uploaded
"""

from __future__ import annotations

import re
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from leakscope.core.errors import DataError
from leakscope.training.recording.index import own
from leakscope.training.recording.reader import Recording
from leakscope.training.recording.writer import Recorder

GLOBAL, SAMPLES = "global", "samples"


def convert_folder(source: str | Path, folder: str | Path, *, delta: bool = False) -> Recording:
    """The recording in ``folder`` of the state_dicts in ``source``: one folder a round, whose name ends in
    its number, with global.safetensors and a file a client. A file's metadata may say how many ``samples``
    a client trained on; if none says it, all weigh the same. ``delta``: clients' files are differences."""
    rounds = _list_rounds(Path(source))
    recorder: Recorder | None = None
    for r, place in rounds.items():
        sent, _ = _read(place / f"{GLOBAL}.safetensors")
        if recorder is None:
            recorder = Recorder(Path(folder), sent, model_name=Path(source).name, delta=delta)
        recorder.global_model(r, sent)
        for file in sorted(place.glob("*.safetensors")):
            if file.stem != GLOBAL:
                uploaded, samples = _read(file)
                recorder.update(r, file.stem, uploaded, samples=samples)
    return Recording(Path(folder))


def _list_rounds(source: Path) -> dict[int, Path]:
    numbered = {p: re.search("[0-9]+$", p.name) for p in source.iterdir()} if source.is_dir() else {}
    rounds = {p: int(number[0]) for p, number in numbered.items() if number and p.is_dir()}
    if not rounds or len({*rounds.values()}) < len(rounds):
        raise DataError(
            f"{str(source)!r} must hold a folder for each round whose name ends in its number, such as "
            f"round-3, and has {', '.join(sorted(p.name for p in numbered)[:8]) or 'none'}."
        )
    return {r: place for place, r in sorted(rounds.items(), key=lambda item: item[1])}


def _read(file: Path) -> tuple[dict[str, Tensor], int]:
    """The tensors of a file, and the samples behind it."""
    try:
        with safe_open(own(file), "pt") as stored:
            said = (stored.metadata() or {}).get(SAMPLES, "1")
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise DataError(f"{str(file)!r} is missing; a round needs the model that was sent out.") from None
    except (OSError, SafetensorError) as error:
        raise DataError(f"{str(file)!r} is no safetensors file ({error}); leave it out.") from None
    if not said.isdecimal() or int(said) < 1:
        raise DataError(f"{str(file)!r} says {SAMPLES} {said!r}; give a number of at least 1.")
    return tensors, int(said)
