"""Odd text: constants and patterns of predicates, and keys, are taken letter by letter."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from joinengine.kernels.comparing import equal_at
from joinengine.kernels.hashing import hash_columns
from joinengine.predicates.dialect import compile_predicate
from joinengine.predicates.theta import passes
from tests.laws.cases import tries

SCHEMA = pa.schema([("s", pa.string())])
#: Characters with a meaning in constants, patterns or SQL, and some others; no character 0.
texts = st.text(
    st.sampled_from("\\'\"%_`$-/*;nu0 \n\téß\U0001f600") | st.characters(codec="utf-8"), max_size=9
).map(lambda text: text.replace("\0", ""))


def constant(text):
    """A text as Spark's constant: backslashes twice, and quotes after one."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def literal_pattern(text):
    """The pattern that only this text fulfils."""
    return "".join("\\" + one if one in "\\%_" else one for one in text)


@tries(60)  # each compiles three predicates
@given(text=texts, other=texts)
@example(text="\\", other="\\\\")
@example(text="10%", other="10x")
@example(text="a\nb", other="a\\nb")
def test_a_constant_is_the_text_that_it_says(text, other):
    batch = pa.RecordBatch.from_arrays([pa.array([text, other, None])], schema=SCHEMA)
    same = [True, other == text, False]
    for said in (
        f"s = {constant(text)}",
        f"s like {constant(literal_pattern(text))}",
        f"s like concat({constant(literal_pattern(text))}, '')",
    ):
        compiled = compile_predicate(said, (SCHEMA, pa.schema([])), "where")
        assert passes(compiled, batch).tolist() == same, said


@given(left=st.lists(texts, min_size=1, max_size=6), right=st.lists(texts, min_size=1, max_size=6))
def test_equal_texts_alone_are_equal_keys(left, right):
    columns = pa.array(left), pa.array(right)
    rows = tuple(grid.ravel() for grid in np.meshgrid(np.arange(len(left)), np.arange(len(right))))
    same = [left[i] == right[j] for i, j in zip(*rows, strict=True)]
    assert equal_at(columns[0], rows[0], columns[1], rows[1]).tolist() == same
    hashes = [hash_columns([column]) for column in columns]
    assert not (np.array(same) & (hashes[0][rows[0]] != hashes[1][rows[1]])).any()
