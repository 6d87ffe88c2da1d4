"""A record and what was rebuilt of it, side by side: private, and made only where a user asks."""

from __future__ import annotations

import base64
import io
import math
from typing import Any

import numpy as np
from PIL import Image
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
    pixels = (image.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
    pixels = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    picture = picture.resize((picture.width * SCALE, picture.height * SCALE), Image.Resampling.NEAREST)
    held = io.BytesIO()
    picture.save(held, format="PNG", optimize=True)
    return base64.b64encode(held.getvalue()).decode("ascii")
