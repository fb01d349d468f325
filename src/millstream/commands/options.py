"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated, Literal

import typer

RecipeFile = Annotated[Path, typer.Argument(metavar="RECIPE", help="Recipe file (YAML).", show_default=False)]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="Run folder, or its name below runs/.", show_default=False)]
CorpusFolder = Annotated[
    Path | None,
    typer.Option("--corpus", metavar="DIR", help="Corpus folder [default: corpora/NAME].", show_default=False),
]
CorpusPlace = Annotated[
    str | None,
    typer.Option(
        "--corpus",
        metavar="DIR|URL",
        help="Corpus folder, or its URL in an object store [default: where the recipe or run has it].",
        show_default=False,
    ),
]
CorpusGiven = Annotated[
    str, typer.Argument(metavar="CORPUS", help="Corpus folder, name below corpora/, or URL.", show_default=False)
]
Cache = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Keep whole shards of a corpus at a URL here, instead of reading ranges."),
]
CacheSize = Annotated[int, typer.Option("--cache-gb", help="Most that the cache may hold.", min=1)]
RunFolder = Annotated[
    Path | None, typer.Option("--run", metavar="DIR", help="Run folder [default: runs/NAME].", show_default=False)
]
AllowCode = Annotated[bool, typer.Option("--allow-code", help="Run functions that the recipe's scorers name.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Step = Annotated[
    int | None,
    typer.Option(help="Step of the checkpoint [default: the newest].", min=1, show_default=False),
]
WeightPrecision = Annotated[
    Literal["fp32", "bf16"] | None,
    typer.Option(help="Of the weights [default: what the run trains in].", show_default=False),
]
