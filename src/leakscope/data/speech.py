"""Speech: CREMA-D (Cao et al., IEEE Trans. Affective Computing 2014, ODbL 1.0) as openSMILE features."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from leakscope.core.dataset import Dataset
from leakscope.core.errors import DataError, MissingExtra, require
from leakscope.data.files import Array, coded, folder_of, marked_by, opened

EMOTIONS = ("ANG", "HAP", "NEU", "SAD")  # the four of paper 000, of six
CLIP = 5.0  # standard deviations; single functionals reach 80
_NAME = re.compile(r"(\d{4})_[A-Z]{3}_([A-Z]{3})_[A-Z]{2}\.wav")


def cremad(*, path: str | Path | None = None, emotions: str | Sequence[str] = EMOTIONS) -> Dataset:
    """cremad_emobase.npz: 988 emobase functionals of each clip, 91 speakers, four emotions."""
    wanted = ("x", "emotion", "emotion_names", "gender", "gender_names", "speaker")
    found, _ = opened("cremad", path, "cremad_emobase.npz", wanted)
    names = [str(name) for name in found["emotion_names"]]
    return _cremad(
        found["x"].astype(np.float32),
        np.asarray(names)[found["emotion"]],
        found["gender_names"][found["gender"]],
        found["speaker"].astype(np.int64),
        emotions=_chosen(emotions, names),
    )


def cremad_folder(*, path: str | Path | None = None, emotions: str | Sequence[str] = EMOTIONS) -> Dataset:
    """CREMA-D as published: wav files, in the folder or in AudioWAV/, and VideoDemographics.csv.

    Features are openSMILE's emobase functionals, scaled over all clips and clipped at 5 standard
    deviations. Files with other names than 1001_DFA_ANG_XX.wav are left out.
    """
    folder = folder_of("cremad-folder", path, "CREMA-D", "VideoDemographics.csv")
    sexes = _sexes(folder / "VideoDemographics.csv")
    audio = folder / "AudioWAV" if (folder / "AudioWAV").is_dir() else folder
    found = [(file, _NAME.fullmatch(file.name)) for file in sorted(audio.iterdir())]
    clips = [(file, int(match[1]), match[2]) for file, match in found if match]
    if not clips:
        raise DataError(f"{audio} must hold wav files named like 1001_DFA_ANG_XX.wav, and it holds none.")
    chosen = _chosen(emotions, sorted({emotion for _, _, emotion in clips}))
    clips = [clip for clip in clips if clip[2] in chosen]
    unknown = sorted({speaker for _, speaker, _ in clips} - set(sexes))
    if unknown:
        raise DataError(f"VideoDemographics.csv must list every speaker, and {unknown[0]} is not in it.")
    x = _emobase([file for file, _, _ in clips])
    deviation = x.std(0)
    return _cremad(
        ((x - x.mean(0)) / np.where(deviation > 0, deviation, 1.0)).astype(np.float32),
        np.asarray([emotion for _, _, emotion in clips]),
        np.asarray([sexes[speaker] for _, speaker, _ in clips]),
        np.asarray([speaker for _, speaker, _ in clips]),
        emotions=chosen,
    )


def _chosen(emotions: str | Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    chosen = (emotions,) if isinstance(emotions, str) else tuple(emotions)
    fit = len(chosen) >= 2 and len(set(chosen)) == len(chosen) and set(chosen) <= set(known)
    require(fit, "emotions", f"at least 2 of {', '.join(known)}, each once", chosen)
    return chosen


def _cremad(x: Array, emotion: Array, gender: Array, speaker: Array, *, emotions: tuple[str, ...]) -> Dataset:
    kept = np.isin(emotion, emotions)
    genders = ("male", "female")
    codes = {
        "emotion": (torch.tensor([emotions.index(word) for word in emotion[kept]]), emotions),
        "gender": (torch.tensor([genders.index(word) for word in gender[kept]]), genders),
        "speaker": coded(speaker[kept]),
    }
    return marked_by(torch.from_numpy(x[kept].clip(-CLIP, CLIP)), codes, name="cremad")


def _sexes(path: Path) -> dict[int, str]:
    try:
        people = pd.read_csv(path)
        return {int(who): str(sex).lower() for who, sex in zip(people["ActorID"], people["Sex"], strict=True)}
    except (pd.errors.EmptyDataError, pd.errors.ParserError, KeyError, ValueError) as error:
        raise DataError(f"{path} must have columns ActorID and Sex ({error}); fetch it again.") from error


def _emobase(files: Sequence[Path]) -> Array:
    try:
        import opensmile
    except ImportError as error:
        raise MissingExtra('cremad-folder needs opensmile; run: pip install "leakscope[audio]"') from error
    smile = opensmile.Smile(
        feature_set=opensmile.FeatureSet.emobase, feature_level=opensmile.FeatureLevel.Functionals
    )
    rows = []
    for file in files:
        try:
            row = smile.process_file(str(file)).to_numpy(dtype=np.float64)
        except (OSError, RuntimeError, ValueError) as error:
            raise DataError(f"{file} is not a sound that can be read ({error}); fetch it again.") from error
        if not np.isfinite(row).all():
            raise DataError(f"{file} has no finite features; it may be too short; remove it.")
        rows.append(row[0])
    return np.stack(rows)
