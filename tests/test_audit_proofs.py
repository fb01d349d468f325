"""Trees, the key trie, keys and heads by themselves; proofs of a real run are in ``test_lineage``."""

import base64
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.audit.heads import tile_path, tiles
from millstream.audit.key_trie import way_to, write_trie
from millstream.audit.merkle import consistency_path, inclusion_path, levels_of, roots_at, tree_root
from millstream.audit.signing import new_key, own_key, read_key
from millstream.audit.verifier import (
    EMPTY,
    Refused,
    bit,
    document_key,
    key_leaf,
    leaf_hash,
    node_hash,
    open_head,
    root_of_path,
    root_of_trie,
    roots_of_consistency,
)
from millstream.errors import InputError, UsageError
from millstream.mixture.documents import document_key as key_at_build

# Entries and roots of the reference tests of Certificate Transparency's log (RFC 6962).
ENTRIES = [bytes.fromhex(h) for h in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657")]
ENTRIES.append(bytes(range(0x60, 0x70)))
ROOTS = (
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)


def test_roots_are_those_of_the_reference_tests_of_rfc_6962() -> None:
    leaves = [leaf_hash(entry) for entry in ENTRIES]
    assert [tree_root(leaves[:n]).hex() for n in range(1, 9)] == list(ROOTS)
    assert [root.hex() for root in roots_at(leaves, range(1, 9)).values()][1:] == list(ROOTS)
    assert tree_root([]) == roots_at([], ())[0] == hashlib.sha256(b"").digest()


def by_definition(leaves: Sequence[bytes]) -> bytes:
    """MTH of RFC 6962, section 2.1, as it is written there."""
    if len(leaves) == 1:
        return leaves[0]
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return node_hash(by_definition(leaves[:k]), by_definition(leaves[k:]))


@given(st.integers(1, 300), st.data())
@settings(max_examples=80, deadline=None)
def test_paths_lead_to_the_root_and_no_other_leaf_does(size: int, data: st.DataObject) -> None:
    leaves = [leaf_hash(b"%d" % n) for n in range(size)]
    root = by_definition(leaves)
    assert tree_root(leaves) == root
    index = data.draw(st.integers(0, size - 1))
    path = inclusion_path(levels_of(leaves), index)
    assert root_of_path(leaves[index], index, size, path) == root
    other = data.draw(st.integers(0, size - 1).filter(lambda n: n != index)) if size > 1 else None
    if other is not None:
        for leaf, at in ((leaves[other], index), (leaves[index], other)):
            assert _or_refused(root_of_path, leaf, at, size, path) != root
        assert _or_refused(root_of_path, leaves[index], index, size, path[:-1]) != root
    assert _or_refused(root_of_path, leaves[index], index, size, [*path, root]) != root


@given(st.integers(1, 200), st.data())
@settings(max_examples=80, deadline=None)
def test_a_log_is_a_continuation_of_its_beginnings_and_of_nothing_else(size: int, data: st.DataObject) -> None:
    leaves = [leaf_hash(b"%d" % n) for n in range(size)]
    old = data.draw(st.integers(1, size))
    roots = tree_root(leaves[:old]), tree_root(leaves)
    path = consistency_path(leaves, old)
    assert roots_of_consistency(old, size, roots[0], path) == roots
    changed = [leaf_hash(b"changed"), *leaves[1:]]
    false = tree_root(changed[:old])
    if old < size:
        assert _or_refused(roots_of_consistency, old, size, false, path) != (false, roots[1])
        assert _or_refused(roots_of_consistency, old, size, roots[0], path[:-1]) != roots


def _or_refused(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except Refused:
        return None


def trie_by_definition(keys: Sequence[bytes], depth: int = 0) -> bytes:
    if len(keys) < 2:
        return key_leaf(keys[0]) if keys else EMPTY
    halves = [[k for k in keys if bit(k, depth) == side] for side in (0, 1)]
    return node_hash(*(trie_by_definition(half, depth + 1) for half in halves))


@given(st.integers(0, 400), st.integers(1, 100_000), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_the_trie_answers_for_every_key(
    tmp_path_factory: pytest.TempPathFactory, count: int, about: int, seed: int
) -> None:
    # Keys that share long beginnings are where a compressed trie goes wrong.
    rng = np.random.default_rng(seed)
    fresh = [rng.bytes(32) for _ in range(count)]
    keys = sorted({*fresh, *(k[:20] + rng.bytes(12) for k in fresh[:20]), *(k[:31] + b"\0" for k in fresh[:5])})
    folder = tmp_path_factory.mktemp("trie")
    batches = [np.array(keys, "S32"), np.array(keys[: count // 2], "S32")]
    root, distinct = write_trie(folder, [b for b in batches if len(b)], about)
    assert distinct == len(keys)
    assert root == trie_by_definition(keys)
    strangers = [rng.bytes(32) for _ in range(20)] + [k[:31] + bytes([k[31] ^ 1]) for k in keys[:10]]
    for key in [*keys[:: max(1, len(keys) // 20)], *strangers]:
        way = way_to(folder, key)
        assert (way.found == key) == (key in set(keys))
        bottom = EMPTY if way.found is None else key_leaf(way.found)
        assert root_of_trie(key, bottom, list(way.siblings)) == root


def test_the_text_key_of_the_checker_is_that_of_the_build() -> None:
    # Frozen: the holder of a text must always get the same key.
    vectors = ("", "plain text\n", "a\r\nb\rc\n", "cafe\u0301", "\u212b", "\ufeffx\0y")
    for text in vectors:
        assert document_key(text) == key_at_build(text)
    assert document_key("cafe\u0301") == document_key("café")
    assert document_key("a\r\nb") == document_key("a\nb")
    assert document_key("a\rb") != document_key("a\nb")
    joined = hashlib.sha256(b"".join(document_key(text) for text in vectors)).hexdigest()
    assert joined == "70bfd043bb4094e306f8344d39bb1794a8997a02e83536da42cca9933896f201"


def test_keys_are_kept_from_others_and_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "signing.key"
    signer = new_key(path, "example.org/log")
    assert path.stat().st_mode & 0o077 == 0
    assert read_key(path) == signer
    with pytest.raises(UsageError, match="never written over"):
        new_key(path, "other")
    with pytest.raises(UsageError, match="neither spaces"):
        new_key(tmp_path / "x", "a b")
    path.write_text(path.read_text().replace("example.org", "example.com"))
    with pytest.raises(InputError, match="not a signing key"):
        read_key(path)
    assert own_key() == own_key()


@given(st.integers(0, 10_000), st.integers(1, 255))
@settings(max_examples=200, deadline=None)
def test_no_altered_note_is_a_head(place: int, flip: int) -> None:
    signer = own_key()
    root = base64.b64encode(bytes(32)).decode()
    note = signer.sign_note(f"a log\n17\n{root}\ncorpus {'a' * 64} - -\n")
    head = open_head(note, signer.verifier_key)
    assert (head.origin, head.size, head.root, head.corpora) == ("a log", 17, bytes(32), {"a" * 64: None})
    raw = bytearray(note.encode())
    raw[place % len(raw)] ^= flip
    try:
        altered = raw.decode()
    except UnicodeDecodeError:
        return
    with pytest.raises(Refused):
        open_head(altered, signer.verifier_key)


def test_tiles_are_named_and_filled_as_c2sp_has_them() -> None:
    assert tile_path(0, 0, 256) == "tile/0/000"
    assert tile_path(1, 1_234_067, 256) == "tile/1/x001/x234/067"
    assert tile_path(-1, 999, 17) == "tile/entries/999.p/17"
    hashes = [hashlib.sha256(b"%d" % n).digest() for n in range(256 * 3 + 5)]
    found = dict(tiles(hashes))
    assert sorted(p for p in found if "entries" not in p) == [
        "tile/0/000",
        "tile/0/001",
        "tile/0/002",
        "tile/0/003.p/5",
        "tile/1/000.p/3",
    ]
    assert found["tile/1/000.p/3"][32:64] == tree_root([leaf_hash(h) for h in hashes[256:512]])
    assert found["tile/entries/003.p/5"][:34] == b"\x00\x20" + hashes[768]
