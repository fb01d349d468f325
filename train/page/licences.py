"""Which texts the page may show: those under licences that let anybody pass them on."""

import re
from collections.abc import Collection

OPEN = (
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC-BY-2.0",
    "CC-BY-2.5",
    "CC-BY-3.0",
    "CC-BY-4.0",
    "CC-BY-SA-2.0",
    "CC-BY-SA-2.5",
    "CC-BY-SA-3.0",
    "CC-BY-SA-4.0",
    "CC-PDDC",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "ODC-By-1.0",
    "PDDL-1.0",
    "PSF-2.0",
    "Python-2.0",
    "Unlicense",
    "Zlib",
)
"""SPDX identifiers."""


def may_be_shown(licence: str | None, allowed: Collection[str] = OPEN) -> bool:
    """Whether every licence that an SPDX expression names is an allowed one; False for none."""
    named = re.findall(r"[A-Za-z0-9.+:-]+", re.sub(r"\bWITH\s+\S+", "", licence or ""))
    named = [word for word in named if word not in ("AND", "OR")]
    return bool(named) and all(word in allowed for word in named)
