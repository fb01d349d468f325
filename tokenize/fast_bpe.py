"""The same ids, sooner: byte-level BPE by tiktoken's engine where a tokenizers file describes nothing else.

Taken only for models whose merges are numbered as they were made, so that both engines merge in one order, and only
after both gave the same ids for fixed strings; a build compares a sample of its own texts besides. Any other model is
encoded by ``tokenizers``.
"""

from typing import Any

import tiktoken
from tokenizers import Tokenizer

GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
"""What tokenizers' ByteLevel splits by (Radford et al. 2019)."""


def fast_encoding(raw: dict[str, Any]) -> tiktoken.Encoding | None:
    """An engine for the model of a tokenizers file, or None where it cannot be sure to give the same ids."""
    pattern, model = _pattern(raw.get("pre_tokenizer")), raw["model"]
    plain = raw.get("normalizer") is None and model.get("type") == "BPE"
    odd = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "fuse_unk")
    if pattern is None or not plain or any(model.get(name) for name in odd):
        return None
    special = {token["content"] for token in raw.get("added_tokens", ())}
    try:
        ranks = {_bytes(text): number for text, number in model["vocab"].items() if text not in special}
    except KeyError:
        return None
    if not _numbered_as_merged(model, ranks):
        return None
    return tiktoken.Encoding("corpus", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


def agree(fast: tiktoken.Encoding, slow: Tokenizer, texts: list[str]) -> bool:
    """Whether both engines give the same ids for all texts."""
    expected = slow.encode_batch_fast(texts, add_special_tokens=False)
    return all(fast.encode_ordinary(text) == ids.ids for text, ids in zip(texts, expected, strict=True))


def _pattern(pre: Any) -> str | None:
    """The expression that cuts texts, if nothing but it and the byte alphabet is used."""
    if not isinstance(pre, dict):
        return None
    if pre.get("type") == "ByteLevel" and pre.get("use_regex") and not pre.get("add_prefix_space"):
        return GPT2_PATTERN
    steps = pre.get("pretokenizers", [])
    if pre.get("type") != "Sequence" or [s.get("type") for s in steps] != ["Split", "ByteLevel"]:
        return None
    split, level = steps
    isolated = split.get("behavior") == "Isolated" and not split.get("invert")
    if not isolated or level.get("use_regex") or level.get("add_prefix_space"):
        return None
    found = split.get("pattern", {}).get("Regex")
    return found if isinstance(found, str) else None


def _numbered_as_merged(model: dict[str, Any], ranks: dict[bytes, int]) -> bool:
    """Whether every longer token comes from one merge, in the order of their numbers."""
    last = -1
    made = set()
    for merge in model["merges"]:
        left, right = merge if isinstance(merge, list) else merge.split(" ")
        token = _bytes(left) + _bytes(right)
        number = ranks.get(token)
        if number is None or number <= last:
            return False
        made.add(token)
        last = number
    return made == {token for token in ranks if len(token) > 1} and len(ranks) - len(made) == 256


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + n): byte for n, byte in enumerate(hidden)}


_ALPHABET = _byte_alphabet()


def _bytes(text: str) -> bytes:
    return bytes(_ALPHABET[char] for char in text)
