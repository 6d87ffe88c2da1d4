"""CREMA-D, from its features and from its wav files."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import needs_files, refuses

from leakscope.core.errors import ArgumentError, DataError, MissingExtra
from leakscope.data import load

CLIPS = ("1001_DFA_ANG_XX", "1002_DFA_SAD_XX", "1002_IEO_ANG_HI")
PEOPLE = (
    "ActorID,Age,Sex,Race,Ethnicity\n1001,51,Male,Caucasian,Not Hispanic\n1002,21,Female,Asian,Hispanic\n"
)


@pytest.fixture
def wavs(tmp_path: Path) -> Path:
    soundfile = pytest.importorskip("soundfile", reason="soundfile comes with leakscope[audio]")
    (tmp_path / "VideoDemographics.csv").write_text(PEOPLE)
    (tmp_path / "AudioWAV").mkdir()
    time = np.arange(8_000) / 16_000
    for i, clip in enumerate(CLIPS):
        soundfile.write(
            tmp_path / "AudioWAV" / f"{clip}.wav", 0.3 * np.sin(2 * np.pi * 150 * (i + 1) * time), 16_000
        )
    (tmp_path / "AudioWAV" / "notes.txt").write_text("not a clip")
    return tmp_path


def test_wav_files_become_988_emobase_functionals(wavs: Path) -> None:
    pytest.importorskip("opensmile", reason="opensmile comes with leakscope[audio]")
    data = load("cremad-folder", path=wavs, emotions=("SAD", "ANG"))
    assert data.x.shape == (3, 988)
    assert data.x.dtype == torch.float32
    assert torch.isfinite(data.x).all()
    assert data.x.abs().max() <= 5
    assert data.y.tolist() == [1, 0, 1]
    assert data.values["emotion"] == ("SAD", "ANG")
    assert data.private["gender"].tolist() == [0, 1, 1]
    assert data.private["speaker"].tolist() == [0, 1, 1]
    assert data.value_names("speaker") == ("1001", "1002")


def test_without_opensmile_the_pip_line_is_given(wavs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opensmile", None)
    with pytest.raises(MissingExtra, match=r'pip install "leakscope\[audio\]"'):
        load("cremad-folder", path=wavs, emotions=("SAD", "ANG"))


def test_a_broken_cremad_folder_is_refused(wavs: Path) -> None:
    refuses(ArgumentError, "emotions must be at least 2 of ANG, SAD", load, "cremad-folder", path=wavs)
    (wavs / "VideoDemographics.csv").write_text(PEOPLE.replace("1002", "1003"))
    refuses(DataError, "1002 is not in it", load, "cremad-folder", path=wavs, emotions=("SAD", "ANG"))
    (wavs / "VideoDemographics.csv").write_text("a,b\n1,2\n")
    refuses(DataError, "ActorID and Sex", load, "cremad-folder", path=wavs, emotions=("SAD", "ANG"))
    (wavs / "VideoDemographics.csv").unlink()
    refuses(DataError, r"must hold VideoDemographics\.csv", load, "cremad-folder", path=wavs)


def test_a_clip_that_is_no_sound_is_named(wavs: Path) -> None:
    pytest.importorskip("opensmile", reason="opensmile comes with leakscope[audio]")
    (wavs / "AudioWAV" / f"{CLIPS[1]}.wav").write_bytes(b"RIFF")
    refuses(DataError, CLIPS[1], load, "cremad-folder", path=wavs, emotions=("SAD", "ANG"))


def test_a_folder_without_clips_is_refused(tmp_path: Path) -> None:
    (tmp_path / "VideoDemographics.csv").write_text(PEOPLE)
    refuses(DataError, r"1001_DFA_ANG_XX\.wav", load, "cremad-folder", path=tmp_path)


@needs_files
def test_cremad_has_four_emotions_of_91_speakers() -> None:
    data = load("cremad")
    assert data.x.shape == (1_271 * 3 + 1_087, 988)
    assert data.x.abs().max() == 5
    assert data.values["emotion"] == ("ANG", "HAP", "NEU", "SAD")
    assert data.y.bincount().tolist() == [1_271, 1_271, 1_087, 1_271]
    assert len(data.value_names("speaker")) == 91
    assert load("cremad", emotions=("DIS", "FEA")).classes == 2
    refuses(ArgumentError, "emotions", load, "cremad", emotions="ANG")
