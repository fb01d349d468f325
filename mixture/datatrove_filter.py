"""Any datatrove filter or formatter, named in a recipe by its class, over a batch.

Only classes below ``datatrove.pipeline.filters`` and ``datatrove.pipeline.formatters`` are taken: a recipe must not
be able to import and construct whatever is on the path.
"""

import copy
import importlib
from functools import lru_cache
from typing import Any

import orjson
import polars as pl
from datatrove.data import Document
from datatrove.pipeline.filters.base_filter import BaseFilter, get_filter_result
from datatrove.pipeline.formatters.base import BaseFormatter

from millstream.errors import InputError, RecipeError, SetupError
from millstream.mixture.documents import DOCUMENT_SCHEMA, document_key
from millstream.mixture.rules import DatatroveFilter, DatatroveFormatter

PACKAGE = "datatrove.pipeline"
KINDS = {"filter": BaseFilter, "formatter": BaseFormatter}


def run_datatrove_filter(documents: pl.DataFrame, rule: DatatroveFilter) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Split documents into kept and dropped by a datatrove filter.

    A text that the filter changes is carried on: ``edits`` names the class, ``text_key`` is taken anew.

    Raises:
        InputError: the filter failed on a document.
    """
    made = _made(rule)
    name = type(made).__name__
    kept, texts, reasons = [], [], []
    for doc_id, text, metadata in documents.select("doc_id", "text", "metadata").iter_rows():
        document = Document(text=text, id=doc_id, metadata=orjson.loads(metadata))
        try:
            keep, reason = get_filter_result(made.filter_batch([document])[0])
        except ImportError as error:
            raise SetupError(f"filter {name}: {' '.join(str(error).split())}") from error
        except Exception as error:
            raise InputError(f"filter {name} failed on {doc_id}: {type(error).__name__}: {error}") from error
        kept.append(bool(keep))
        texts.append(document.text)
        reasons.append(None if keep else str(reason or "dropped"))
    judged = documents.with_columns(new=pl.Series(texts, dtype=pl.String), keep=pl.Series(kept, dtype=pl.Boolean))
    dropped = judged.with_columns(
        rule=pl.lit(name), value=pl.Series(reasons, dtype=pl.String), threshold=pl.lit(None, pl.String)
    ).filter(~pl.col("keep"))
    return edited(judged.filter("keep"), name), dropped


def run_datatrove_formatter(documents: pl.DataFrame, rule: DatatroveFormatter) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Edit texts by a datatrove formatter; documents that it leaves without text are dropped.

    Raises:
        InputError: the formatter failed on a document.
    """
    made = _made(rule)
    name = type(made).__name__
    texts = []
    for doc_id, text in documents.select("doc_id", "text").iter_rows():
        try:
            # Each document meets the formatter as it was made: some remember what came before.
            texts.append(copy.deepcopy(made).format(text))
        except ImportError as error:
            raise SetupError(f"formatter {name}: {' '.join(str(error).split())}") from error
        except Exception as error:
            raise InputError(f"formatter {name} failed on {doc_id}: {type(error).__name__}: {error}") from error
    judged = documents.with_columns(new=pl.Series(texts, dtype=pl.String))
    blank = pl.Series([not text.strip() for text in texts], dtype=pl.Boolean)
    dropped = judged.filter(blank).with_columns(
        rule=pl.lit(name), value=pl.lit("no text left"), threshold=pl.lit(None, pl.String)
    )
    return edited(judged.filter(~blank), name), dropped


def check_class(rule: DatatroveFilter | DatatroveFormatter) -> None:
    """Construct a filter or formatter once, to find a wrong name or parameter before work starts.

    Raises:
        RecipeError: there is no such class, or it does not take these parameters.
        SetupError: it needs a package that is not installed.
    """
    _made(rule)


def _made(rule: DatatroveFilter | DatatroveFormatter) -> Any:
    params = orjson.dumps(rule.params, option=orjson.OPT_SORT_KEYS)
    if isinstance(rule, DatatroveFilter):
        return make_step("filter", rule.filter, params)
    return make_step("formatter", rule.formatter, params)


@lru_cache
def make_step(kind: str, path: str, params: bytes) -> Any:
    """The filter or formatter of a class path and its parameters (JSON), made once a process."""
    package = f"{PACKAGE}.{kind}s"
    module, _, name = f"{package}.{path.removeprefix(package + '.')}".rpartition(".")
    try:
        made = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name and not error.name.startswith("datatrove"):
            raise SetupError(f"{kind} {name} needs the package '{error.name}': pip install '{error.name}'") from error
        raise RecipeError(f"{kind} '{path}': no such class below {package}") from error
    except AttributeError as error:
        raise RecipeError(f"{kind} '{path}': no such class below {package}") from error
    if not (isinstance(made, type) and issubclass(made, KINDS[kind])):
        raise RecipeError(f"{kind} '{path}': not a datatrove {kind}")
    try:
        return made(**orjson.loads(params))
    except ImportError as error:
        raise SetupError(f"{kind} {name}: {' '.join(str(error).split())}") from error
    except (TypeError, ValueError) as error:
        raise RecipeError(f"{kind} {name}: {error}") from error


def edited(documents: pl.DataFrame, name: str) -> pl.DataFrame:
    """Carry changed texts (column ``new``) on: ``edits`` names what changed them, ``text_key`` is taken anew."""
    changed = (documents["text"] != documents["new"]).to_list()
    if any(changed):
        keys = [
            document_key(new) if edited else key
            for new, key, edited in zip(documents["new"], documents["text_key"], changed, strict=True)
        ]
        edits = [[*old, name] if edited else list(old) for old, edited in zip(documents["edits"], changed, strict=True)]
        documents = documents.with_columns(
            text=pl.col("new"),
            text_key=pl.Series(keys, dtype=pl.Binary),
            edits=pl.Series(edits, dtype=pl.List(pl.String)),
            n_bytes=pl.col("new").str.len_bytes().cast(pl.Int64),
        )
    return documents.select(DOCUMENT_SCHEMA.names())
