"""E-mail and IP addresses masked with datatrove's definitions, document by document.

datatrove takes the replacements in turns over all the documents of a process. Here the match itself decides, by a
hash: a text does not depend on the texts before it, and one address has one mask everywhere.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import partial

import polars as pl

from millstream.mixture.rules import Pii

EMAIL_HINT = r"@(?:[A-Za-z0-9][A-Za-z0-9-]*\.[A-Za-z0-9]|\[)"
IP_HINT = r"[0-9]\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]"
"""What every address holds; texts without it are not looked at again."""


def mask_pii(documents: pl.DataFrame, rule: Pii) -> pl.DataFrame:
    """``new``, the masked text, beside ``rule``, ``value`` and ``threshold``, which are null: nothing is dropped."""
    from datatrove.pipeline.formatters.pii import PIIFormatter, public_ip_validator

    theirs = PIIFormatter()
    text = documents["text"]
    if rule.remove_emails:
        text = _masked(text, EMAIL_HINT, theirs.emails_replacer.regex, rule.email_replacement, lambda _: True)
    if rule.remove_ips:
        is_pii = partial(public_ip_validator, public_only=rule.only_remove_public_ips)
        text = _masked(text, IP_HINT, theirs.ip_replacer.regex, rule.ip_replacement, is_pii)
    none = pl.lit(None, pl.String)
    return pl.DataFrame({"new": text}).select(none.alias("rule"), none.alias("value"), none.alias("threshold"), "new")


def _masked(
    text: pl.Series, hint: str, pattern: re.Pattern[str], masks: Sequence[str], is_pii: Callable[[str], bool]
) -> pl.Series:
    def mask(match: re.Match[str]) -> str:
        return masks[_choice(match[0], len(masks))] if is_pii(match[0]) else match[0]

    rows = text.str.contains(hint).arg_true()
    return text.clone().scatter(rows, [pattern.sub(mask, each) for each in text.gather(rows)]) if len(rows) else text


def _choice(match: str, masks: int) -> int:
    return int.from_bytes(hashlib.sha256(b"pii/v1\0" + match.encode()).digest()[:8], "big") % masks
