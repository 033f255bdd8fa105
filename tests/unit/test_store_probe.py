"""The probe of a store accepts one that loses answers, and refuses one that cannot decide."""

from __future__ import annotations

import pytest

from joinengine.model.errors import InvalidRequest
from joinengine.world.memory import MemoryStorage, MemoryWorld
from joinengine.world.store_probe import check_exclusive


class Losing(MemoryStorage):
    """A store that loses the answers to its first creates, which are made all the same."""

    lost = 0

    def create(self, name, content):
        created = super().create(name, content)
        if created and Losing.lost:
            Losing.lost -= 1
            return False
        return created


def test_lost_answers_are_no_reason_to_refuse_a_store():
    storage, world = Losing("s3://bucket/probe", {}), MemoryWorld()
    for Losing.lost in (0, 1, 2):
        check_exclusive(storage, world)
        assert not Losing.lost and not storage.files
    Losing.lost = 3
    with pytest.raises(InvalidRequest, match="0 of 8 writers created the same file"):
        check_exclusive(storage, world)


def test_a_store_in_which_the_last_writer_counts_is_refused():
    class Overwriting(MemoryStorage):
        def create(self, name, content):
            created = super().create(name, content)
            self.put(name, b"of somebody else")
            return created

    with pytest.raises(InvalidRequest, match="and its content stay"):
        check_exclusive(Overwriting("s3://bucket/probe", {}), MemoryWorld())
