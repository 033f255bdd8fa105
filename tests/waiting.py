"""Waiting for what another thread or process does."""

from __future__ import annotations

import time


def soon(holds, seconds=30.0):
    """Wait until `holds()` is true, much longer than it should take."""
    end_s = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.01)
