"""``millstream generate``: text by a trained model."""

import os
from pathlib import Path
from typing import Annotated

import typer

from millstream import show
from millstream.audit.corpora import open_corpora
from millstream.audit.runs import open_run
from millstream.commands.options import AsJson, CorpusPlace, Step, WeightPrecision
from millstream.errors import UsageError
from millstream.places import existing_run


def generate(
    model: Annotated[str, typer.Argument(metavar="RUN|DIR", help="Run, or folder of 'export hf'.", show_default=False)],
    prompt: Annotated[list[str], typer.Option("--prompt", "-p", help="Text to continue.", show_default=False)],
    tokens: Annotated[int, typer.Option(help="Most tokens to write.", min=1)] = 64,
    samples: Annotated[int, typer.Option(help="Continuations of each prompt.", min=1)] = 1,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.", min=0)] = 0.0,
    top_p: Annotated[float, typer.Option(help="Choose among the likeliest with this much probability.", max=1)] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the choices.", min=0)] = 0,
    step: Step = None,
    dtype: WeightPrecision = None,
    corpus: CorpusPlace = None,
    as_json: AsJson = False,
) -> None:
    """Let a model go on with a text: that of a run's checkpoint, or of an exported folder.

    Examples: millstream generate demo --prompt "The Wonderful Wizard"

    millstream generate demo-hf --prompt "def main" --samples 3 --temperature 0.8 --top-p 0.95
    """
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        # DeepSpeed, whose layer ours derives from, else says on stdout that it found no GPU.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from millstream.train.generate import Sampling, write
    from millstream.train.keeping import checkpoint_to_read
    from millstream.train.pretrained import of_checkpoint, of_folder
    from millstream.train.weights import DTYPES

    if top_p <= 0:
        raise UsageError(f"--top-p {top_p}: must be above 0")
    if (Path(model) / "config.json").is_file():
        if step is not None or corpus is not None:
            raise UsageError(
                f"{model}: an exported folder is one step and has its tokenizer; leave --step and --corpus"
            )
        loaded = of_folder(Path(model), DTYPES[dtype] if dtype else None, device)
        where: dict[str, object] = {"folder": model}
    else:
        run = open_run(existing_run(model))
        saved, index = checkpoint_to_read(run, step)
        held = next(iter(open_corpora(run, corpus).values()))
        precision = DTYPES[dtype or run.recipe.train.precision]
        loaded = of_checkpoint(run, run.path / saved.path, index, held, precision, device)
        where = {"run": run.name, "step": saved.step}
    sampling = Sampling(temperature=temperature, top_p=top_p, seed=seed)
    all_written = [(text, write(loaded, text, tokens=tokens, samples=samples, sampling=sampling)) for text in prompt]
    if as_json:
        told = [{"prompt": text, "continuations": written} for text, written in all_written]
        show.json(where | {"sampling": sampling, "prompts": told})
        return
    for text, written in all_written:
        for one in written:
            show.line(text + one.text + ("" if one.ended else " ..."))


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(generate)
