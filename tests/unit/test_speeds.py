"""How fast a store or a network is, as users write it."""

from __future__ import annotations

import pytest

from joinengine.model.errors import InvalidRequest
from joinengine.model.speeds import Speed


@pytest.mark.parametrize(
    "text", ["", "fast", "100", "100 MB", "0 MB/s", "-1 MB/s", "10 MB/s,", "10 MB/s, -1 s", "1 s"]
)
def test_what_is_no_speed_is_refused(text):
    with pytest.raises(InvalidRequest, match=r"^store"):
        Speed.of(text, "store")


@pytest.mark.parametrize(
    ("text", "speed"),
    [
        ("100 MB/s, 50 ms", (1e8, 0.05)),
        ("250kb/s", (250e3, 0.05)),
        ("2.5 GB / s, 0 s", (2.5e9, 0.0)),
        ("7 B/s, 1 minute", (7.0, 60.0)),
    ],
)
def test_speeds_are_read(text, speed):
    found = Speed.of(text, "store")
    assert (found.bytes_per_s, found.latency_s) == speed
