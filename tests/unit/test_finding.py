"""Finding new files: by notices as by walking, a bounded number at a time."""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
from itertools import chain

import pytest

from joinengine.model.errors import JoinEngineError
from joinengine.sources import discovery as finding
from joinengine.sources import notices, sourcefiles
from joinengine.sources.discovery import SWEEP_S, Finding
from joinengine.sources.notices import Notices, notices_of
from joinengine.sources.positions import Logged, table_of
from joinengine.sources.sourcefiles import find

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/mountinfo"), reason="needs Linux")


def touched(path, when=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    if when is not None:
        os.utime(path, (when, when))
    return path


class Place:
    """A folder that is looked at; what is found is logged at once, unless `keeps` is False."""

    def __init__(self, root, monkeypatch, is_bounded=True):
        self.root, self.logged, self.now_s = root, Logged(), 1000.0
        root.mkdir(exist_ok=True)
        self.finding = Finding(str(root), self.logged, is_bounded=is_bounded)
        self.wholes, real = 0, finding.found_below

        def counted(*asked):
            self.wholes += 1
            return real(*asked)

        monkeypatch.setattr(finding, "found_below", counted)

    def log(self, files):
        entries = [
            {"file": one.path, "size": one.size, "modified_ns": one.modified_ns, "rows": [1]}
            for one in files
        ]
        self.logged.add(table_of(entries))

    def look(self, log=True):
        """The names that are found, in their order, below the root."""
        found = self.finding.look(self.now_s)
        if log:
            self.log(found)
        return [os.path.relpath(one.path, self.root) for one in found]


@pytest.fixture
def place(tmp_path, monkeypatch):
    found = Place(tmp_path / "in", monkeypatch)
    touched(found.root / "day=1/a.parquet")
    assert found.look() == ["day=1/a.parquet"]
    assert found.wholes == 1
    yield found
    found.finding.close()


def made(place):
    touched(place.root / "b.parquet")


def renamed(place):
    touched(place.root.parent / "b.parquet").rename(place.root / "b.parquet")


def shown(place):
    touched(place.root / ".b.parquet.tmp").rename(place.root / "b.parquet")


def linked(place):
    os.link(touched(place.root.parent / "b.parquet"), place.root / "b.parquet")


def pointed_at(place):
    os.symlink(touched(place.root.parent / "b.parquet"), place.root / "b.parquet")


def in_a_new_folder(place):
    touched(place.root / "day=2/hour=3/b.parquet")


def in_a_folder_that_is_moved_in(place):
    touched(place.root.parent / "day=2/hour=3/b.parquet")
    os.rename(place.root.parent / "day=2", place.root / "day=2")


def in_a_folder_with_another_name(place):
    (place.root / "day=1").rename(place.root / "day=2")


def in_a_folder_that_was_hidden(place):
    touched(place.root / "_staged/b.parquet")
    (place.root / "_staged").rename(place.root / "day=2")


def in_a_hidden_folder_behind_a_link(place):
    touched(place.root / "..2026/b.parquet")
    os.symlink("..2026", place.root / "day=2")  # as in a volume of Kubernetes


def in_a_folder_behind_a_link(place):
    touched(place.root.parent / "aside/b.parquet")
    os.symlink(place.root.parent / "aside", place.root / "day=2")


COMES = [
    *(made, renamed, shown, linked, pointed_at),
    *(in_a_new_folder, in_a_folder_that_is_moved_in, in_a_folder_with_another_name),
    *(in_a_folder_that_was_hidden, in_a_folder_behind_a_link),
    in_a_hidden_folder_behind_a_link,
]


@pytest.mark.parametrize("comes", COMES, ids=lambda one: one.__name__)
def test_what_comes_is_found_without_a_walk(place, comes):
    comes(place)
    (name,) = place.look()
    assert name.startswith(("b.parquet", "day=2/"))
    later = place.root / name
    touched(later.with_name("later.parquet"))  # in the same folder, which is watched by now
    assert place.look() == [os.path.relpath(later.with_name("later.parquet"), place.root)]
    assert place.look() == []
    assert place.wholes == 1


def test_hidden_names_and_other_files_are_not_found(place):
    for name in (".b.parquet", "_b.parquet", "b.csv", "_staged/b.parquet", ".tmp/b.parquet"):
        touched(place.root / name)
    assert place.look() == []
    touched(place.root / "_staged/c.parquet")
    assert place.look() == []
    assert len(find(str(place.root))) == 1


def test_links_never_lead_round_in_circles(place, tmp_path):
    """Nor do they show a file twice that lies in the place."""
    aside, beside = tmp_path / "aside", tmp_path / "beside"
    touched(aside / "b.parquet")
    touched(beside / "c.parquet")
    for link, to in (
        *((place.root / "loop", "loop"), (place.root / "loop.parquet", "loop.parquet")),
        *((place.root / "up", ".."), (place.root / "itself", "."), (place.root / "same", "day=1")),
        *((place.root / "aside", aside), (aside / "beside", beside), (beside / "aside", aside)),
        *((aside / "home", place.root), (beside / "top", tmp_path)),
    ):
        os.symlink(to, link)
    found = {os.path.relpath(one.path, place.root) for one in find(str(place.root))}
    there = {"day=1/a.parquet", "aside/b.parquet", "aside/beside/c.parquet"}
    assert found == there
    assert {*place.look()} == there - {"day=1/a.parquet"}
    os.symlink(aside, beside / "again")
    assert place.look() == []


@pytest.mark.parametrize("mode", [0o000, 0o600], ids=["names", "files"])
def test_a_folder_that_may_not_be_read_is_an_error(place, mode, monkeypatch):
    """It would look as if it were empty. Root may read all, so the system is made to refuse."""
    folder = place.root / "day=2"
    touched(folder / "b.parquet")

    def refused(real):
        def ask(path):
            if str(path) == f"{folder}{'/b.parquet' * bool(mode)}":
                raise PermissionError(13, "Permission denied", str(path))
            return real(path)

        return ask

    asked = "stat" if mode else "scandir"
    monkeypatch.setattr(sourcefiles.os, asked, refused(getattr(os, asked)))
    with pytest.raises(JoinEngineError, match=r"day=2\S* cannot be read \(Permission denied\)"):
        find(str(place.root))


def test_files_are_found_in_the_order_of_their_modification(place):
    for name, when in (("c", 3), ("b", 1), ("d", 2)):
        touched(place.root / f"{name}.parquet", when)
    assert place.look() == ["b.parquet", "d.parquet", "c.parquet"]


def test_what_is_not_logged_is_found_again(place):
    touched(place.root / "b.parquet")
    assert place.look(log=False) == place.look(log=False) == ["b.parquet"]
    os.unlink(place.root / "b.parquet")
    assert place.look() == []


def test_a_file_that_is_dropped_is_found_when_it_changes(place):
    path = touched(place.root / "b.parquet", 5)
    (file,) = place.finding.look(place.now_s)
    place.finding.drop(file)
    for left_some in (False, True):
        place.finding.left_some = left_some  # then the look is whole
        assert place.look() == []
    os.utime(path, (6, 6))
    assert place.look() == ["b.parquet"]
    assert place.wholes == 2


def test_any_changes_are_found_as_a_walk_finds_them(tmp_path, monkeypatch):
    """Changes at random, twenty between two looks: folders come, go and change their names."""
    for seed in range(10):
        rng, place = random.Random(seed), Place(tmp_path / f"{seed}", monkeypatch)
        place.look()
        logged = set()
        for _ in range(12):
            for _ in range(rng.randrange(20)):
                change(rng, place.root)
            there = {one.path for one in find(str(place.root))}
            found = {f"{place.root}/{name}" for name in place.look()}
            assert found == there - logged, seed
            logged |= found
        assert place.wholes == 1
        place.finding.close()


def change(rng, root):
    """One change below a folder."""
    folders = [root, *(one for one in root.rglob("*") if one.is_dir())]
    here, name = rng.choice(folders), f"{rng.choice(['', '', '_', '.'])}{rng.randrange(8)}"
    kind = rng.random()
    if kind < 0.4:
        touched(here / f"{name}.parquet")
    elif kind < 0.6:
        (here / name).mkdir(exist_ok=True)
    elif here != root:
        to = rng.choice(folders) / name
        if kind < 0.7:
            shutil.rmtree(here)
        elif not to.exists() and here not in (to, *to.parents):
            here.rename(to)


# What notices do not say


def test_more_than_the_system_keeps_is_found_by_a_walk(place):
    with open("/proc/sys/fs/inotify/max_queued_events") as file:
        kept = int(file.read())
    if kept > 100_000:
        pytest.skip("this system keeps many notices")
    first = touched(place.root / "0.parquet")
    for number in range(1, kept + 10):
        os.link(first, place.root / f"{number}.parquet")
    assert len(place.look()) == kept + 10
    assert place.wholes == 2
    touched(place.root / "z.parquet")
    assert place.look() == ["z.parquet"]
    assert place.wholes == 2


def test_a_folder_that_is_not_watched_is_walked_through_and_told_once(
    tmp_path, monkeypatch, caplog
):
    from inotify_simple import INotify  # noqa: PLC0415

    real = INotify.add_watch

    def add_watch(self, path, mask):
        if path.endswith("day=1"):
            raise OSError(errno.ENOSPC, "no space left on device")
        return real(self, path, mask)

    monkeypatch.setattr(INotify, "add_watch", add_watch)
    place = Place(tmp_path / "in", monkeypatch)
    with caplog.at_level(logging.WARNING, "joinengine"):
        for number in range(3):
            touched(place.root / f"day=1/{number}.parquet")
            assert place.look() == [f"day=1/{number}.parquet"]
    assert place.wholes == 3
    (said,) = (record.getMessage() for record in caplog.records)
    assert f"does not watch {place.root}/day=1 (" in said and "max_user_watches" in said


def test_a_folder_that_is_made_again_is_watched_again(place):
    shutil.rmtree(place.root)
    assert place.look() == []
    touched(place.root / "b.parquet")
    assert place.look() == ["b.parquet"]
    wholes = place.wholes
    touched(place.root / "c.parquet")
    assert place.look() == ["c.parquet"]
    assert place.wholes == wholes


def test_without_notices_each_look_is_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(finding, "notices_of", lambda root: None)
    place = Place(tmp_path / "in", monkeypatch)
    for number in range(3):
        touched(place.root / f"{number}.parquet")
        assert place.look() == [f"{number}.parquet"]
    assert place.wholes == 3


@pytest.mark.parametrize("moves_s", [SWEEP_S, -SWEEP_S], ids=["later", "clock set back"])
def test_what_nobody_notices_is_found_by_the_next_sweep(place, monkeypatch, moves_s):
    monkeypatch.setattr(Notices, "read", lambda self: [])
    touched(place.root / "b.parquet")
    place.now_s += moves_s / 2
    assert place.look() == []
    place.now_s += moves_s / 2
    assert place.look() == ["b.parquet"]
    assert place.wholes == 1


def test_a_sweep_reads_some_names_with_each_look(place, monkeypatch):
    monkeypatch.setattr("joinengine.sources.sourcefiles._AT_ONCE", 10)
    monkeypatch.setattr(Notices, "read", lambda self: [])
    for number in range(35):
        touched(place.root / f"{number}.parquet")
    place.now_s += SWEEP_S
    found = [len(place.look()) for _ in range(6)]
    assert sum(found) == 35
    assert max(found) <= 10
    assert place.wholes == 1


def test_of_many_the_oldest_wait_and_all_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(finding, "MOST_WAITING", 4)
    place = Place(tmp_path / "in", monkeypatch)
    for number in range(11):
        touched(place.root / f"{number:02}.parquet", 100 + number)
    found = [place.look() for _ in range(4)]
    assert [len(one) for one in found] == [4, 4, 3, 0]
    assert [*chain(*found)] == [f"{number:02}.parquet" for number in range(11)]


def test_files_that_stay_half_written_do_not_keep_others_waiting(tmp_path, monkeypatch):
    monkeypatch.setattr(finding, "MOST_WAITING", 4)
    place = Place(tmp_path / "in", monkeypatch)
    for number in range(9):
        touched(place.root / f"{number}.parquet", 100 + number)
    seen = set()
    for _ in range(6):
        found = place.finding.look(place.now_s)
        place.log(found[1:])  # the oldest one stays
        seen |= {one.path for one in found}
    assert len(seen) == 9


def test_what_has_no_log_waits_without_a_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(finding, "MOST_WAITING", 4)
    place = Place(tmp_path / "in", monkeypatch, is_bounded=False)
    for number in range(9):
        touched(place.root / f"{number}.parquet")
    assert len(place.look()) == 9


# Where there are notices


def test_a_file_and_what_other_machines_write_give_no_notices(tmp_path, monkeypatch):
    with_notices = notices_of(str(tmp_path))
    assert with_notices is not None
    with_notices.close()
    assert notices_of(str(touched(tmp_path / "a.parquet"))) is None
    assert notices_of("/proc") is None
    assert notices_of("s3://bucket/x") is None
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "1 1 0:1 / / rw - ext4 /dev/a rw\n"
        f"2 1 0:2 / {tmp_path} rw shared:3 - tmpfs a rw\n3 1 0:3 / {tmp_path} rw - nfs4 b rw\n"
    )
    monkeypatch.setattr(notices, "_MOUNTS", mounts)
    assert notices_of(str(tmp_path)) is None
    assert notices_of("/") is not None
    monkeypatch.setattr(notices, "_MOUNTS", tmp_path / "gone")
    assert notices_of("/") is None


def test_a_system_that_gives_no_more_watchers_has_no_notices(tmp_path, monkeypatch):
    def refuse(self):
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr("inotify_simple.INotify.__init__", refuse)
    assert notices_of(str(tmp_path)) is None


def test_nothing_stays_open(tmp_path, monkeypatch):
    before = len(os.listdir("/proc/self/fd"))
    place = Place(tmp_path / "in", monkeypatch)
    place.look()
    assert len(os.listdir("/proc/self/fd")) == before + 1
    place.finding.close()
    assert len(os.listdir("/proc/self/fd")) == before
