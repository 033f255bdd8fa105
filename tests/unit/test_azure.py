"""URLs of Azure: with the account in the URL, as Azure writes them, or in the environment."""

from __future__ import annotations

import os

import pytest

from joinengine.model.errors import InvalidRequest
from joinengine.spark.sources.locations import place
from joinengine.world import buckets


@pytest.fixture(autouse=True)
def no_account(monkeypatch):
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    buckets.store_of.cache_clear()
    yield
    buckets.store_of.cache_clear()


@pytest.mark.parametrize("scheme", ["abfs", "abfss"])
def test_a_url_may_name_the_account(scheme):
    url = place(f"{scheme}://data@one.dfs.core.windows.net//in/a/", "parquet_stream")
    assert url == f"{scheme}://data@one.dfs.core.windows.net/in/a"
    bucket, key = buckets.root_of(url)
    assert key == "in/a"
    store = buckets.store_of(bucket, os.getpid())
    assert store.config == {"container_name": "data", "account_name": "one"}
    assert not store.prefix


def test_the_environment_may_name_the_account(monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "two")
    (bucket, _) = buckets.root_of(place("az://data/in", "parquet_stream"))
    assert buckets.store_of(bucket, os.getpid()).config == {"container_name": "data"}


def test_without_an_account_the_url_is_refused_at_once():
    with pytest.raises(InvalidRequest, match=r"abfss://data names no account of Azure; write abf"):
        list(buckets.files_below("abfss://data/in"))
