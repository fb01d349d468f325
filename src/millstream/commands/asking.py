"""Which document is meant: the ways in which a command is told, and the questions they make."""

from pathlib import Path
from typing import Annotated

import typer

from millstream.audit.lookup import Question, question, questions_from_file
from millstream.errors import UsageError

Asked = Annotated[
    str | None,
    typer.Argument(metavar="KEY|ID|URL", help="64 hex digits are a key, '://' makes a URL.", show_default=False),
]
TextFile = Annotated[
    Path | None, typer.Option("--text", "--file", metavar="FILE", help="The document whose text this file holds.")
]
Key = Annotated[str | None, typer.Option("--key", metavar="HEX", help="The document of this key.")]
DocId = Annotated[str | None, typer.Option("--id", metavar="ID", help="The document of this id.")]
Url = Annotated[str | None, typer.Option("--url", metavar="URL", help="The document of this URL.")]


def questions_of(
    asked: str | None, text: Path | None, key: str | None, doc_id: str | None, url: str | None
) -> dict[str, Question]:
    """Questions to be asked in turn until one is answered, by what was changed in the text; ``""`` for nothing.

    Raises:
        UsageError: not exactly one way was taken, or a key is no key.
        InputError: the file cannot be read.
    """
    if sum(way is not None for way in (asked, text, key, doc_id, url)) != 1:
        raise UsageError("say which document: one of a key, id or URL, --text FILE, --key, --id, --url")
    if text is not None:
        return questions_from_file(text)
    if key is not None:
        found = question(key)
        if found.by != "key":
            raise UsageError(f"--key: expected 64 hex digits, found '{key}'")
        return {"": found}
    if doc_id is not None:
        return {"": Question(by="id", value=doc_id)}
    return {"": Question(by="url", value=url) if url is not None else question(asked or "")}
