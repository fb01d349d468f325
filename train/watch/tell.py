"""Telling people of alerts: a command of theirs, or a webhook."""

import os
import shlex
import subprocess
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

import orjson

from millstream.errors import UsageError

TIMEOUT_S = 30


def check_command(command: str) -> list[str]:
    """The words of a command; no shell reads them.

    Raises:
        UsageError: quotes do not match, or there is none.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--on-alert: '{command}': {error}") from error
    if not words:
        raise UsageError("--on-alert: the command is empty")
    return words


def check_url(url: str) -> str:
    """The webhook's address.

    Raises:
        UsageError: it is none that is posted to.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--webhook: expected an address such as https://example.org/hook, found '{url}'")
    return url


def run_command(words: list[str], alert: dict[str, Any]) -> str | None:
    """Run a command with an alert as JSON on its standard input; returns what went wrong.

    It also finds ``MILLSTREAM_RUN``, ``MILLSTREAM_STEP``, ``MILLSTREAM_DETECTOR`` and ``MILLSTREAM_TEXT`` in its
    environment.
    """
    told = {f"MILLSTREAM_{name.upper()}": str(alert[name]) for name in ("run", "step", "detector", "text")}
    try:
        done = subprocess.run(
            words,
            input=orjson.dumps(alert) + b"\n",
            env=os.environ | told,
            timeout=TIMEOUT_S,
            check=False,
            stdout=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{words[0]}: {error}"
    return f"{words[0]}: exit code {done.returncode}" if done.returncode else None


def post(url: str, alert: dict[str, Any]) -> str | None:
    """Post an alert as JSON; ``text`` is the line that chat services show. Returns what went wrong."""
    request = urllib.request.Request(
        url, orjson.dumps(alert), {"Content-Type": "application/json", "User-Agent": "millstream"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S):
            return None
    except (OSError, urllib.error.URLError, ValueError) as error:
        return f"{url}: {error}"
