"""Topk: the ten most frequent topics of a skewed text stream, window by window.

    SELECT word, count(*) AS n, window_start, window_end FROM words
    GROUP BY word, window    -- and of each window the ten words with the greatest n

The query is a word count: partial counts are merged downstream, and the top of each window is
taken. Words have Zipf frequencies, and slowly, word by word, other words become frequent. With
`--text FILE` the words of a text take their place.
Source: the topic count of Fang et al., JOS 2017, and the Social workload of Fang et al., 2016
(arXiv 1610.05121; 180,000 topic words, 5 million tuples, frequencies that change slowly); the words
are generated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from typing_extensions import override

from joinengine import StreamAggregate, top, windows
from joinengine.lab.queries.named_query import MERGING, Options, Query, Recordable
from joinengine.lab.queries.synthetic import Rows, SyntheticSpec
from joinengine.lab.queries.table_streams import table_stream
from joinengine.lab.tpch.skew import shuffled
from joinengine.lab.tpch.stream import RecordedStream, time_array
from joinengine.model.errors import InvalidRequest

WORDS = 180_000
#: Tuples at scale 1.
TUPLES = 5_000_000
TOPICS = 10
#: How often each rank gets another word over the stream, at times of its own.
CHANGES = 4
WINDOW_US = 60_000_000
#: Windows overlap: a new one starts after this part of a window.
SLIDE_PART = 4
_WORD = re.compile(r"[^\W_]+")


class Topk(Query):
    """The counts of words."""

    name = "topk"
    summary = "the ten most frequent words of each sliding window of a text stream"
    source = "Fang et al., JOS 2017, and 2016, arXiv 1610.05121 (Social); generated, or --text FILE"
    aggregates = True
    own = ("text", *MERGING)

    @override
    def stream(self, options: Options) -> Recordable:
        if options.text is not None:
            words = _read_words(options.text)
            settings = {"text": str(options.text), "size": options.text.stat().st_size}
            settings["modified"] = options.text.stat().st_mtime_ns
            return options.synthetic("words", len(words), _Text(words), exact=True, **settings)
        return options.synthetic("words", TUPLES, _generated, shift_us=options.shift_us)

    @override
    def build(self, spark: Any, recorded: RecordedStream, options: Options) -> StreamAggregate:
        words = table_stream(spark, recorded, "words")
        size, slide = _window(options)
        return StreamAggregate(
            words,
            by="word",
            aggregates={"n": "count(*)"},
            window=windows("w_ts", f"{size} us", f"{slide} us", delay=options.delay),
            top=top(TOPICS, by="n"),
            aggregators=options.aggregators,
            merge_every=options.merge_every or 1,
            **options.placing,
        )

    @override
    def oracle(self, recorded: RecordedStream, options: Options) -> str:
        """SQL over each word once for each window that holds it."""
        size, slide = _window(options)
        return (
            f"select word, count(*) as n, make_timestamptz(k * {slide}) as window_start, "
            f"make_timestamptz(k * {slide} + {size}) as window_end from (select word, unnest("
            f"generate_series((epoch_us(w_ts) - {size}) // {slide} + 1, epoch_us(w_ts) // {slide})"
            f") as k from '{recorded.files('words')}') group by word, k "
            f"qualify row_number() over (partition by k order by n desc, word) <= {TOPICS}"
        )


def _window(options: Options) -> tuple[int, int]:
    size = options.window(WINDOW_US)
    if size < SLIDE_PART:
        raise InvalidRequest(
            f"window: {size} us is too short for {SLIDE_PART} slides; give a longer --window"
        )
    return size, size // SLIDE_PART


def _generated(spec: SyntheticSpec, rows: Rows, times: Rows) -> pa.Table:
    """Words: Zipf ranks are drawn, and each rank gives the word that has it at that time."""
    order = shuffled(spec.seed, "words: ranks", WORDS)
    ranks = spec.ranks("rank", rows, WORDS)
    # Each rank changes its word at times of its own, by 0.382 of the words: few words come twice.
    owners = np.floor(rows / spec.rows * CHANGES + spec.uniform("drift", ranks)).astype(np.int64)
    shift_us = dict(spec.settings)["shift_us"]
    if shift_us != "None":
        owners += CHANGES * (rows * (spec.span_us / spec.rows) // int(shift_us)).astype(np.int64)
    words = order[(ranks + owners * round(WORDS * 0.382)) % WORDS]
    names = np.char.add("topic-", np.char.zfill(words.astype("U6"), 6))
    return pa.table({"word": pa.array(names), "w_ts": time_array(times)})


@dataclass(frozen=True)
class _Text:
    """The words of a text file, in its order."""

    words: pa.Array

    def __call__(self, spec: SyntheticSpec, rows: Rows, times: Rows) -> pa.Table:
        return pa.table({"word": self.words.take(pa.array(rows)), "w_ts": time_array(times)})


def _read_words(path: Path) -> pa.Array:
    """The words of a file, in lower case; a word once in memory, however often it comes."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            every = (word for line in file for word in _WORD.findall(line.lower()))
            words = pa.array(every).dictionary_encode()
    except OSError as error:
        raise InvalidRequest(f"text: {path} cannot be read ({error.strerror})") from None
    if not len(words):
        raise InvalidRequest(f"text: {path} contains no words; give another file")
    return words.dictionary_decode()
