"""Naive Bayes: which words occur in documents of which class, counted by word.

    SELECT word, count(*) FILTER (WHERE class = 0) AS class_0, .. FROM words GROUP BY word

A document has a class, and each of its words is a tuple, so the stream is keyed by the word, whose
frequencies are Zipf's. The counts are all that the classifier needs: the class of a new document is
the one that makes its words most likely, with one more occurrence of each word than was counted.
At the end new documents are classified.
Source: the running example of Nasir et al., ICDE 2015, section 2.1 (extended text): a word is
counted at one instance under key grouping, at two at most under `pkg`, at all under shuffling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from typing_extensions import override

from joinengine import StreamAggregate
from joinengine.lab.queries.learning import EDGES, check_whole, partial_results, settings
from joinengine.lab.queries.named_query import MERGING, Conclusion, Options, Query
from joinengine.lab.queries.synthetic import Rows, SyntheticSpec
from joinengine.lab.queries.table_streams import table_stream
from joinengine.lab.tpch.skew import shuffled
from joinengine.lab.tpch.stream import RecordedStream, time_array

#: Words of all documents at scale 1, different words, and words of a document.
TUPLES, WORDS, LENGTH = 5_000_000, 100_000, 25
#: This part of the words has frequencies that depend on the class.
TELLING_PART = 0.2
#: Documents that are classified at the end.
DOCUMENTS = 400


class NaiveBayes(Query):
    """Counts of words by class, and what they say of new documents."""

    name = "naive-bayes"
    summary = "how often each word occurs in documents of each class, to classify new ones"
    source = "the running example of Nasir et al., ICDE 2015; the documents are generated"
    aggregates = True
    concludes = True
    own = ("classes", *MERGING)

    @override
    def stream(self, options: Options) -> SyntheticSpec:
        check_whole(self.name, options)
        classes = options.own_of("classes")
        return options.synthetic("words", TUPLES, _Words(classes), classes=classes)

    @override
    def build(self, spark: Any, recorded: RecordedStream, options: Options) -> StreamAggregate:
        return StreamAggregate(
            table_stream(spark, recorded, "words"),
            by="word",
            aggregates={
                f"class_{number}": f"count(case when class = {number} then 1 end)"
                for number in range(options.own_of("classes"))
            },
            **settings("w_ts", options),
        )

    @override
    def oracle(self, recorded: RecordedStream, options: Options) -> str:
        counts = ", ".join(
            f"count(*) filter (where class = {number}) as class_{number}"
            for number in range(options.own_of("classes"))
        )
        return f"select word, {counts}, {EDGES} from '{recorded.files('words')}' group by word"

    @override
    def conclude(self, results: pa.Table, report: dict[str, Any], options: Options) -> Conclusion:
        classes = options.own_of("classes")
        counters, words = classes * partial_results(report), results.num_rows
        counts = np.array([results.column(f"class_{number}") for number in range(classes)])
        # Words of documents that follow those of the stream.
        spec = self.stream(options)
        first = -(-spec.rows // LENGTH) * LENGTH
        rows = np.arange(first, first + DOCUMENTS * LENGTH)
        classes_said = classify(
            counts,
            results.column("word").to_numpy(),
            _words(spec, rows, classes).reshape(DOCUMENTS, LENGTH),
        )
        right = float((classes_said == _classes(spec, rows[::LENGTH], classes)).mean())
        return Conclusion(
            {"counters": counters, "keys": words, "classes": classes, "accuracy": right},
            [
                f"{counters:,} counters at the instances for {words:,} words and {classes} "
                f"classes: {counters / (words * classes):.2f} for each word and class",
                f"{right:.1%} of {DOCUMENTS} new documents get the class that they were drawn for",
            ],
        )


def classify(
    counts: NDArray[np.int64], words: NDArray[np.int64], documents: NDArray[np.int64]
) -> NDArray[np.int64]:
    """(n,) the likeliest class of each of (n, length) documents; of equal ones the first.

    `counts` (C, K): how often each of `words` (K,) occurred in each class. A word that never
    occurred counts as if it had once; the prior of a class is its part of all words.
    """
    order = np.argsort(words)
    at = np.searchsorted(words[order], documents)
    known = words[order][np.minimum(at, len(words) - 1)] == documents
    places = np.where(known, order[np.minimum(at, len(words) - 1)], len(words))
    seen = np.column_stack([counts, np.zeros(len(counts), np.int64)]) + 1
    totals = seen.sum(axis=1, keepdims=True)
    priors = np.log(totals[:, 0] / totals.sum())
    return np.asarray((np.log(seen / totals)[:, places].sum(axis=2).T + priors).argmax(axis=1))


@dataclass(frozen=True)
class _Words:
    """The columns of the stream."""

    classes: int

    def __call__(self, spec: SyntheticSpec, rows: Rows, times: Rows) -> pa.Table:
        return pa.table(
            {
                "word": _words(spec, rows, self.classes),
                "class": _classes(spec, rows, self.classes).astype(np.int32),
                "w_ts": time_array(times),
            }
        )


def _classes(spec: SyntheticSpec, rows: Rows, classes: int) -> NDArray[np.int64]:
    """The class of each row's document."""
    return (spec.uniform("class", rows // LENGTH) * classes).astype(np.int64)


def _words(spec: SyntheticSpec, rows: Rows, classes: int) -> NDArray[np.int64]:
    """A word of each row: a Zipf rank is drawn, and telling ranks are other words by class."""
    order = shuffled(spec.seed, "words: ranks", WORDS)
    ranks = spec.ranks("rank", rows, WORDS)
    telling = spec.uniform("telling", ranks) < TELLING_PART
    # Each class is as far from the next on the circle of words.
    shift = _classes(spec, rows, classes) * (WORDS // classes)
    return np.asarray(order[(ranks + np.where(telling, shift, 0)) % WORDS])
