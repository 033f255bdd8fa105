"""First story: the texts of a stream that tell something new, that no earlier text told.

    SELECT a.* FROM texts a WHERE NOT EXISTS (
      SELECT 1 FROM (the 500 texts of a's key that precede a by (event time, u)) b
      WHERE cosine(a.terms, b.terms) > 0.2)

The key is a locality-sensitive hash of the terms (a min-hash of a story's own words, 4,096 keys):
texts that are alike often share it. Only layouts that keep a key whole find the same texts as one
process. Under `pkg` and similar layouts each instance knows a part of a key's texts, and false
alarms are counted.
Source: first story detection in Zacheilas et al., DAIS 2016, section 5 (2.95 million tweets, 4,096
keys, the last 500, threshold 0.2; 13.4 % false alarms under PKG). The texts are generated: stories
have Zipf frequencies, and each text has some words of its story and some words of all stories.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from typing_extensions import override

from joinengine.kernels.hashing import mix
from joinengine.lab.queries.first_story.novelty import StreamNovelty, TextColumns
from joinengine.lab.queries.named_query import Options, Query
from joinengine.lab.queries.synthetic import Rows, SyntheticSpec
from joinengine.lab.queries.table_streams import table_stream
from joinengine.lab.tpch.stream import RecordedStream, time_array
from joinengine.model.durations import describe
from joinengine.model.errors import InvalidRequest

#: Texts at scale 1.
TEXTS = 2_950_000
KEYS, HISTORY, THRESHOLD = 4096, 500, 0.2
#: Texts for each story, and words of a story; a text has some of these, and some of all stories.
TEXTS_A_STORY, STORY_WORDS = 2000, 10
OWN_WORDS, OTHER_WORDS = 7, 3
VOCABULARY = 50_000


class FirstStory(Query):
    """The texts that resemble no earlier text."""

    name = "first-story"
    summary = "texts that resemble none of the 500 before them under their locality-sensitive hash"
    source = "Zacheilas et al., DAIS 2016, section 5; generated"
    aggregates = True
    whole_keys = True
    layout = "dlb-h"

    @override
    def stream(self, options: Options) -> SyntheticSpec:
        if options.window_us is not None:
            raise InvalidRequest(
                f"window: {self.name} compares with the last {HISTORY} texts, found "
                f"{describe(options.window_us)}; leave --window out"
            )
        return options.synthetic("texts", TEXTS, _texts, texts_a_story=TEXTS_A_STORY)

    @override
    def build(self, spark: Any, recorded: RecordedStream, options: Options) -> StreamNovelty:
        texts = table_stream(spark, recorded, "texts")
        return StreamNovelty(
            texts,
            TextColumns("lsh", "terms", "x_ts"),
            delay_us=options.disorder_us,
            history=HISTORY,
            threshold=THRESHOLD,
            **options.placing,
        )

    @override
    def oracle(self, recorded: RecordedStream, options: Options) -> str:
        """SQL over pairs that share a term; a text with no pair above the threshold is new."""
        return (
            f"with ranked as (select *, row_number() over (partition by lsh order by x_ts, text) "
            f"as n from '{recorded.files('texts')}'), "
            f"told as (select text, lsh, n, len(terms) as size, unnest(terms) as term "
            f"from ranked), "
            f"pairs as (select a.text, count(*) / sqrt((a.size * b.size)::double) as alike "
            f"from told a join told b on a.lsh = b.lsh and a.term = b.term "
            f"and b.n between a.n - {HISTORY} and a.n - 1 "
            f"group by a.text, a.size, b.text, b.size), "
            f"best as (select text, max(alike) as similarity from pairs group by text) "
            f"select r.text, story, lsh, x_ts, coalesce(similarity, 0) as similarity "
            f"from ranked r left join best using (text) "
            f"where coalesce(similarity, 0) <= {THRESHOLD}"
        )


def _texts(spec: SyntheticSpec, rows: Rows, times: Rows) -> pa.Table:
    stories = max(1, spec.rows // TEXTS_A_STORY)
    rank = spec.ranks("story", rows, stories)
    # The stories of the ranks change with time, so that there are new stories to the end.
    age = (spec.uniform("birth", rank) + 3 * rows / spec.rows).astype(np.int64)
    story = rank + stories * age
    own = story[:, None] * STORY_WORDS + _distinct(spec, rows, OWN_WORDS, STORY_WORDS)
    words = VOCABULARY + own
    others = np.stack(
        [spec.uniform(f"word {i}", rows) * VOCABULARY / OTHER_WORDS for i in range(OTHER_WORDS)],
        axis=1,
    ).astype(np.int64) + np.arange(OTHER_WORDS) * (VOCABULARY // OTHER_WORDS)
    terms = np.concatenate([words, others], axis=1)
    # Words of all stories are left out of the hash, like stop words: texts of a story share keys.
    least = mix(words.astype(np.uint64).ravel()).reshape(words.shape).min(axis=1)
    size = terms.shape[1]
    lists = pa.ListArray.from_arrays(
        pa.array(np.arange(len(rows) + 1) * size, pa.int32()), pa.array(terms.ravel(), pa.int64())
    )
    return pa.table(
        {
            "text": pa.array(rows),
            "story": pa.array(story),
            "lsh": pa.array((least % np.uint64(KEYS)).astype(np.int32)),
            "terms": lists,
            # Each of 1,024 texts in a row has its own low bits: hardly any two have the same time.
            "x_ts": time_array(-(-times // 1024) * 1024 + rows % 1024),
        }
    )


def _distinct(spec: SyntheticSpec, rows: Rows, some: int, of: int) -> Rows:
    """(n, some) different numbers below `of`, in a random order."""
    drawn = np.stack([spec.uniform(f"own {i}", rows) for i in range(of)], axis=1)
    return np.argsort(drawn, axis=1)[:, :some]
