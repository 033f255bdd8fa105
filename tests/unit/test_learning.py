"""What the queries that learn conclude from their results, against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joinengine import InvalidRequest
from joinengine.kernels.binning import bins_of
from joinengine.lab.queries import rounds
from joinengine.lab.queries.naive_bayes import NaiveBayes, classify
from joinengine.lab.queries.named_query import Conclusion
from joinengine.lab.queries.runs import Followers, Places
from joinengine.lab.queries.trees import (
    LEAST_GAIN,
    ROOT,
    Split,
    Tree,
    best_split,
    counted,
    grown,
)


def test_the_likeliest_class():
    """By hand: word 7 speaks for class 1, and word 9 never came."""
    words, counts = np.array([7, 3]), np.array([[1, 9], [6, 4]])
    found = classify(counts, words, np.array([[7, 7], [3, 3], [9, 3]]))
    likeliest = []
    for document in ([7, 7], [3, 3], [9, 3]):
        scores = []
        for one in counts:
            seen = dict(zip(words.tolist(), (one + 1).tolist(), strict=True)) | {9: 1}
            total = sum(seen.values())
            prior = total / (counts.sum() + counts.size + len(counts))
            scores.append(math.log(prior) + sum(math.log(seen[w] / total) for w in document))
        likeliest.append(scores.index(max(scores)))
    assert found.tolist() == likeliest == [1, 0, 0]


def binned(values, most=8):
    _, *bins = bins_of(np.zeros(len(values), np.int64), np.array(values), most)
    return [dict(zip(("lower", "upper", "n"), one, strict=True)) for one in zip(*bins, strict=True)]


def gini(classes):
    return len(classes) - sum(classes.count(one) ** 2 for one in set(classes)) / len(classes)


examples = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 31)).map(
        lambda row: (row[0], 15 * row[0] + row[1])
    ),
    min_size=60,
    max_size=120,
).filter(lambda rows: len({one for one, _ in rows}) > 1)


@settings(max_examples=20)
@given(examples, examples)
def test_a_leaf_is_split_where_its_classes_are_told_apart_best(first, second):
    """Against all thresholds between bins, over the values themselves."""
    tables, gains = {}, {}
    for attribute, rows in ((4, first), (6, second)):
        by_class = {
            c: binned([float(v) for one, v in rows if one == c]) for c in {one for one, _ in rows}
        }
        width = max(b["upper"] - b["lower"] for bins in by_class.values() for b in bins)
        tables[attribute] = counted(by_class, 3)
        table = tables[attribute]
        for edge, *below in zip(table.uppers, *table.counts.cumsum(axis=1), strict=True):
            assert below == [sum(one == c and v < edge for one, v in rows) for c in range(3)]
        for edge in sorted({(v // width + 1) * width for _, v in rows})[:-1]:
            below = [one for one, v in rows if v < edge]
            above = [one for one, v in rows if v >= edge]
            whole = gini([one for one, _ in rows])
            gains[attribute, edge] = whole - gini(below) - gini(above)
    best = max(gains.values(), default=0.0)
    split = best_split(tables)
    if split is None:
        assert best <= LEAST_GAIN + 1e-9
    else:
        assert gains[tuple(split)] == pytest.approx(best)


def test_a_tree_grows_and_classifies():
    low, high = [1.0] * 50 + [5.0] * 10, [9.0] * 60
    leaves = {1: {3: counted({0: binned(low), 1: binned(high)}, 2)}}
    tree = grown(ROOT, leaves)
    ((node, (attribute, threshold)),) = tree.splits
    assert (node, attribute) == (1, 3)
    assert 5 < threshold <= 9
    assert tree.classes == ((2, 0), (3, 1))
    again = grown(tree, {2: {3: counted({0: binned(low)}, 2)}, 3: leaves[1]})
    assert [node for node, _ in again.splits] == [1, 3]
    assert again.classes == ((2, 0), (6, 0), (7, 1)), "leaf 2 has one class, and stays"


class Twice:
    """A query that concludes after its second run."""

    concludes = True

    def __init__(self, level=1):
        self.level = level

    @property
    def part(self):
        return f"level-{self.level}"

    def conclude(self, results, report, options):
        words = [row["word"] for row in results.to_pylist()]
        return Conclusion({"words": words}, words, Twice(2) if self.level == 1 else None)


@pytest.mark.parametrize(
    ("first", "second", "valid"),
    [
        (True, True, True),
        (False, True, False),
        (True, False, False),
        (None, False, False),
        (True, None, None),
    ],
)
def test_runs_that_follow_from_one_another(tmp_path, monkeypatch, first, second, valid):
    places, said = [], []

    def run(spark, query, options, here, *, validate, followers):
        places.append(here)
        here.out.mkdir(parents=True)
        pq.write_table(pa.table({"word": [query.part]}), here.out / "part.parquet")
        return {"valid": first if query.level == 1 else second, "story": {}}

    monkeypatch.setattr(rounds, "run", run)
    asked = Places(tmp_path, tmp_path / "checkpoint", "s3://bucket/state")
    followers = Followers(said.append)
    report = rounds.run_rounds(None, Twice(), None, asked, validate=True, followers=followers)
    assert report["valid"] is valid
    assert report["words"] == ["level-2"]
    assert report["earlier"] == [{"valid": first, "words": ["level-1"]}], "without its page"
    assert said == ["level-1", "level-2"]
    assert [here.out for here in places] == [tmp_path / "level-1", tmp_path / "level-2"]
    assert places[0].checkpoint == tmp_path / "checkpoint" / "level-1"
    assert places[1].state == "s3://bucket/state/level-2"
    assert places[1].reach == "s3://bucket/state"


def test_a_checkpoint_needs_a_folder_of_results(tmp_path):
    with pytest.raises(InvalidRequest, match="concludes from the results of all its runs"):
        rounds.run_rounds(None, NaiveBayes(), None, Places(checkpoint=tmp_path))


def test_where_examples_end():
    tree = Tree(((1, Split(0, 5.0)), (3, Split(1, 2.0))), ((2, 0), (6, 1), (7, 0)))
    table = np.array([[1.0, 9.0], [5.0, 1.0], [8.0, 2.0]])
    values = lambda attributes, rows: table[rows, attributes]  # noqa: E731
    assert tree.leaves_of(np.arange(3), values).tolist() == [2, 6, 7]
    assert tree.classes_of(np.arange(3), values).tolist() == [0, 1, 0]
