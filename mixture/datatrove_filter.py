"""Any datatrove filter, named in a recipe by its class, as a filter over a batch.

Only classes below ``datatrove.pipeline.filters`` are taken: a recipe must not be able to import and
construct whatever is on the path.
"""

import importlib
from functools import lru_cache
from typing import Any

import orjson
import polars as pl
from datatrove.data import Document
from datatrove.pipeline.filters.base_filter import BaseFilter, get_filter_result

from millstream.errors import InputError, RecipeError, SetupError
from millstream.mixture.documents import DOCUMENT_SCHEMA, document_key
from millstream.mixture.rules import DatatroveFilter

PACKAGE = "datatrove.pipeline.filters"


def run_datatrove_filter(documents: pl.DataFrame, rule: DatatroveFilter) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Split documents into kept and dropped by a datatrove filter.

    A text that the filter changes is carried on: ``edits`` names the class, ``text_key`` is taken anew.

    Raises:
        InputError: the filter failed on a document.
    """
    made = make_filter(rule.filter, orjson.dumps(rule.params, option=orjson.OPT_SORT_KEYS))
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


def check_filter(rule: DatatroveFilter) -> None:
    """Construct a filter once, to find a wrong name or parameter before work starts.

    Raises:
        RecipeError: there is no such class, or it does not take these parameters.
        SetupError: it needs a package that is not installed.
    """
    make_filter(rule.filter, orjson.dumps(rule.params, option=orjson.OPT_SORT_KEYS))


@lru_cache
def make_filter(path: str, params: bytes) -> Any:
    """The filter object of a class path and its parameters (JSON), made once a process."""
    module, _, name = f"{PACKAGE}.{path.removeprefix(PACKAGE + '.')}".rpartition(".")
    try:
        made = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name and not error.name.startswith("datatrove"):
            raise SetupError(f"filter {name} needs the package '{error.name}': pip install '{error.name}'") from error
        raise RecipeError(f"filter '{path}': no such class below {PACKAGE}") from error
    except AttributeError as error:
        raise RecipeError(f"filter '{path}': no such class below {PACKAGE}") from error
    if not (isinstance(made, type) and issubclass(made, BaseFilter)):
        raise RecipeError(f"filter '{path}': not a datatrove filter")
    try:
        return made(**orjson.loads(params))
    except ImportError as error:
        raise SetupError(f"filter {name}: {' '.join(str(error).split())}") from error
    except (TypeError, ValueError) as error:
        raise RecipeError(f"filter {name}: {error}") from error


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
