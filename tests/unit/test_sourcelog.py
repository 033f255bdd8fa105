"""The source log: segments, folds of them, and drivers that have slept meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from joinengine.model.errors import DamagedState
from joinengine.sources import sourcelog
from joinengine.sources.positions import Logged, table_of
from joinengine.sources.sourcelog import SourceLog
from joinengine.world.memory import MemoryStorage

KEPT = Path(__file__).parents[1] / "golden" / "checkpoints" / "fold-1"


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(sourcelog, "FOLD_AT", 4)


class Driver:
    """A driver with its own log and what it has read of it, over files that all share."""

    def __init__(self, files, generation=1):
        self.storage = MemoryStorage("log", files)
        self.log, self.logged = SourceLog(self.storage, generation), Logged()
        self.read_on()

    def read_on(self):
        for files in self.log.read_on():
            self.logged.add(files)

    def append(self, *names):
        """Log files of one row group each, unless another driver was faster."""
        entries = [{"file": one, "size": 1, "modified_ns": 2, "rows": [3]} for one in names]
        if self.log.append(entries):
            self.read_on_entries(entries)
            return True
        return False

    def read_on_entries(self, entries):
        self.logged.add(table_of(entries))

    def fold(self):
        self.log.fold(self.logged)

    @property
    def files(self):
        return [group.file for group in self.logged.between(0, self.logged.end)]

    @property
    def names(self):
        return sorted(self.storage.names())


@pytest.fixture
def files():
    return {}


def filled(files, count, fold=True):
    """A driver that has logged a file with each look, and has folded after each."""
    driver = Driver(files)
    for number in range(count):
        assert driver.append(f"f{number}")
        if fold:
            driver.fold()
    return driver


def test_folds_are_few_and_say_what_the_segments_said(files):
    driver = filled(files, 200)
    assert Driver(files).files == [f"f{number}" for number in range(200)]
    assert len(driver.names) < 20
    assert driver.names[-1] == f"{199:012d}"  # the last segment stays as it is


def test_an_entry_is_written_again_a_few_times(files):
    written = 0
    real = Logged.table

    def table(self, first, last):
        nonlocal written
        written += last - first
        return real(self, first, last)

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(Logged, "table", table)
        filled(files, 500)
    assert written < 500 * 8  # the logarithm of 500 / 4, and one


def test_there_are_no_folds_of_few_segments(files):
    assert not any("-" in name for name in filled(files, 4).names)
    assert any("-" in name for name in filled({}, 5).names)


def test_what_a_fold_holds_is_removed_with_the_next_one(files):
    driver = filled(files, 5)
    assert driver.names == [f"{0:012d}", f"{0:012d}-{4:012d}", *(f"{n:012d}" for n in (1, 2, 3, 4))]
    for number in range(5, 9):
        driver.append(f"f{number}")
        driver.fold()
    assert driver.names[:2] == [f"{0:012d}-{4:012d}", f"{0:012d}-{8:012d}"]
    assert f"{3:012d}" not in driver.names and f"{4:012d}" in driver.names


def test_a_driver_that_slept_reads_on_in_the_middle_of_a_fold(files):
    slept = filled(files, 3)
    other = Driver(files, 2)
    for number in range(3, 30):
        assert other.append(f"f{number}")
        other.fold()
    assert f"{3:012d}" not in other.names
    slept.read_on()
    assert slept.files == other.files == [f"f{number}" for number in range(30)]


def test_a_name_that_was_freed_logs_nothing(files):
    """The segment after its last one was folded and removed while it slept."""
    slept, other = filled(files, 3), Driver(files, 2)
    for number in range(3, 30):
        other.append(f"f{number}")
        other.fold()
    assert not slept.append("late")
    assert f"{3:012d}" in other.names
    slept.read_on()
    assert slept.append("late")
    assert Driver(files).files == slept.files == [*other.files, "late"]


def test_two_drivers_that_look_at_once_have_one_log(files):
    first, second = filled(files, 2), Driver(files, 2)
    assert first.append("a", "b")
    assert not second.append("b")
    second.read_on()
    assert second.append("c")
    first.read_on()
    assert first.files == second.files == Driver(files).files == ["f0", "f1", "a", "b", "c"]


def test_two_drivers_fold_the_same(files):
    one, other = filled(files, 8, fold=False), Driver(files, 2)
    one.fold()
    (fold,) = (name for name in one.names if "-" in name)
    content = files[f"log/{fold}"]
    other.fold()
    assert files[f"log/{fold}"] is content
    del files[f"log/{fold}"]
    Driver(files, 3).fold()
    assert files[f"log/{fold}"] == content


def test_a_driver_that_stops_between_a_fold_and_the_removal_leaves_nothing_wrong(files):
    driver = filled(files, 8, fold=False)
    driver.fold()
    assert len(driver.names) == 9  # as if it had been killed now
    again = Driver(files, 2)
    for number in range(8, 14):
        again.append(f"f{number}")
        again.fold()
    assert Driver(files).files == [f"f{number}" for number in range(14)]
    assert f"{2:012d}" not in again.names


def test_what_is_folded_while_it_is_read_is_read_all_the_same(files, monkeypatch):
    driver = filled(files, 3)
    real = MemoryStorage.get

    def get(self, name):
        monkeypatch.setattr(MemoryStorage, "get", real)
        for number in range(3, 30):
            driver.append(f"f{number}")
            driver.fold()
        return real(self, name)

    monkeypatch.setattr(MemoryStorage, "get", get)
    assert Driver(files).files == [f"f{number}" for number in range(30)]


@pytest.mark.parametrize("lost", ["fold", "segment"])
def test_a_lost_file_is_refused_by_name(files, lost):
    driver = filled(files, 30)
    folds = [name for name in driver.names if "-" in name]
    name = max(folds, key=lambda one: int(one[13:])) if lost == "fold" else driver.names[-2]
    _, _, last = name.partition("-")
    for held in driver.names:
        if held == name or (lost == "fold" and int(held[:12]) < int(last) and held < name):
            del files[f"log/{held}"]
    with pytest.raises(DamagedState, match=r"is missing, but log/\d+ exists"):
        Driver(files)


@pytest.mark.parametrize("damage", [lambda c: c[:-9], lambda c: c[:-1] + b"?"])
def test_a_damaged_fold_is_refused_by_name(files, damage):
    driver = filled(files, 5)
    (fold,) = (name for name in driver.names if "-" in name)
    files[f"log/{fold}"] = damage(files[f"log/{fold}"])
    with pytest.raises(DamagedState, match=f"{fold} does not match its header"):
        Driver(files)


@pytest.mark.parametrize("are_folds", [False, True])
def test_pieces_that_were_swapped_are_refused_by_name(files, are_folds):
    names = [name for name in filled(files, 30).names if ("-" in name) is are_folds]
    first, other = (f"log/{name}" for name in names[-2:])
    files[first], files[other] = files[other], files[first]
    with pytest.raises(DamagedState, match=f"{first} has the content of {other}, so"):
        Driver(files)


def test_logs_of_sources_that_were_swapped_are_refused_by_name(files):
    filled(files, 5)
    others = {name.replace("log/", "other/"): content for name, content in files.items()}
    with pytest.raises(DamagedState, match=r"source log other/.* has the content of log/0"):
        SourceLog(MemoryStorage("other", others), 1).read_on()


def test_a_version_that_knows_no_folds_misses_what_is_folded(files):
    """It takes names of digits alone for segments, and asks that they follow on each other."""
    numbers = [int(name) for name in filled(files, 30).names if name.isdigit()]
    assert numbers
    assert min(numbers) > 0


ENTRIES = [
    {
        "file": "/in/a ü.parquet",
        "size": 10,
        "modified_ns": 1_700_000_000_000_000_001,
        "rows": [3, 4],
    },
    {"file": "/in/day=1/b.parquet", "size": 11, "modified_ns": 2, "rows": [0, 5]},
    {"file": "/in/c.parquet", "size": 4, "modified_ns": 3, "rows": [], "skipped": "is bad"},
    {"file": "/in/d.parquet", "size": 12, "modified_ns": 4, "rows": []},
]


def test_a_kept_fold_is_read(files):
    """One that was written when folds came to be; later versions go on from it."""
    files[f"log/{0:012d}-{4:012d}"] = KEPT.read_bytes()
    wanted = Logged()
    wanted.add(table_of(ENTRIES))
    (found,) = SourceLog(MemoryStorage("log", files), 1).read_on()
    assert found.equals(wanted.table(0, 4))


def test_odd_names_are_left_alone(files):
    driver = filled(files, 3)
    files["log/notes.txt"] = b"mine"
    files["log/1-2-3"] = b"mine"
    for number in range(3, 30):
        driver.append(f"f{number}")
        driver.fold()
    assert files["log/notes.txt"] == files["log/1-2-3"] == b"mine"
    assert Driver(files).files == driver.files
