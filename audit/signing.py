"""Ed25519 keys and signed notes, in the text forms of Go's sumdb and C2SP's signed-note.

    private   PRIVATE+KEY+NAME+HASH+BASE64, one line in a file that only its owner may read
    verifier  NAME+HASH+BASE64, to be published

HASH is the first four bytes of SHA-256 over the name, a newline and the key with its algorithm byte.
"""

import base64
import binascii
import getpass
import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from millstream.audit.verifier import ED25519, sha256
from millstream.errors import InputError, SetupError, UsageError

VARIABLE = "MILLSTREAM_KEY"
PRIVATE = "PRIVATE+KEY+"


@dataclass(frozen=True)
class Signer:
    """A private key and the name that it signs by."""

    name: str
    seed: bytes

    @cached_property
    def private(self) -> Ed25519PrivateKey:
        """The key as ``cryptography`` has it."""
        return Ed25519PrivateKey.from_private_bytes(self.seed)

    @cached_property
    def public(self) -> bytes:
        """The public key, 32 bytes."""
        return self.private.public_key().public_bytes_raw()

    @property
    def key_hash(self) -> bytes:
        """Four bytes that say which key signed."""
        return sha256(self.name.encode() + b"\n" + ED25519 + self.public)[:4]

    @property
    def verifier_key(self) -> str:
        """What others check signatures by."""
        return f"{self.name}+{self.key_hash.hex()}+{base64.b64encode(ED25519 + self.public).decode()}"

    def sign_note(self, text: str) -> str:
        """A signed note of a text that ends with a newline."""
        signature = self.key_hash + self.private.sign(text.encode())
        return f"{text}\n— {self.name} {base64.b64encode(signature).decode()}\n"


def key_file() -> Path:
    """Where the signing key of this user lies: as ``MILLSTREAM_KEY`` says, else in the configuration folder."""
    if VARIABLE in os.environ:
        return Path(os.environ[VARIABLE])
    return Path(os.environ.get("XDG_CONFIG_HOME", "~/.config")).expanduser() / "millstream" / "signing.key"


def new_key(path: Path, name: str) -> Signer:
    """Make a key and write it to a file that is not there yet.

    Raises:
        UsageError: there is such a file, or the name has a space or a plus sign.
        SetupError: it cannot be written.
    """
    if not re.fullmatch(r"[^\s+]+", name):
        raise UsageError(f"'{name}': the name of a key has neither spaces nor '+'")
    signer = Signer(name, os.urandom(32))
    line = f"{PRIVATE}{name}+{signer.key_hash.hex()}+{base64.b64encode(ED25519 + signer.seed).decode()}\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(line)
    except FileExistsError as error:
        raise UsageError(f"{path}: is there already; a key is never written over") from error
    except OSError as error:
        raise SetupError(f"{path}: cannot be written: {error.strerror}; name another file with {VARIABLE}") from error
    return signer


def read_key(path: Path) -> Signer:
    """Read a private key.

    Raises:
        UsageError: there is no such file.
        InputError: it holds no key.
    """
    try:
        line = path.read_text().strip()
    except OSError as error:
        raise UsageError(f"{path}: no signing key here; make one with 'millstream key new'") from error
    try:
        name, number, encoded = line.removeprefix(PRIVATE).split("+", 2)
        raw = base64.b64decode(encoded, validate=True)
        signer = Signer(name, raw[1:])
        whole = line.startswith(PRIVATE) and raw[:1] == ED25519 and signer.key_hash.hex() == number
    except (ValueError, binascii.Error):
        whole = False
    if not whole:
        raise InputError(f"{path}: not a signing key ({PRIVATE}NAME+HASH+KEY)")
    return signer


def own_key() -> Signer:
    """This user's signing key; made at its first use."""
    path = key_file()
    if not path.exists():
        user = re.sub(r"[^\w.-]", "-", getpass.getuser()) or "user"
        return new_key(path, f"{user}-millstream")
    return read_key(path)
