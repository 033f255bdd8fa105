"""How fast a store or a network is, as users write it: a rate, and the time of a request."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from joinengine.model.durations import describe, microseconds
from joinengine.model.errors import InvalidRequest
from joinengine.model.texts import size_text

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b\s*/\s*s")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
#: The longest time of a request.
MOST_LATENCY_US = 60_000_000


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a store or a network is: bytes per second, and seconds for each request.

    >>> str(Speed())
    '100.0 MB/s, 0.05 s per request'
    """

    bytes_per_s: float = 100e6
    latency_s: float = 0.05

    @classmethod
    def of(cls, text: str, what: str) -> Speed:
        """From a rate, and perhaps the time of a request after a comma; `what` names the option.

        Units are powers of 1000. Raises InvalidRequest for any other text.

        >>> Speed.of("1.5 GB/s, 20 ms", "store")
        Speed(bytes_per_s=1500000000.0, latency_s=0.02)
        """
        rate, comma, latency = str(text).partition(",")
        match = _RATE.fullmatch(rate.strip().lower())
        if not match or not float(match[1]):
            raise InvalidRequest(
                f"{what}: {text!r} is not a speed of a store; give a rate above 0 and, if you "
                "like, the time per request: '100 MB/s, 50 ms'"
            )
        waits_us = microseconds(latency, what) if comma else round(cls().latency_s * 1e6)
        if waits_us < 0:
            raise InvalidRequest(f"{what}: {describe(waits_us)} is negative; use 0 or more")
        if waits_us > MOST_LATENCY_US:
            raise InvalidRequest(
                f"{what}: {describe(waits_us)} per request is too long; use at most "
                f"{describe(MOST_LATENCY_US)}"
            )
        return cls(float(match[1]) * 1000 ** _POWERS[match[2]], waits_us / 1e6)

    def __str__(self) -> str:
        latency = describe(round(self.latency_s * 1e6))
        return f"{size_text(self.bytes_per_s)}/s, {latency} per request"

    def seconds(self, sizes: Collection[int]) -> float:
        """Seconds that parallel requests of `sizes` bytes take; 0 without requests."""
        return self.latency_s + max(sizes) / self.bytes_per_s if sizes else 0.0
