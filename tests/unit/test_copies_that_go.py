"""Copies of an object store's files may vanish at any moment: another process makes room."""

from __future__ import annotations

import pyarrow as pa

from joinengine.world import file_cache
from joinengine.world.remote import RemoteStorage


def test_a_copy_that_goes_between_the_look_and_the_reading_is_fetched_again(tmp_path, monkeypatch):
    monkeypatch.setenv("JOINENGINE_CACHE", str(tmp_path / "cache"))
    file_cache.file_cache.cache_clear()
    monkeypatch.setattr(RemoteStorage, "_fetched", lambda *_: pa.py_buffer(b"12345"))
    storage = RemoteStorage("s3://bucket/files", cache_bytes=1 << 20)
    monkeypatch.setattr(file_cache.FileCache, "find", lambda *_: str(tmp_path / "gone"))
    assert storage.map("theirs").to_pybytes() == b"12345"
    assert storage.fetched.files == 1
    file_cache.file_cache.cache_clear()
