"""``millstream export``: what a run or a corpus is, in the forms that others read."""

from pathlib import Path
from typing import Annotated

import orjson
import typer

from millstream import show
from millstream.audit.corpora import open_corpora
from millstream.audit.export_croissant import Publication, croissant_of, missing_from
from millstream.audit.export_exposures import write_exposures
from millstream.audit.export_intoto import envelope_of, statement_of
from millstream.audit.exposures import exposure_slices, open_course
from millstream.audit.runs import open_run
from millstream.audit.signing import own_key
from millstream.canonical import canonical_bytes
from millstream.commands.options import AsJson, CorpusPlace, RunName, Step, WeightPrecision
from millstream.errors import UsageError
from millstream.files import write_bytes
from millstream.places import existing_corpus, existing_run
from millstream.stream.corpora import open_corpus

app = typer.Typer(help="Write what a run or a corpus is in the forms that others read.", no_args_is_help=True)

Out = Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where to write it.", show_default=False)]


@app.command("exposures")
def exposures_command(run_name: RunName, out: Out, corpus: CorpusPlace = None, as_json: AsJson = False) -> None:
    """Every document in every row of every step that was fed, branches too, as one table (.parquet or .csv).

    Example: millstream export exposures demo --out exposures.parquet
    """
    run = open_run(existing_run(run_name))
    course = open_course(run, open_corpora(run, corpus))
    written = write_exposures(out, exposure_slices(course))
    if as_json:
        show.json({"run": run.name, "file": str(out), "exposures": written, "steps_fed": len(course.fed)})
        return
    show.line(f"{out}: {written:,} exposures in {len(course.fed):,} records of steps")


@app.command("eu")
def eu_command(
    run_name: RunName,
    out: Annotated[
        list[Path], typer.Option("--out", "-o", metavar="FILE", help="A .json or .md file; may be repeated.")
    ],
    disclosures: Annotated[
        Path | None,
        typer.Option(
            "--disclosures", metavar="FILE", help="What only the provider can state (YAML).", show_default=False
        ),
    ] = None,
    corpus: CorpusPlace = None,
    as_json: AsJson = False,
) -> None:
    """The EU's public summary of training content: counts of what was learned; the rest is "to be provided".

    Example: millstream export eu demo --disclosures demo-eu.yaml --out summary.json --out summary.md
    """
    from millstream.audit.content import learned_content
    from millstream.audit.disclosures import Disclosures
    from millstream.audit.export_eu import eu_markdown, eu_summary
    from millstream.mixture.load import load_as

    if wrong := [path for path in out if path.suffix not in (".json", ".md")]:
        raise UsageError(f"{wrong[0]}: expected a name that ends in .json or .md")
    told = load_as(Disclosures, disclosures) if disclosures else Disclosures(format="millstream-disclosures/1")
    run = open_run(existing_run(run_name))
    corpora = open_corpora(run, corpus)
    summary = eu_summary(run, corpora, learned_content(run, corpora, told), told)
    for path in out:
        if path.suffix == ".md":
            write_bytes(path, eu_markdown(summary).encode())
        else:
            write_bytes(path, orjson.dumps(summary, option=orjson.OPT_INDENT_2) + b"\n")
    whole, synthetic, left = summary["1.3"], summary["2.5"], len(summary["2"]["unassigned"])
    if as_json:
        counts = {name: whole[name] for name in ("documents", "bytes", "distinct_tokens", "learned_tokens")}
        show.json({"run": run.name, "files": list(map(str, out)), **counts, "synthetic_share": synthetic["share"]})
        return
    show.line(
        f"{', '.join(map(str, out))}: {whole['distinct_tokens']:,} distinct tokens of {whole['documents']:,} "
        f"documents, {whole['learned_tokens']:,} with repetitions"
    )
    show.line(f"synthetic {synthetic['share']:.2%}, not stated for {synthetic['not_stated_share']:.2%}")
    if left:
        show.line(f"{left} sources have no category; name it for each in a file for --disclosures")


@app.command("intoto")
def intoto_command(
    run_name: RunName,
    step: Annotated[int, typer.Option(help="Step of the checkpoint.", show_default=False)],
    out: Out,
    as_json: AsJson = False,
) -> None:
    """What a checkpoint was made from, as an in-toto statement in a DSSE envelope that this user's key signs.

    Example: millstream export intoto demo --step 200 --out step-200.intoto.json
    """
    run = open_run(existing_run(run_name))
    statement = statement_of(run, step)
    write_bytes(out, canonical_bytes(envelope_of(statement, own_key())) + b"\n")
    if as_json:
        show.json({"run": run.name, "file": str(out), "statement": statement})
        return
    show.line(f"{out}: {len(statement['subject'])} files of the checkpoint of step {step}")


@app.command("hf")
def hf_command(
    run_name: RunName,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder to make.", show_default=False)],
    step: Step = None,
    dtype: WeightPrecision = None,
    corpus: CorpusPlace = None,
    as_json: AsJson = False,
) -> None:
    """A checkpoint for transformers, vLLM and lm-eval: safetensors, config and tokenizer of Glm4MoeForCausalLM.

    Examples: millstream export hf demo --out demo-hf

    millstream export hf demo --step 120 --dtype fp32 --out demo-120
    """
    from millstream.train.export_hf import export_hf
    from millstream.train.keeping import checkpoint_to_read
    from millstream.train.weights import DTYPES

    run = open_run(existing_run(run_name))
    saved, index = checkpoint_to_read(run, step)
    held = next(iter(open_corpora(run, corpus).values()))
    precision = dtype or run.recipe.train.precision
    count = export_hf(run, saved, index, held, out, DTYPES[precision])
    if as_json:
        show.json({"run": run.name, "step": saved.step, "folder": str(out), "weights": count, "dtype": precision})
        return
    show.line(f"{out}: step {saved.step} of run {run.name}, {count:,} weights in {precision}")
    show.line(f"load it with: transformers.AutoModelForCausalLM.from_pretrained('{out}')")


@app.command("croissant")
def croissant_command(
    place: Annotated[
        str, typer.Argument(metavar="CORPUS", help="Corpus folder, URL, or name below corpora/.", show_default=False)
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Where to write it [default: in the corpus].")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Page of the corpus.", show_default=False)] = None,
    creator: Annotated[list[str] | None, typer.Option(help="Who made it; may be repeated.", show_default=False)] = None,
    description: Annotated[str | None, typer.Option(help="What it is [default: its counts].")] = None,
    as_json: AsJson = False,
) -> None:
    """A corpus's files, tables, sources and licences as Croissant 1.1 metadata, for search engines and loaders.

    Example: millstream export croissant demo --url https://example.org/demo --creator "Example Lab"
    """
    corpus = open_corpus(existing_corpus(place))
    if out is None:
        if not isinstance(corpus.root, Path):
            raise UsageError(f"{place}: is no local folder; say with --out where the file goes")
        out = corpus.root / "croissant.json"
    about = Publication(url=url, creators=tuple(creator or ()), description=description)
    metadata = croissant_of(corpus, about)
    missing = missing_from(metadata)
    write_bytes(out, orjson.dumps(metadata, option=orjson.OPT_INDENT_2) + b"\n")
    if as_json:
        show.json({"corpus_id": corpus.manifest.corpus_id, "file": str(out), "missing": missing})
        return
    files, sets = len(corpus.manifest.files()), len(metadata["recordSet"])
    show.line(f"{out}: {files:,} files, {sets} record sets, {len(metadata['license'])} licences")
    if missing:
        show.line(f"Croissant also requires {' and '.join(missing)}, which the corpus does not know")
