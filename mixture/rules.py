"""The rules of a recipe: what filters and edits documents, and the numbers that decide."""

from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializationInfo, SerializerFunctionWrapHandler, model_serializer

from millstream.mixture.units import Count, Exact


class Section(BaseModel):
    """Base of every part of a recipe: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, use_attribute_docstrings=True)

    @model_serializer(mode="wrap")
    def _keep_null(self, plain: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        """Keep, where nulls are left out, those in place of a default: else they read and digest as that."""
        values: dict[str, Any] = plain(self)
        for name, field in type(self).model_fields.items() if info.exclude_none else ():
            if getattr(self, name) is None and field.get_default(call_default_factory=True) is not None:
                values[name] = None
        return values


Splitter = Literal["spacy", "unicode"]


class LengthFilter(Section):
    """Drop documents outside a range of characters or UTF-8 bytes."""

    rule: Literal["length"]
    min_chars: int = Field(1, ge=0)
    max_chars: Count | None = None


class SymbolFilter(Section):
    """Drop documents in which too many characters are neither letters, digits nor white space."""

    rule: Literal["symbols"]
    max_ratio: Exact = Decimal("0.5")


class ScoreFilter(Section):
    """Drop documents by the score of their domain's scorer; those without one are dropped too."""

    rule: Literal["score"]
    min: Exact | None = None
    max: Exact | None = None


class DatatroveFilter(Section):
    """Any datatrove filter by its class path, with its own parameters."""

    rule: Literal["datatrove"]
    filter: str
    """``module.Class`` below ``datatrove.pipeline.filters``, or a full dotted path."""
    params: dict[str, Any] = {}


class DatatroveFormatter(Section):
    """Any datatrove formatter by its class path, with its own parameters; edits the text."""

    rule: Literal["datatrove-formatter"]
    formatter: str
    """``module.Class`` below ``datatrove.pipeline.formatters``, or a full dotted path."""
    params: dict[str, Any] = {}


class GopherQuality(Section):
    """Gopher's quality rules with datatrove's definitions; ``null`` or 0 turns a rule off."""

    rule: Literal["gopher-quality"]
    words: Splitter = "spacy"
    r"""Words as datatrove cuts English, or, faster, what ``\w+|[^\w\s]`` finds between white space."""
    min_doc_words: int | None = 50
    """Words that are not all punctuation."""
    max_doc_words: int | None = 100_000
    min_avg_word_length: float | None = 3
    max_avg_word_length: float | None = 10
    max_symbol_word_ratio: float | None = 0.1
    """Of ``#``, and of ellipses, to words."""
    max_bullet_lines_ratio: float | None = 0.9
    max_ellipsis_lines_ratio: float | None = 0.3
    max_non_alpha_words_ratio: float | None = 0.8
    """Smallest share of words with a letter (the name is datatrove's)."""
    min_stop_words: int | None = 2
    """Distinct stop words that must occur."""
    stop_words: tuple[str, ...] = ("the", "be", "to", "of", "and", "that", "have", "with")


class GopherRepetition(Section):
    """Gopher's repetition rules with datatrove's definitions; ``null`` or 0 turns a rule off."""

    rule: Literal["gopher-repetition"]
    words: Splitter = "spacy"
    r"""Words as datatrove cuts English, or, faster, what ``\w+|[^\w\s]`` finds between white space."""
    dup_line_frac: float | None = 0.3
    dup_para_frac: float | None = 0.3
    dup_line_char_frac: float | None = 0.2
    dup_para_char_frac: float | None = 0.2
    top_n_grams: tuple[tuple[int, float], ...] = ((2, 0.2), (3, 0.18), (4, 0.16))
    """Largest share of characters in the most frequent n-gram, by n."""
    dup_n_grams: tuple[tuple[int, float], ...] = ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.10))
    """Largest share of characters in repeated n-grams, by n."""


class FinewebQuality(Section):
    """FineWeb's quality rules with datatrove's definitions."""

    rule: Literal["fineweb-quality"]
    words: Splitter = "spacy"
    r"""Words as datatrove cuts English, or, faster, what ``\w+|[^\w\s]`` finds between white space."""
    line_punct_thr: float = 0.12
    """Smallest share of lines that end in terminal punctuation."""
    line_punct_exclude_zero: bool = False
    stop_chars: tuple[str, ...] | None = None
    short_line_thr: float = 0.67
    """Largest share of lines of at most ``short_line_length`` characters."""
    short_line_length: int = 30
    char_duplicates_ratio: float = 0.01
    new_line_ratio: float = 0.3


class C4Quality(Section):
    """C4's line and document rules with datatrove's definitions (lines, not sentences); edits the text."""

    rule: Literal["c4-quality"]
    remove_citations: bool = True
    filter_no_terminal_punct: bool = True
    min_num_sentences: int = 5
    """-1 turns the rule off."""
    min_words_per_line: int = 3
    max_word_length: int = 1000
    """-1 turns the rule off."""
    filter_lorem_ipsum: bool = True
    filter_javascript: bool = True
    filter_curly_bracket: bool = True
    filter_policy: bool = True


Entries = str | tuple[str, ...]
"""Entries one by one, or the path of a file with one a line; a relative path starts at the recipe's folder."""


class UrlLists(Section):
    """Drop documents by their ``url`` with datatrove's lists and definitions; those without one are kept.

    Lists are entries, or the path of a file with one a line; a relative path starts at the recipe's folder.
    """

    rule: Literal["url-lists"]
    domains: Entries = ()
    """Registered domains, and whole hosts."""
    urls: Entries = ()
    banned_words: Entries = ()
    """Words between anything but ASCII letters and digits."""
    banned_subwords: Entries = ()
    """Looked for in the address without anything but ASCII letters and digits, in lower case."""
    soft_banned_words: Entries = ()
    soft_word_threshold: int = Field(2, ge=1)
    """Distinct soft banned words from which a document is dropped."""
    use_integrated_lists: bool = True
    """datatrove's own lists too (4.6 million domains, about 0.9 GB of memory in each task)."""


class Pii(Section):
    """Mask e-mail and IP addresses with datatrove's definitions; edits the text, drops nothing."""

    rule: Literal["pii"]
    remove_emails: bool = True
    remove_ips: bool = True
    only_remove_public_ips: bool = True
    email_replacement: tuple[str, ...] = Field(("email@example.com", "firstname.lastname@example.org"), min_length=1)
    """Masks; a hash of the address chooses one, so that no other document matters (datatrove takes turns)."""
    ip_replacement: tuple[str, ...] = Field(
        (
            "22.214.171.124",
            "126.96.36.199",
            "188.8.131.52",
            "184.108.40.206",
            "220.127.116.11",
            "18.104.22.168",
        ),
        min_length=1,
    )


class BadWords(Section):
    """Drop documents with words of a list, with datatrove's C4 definitions; texts are looked at in lower case."""

    rule: Literal["bad-words"]
    words: Entries
    """Entries, or the path of a file with one a line; a relative path starts at the recipe's folder."""
    language: str = "en"
    """``ja``, ``th``, ``zh``: words count wherever they stand; else between characters that are in no word."""
    keep_fraction: Exact = Field(Decimal(0), ge=0, le=1)
    """Share of the documents with such words that stay, chosen by keyed hash of ``doc_key``."""
    seed: int = Field(0, ge=0)


class Language(Section):
    """Drop documents by their language, as a fastText model sees it, with datatrove's decisions."""

    rule: Literal["language"]
    model: str
    """Path of a model such as ``lid.176.bin``; a relative path starts at the recipe's folder."""
    languages: tuple[str, ...] = ()
    """Labels, one of which must score above ``threshold``; when empty, the likeliest must, whichever it is."""
    threshold: float = 0.65


WordRule = GopherQuality | GopherRepetition | FinewebQuality

Filter = Annotated[
    LengthFilter
    | SymbolFilter
    | ScoreFilter
    | GopherQuality
    | GopherRepetition
    | FinewebQuality
    | C4Quality
    | UrlLists
    | Pii
    | BadWords
    | Language
    | DatatroveFilter
    | DatatroveFormatter,
    Field(discriminator="rule"),
]
