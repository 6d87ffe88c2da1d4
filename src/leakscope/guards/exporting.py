"""Encoders as programs of tensors, for services that run no Python of ours."""

from __future__ import annotations

import secrets
from pathlib import Path

import torch

from leakscope.core import files
from leakscope.core.errors import ArgumentError, MissingExtra
from leakscope.guards.encoder import Encoder

ENDINGS = (".pt2", ".onnx")


def export(encoder: Encoder, path: str | Path) -> Path:
    """Write an encoder as a program of tensors: .pt2 (torch.export) or .onnx (the extra "onnx").

    It takes any number of records, as `Encoder.read` gives those of a table, and their draws, as
    `Encoder.draws` gives them. Grid, scale, network, norm, noise and rounding are inside; the names of
    categories and the key are not. Without draws there is no release: nothing gives the representation alone.
    """
    path = Path(path)
    if path.suffix not in ENDINGS:
        raise ArgumentError(f"path must end in {' or '.join(ENDINGS)}, got {path.name!r}.")
    x = torch.zeros(2, *encoder.about["shape"])
    with torch.no_grad():
        draws = torch.zeros(encoder.clean(x).shape, dtype=torch.float64)
    several = torch.export.Dim("records")
    shapes = {"records": {0: several}, "draws": {0: several}}
    program = torch.export.export(encoder, (x, draws), dynamic_shapes=shapes)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{secrets.token_hex(4)}-{path.name}")
    try:
        if path.suffix == ".pt2":
            torch.export.save(program, temporary)
        else:
            _save_onnx(program, temporary)
        files.write(path, temporary.read_bytes())
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _save_onnx(program: torch.export.ExportedProgram, path: Path) -> None:
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtra(f'{path.name} needs onnx; run: pip install "leakscope[onnx]"') from error
    torch.onnx.export(program, f=path, dynamo=True, external_data=False, verbose=False)
