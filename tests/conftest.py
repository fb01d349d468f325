"""What all tests share."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def signing_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A signing key of the tests' own, so that none of them meets or makes the user's."""
    os.environ["MILLSTREAM_KEY"] = str(tmp_path_factory.mktemp("key") / "signing.key")
    yield
    del os.environ["MILLSTREAM_KEY"]
