"""Sentences of the page that the browser's tests do not come by."""

from millstream.train.page.licences import may_be_shown
from millstream.train.page.timeline import amendment_text


def test_an_amendment_of_many_weights_names_the_largest() -> None:
    weights = {f"d{n:02}": f"0.{n:04}123456" for n in range(20)} | {"exact": "=900"}
    assert amendment_text({"weights": weights}) == (
        "weights of 21 domains, most exact =900, d19 0.001912, d18 0.001812, d17 0.001712, d16 0.001612"
    )
    assert amendment_text({"weights": {"a": "0.1234567", "b": "=3"}}) == "weights a 0.1234567, b =3"


def test_texts_are_shown_where_every_licence_allows_it() -> None:
    assert may_be_shown("MIT")
    assert may_be_shown("(MIT OR Apache-2.0) AND CC-BY-4.0")
    assert may_be_shown("LicenseRef-ours", ("LicenseRef-ours",))
    assert not may_be_shown("MIT AND GPL-3.0-only")
    assert not may_be_shown("")
    assert not may_be_shown(None)
