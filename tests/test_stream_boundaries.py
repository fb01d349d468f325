"""Borders of documents in batches: those of the document tables, at every kind of border, and by the definition."""

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from test_stream_reader import home, stream  # noqa: F401  fixtures

from millstream.stream.boundaries import boundaries
from millstream.stream.reader import Stream

EOS = 0


@given(arrays(np.uint16, st.tuples(st.integers(1, 4), st.integers(2, 9)), elements=st.integers(0, 2)))
def test_borders_follow_the_definition(tokens: np.ndarray) -> None:
    found = boundaries(tokens, EOS)
    rows, seq_len = tokens.shape[0], tokens.shape[1] - 1
    ids, places, mask = found.document_ids(), found.position_ids(), found.mask()
    starts = []
    for row in range(rows):
        number = place = 0
        for at in range(seq_len):
            if at and tokens[row, at - 1] == EOS:
                number, place = number + 1, 0
            assert (ids[row, at], places[row, at]) == (number, place)
            if place == 0:
                starts.append(row * seq_len + at)
            for other in range(seq_len):
                assert mask[row, at, other] == (other <= at and ids[row, other] == number)
            place += 1
    assert found.cu_seqlens.tolist() == [*starts, rows * seq_len]
    assert found.longest == max(np.diff(found.cu_seqlens))


def test_borders_are_those_of_the_tables(stream: Stream) -> None:  # noqa: F811
    eos = stream.manifest.tokenizer.eos_id
    seen = 0
    for step in range(1, 31):
        batch = stream.batch(step)
        told = stream.documents(step)
        found = boundaries(batch.tokens, eos)
        seq_len = batch.tokens.shape[1] - 1
        # Target i is input i + 1: a stretch of targets from i begins as an input one later.
        inside = told.filter((pl.col("from_token") == 0) & (pl.col("first") + 1 < seq_len))
        expected = {(row, first + 1) for row, first in inside.select("row", "first").rows()}
        begun = {divmod(int(at), seq_len) for at in found.cu_seqlens[:-1]}
        assert {place for place in begun if place[1]} == {place for place in expected if place[1]}
        assert {row for row, at in begun if at == 0} == set(range(len(batch.tokens)))
        seen += len(expected)
    assert seen > 100
