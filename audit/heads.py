"""Signed heads: what a run's ledger said at a time, fixed by one signature, and the tiles that proofs are made from.

    RUN/log/checkpoint            the newest head
    RUN/log/heads/SIZE.note       every head that was signed
    RUN/log/tile/...              the tree as static tiles (C2SP tlog-tiles), so that any web server can serve proofs

A head is a C2SP checkpoint: origin, number of records, root of the tree of RFC 6962 over the records' hashes; then a
line ``corpus ID KEYS_ROOT DOCUMENTS_ROOT`` for every corpus that the run's plans read (``-`` where its roots were not
computed). An entry of the log is a record's hash, 32 bytes.
"""

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from millstream.audit.ledger import FILE, Ledger
from millstream.audit.merkle import levels_of, roots_at, tree_root
from millstream.audit.runs import Run, open_run
from millstream.audit.signing import VARIABLE, Signer, own_key
from millstream.audit.verifier import Head, Refused, leaf_hash, open_head
from millstream.errors import UsageError
from millstream.files import write_bytes

FOLDER = "log"
HEIGHT = 8
WIDTH = 1 << HEIGHT


def origin_of(run: Run) -> str:
    """The name of a run's log; a branch's is one of its own, since it goes another way."""
    left = [r.hash for r in run.records.of("branch") if "of" in r.body]
    return f"millstream-run/{run.run_id}" + (f"/{left[-1]}" if left else "")


def head_text(run: Run, hashes: Sequence[bytes]) -> str:
    """The text of a head over records of these hashes."""
    root = base64.b64encode(tree_root([leaf_hash(h) for h in hashes])).decode()
    lines = [origin_of(run), str(len(hashes)), root]
    for corpus_id, roots in run.corpus_roots.items():
        lines.append(f"corpus {corpus_id} " + (f"{roots[0]} {roots[1]}" if roots else "- -"))
    return "".join(f"{line}\n" for line in lines)


def sign_head(run: Run, ledger: Ledger, signer: Signer) -> str:
    """Sign what a ledger holds now, on disk; returns the note.

    Args:
        run: the run as its ledger tells it now.
        ledger: the same, open.
        signer: by which key.

    Raises:
        SetupError: the disk is full.
    """
    ledger.sync()
    hashes = ledger.hashes()
    note = signer.sign_note(head_text(run, hashes))
    folder = run.path / FOLDER
    write_tiles(folder, hashes)
    write_bytes(folder / "heads" / f"{len(hashes):010d}.note", note.encode())
    write_bytes(folder / "checkpoint", note.encode())
    return note


def head_signer(run: Run, ledger: Ledger) -> Callable[[], None]:
    """A function that signs what a ledger holds when it is called; it does nothing in a run without a signer.

    Raises:
        UsageError: the run's first record names another key than this user's.
    """
    if run.signer is None:
        return lambda: None
    signer = own_key()
    if signer.verifier_key != run.signer:
        raise UsageError(
            f"{run.path}: its heads are signed by {run.signer}; the key here is {signer.verifier_key} ({VARIABLE} "
            f"names another)"
        )

    def sign() -> None:
        sign_head(open_run(run.path), ledger, signer)

    return sign


def heads_of(run_dir: Path) -> list[Path]:
    """The signed heads of a run, the oldest first."""
    return sorted((run_dir / FOLDER / "heads").glob("*.note"))


def tile_path(level: int, number: int, width: int) -> str:
    """Path of a tile as C2SP tlog-tiles names it; ``level`` -1 is for entries."""
    parts = [f"{number % 1000:03d}"]
    while number := number // 1000:
        parts.append(f"x{number % 1000:03d}")
    kind = "entries" if level < 0 else str(level)
    return f"tile/{kind}/{'/'.join(reversed(parts))}" + (f".p/{width}" if width < WIDTH else "")


def tiles(hashes: Sequence[bytes]) -> Iterator[tuple[str, bytes]]:
    """Every tile of a log of these entries: path and content. An entry stands with its length, u16 big-endian."""
    for first in range(0, len(hashes), WIDTH):
        own = hashes[first : first + WIDTH]
        yield tile_path(-1, first // WIDTH, len(own)), b"".join(len(e).to_bytes(2) + e for e in own)
    level, nodes = 0, [leaf_hash(h) for h in hashes]
    while nodes:
        whole = []
        for first in range(0, len(nodes), WIDTH):
            own = nodes[first : first + WIDTH]
            yield tile_path(level, first // WIDTH, len(own)), b"".join(own)
            if len(own) == WIDTH:
                whole.append(levels_of(own)[-1][0])
        level, nodes = level + 1, whole


def write_tiles(folder: Path, hashes: Sequence[bytes]) -> None:
    """Write the tiles that are not there yet; a tile's path says its content, so none ever changes."""
    for path, data in tiles(hashes):
        if not (folder / path).exists():
            write_bytes(folder / path, data)


def check_heads(run: Run, hashes: Sequence[bytes], verifier_key: str | None = None) -> tuple[int, list[str]]:
    """Judge the ledger against every signed head; returns how many heads there are, and the findings.

    Args:
        run: the run.
        hashes: of its records, as they are now.
        verifier_key: who has to have signed; by default the key that the run's first record names.
    """
    signer = verifier_key or run.signer
    paths = heads_of(run.path)
    if signer is None:
        return len(paths), []
    findings, newest = [], 0
    heads: dict[Path, Head] = {}
    for path in [*paths, run.path / FOLDER / "checkpoint"]:
        try:
            heads[path] = open_head(path.read_bytes().decode(), signer)
        except (OSError, UnicodeDecodeError, ValueError, Refused) as error:
            why = "missing" if isinstance(error, OSError) else str(error)
            findings.append(f"{path}: {why}")
    roots = roots_at([leaf_hash(h) for h in hashes], {head.size for head in heads.values()})
    for path, head in heads.items():
        if path.stem.isdecimal() and int(path.stem) != head.size:
            findings.append(f"{path}: is of {head.size} records")
        findings += [f"{path}: {why}" for why in _against(run, head, hashes, roots)]
        newest = max(newest, head.size)
        if head.size == len(hashes) and not findings:
            findings += [f"{path}: {why}" for why in _other_corpora(run, head)]
    if newest < len(hashes) and any(r.seq < newest for r in run.records.of("end")):
        findings.append(
            f"{run.path / FILE}:{newest + 1}: {len(hashes) - newest} records after the end of the run that no "
            f"head covers"
        )
    return len(paths), findings + list(_check_tiles(run.path / FOLDER, hashes[:newest]))


def _first_changed(run: Run, hashes: Sequence[bytes]) -> int:
    """The first record that is not the one of the log's tiles, which were written when it was signed."""
    for first in range(0, len(hashes), WIDTH):
        whole = run.path / FOLDER / tile_path(0, first // WIDTH, WIDTH)
        partial = sorted(whole.parent.glob(f"{whole.name}.p/*"), key=lambda p: p.stat().st_size)
        stored = next((p.read_bytes() for p in (whole, *reversed(partial)) if p.exists()), b"")
        for n, hashed in enumerate(hashes[first : first + WIDTH]):
            if stored[n * 32 : n * 32 + 32] != leaf_hash(hashed):
                return first + n
    return len(hashes)


def _check_tiles(folder: Path, hashes: Sequence[bytes]) -> Iterator[str]:
    """What is wrong with the tiles on disk; those of earlier sizes are beginnings of those of now."""
    wanted = dict(tiles(hashes))
    yield from (f"{folder / tile}: missing" for tile in wanted if not (folder / tile).exists())
    whole = {path.partition(".p/")[0]: data for path, data in wanted.items()}
    for path in sorted(p for p in (folder / "tile").rglob("*") if p.is_file()):
        name, _, width = path.relative_to(folder).as_posix().partition(".p/")
        item = 34 if name.startswith("tile/entries/") else 32
        data = path.read_bytes()
        if len(data) != int(width or WIDTH) * item or not whole.get(name, b"").startswith(data):
            yield f"{path}: not the tile of these records"


def _against(run: Run, head: Head, hashes: Sequence[bytes], roots: Mapping[int, bytes]) -> Iterator[str]:
    """What a head says that the ledger does not."""
    ledger = run.path / FILE
    if head.origin != origin_of(run):
        yield f"is a head of {head.origin}; {ledger} begins otherwise, from record {_first_changed(run, hashes)} on"
    elif head.size > len(hashes):
        yield f"covers {head.size} records, {ledger} has {len(hashes)}: records are missing"
    elif roots[head.size] != head.root:
        yield f"{ledger} holds other records than were signed, from record {_first_changed(run, hashes)} on"


def _other_corpora(run: Run, head: Head) -> Iterator[str]:
    """What a head says of corpora that the ledger, which is the one that was signed, does not."""
    known = {i: (bytes.fromhex(r[0]), bytes.fromhex(r[1])) if r else None for i, r in run.corpus_roots.items()}
    for corpus_id in known.keys() | head.corpora.keys():
        if corpus_id not in known or head.corpora.get(corpus_id) != known[corpus_id]:
            yield f"names other roots of corpus {corpus_id[:16]} than the ledger"
