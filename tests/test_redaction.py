"""Redaction: documents' tokens leave the corpus, all that was recorded still verifies, nothing else may change."""

import base64
import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from corpora import documents
from fed_runs import begin, feed, start
from typer.testing import CliRunner

from millstream.audit import redaction
from millstream.audit.branches import branch_run, compare_control, control_run
from millstream.audit.change import amend_run, reason, roll_back
from millstream.audit.commitments import commit, read_roots, record_commitments
from millstream.audit.corpora import open_corpora
from millstream.audit.document import audit_document
from millstream.audit.ledger import open_ledger
from millstream.audit.lookup import Question
from millstream.audit.lookup_index import index_lookups
from millstream.audit.prove import prove_included
from millstream.audit.redaction import bury_redacted, redact_documents
from millstream.audit.runs import Run, open_run
from millstream.audit.signing import own_key
from millstream.audit.takedown import find_gone, take_down
from millstream.audit.verifier import check
from millstream.audit.verify import verify_run
from millstream.cli import app
from millstream.errors import InputError, UsageError
from millstream.mixture.load import load_recipe
from millstream.stream.amend import Amendment, Span
from millstream.stream.corpora import open_corpus
from millstream.stream.shards import DomainReader, open_domain
from millstream.tokenize.build import build_corpus
from millstream.tokenize.manifest import Manifest, read_manifest
from millstream.tokenize.redactions import REDACTIONS, read_redactions

WHY = reason("letter of 3 May", "cy")


def started(home: Path, name: str) -> Path:
    """A run whose ledger has the corpus's roots."""
    path = home / name if (home / name).exists() else begin(home, name, own_key().verifier_key)
    with open_ledger(path) as ledger:
        run = open_run(path)
        record_commitments(ledger, run, open_corpora(run))
    return path


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with steps that were given up and a branch, and another run of the corpus; two documents taken down."""
    home = tmp_path_factory.mktemp("before") / "home"
    start(home, signer=own_key().verifier_key)
    commit(home / "corpus", read_manifest(home / "corpus"))
    path = started(home, "run")
    other = started(home, "other")
    feed(path, 6)
    feed(path, 9)
    roll_back(path, 6, reason("bad node", "bob"), undo=False)
    feed(path, 10)
    branch_run(path, home / "side", 6, WHY)
    feed(home / "side", 8)
    feed(other, 24)
    for run in (path, home / "side"):
        take_down(run, asked(home), None, WHY)
    return home


def asked(home: Path) -> list[Question]:
    """Documents that are a target in every run, in steps that were given up too, and are planned again."""
    run = open_run(home / "run")
    found = []
    for domain in ("verse", "law"):
        for doc_id in documents(home / "corpus", domain)["doc_id"]:
            wanted = Question(by="id", value=doc_id)
            (audit,) = audit_document(run, open_corpora(run), wanted)
            if {e.status for e in audit.exposures} >= {"learned", "superseded" if domain == "verse" else "learned"}:
                found.append(wanted)
                break
    assert len(found) == 2
    return found


@pytest.fixture
def home(before: Path, tmp_path: Path) -> Path:
    """A copy to do as one likes with."""
    shutil.copytree(before, tmp_path / "home")
    return tmp_path / "home"


@pytest.fixture
def redacted(home: Path) -> Path:
    """The same with the documents redacted, by the command."""
    (home / "corpus" / "search").mkdir()
    index_lookups(open_corpus(home / "corpus"))
    done = CliRunner().invoke(app, ["takedown", "redact", str(home / "run"), "--why", "letter of 3 May", "--json"])
    assert done.exit_code == 0, done.output
    (told,) = json.loads(done.output)["corpora"].values()
    assert told["documents"] == 2
    assert {Path(name).name for name in told["runs"]} == {"run", "other", "side"}
    assert told["removed"] == [".work", "lookup", "search"]
    return home


def findings(path: Path) -> dict[str, tuple[str, ...]]:
    return {c.name: c.findings for c in verify_run(open_run(path)) if c.findings}


def spans_of(home: Path) -> list[Span]:
    run = open_run(home / "run")
    return [gone.span for gone in find_gone(run, open_corpora(run), asked(home))]


def tokens_of(root: Path, manifest: Manifest, domain: str) -> DomainReader:
    held = manifest.domain(domain)
    reader = open_domain(root, held, manifest.tokenizer.dtype, held.tokens)
    assert isinstance(reader, DomainReader)
    return reader


def test_tokens_and_what_the_table_told_are_gone_and_nothing_else_moved(before: Path, redacted: Path) -> None:
    old, new = (read_manifest(home / "corpus") for home in (before, redacted))
    assert new.corpus_id == old.corpus_id
    assert (before / "corpus" / "corpus.json").read_bytes() == (redacted / "corpus" / "corpus.json").read_bytes()
    spans = spans_of(before)
    for domain in old.domains:
        was, now = (tokens_of(h / "corpus", m, domain.name) for h, m in ((before, old), (redacted, new)))
        expected = was.span(0, domain.tokens)
        for span in spans:
            if span.domain == domain.name:
                assert (expected[span.start : span.end] != old.tokenizer.eos_id).any()
                expected[span.start : span.end] = old.tokenizer.eos_id
        assert (now.span(0, domain.tokens) == expected).all()
        table, blank = (documents(home / "corpus", domain.name) for home in (before, redacted))
        starts = [span.start for span in spans if span.domain == domain.name]
        gone = pl.col("token_start").is_in(starts) & pl.col("shard").is_not_null()
        assert blank.drop("url", "metadata").equals(table.drop("url", "metadata"))
        assert blank["url"].null_count() == len(starts)
        assert blank.filter(~gone).equals(table.filter(~gone))
    listed = read_redactions(redacted / "corpus")
    assert listed is not None
    assert {(d.domain, d.token_start) for d in listed.documents} == {(s.domain, s.start) for s in spans}
    assert not list((redacted / "corpus").rglob("*.redacted"))


@pytest.mark.parametrize("name", ["run", "side", "other"])
def test_every_run_of_the_corpus_still_verifies(redacted: Path, name: str) -> None:
    checks = {c.name: c for c in verify_run(open_run(redacted / name))}
    assert not any(c.findings for c in checks.values()), checks
    assert checks["redactions"].looked_at == 2
    assert checks["commitments"].looked_at == 1
    kept = [r for r in open_run(redacted / name).records.of("redaction") if r.body["leaves"]]
    assert kept, "some leaves cannot be derived any more"


def test_it_goes_on_and_begins_anew_without_them(before: Path, redacted: Path) -> None:
    path = redacted / "run"
    feed(path, 14)
    assert not findings(path)
    # Back to before the takedown: the plan in force feeds them again, which nobody can.
    roll_back(path, 6, WHY, undo=True)
    assert bury_redacted(path, open_corpora(open_run(path))) == 2
    feed(path, 9)
    assert not findings(path)
    run = open_run(path)
    for wanted in asked(before):
        (audit,) = audit_document(run, open_corpora(run), wanted)
        assert all(e.step <= 6 or e.status == "superseded" for e in audit.exposures)
    begin(redacted, "new", own_key().verifier_key)
    new = started(redacted, "new")
    assert bury_redacted(new, open_corpora(open_run(new))) == 2
    assert bury_redacted(new, open_corpora(open_run(new))) == 0
    feed(new, 5)
    assert not findings(new)


def test_going_back_without_undoing_keeps_the_amendments_that_come_later(redacted: Path) -> None:
    path = redacted / "run"
    feed(path, 14)
    amend_run(path, Amendment(from_step=15, weights={"law": "0.3", "news": "0.3", "verse": "0.4"}), WHY)
    roll_back(path, 6, WHY, undo=False)
    before = open_run(path).plan.amendments
    assert bury_redacted(path, open_corpora(open_run(path))) == 2
    plan = open_run(path).plan
    assert plan.amendments[1:] == before
    assert {stone.from_step for stone in plan.tombstones} == {7}
    feed(path, 16)
    assert not findings(path)


def test_a_branch_and_a_control_from_before_know_of_it(redacted: Path) -> None:
    path = redacted / "run"
    branch_run(path, redacted / "late", 6, WHY)
    late = redacted / "late"
    assert bury_redacted(late, open_corpora(open_run(late))) == 2
    feed(late, 9)
    assert not findings(late)
    control = control_run(path, 6, "ann")
    assert bury_redacted(control, open_corpora(open_run(control))) == 0
    feed(control, 10)
    outcome = compare_control(path, control, 6)
    assert outcome["redacted"] > 0
    assert outcome["redacted"] + outcome["steps"] == 4
    assert (outcome["roots"], outcome["losses"]) == (0, 0)
    assert not findings(path)


def forge(home: Path, span: Span, value: int | None) -> None:
    """Change a token inside a span of a shard, by hand."""
    manifest = read_manifest(home / "corpus")
    shard = next(
        s for s in manifest.domain(span.domain).shards if s.token_start <= span.start < s.token_start + s.tokens
    )
    chunks = pl.read_parquet(home / "corpus" / shard.chunks.path)
    chunk = chunks.filter(pl.col("token_start") <= span.start).tail(1).row(0, named=True)
    path = home / "corpus" / shard.tar.path
    data = bytearray(path.read_bytes())
    for place in range(span.start, span.end):
        at = chunk["data_offset"] + 2 * (place - chunk["token_start"])
        data[at : at + 2] = (value if value is not None else data[at] ^ 1).to_bytes(2, "little")
    path.write_bytes(data)


def relist(home: Path, more: tuple[Span, ...] = ()) -> None:
    """Make the list of redactions say what lies there, as somebody would who wants it not to be seen."""
    root = home / "corpus"
    listed = read_redactions(root)
    assert listed is not None
    files = tuple(replace(f, sha256=hashlib.sha256((root / f.path).read_bytes()).hexdigest()) for f in listed.files)
    added = tuple(
        replace(listed.documents[0], domain=s.domain, token_start=s.start, n_tokens=s.end - s.start) for s in more
    )
    (root / REDACTIONS).write_bytes(replace(listed, files=files, documents=listed.documents + added).encoded())


def neighbour(home: Path) -> Span:
    """The document after a redacted one, in its shard."""
    span = spans_of(home)[0]
    table = documents(home / "corpus", span.domain).sort("token_start")
    row = table.filter(pl.col("token_start") > span.start).row(0, named=True)
    return replace(span, start=row["token_start"], end=row["token_start"] + row["n_tokens"])


def test_a_shard_that_was_changed_without_a_word_is_found(redacted: Path) -> None:
    span = neighbour(redacted)
    forge(redacted, replace(span, end=span.start + 1), None)
    found = findings(redacted / "run")
    assert any("altered" in why for why in found["corpus"])
    assert "commitments" in found
    relist(redacted)
    found = findings(redacted / "run")
    assert "corpus" not in found
    assert any("its redactions are not the ledger's" in why for why in found["redactions"])
    assert "commitments" in found


def test_what_is_called_redacted_has_to_be_gone_and_recorded(redacted: Path) -> None:
    span = neighbour(redacted)
    eos = read_manifest(redacted / "corpus").tokenizer.eos_id
    relist(redacted, (span,))
    found = findings(redacted / "run")["redactions"]
    assert any("is listed as redacted and is still there" in why for why in found)
    forge(redacted, span, eos)
    relist(redacted)
    found = findings(redacted / "run")
    assert any("its redactions are not the ledger's" in why for why in found["redactions"])
    assert "commitments" in found, "the digest of its tokens as they were is not made up so easily"


def test_what_was_recorded_as_redacted_must_not_come_back(before: Path, redacted: Path) -> None:
    shutil.rmtree(redacted / "corpus")
    shutil.copytree(before / "corpus", redacted / "corpus")
    found = findings(redacted / "run")
    assert list(found) == ["redactions"]
    assert any("found none" in why for why in found["redactions"])


def test_a_ledger_keeps_no_leaf_of_a_row_without_them(redacted: Path) -> None:
    path = redacted / "run"
    leaf = {"record": next(open_run(path).records.of("step")).seq, "row": 0, "leaf": "0" * 64}
    first = next(open_run(path).records.of("redaction")).body
    rows = {(e["record"], e["row"]) for r in open_run(path).records.of("redaction") for e in r.body["leaves"]}
    assert (leaf["record"], 0) not in rows, "choose another row"
    with open_ledger(path) as ledger:
        ledger.append("redaction", first | {"leaves": [leaf]})
    found = findings(path)
    assert any("which holds nothing redacted" in why for why in found["redactions"])


def test_a_proof_shows_that_it_was_fed_but_no_tokens(before: Path, redacted: Path) -> None:
    run = open_run(redacted / "run")
    corpora = open_corpora(run)
    wanted = asked(before)[0]
    (audit,) = audit_document(run, corpora, wanted)
    step = audit.exposures[0].step
    proof = prove_included(run, corpora, wanted, step, tokens=False)
    assert any(f"step {step} was recorded as fed" in line for line in check(proof, verifier_key=run.signer))
    with pytest.raises(UsageError, match="were redacted; prove it with --no-tokens"):
        prove_included(run, corpora, wanted, step, tokens=True)


def test_what_a_crash_leaves_is_finished_by_doing_it_again(
    before: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(home / "run")
    (corpus,) = open_corpora(run).values()
    whole = redaction.redact

    def stop(root: Path, prepared: object) -> list[str]:
        assert hasattr(prepared, "redactions")
        (root / REDACTIONS).write_bytes(prepared.redactions.encoded())
        new, old = prepared.files[0]  # type: ignore[attr-defined]
        new.replace(old)
        raise KeyboardInterrupt

    monkeypatch.setattr(redaction, "redact", stop)
    with pytest.raises(KeyboardInterrupt):
        redact_documents(home / "run", corpus, spans_of(home), WHY)
    monkeypatch.setattr(redaction, "redact", whole)
    assert findings(home / "run")
    spans = spans_of(before)
    done = CliRunner().invoke(app, ["takedown", "redact", str(home / "run"), "--why", "letter of 3 May"])
    assert "are redacted already" in str(done.exception)
    for name in ("run", "side", "other"):
        assert not findings(home / name)
    assert not list((home / "corpus").rglob("*.redacted"))
    assert spans_of(home) == spans


def test_a_changed_shard_is_not_made_to_look_right(home: Path) -> None:
    (corpus,) = open_corpora(open_run(home / "run")).values()
    spans = spans_of(home)
    following = documents(home / "corpus", "law").filter(pl.col("token_start") >= spans[1].end)["token_start"][0]
    forge(home, replace(spans[1], start=following, end=following + 1), None)
    with pytest.raises(InputError, match=r"altered|is not the one that the corpus gives"):
        redact_documents(home / "run", corpus, spans, WHY)
    assert not (home / "corpus" / REDACTIONS).exists()
    assert not list(open_run(home / "run").records.of("redaction"))


def planned(run: Run, doc_id: str) -> bool:
    (audit,) = audit_document(run, open_corpora(run), Question(by="id", value=doc_id))
    return any(e.status == "planned" for e in audit.exposures)


def test_what_a_run_would_be_fed_is_not_redacted(home: Path) -> None:
    run = open_run(home / "run")
    (corpus,) = open_corpora(run).values()
    fresh = begin(home, "fresh", own_key().verifier_key)
    with pytest.raises(UsageError, match="fresh: would still be fed"):
        redact_documents(home / "run", corpus, spans_of(home), WHY)
    take_down(fresh, asked(home), None, WHY)
    doc_id = next(d for d in documents(home / "corpus", "verse")["doc_id"] if planned(run, d))
    done = CliRunner().invoke(app, ["takedown", "redact", str(home / "run"), doc_id, "--why", "x"])
    assert "would still be fed" in str(done.exception)
    assert not (home / "corpus" / REDACTIONS).exists()
    assert not list((home / "corpus").rglob("*.redacted"))
    assert not findings(home / "run")


def test_the_certificate_says_by_which_record_and_files(redacted: Path, tmp_path: Path) -> None:
    out = tmp_path / "c.json"
    done = CliRunner().invoke(app, ["takedown", "report", str(redacted / "run"), "--certificate", str(out)])
    assert done.output.count("redacted, record") == 2
    predicate = json.loads(base64.b64decode(json.loads(out.read_bytes())["payload"]))["predicate"]
    for said in predicate["takedowns"]:
        record = open_run(redacted / "run").records[said["redaction"]["record"]]
        assert (record.kind, record.hash) == ("redaction", said["redaction"]["hash"])
        list_now = (redacted / "corpus" / REDACTIONS).read_bytes()
        assert said["redaction"]["redactions"] == hashlib.sha256(list_now).hexdigest()
        for file in said["redaction"]["files"]:
            data = (redacted / "corpus" / file["path"]).read_bytes()
            assert hashlib.sha256(data).hexdigest() == file["sha256"] != file["sealed_sha256"]


def test_a_build_does_not_bring_them_back(redacted: Path) -> None:
    recipe = load_recipe(redacted / "recipe.yaml")
    with pytest.raises(UsageError, match="a build would bring them back"):
        build_corpus(recipe, redacted, redacted / "corpus", tasks=1, progress=lambda *_: None)
    roots = read_roots(redacted / "corpus", read_manifest(redacted / "corpus"))
    assert roots is not None
