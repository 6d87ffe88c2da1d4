"""A record and what was rebuilt of it, side by side: private, and made only where a user asks."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from typing import Any

import numpy as np
from torch import Tensor

from leakscope.core.nouns import Transcript
from leakscope.measures.fidelity import WINDOW, matched, ssim

SCALE = 3  # of a picture's side, so that 32 pixels can be looked at


def pair(transcript: Transcript, i: int) -> dict[str, Any]:
    """The first record of trial ``i`` and its reconstruction, as PNG in base64, and how like they are."""
    guesses = matched(transcript)
    likeness = math.nan
    if min(guesses.shape[-2:]) >= WINDOW:
        likeness = float(ssim(guesses[i : i + 1, :1], transcript.secrets[i : i + 1, :1]))
    return {
        "original": _png(transcript.secrets[i, 0]),
        "reconstruction": _png(guesses[i, 0]),
        "ssim": likeness if math.isfinite(likeness) else None,
    }


def _png(image: Tensor) -> str:
    """The image (c, h, w) as PNG (ISO/IEC 15948) in base64, every pixel ``SCALE`` times as large."""
    pixels = (image.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
    pixels = pixels.repeat(SCALE, axis=0).repeat(SCALE, axis=1)
    height, width, channels = pixels.shape
    colours = {1: 0, 3: 2}[channels]  # grey, or red, green and blue
    header = struct.pack(">IIBBBBB", width, height, 8, colours, 0, 0, 0)
    lines = np.pad(pixels.reshape(height, -1), ((0, 0), (1, 0)))  # each begins with how it is filtered: not
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")
    chunks = [
        struct.pack(">I", len(held)) + name + held + struct.pack(">I", zlib.crc32(name + held))
        for name, held in parts
    ]
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(chunks)).decode("ascii")
