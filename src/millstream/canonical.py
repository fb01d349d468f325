"""Canonical JSON (RFC 8785) and SHA-256 digests of it.

Digests of recipes, plans, manifests and ledger records are all taken here, so that one
definition holds: the bytes of RFC 8785, hashed with SHA-256, written as 64 hex digits.
"""

import hashlib
from typing import Any

import rfc8785


def canonical_bytes(value: Any) -> bytes:
    """Encode a JSON value as RFC 8785 bytes.

    Raises:
        rfc8785.CanonicalizationError: an integer lies outside the exact range of a
            double (write 64-bit values as strings) or the value is not JSON.
    """
    encoded: bytes = rfc8785.dumps(value)
    return encoded


def digest(value: Any) -> str:
    """SHA-256 of the canonical bytes, as hex."""
    return hashlib.sha256(canonical_bytes(value)).hexdigest()
