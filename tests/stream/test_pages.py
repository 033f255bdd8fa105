"""The code of the pages runs and prints what they say; troubleshooting names every refusal."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.stream.pages import DOCS, PAGES, blocks_of, run_page

pytestmark = pytest.mark.spark

START_US = 1_700_000_000_000_000 // (3600 * 10**6) * 3600 * 10**6


def write_stream(folder, key, time, extra, seed):
    """Three files of an hour of event time each; small keys are hot, and 1 % are NULL."""
    rng = random.Random(seed)
    folder.mkdir()
    for hour in range(3):
        times = sorted(START_US + (3600 * hour + rng.random() * 3600) * 10**6 for _ in range(400))
        users = [min(int(rng.paretovariate(0.7)), 200) for _ in range(400)]
        table = pa.table(
            {
                key: pa.array([user if rng.random() > 0.01 else None for user in users]),
                time: pa.array([int(us) for us in times]).cast(pa.timestamp("us", "UTC")),
                extra: pa.array([round(rng.random() * 100, 2) for _ in range(400)]),
            }
        )
        pq.write_table(table, folder / f"{hour}.parquet")


@pytest.fixture
def in_a_folder(tmp_path, monkeypatch, spark):
    """A folder of its own, with the two streams of all pages; for Python and for the JVM."""
    monkeypatch.chdir(tmp_path)
    hadoop = spark._jvm.org.apache.hadoop.fs
    files = hadoop.FileSystem.get(spark.sparkContext._jsc.hadoopConfiguration())
    before = files.getWorkingDirectory()
    files.setWorkingDirectory(hadoop.Path(str(tmp_path)))
    write_stream(tmp_path / "clicks", "user_id", "clicked_at", "seconds", 1)
    write_stream(tmp_path / "purchases", "buyer_id", "bought_at", "amount", 2)
    yield
    files.setWorkingDirectory(before)


@pytest.mark.each_row
@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs_and_prints_what_the_page_says(page, in_a_folder):
    run_page(page)


@pytest.mark.slow
@pytest.mark.each_row
@pytest.mark.parametrize("page", PAGES)
def test_the_slow_code_of_a_page_runs_too(page, in_a_folder):
    if not any(block.when == "slow" for block in blocks_of(page)):
        pytest.skip("no block of the page is slow")
    run_page(page, slow=True)


def test_a_block_that_is_not_run_says_why():
    reasons = [block.why for page in PAGES for block in blocks_of(page) if block.why is not None]
    assert reasons
    assert all(len(why.split()) >= 3 for why in reasons), reasons
    whole = "".join((DOCS / f"{page}.md").read_text() for page in PAGES)
    assert whole.count("```") == 2 * sum(len(blocks_of(page)) for page in PAGES)
    assert whole.count("<!-- not run") + whole.count("<!-- slow") == len(reasons)
