"""The fast engine gives tokenizers' ids or is not used."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_mixture_rules import fuzzed_texts, real_texts
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from millstream.mixture.recipe import TrainedTokenizer
from millstream.tokenize.fast_bpe import GPT2_PATTERN, agree, fast_encoding
from millstream.tokenize.tokenizer import BOS, EOS, PAD, Encoder, encoder_of, train_bpe


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    wanted = TrainedTokenizer(kind="bpe", vocab_size=3000)
    train_bpe(wanted, real_texts(), path)
    found = encoder_of(wanted, path)
    assert found.fast is not None
    return found


def test_all_texts_get_the_same_ids(encoder: Encoder) -> None:
    assert encoder.fast is not None
    assert agree(encoder.fast, encoder.plain, real_texts() + fuzzed_texts())


def test_every_character_is_cut_alike(encoder: Encoder) -> None:
    assert encoder.fast is not None
    # Every assigned plane-0 character and a stretch of the higher planes, between letters, digits and spaces.
    points = [*range(0xD800), *range(0xE000, 0x10000), *range(0x10000, 0x20000, 3), *range(0xE0000, 0xE0200)]
    blocks = [" ".join(f"a{chr(p)}b {chr(p)}1" for p in points[n : n + 400]) for n in range(0, len(points), 400)]
    assert agree(encoder.fast, encoder.plain, blocks)


@given(st.text(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_text_gets_the_same_ids(encoder: Encoder, text: str) -> None:
    assert encoder.fast is not None
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    assert agree(encoder.fast, encoder.plain, [text])


def described(tokenizer: Tokenizer) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(tokenizer.to_str())
    return raw


def test_other_models_are_left_to_tokenizers(encoder: Encoder, tmp_path: Path) -> None:
    special = [{"content": token} for token in (EOS, BOS, PAD)]
    raw = described(encoder.plain) | {"added_tokens": special}
    assert fast_encoding(raw) is not None
    assert fast_encoding({**raw, "normalizer": {"type": "NFKC"}}) is None
    assert fast_encoding({**raw, "pre_tokenizer": {"type": "Whitespace"}}) is None
    assert fast_encoding({**raw, "pre_tokenizer": {**raw["pre_tokenizer"], "add_prefix_space": True}}) is None
    assert fast_encoding({**raw, "model": {**raw["model"], "dropout": 0.1}}) is None
    merges = raw["model"]["merges"]
    swapped = [merges[1], merges[0], *merges[2:]]
    assert fast_encoding({**raw, "model": {**raw["model"], "merges": swapped}}) is None
    words = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    assert fast_encoding(described(words)) is None


def test_a_split_by_expression_is_taken_too() -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(GPT2_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(real_texts(), trainers.BpeTrainer(vocab_size=1000, initial_alphabet=alphabet))
    fast = fast_encoding(described(tokenizer))
    assert fast is not None
    assert agree(fast, tokenizer, real_texts() + fuzzed_texts())
