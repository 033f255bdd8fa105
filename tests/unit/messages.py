"""Messages of a topic, as the client hands them over."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Sent:
    """A message as the client hands it over."""

    its_value: bytes | None
    number: int = 0
    its_key: bytes | None = b"k"
    its_headers: list = field(default_factory=lambda: [("h", b"1")])

    def value(self):
        return self.its_value

    def key(self):
        return self.its_key

    def headers(self):
        return self.its_headers

    def offset(self):
        return self.number

    def partition(self):
        return 3

    def topic(self):
        return "clicks"

    def timestamp(self):
        return 1, 1_700_000_000_000 + self.number


def sent(*values):
    return [Sent(value, number) for number, value in enumerate(values)]
