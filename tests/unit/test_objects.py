"""The object store that tests start, and the proxy before it."""

from __future__ import annotations

import threading

import pytest
from obstore.exceptions import AlreadyExistsError
from obstore.store import S3Store

from tests.objects import Proxy, environment, free_ports


@pytest.fixture(autouse=True)
def _reached(objects):
    with environment(objects):
        yield


@pytest.fixture
def proxy(objects):
    made = Proxy(objects["AWS_ENDPOINT_URL"])
    yield made
    made.close()


def test_a_bucket_is_new_keeps_what_is_put_and_creates_a_key_once(bucket):
    store = S3Store.from_url(bucket)
    assert list(store.list()) == []
    store.put("a/key", b"what", mode="create")
    with pytest.raises(AlreadyExistsError):
        store.put("a/key", b"other", mode="create")
    assert bytes(store.get("a/key").bytes()) == b"what"


def test_a_held_proxy_passes_nothing_until_it_is_released(bucket, proxy):
    store = S3Store.from_url(bucket, endpoint=proxy.endpoint)
    store.put("key", b"before")
    assert proxy.passed > 0
    proxy.hold()
    passed, found, done = proxy.passed, [], threading.Event()

    def ask():
        found.append(bytes(store.get("key").bytes()))
        done.set()

    asking = threading.Thread(target=ask)
    asking.start()
    assert not done.wait(0.5)
    assert proxy.passed == passed
    proxy.release()
    asking.join(30)
    assert found == [b"before"]


def test_ports_are_free_and_differ():
    assert len(set(free_ports(4))) == 4
