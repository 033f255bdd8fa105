"""What a query gets from the session while it starts, without Spark."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from joinengine.spark.session import session, warming
from joinengine.spark.session.tuning import BY_FILE_SYSTEM, CHECKPOINT_MANAGER


class Conf(dict):
    """The settings of a session, with the names of Spark's methods."""

    def set(self, name, value):
        self[name] = value

    def unset(self, name):
        del self[name]


def session_of(settings, default_fs="file:///"):
    hadoop = {"fs.defaultFS": default_fs}
    context = SimpleNamespace(_jsc=SimpleNamespace(hadoopConfiguration=lambda: hadoop))
    return SimpleNamespace(conf=Conf(settings), sparkContext=context)


OTHER = {"spark.sql.shuffle.partitions": "3"}
CHOSEN = {CHECKPOINT_MANAGER: "org.example.Manager"}


@pytest.mark.parametrize(
    ("settings", "default_fs", "inside"),
    [
        (OTHER, "file:///", OTHER | {CHECKPOINT_MANAGER: BY_FILE_SYSTEM}),
        (OTHER, "hdfs://namenode:8020", OTHER),
        (CHOSEN, "file:///", CHOSEN),
    ],
)
def test_a_start_borrows_the_session(settings, default_fs, inside):
    spark = session_of(settings, default_fs)
    with session.for_query(spark):
        assert spark.conf == inside
    assert spark.conf == settings
    with pytest.raises(ZeroDivisionError), session.for_query(spark):
        raise ZeroDivisionError
    assert spark.conf == settings


def test_no_start_takes_the_setting_from_another():
    spark, second_is_in, first_is_out = session_of({}), threading.Event(), threading.Event()
    seen = []

    def second():
        with session.for_query(spark):
            second_is_in.set()
            first_is_out.wait(10)
            seen.append(dict(spark.conf))

    thread = threading.Thread(target=second)
    with session.for_query(spark):
        thread.start()
        second_is_in.wait(0.5)  # in vain, if it waits its turn
    first_is_out.set()
    thread.join(10)
    assert seen == [{CHECKPOINT_MANAGER: BY_FILE_SYSTEM}]
    assert spark.conf == {}


def test_a_start_within_a_start_goes_on(monkeypatch):
    monkeypatch.setattr(session, "_START_S", 0.01)
    spark = session_of({})
    with session.for_query(spark):
        with session.for_query(spark):
            pass
        assert spark.conf == {CHECKPOINT_MANAGER: BY_FILE_SYSTEM}
    assert spark.conf == {}


def test_a_session_is_there_when_its_workers_are(monkeypatch):
    """A program that stops it at once would else get a trace of Spark's about their job."""
    ready = threading.Event()

    def warm(_):
        starting = threading.Thread(target=lambda: (time.sleep(0.2), ready.set()))
        starting.start()
        return starting

    monkeypatch.setattr(warming, "warm", warm)
    with warming.warmed(None):
        assert not ready.is_set()
    assert ready.is_set()
    ready.clear()
    with pytest.raises(KeyError), warming.warmed(None):
        raise KeyError
    assert ready.is_set()
