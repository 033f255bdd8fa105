"""A feed that nobody needs to look after."""

from __future__ import annotations

from joinengine.sources.feeds import CountedFeed


class Inert(CountedFeed):
    """A feed without files or a log; what is left is how far it can be read."""

    def check(self):
        pass

    def take_over(self, generation):
        pass

    def tidy(self):
        pass

    def close(self):
        pass
