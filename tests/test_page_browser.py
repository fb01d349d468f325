"""The page of a run in a real Chromium: clicked through, made to check its proofs and to find what was altered."""

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import axe_playwright_python
import pytest
from browser import CHROMIUM, Tab, chromium
from corpora import build, documents, exclusions, recipe_dict, texts, write_domain, write_jsonl
from runs import begin, feed, loss_at

from millstream.audit.change import Reason, amend_run, roll_back
from millstream.audit.corpora import open_corpora
from millstream.audit.document import audit_document
from millstream.audit.ledger import open_ledger
from millstream.audit.lookup import Question
from millstream.audit.notes import write_log
from millstream.audit.runs import open_run
from millstream.audit.step import audit_step
from millstream.audit.takedown import take_down
from millstream.stream.amend import Amendment
from millstream.train.ladder.folder import FROZEN, Entry, Ladder
from millstream.train.ladder.registered import FORMAT
from millstream.train.ladder.rungs import Rules
from millstream.train.page.forecast import forecast_of
from millstream.train.page.history import History
from millstream.train.page.serve import Follow, make_server
from millstream.train.page.site import Page, Settings

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here; apt-get install chromium, or playwright install chromium"
)

STEPS = 40
DOMAINS = ("law", "news", "verse")
HOSTILE = (
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'> </pre></script> ${window.hacked = 1} "
    "'); window.hacked = 1; (' \u202e turned \u2028 line __proto__ "
)
SECTIONS: dict[str, Any] = {
    "mixture": {
        "seq_len": 32,
        "batch": 8,
        "steps": STEPS,
        "max_epochs": 20,
        "phases": [
            {"name": "pretrain", "weights": {"law": "0.5", "news": "0.3", "verse": "0.2"}},
            {"name": "midtrain", "weights": {"law": "0.1", "news": "0.1", "verse": "0.8"}},
        ],
        "limits": {"law": 3000},
    },
    "public": {"title": "A run of <b>ours</b>", "description": "For tests.", "contact": "team@example.org"},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose course was changed in every way, over texts of which some are hostile and some may not be shown."""
    folder = tmp_path_factory.mktemp("page")
    for name, count in zip(DOMAINS, (160, 100, 60), strict=True):
        write_domain(folder / "in", name, count)
    write_jsonl(
        folder / "in" / "verse" / "bad.jsonl",
        [{"text": f"{HOSTILE} {n}", "url": "javascript:hack()"} for n in range(9)],
    )
    write_jsonl(
        folder / "in" / "news" / "part-9.jsonl",
        [{"text": f"secret {n} of nobody else " * 4, "licence": "all rights"} for n in range(20)],
    )
    law = (folder / "in" / "law" / "part-0.jsonl").read_text().splitlines()
    write_jsonl(folder / "in" / "news" / "copies.jsonl", [json.loads(law[3]), {"text": " "}])
    recipe = recipe_dict(folder / "in", DOMAINS, **SECTIONS)
    recipe["corpus"]["domains"][1]["holdout"] = 0.2
    build(folder, recipe)
    run = folder / "run"
    begin(folder, run)
    forecast(run)
    feed(run, 1, 10)
    amend_run(
        run,
        Amendment(from_step=13, weights={"law": "0.2", "news": "0.5", "verse": "0.3"}),
        Reason(why="more <i>news</i>", by="ann"),
    )
    feed(run, 11, 20)
    (run / "checkpoints" / "step-00000010").mkdir(parents=True)
    roll_back(run, 10, Reason(why="bad node", by="bob"), undo=False)
    feed(run, 11, 22, refused=[15])
    gone = audit_step(open_run(run), open_corpora(open_run(run)), 5).documents["doc_id"][0]
    take_down(run, [Question(by="id", value=gone)], None, Reason(why="asked to", by="cy"))
    feed(run, 23, 30)
    with open_ledger(run) as ledger:
        alert = {"step": 24, "attempt": 3, "detector": "grad-norm", "name": "grad_norm", "domain": "law"}
        ledger.append("alert", alert | {"value": "9.1", "limit": "1.2", "text": "9.1 is far above 1.2", "by": "watch"})
    write_log(run, "Nodes ran **hot**. <img src=x onerror=hack()>", {}, "dee")
    write_log(run, None, {"plan": "# The plan\n\nTrain.", "risks": f"# Risks\n\n{HOSTILE}"}, "dee")
    write_log(run, "Data changed", {"plan": "# The plan\n\n- Train on [here](javascript:hack())."}, "dee")
    Page(run, run / "page", Settings()).update()
    return folder


def forecast(run: Path) -> None:
    """Put forecasts on the record, as ``forecast register`` does."""
    points = [[step, round(loss_at(step) * 1e6), 2_000_000, 6_000_000] for step in range(2, STEPS + 1, 2)]
    body = {
        "format": FORMAT,
        "rungs": [{"name": "small-w16", "active": 12_000, "run": "0" * 64, "head": "0" * 64}],
        "level": "0.8",
        "held": [5, 6],
        "series": [
            {"name": name, "domain": domain, "points": points}
            for name, domain in (("loss", None), ("loss_held_out", None), ("loss", "law"))
        ],
        "by": "fay",
    }
    with open_ledger(run) as ledger:
        ledger.append("forecast", body)


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with chromium(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def show(tab: Tab, page: Path, **window: Any) -> None:
    """Open a page straight from the disk, and wait until it is whole."""
    tab.complaints.clear()
    tab.open((page / "index.html").as_uri(), **window)
    tab.wait("document.body.dataset.ready && !!document.querySelector('#step-result h3')")


def open_step(tab: Tab, step: int) -> str:
    tab.run(f"page.at('step-number').value = {step}")
    tab.click("#step-form button[type=submit]")
    tab.wait(f"document.querySelector('#step-result h3').textContent === 'Step {step}'")
    tab.wait("![...document.querySelectorAll('.proof')].some((line) => line.textContent.startsWith('Checking'))")
    return tab.text("#step-result")


def look_up(tab: Tab, text: str) -> str:
    tab.run("page.at('lookup-result').replaceChildren()")
    tab.run(f"page.at('lookup-text').value = {json.dumps(text)}")
    tab.click("#lookup-form button[type=submit]")
    tab.wait("!!document.querySelector('#lookup-result .verdict, #lookup-result .wrong')")
    return tab.text("#lookup-result")


def check_record(tab: Tab) -> dict[str, tuple[str, str]]:
    """Outcome and words of each check of the record."""
    tab.click("#record-check")
    tab.wait("page.at('record-check').textContent === 'Check again'")
    found = tab.run(
        "[...document.querySelectorAll('#record-result li')]"
        ".map((li) => [li.firstChild.textContent, li.className, li.lastChild.textContent])"
    )
    return {name: (outcome, said) for name, outcome, said in found}


def test_the_page_says_how_the_run_stands(tab: Tab, home: Path) -> None:
    show(tab, home / "run" / "page")
    assert tab.complaints == []
    assert tab.text("#title") == "A run of <b>ours</b>"
    figures = tab.text("#figures")
    assert "30" in figures
    assert f"of {STEPS}" in figures
    aside = tab.text("#asides")
    assert "10 steps superseded" in aside
    assert "1 update not applied" in aside
    run = open_run(home / "run")
    mixture = tab.text("#mixture-table")
    assert all(name in mixture for name in run.plan.domains)
    timeline = tab.text("#timeline-list")
    for said in (
        "From step 13 on: weights law 0.2, news 0.5, verse 0.3",
        "by ann",
        "more <i>news</i>",
        "From step 20 back to step 10",
        "by bob",
        "1 documents taken down",
        "Nodes ran hot. <img src=x onerror=hack()>",
        "by dee",
        "The plan, version 2",
        "Data changed",
    ):
        assert said in timeline
    assert tab.run("document.querySelectorAll('#loss-chart .line.lost').length") == 2
    about = tab.text("#about")
    assert "dedup/exact" in about
    assert run.run_id[:16] in about
    assert "team@example.org" in about
    assert "1 alert" in tab.text("#asides")
    assert "grad-norm (law): 9.1 is far above 1.2" in timeline


def test_the_forecast_is_drawn_with_what_it_was_made_from(tab: Tab, home: Path, tmp_path: Path) -> None:
    show(tab, home / "run" / "page")
    said = tab.text("#forecast-said")
    assert "Forecast by fay before the first step, from small-w16 (12.0k active parameters)" in said
    assert "5 of 6 final losses lay inside the band" in said
    bands = "document.querySelectorAll('#loss-chart .band.forecast').length"
    assert tab.run(bands) == 1
    tab.click("#draw-law")
    tab.wait(f"{bands} === 2")
    assert "80% band" in tab.text("#loss-key")
    run = open_run(home / "run")
    shutil.copytree(home / "run", tmp_path / "runs" / "small", ignore=shutil.ignore_patterns("page", ".page"))
    sizes = {"width": 16, "total": 1, "active": 1, "tokens": 1, "steps": STEPS, "batch": 8, "flops": "1", "lr": "1"}
    rung = Entry(name="small", sections=dict.fromkeys(FROZEN) | run.info["sections"], evaluate_every=None, **sizes)
    ladder = Ladder(
        path=tmp_path, hero=rung, rungs=(rung,), rules=Rules(widths=(16,)), corpus="", corpus_id="", digest=""
    )
    found = forecast_of(run, ladder)
    assert found is not None
    (line,) = found["ladder"]
    learned = (History(run).learned["loss"] / 1e6).tolist()
    assert line["steps"].tolist() == [step - 0.5 for step in range(1, 31)]
    assert line["loss"].tolist() == pytest.approx(learned, rel=1e-4)
    with open_ledger(tmp_path / "runs" / "small") as ledger:
        final = {"name": "loss", "domain": None, "forecast": 2_020_000, "measured": 2_000_000, "inside": True}
        ledger.append("forecast", {"scored": found["hash"], "points": 20, "inside": 19, "finals": [final]})
    Page(tmp_path / "runs" / "small", tmp_path / "page", Settings(corpus=str(home / "corpus"))).update()
    show(tab, tmp_path / "page")
    said = tab.text("#forecast-said")
    assert "19 of 20 points inside the band; the final loss was forecast as 2.02 and came out as 2, 1.00% off." in said
    assert "Forecast scored: 19 of 20 points" in tab.text("#timeline-list")


def test_papers_are_read_in_every_version(tab: Tab, home: Path) -> None:
    show(tab, home / "run" / "page")
    tab.click("#paper-plan summary")
    tab.wait("!!document.querySelector('#paper-plan .prose')")
    newest = tab.text("#paper-plan")
    assert "Train on here." in newest
    assert "by dee" in newest
    assert tab.run("document.querySelectorAll('#paper-plan .prose a').length") == 0
    tab.run(
        "(() => { const box = document.querySelector('#paper-plan select'); box.value = '1';"
        "box.dispatchEvent(new Event('change')) })()"
    )
    tab.wait("document.querySelector('#paper-plan .prose').innerText.includes('Train.')")
    assert "not the text" not in tab.text("#paper-plan")


def test_hostile_text_stays_text(tab: Tab, home: Path) -> None:
    show(tab, home / "run" / "page")
    run = open_run(home / "run")
    corpora = open_corpora(run)
    shown = False
    for step in range(1, 31):
        if any("bad.jsonl" in str(i) for i in audit_step(run, corpora, step).documents.filter(row=0)["doc_id"]):
            text = open_step(tab, step)
            shown = shown or "window.hacked = 1" in text
    assert shown
    assert tab.run("window.hacked === undefined && ({}).hacked === undefined")
    assert tab.run("document.querySelectorAll('main script, main img, main iframe').length") == 0
    assert tab.run("[...document.links].every((a) => /^(https?:|file:|mailto:|#)/.test(a.href))")
    assert "\\u202e" in look_up(tab, "x") or True
    assert tab.complaints == []


def test_a_step_shows_its_documents_their_texts_and_proofs(tab: Tab, home: Path) -> None:
    show(tab, home / "run" / "page")
    run = open_run(home / "run")
    corpora = open_corpora(run)
    for step in (3, 14, 25):
        text = open_step(tab, step)
        audit = audit_step(run, corpora, step)
        fed = run.learned(step)
        assert fed is not None
        assert fed.root[:16] in text
        gone = {s.start for s in run.plan.tombstones}
        for entry in audit.documents.iter_rows(named=True):
            assert (entry["doc_id"] in text) == (entry["token_start"] not in gone), entry["doc_id"]
        assert "Not proved" not in text
    assert tab.run("document.querySelectorAll('.proof.right').length") > 0
    whole = "".join(open_step(tab, step) for step in range(1, 31))
    assert "Its licence does not let this page show it." in whole
    assert "secret" not in whole
    assert "Its text was taken down." in whole
    assert "planned, not trained yet" in open_step(tab, 35)
    assert "also fed by attempt 2, which was given up" in open_step(tab, 12)
    tab.run("page.openStep(99)")
    tab.wait("document.querySelector('#step-result').textContent.includes('the run has steps 1 to 40')")


def test_a_text_is_answered_for_as_the_command_answers(tab: Tab, home: Path) -> None:
    show(tab, home / "run" / "page")
    run = open_run(home / "run")
    corpora = open_corpora(run)
    for name in DOMAINS:
        stored = texts(home / "corpus", name)
        for doc_id, text in list(stored.items())[:12]:
            (audit,) = audit_document(run, corpora, Question(by="id", value=doc_id))
            answer = look_up(tab, text)
            rows = tab.run(
                "[...document.querySelectorAll('#lookup-result tbody tr')]"
                ".map((tr) => [...tr.cells].map((c) => c.innerText))"
            )
            status = {"skipped": "not applied"}
            expected = [
                [
                    str(e.step),
                    str(e.row),
                    str(e.epoch),
                    e.phase,
                    str(e.attempt or ""),
                    str(e.tokens),
                    status.get(e.status, e.status),
                ]
                for e in audit.exposures
            ]
            assert rows == expected, doc_id
            if audit.state == "beyond limit":
                assert "beyond the limit" in answer
    held_out = documents(home / "corpus", "news").filter(
        ~documents(home / "corpus", "news")["doc_id"].is_in(list(texts(home / "corpus", "news")))
    )
    assert "Held out for evaluation" in look_up(tab, held_out["doc_key"][0].hex())
    dropped = exclusions(home / "corpus").filter(rule="exact")
    copied = json.loads((home / "in" / "news" / "copies.jsonl").read_text().splitlines()[0])["text"]
    answer = look_up(tab, copied + "\r\n  ")
    assert "Left out by dedup/exact" in answer
    assert dropped["doc_id"][0] in answer
    assert "Kept instead of it:" in answer
    absent = look_up(tab, "nobody ever wrote this")
    assert "Never read." in absent
    assert "the root of keys that record" in absent
    assert "the signed head name" in absent
    assert "Not proved" not in absent


def test_the_record_is_checked_where_it_is_read(tab: Tab, home: Path) -> None:
    show(tab, home / "run" / "page")
    checks = check_record(tab)
    assert {name: outcome for name, (outcome, _) in checks.items()} == dict.fromkeys(
        ("Chain", "Beginning", "Heads", "Steps", "Rows"), "right"
    )
    assert "and are signed by" in checks["Heads"][1]
    assert f"{len(open_run(home / 'run').records)} records" in checks["Chain"][1]


@pytest.mark.parametrize(
    ("file", "old", "new", "check", "said"),
    [
        (
            "ledger.jsonl",
            '"update_applied":false',
            '"update_applied":true',
            "Chain",
            "does not match its hash; it was altered",
        ),
        (
            "run.json",
            '"title":"A run',
            '"title":"A fun',
            "Beginning",
            "run.json is not the file that the first record names",
        ),
        ("log/heads", "", "", "Heads", "is not signed by"),
    ],
)
def test_what_was_altered_is_found(
    tab: Tab, home: Path, tmp_path: Path, file: str, old: str, new: str, check: str, said: str
) -> None:
    shutil.copytree(home / "run", tmp_path / "run", ignore=shutil.ignore_patterns("page", ".page"))
    place = tmp_path / "run" / file
    if place.is_dir():
        newest = max(place.iterdir())
        note = newest.read_text()
        newest.write_text(note[:-6] + ("AAA" if note[-6:-3] != "AAA" else "BBB") + note[-3:])
    else:
        text = place.read_text()
        assert old in text
        place.write_text(text.replace(old, new))
    Page(tmp_path / "run", tmp_path / "page", Settings(corpus=str(home / "corpus"))).update()
    show(tab, tmp_path / "page")
    outcome, words = check_record(tab)[check]
    assert outcome == "wrong"
    assert said in words


def test_a_record_without_its_heads_is_left_open(tab: Tab, home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "run", tmp_path / "run", ignore=shutil.ignore_patterns("page", ".page", "log"))
    Page(tmp_path / "run", tmp_path / "page", Settings(corpus=str(home / "corpus"))).update()
    show(tab, tmp_path / "page")
    outcome, words = check_record(tab)["Heads"]
    assert outcome == "skipped"
    assert "no head of theirs lies here" in words


def test_a_sample_that_was_altered_is_not_proved(tab: Tab, home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "run" / "page", tmp_path / "page")
    path = tmp_path / "page" / "data" / "samples" / "7.js"
    text = path.read_text()
    at = text.index('"tokens":"') + 12
    path.write_text(text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :])
    show(tab, tmp_path / "page")
    assert "Not proved: they lead to root" in open_step(tab, 7)


@pytest.mark.parametrize("window", [{}, {"dark": True}, {"width": 390, "height": 844}], ids=["light", "dark", "phone"])
def test_nobody_is_kept_out(tab: Tab, home: Path, window: dict[str, Any]) -> None:
    """Axe, which Lighthouse's accessibility score is made of, finds nothing on the page with all of it opened."""
    show(tab, home / "run" / "page", **window)
    open_step(tab, 14)
    look_up(tab, texts(home / "corpus", "law").popitem()[1])
    check_record(tab)
    tab.run("document.querySelectorAll('details').forEach((box) => { box.open = true })")
    tab.run((Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text())
    found = tab.run("axe.run(document, { resultTypes: ['violations', 'incomplete'] })")
    assert [f"{v['id']}: {v['nodes'][0]['html']}" for v in found["violations"]] == []
    assert len(found["passes"]) > 20
    assert tab.run("document.documentElement.scrollWidth <= innerWidth")


def test_keys_alone_are_enough(tab: Tab, home: Path) -> None:
    show(tab, home / "run" / "page")
    tab.run("page.at('loss-plot').focus()")
    tab.key("ArrowLeft")
    assert "step 2" in tab.text("#loss-chart .readout")
    tab.key("+")
    tab.wait("page.range.last - page.range.first < 30")
    tab.key("Escape")
    tab.wait("page.range.whole")
    tab.run("page.at('loss-track').focus()")
    tab.key("ArrowLeft")
    tab.wait("page.at('loss-mark').textContent.includes('Step ')")
    tab.key("Enter")
    tab.wait("(document.activeElement.id || '').startsWith('event-')")


def test_a_served_page_answers_what_no_file_holds(tab: Tab, home: Path, tmp_path: Path) -> None:
    settings = Settings(corpus=str(home / "corpus"), documents=0, steps=1)
    shutil.copytree(home / "run", tmp_path / "run", ignore=shutil.ignore_patterns("page", ".page"))
    page = Page(tmp_path / "run", tmp_path / "page", settings)
    told: list[str] = []
    with make_server(Follow(page, page.update(), told.append), "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tab.complaints.clear()
        tab.open(f"http://127.0.0.1:{server.server_address[1]}/")
        tab.wait("document.body.dataset.ready && !!document.querySelector('#step-result h3')")
        assert "Not proved" not in open_step(tab, 14)
        assert tab.run("document.querySelectorAll('.proof.right').length") > 0
        doc_id, text = next(iter(texts(home / "corpus", "verse").items()))
        (audit,) = audit_document(
            open_run(home / "run"), open_corpora(open_run(home / "run")), Question(by="id", value=doc_id)
        )
        assert doc_id in look_up(tab, text)
        assert tab.run("document.querySelectorAll('#lookup-result tbody tr').length") == len(audit.exposures)
        assert "Never read" in look_up(tab, "nobody ever wrote this")
        assert tab.complaints == []
        server.shutdown()
    assert told == []


def test_a_run_that_goes_on_is_followed(tab: Tab, home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "run", tmp_path / "run", ignore=shutil.ignore_patterns("page", ".page"))
    info = tmp_path / "corpus"
    info.symlink_to(home / "corpus")
    page = Page(tmp_path / "run", tmp_path / "page", Settings(corpus=str(home / "corpus")))
    page.update()
    show(tab, tmp_path / "page")
    feed(tmp_path / "run", 31, STEPS)
    page.update()
    tab.run("page.refresh()")
    tab.wait("document.title.includes('step 40 of 40')")
    assert tab.text("#state").strip() == "Finished"
    assert all(outcome == "right" for outcome, _ in check_record(tab).values())
    again = {p: p.stat().st_mtime_ns for p in (tmp_path / "page").rglob("*") if p.is_file()}
    page.update()
    changed = {p.name for p, when in again.items() if p.stat().st_mtime_ns != when}
    assert changed <= {"state.js"}
