"""A feed for tests, without files or a log."""

from __future__ import annotations

from joinengine.sources.feeds import CountedFeed


class Inert(CountedFeed):
    """A feed that only knows how far it can be read."""

    def check(self):
        pass

    def take_over(self, generation):
        pass

    def tidy(self):
        pass

    def close(self):
        pass
