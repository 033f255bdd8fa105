"""Which tests share a process, and which rows of a long test are tried each time."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

from tests.conftest import least_tried, share_of, values_of


def test_stream_tests_share_one_session():
    one, other = (f"tests/stream/{name}::test_x[1]" for name in ("test_joins.py", "test_cli.py"))
    assert share_of(one) == share_of(other) == "one session"


def test_tests_of_a_cluster_share_it():
    found = {share_of(f"tests/cluster/{name}.py::test_x") for name in ("test_a", "test_b")}
    assert found == {"one cluster"}


def test_all_others_go_where_there_is_time():
    alone = ["tests/unit/test_feeds.py::test_x[a]", "tests/unit/test_feeds.py::test_x[b]"]
    wheel = [f"tests/stream/test_wheel.py::test_{name}" for name in "ab"]
    assert len({share_of(one) for one in alone}) == 2
    assert len({share_of(one) for one in wheel}) == 1
    assert share_of(wheel[0]) != "one session"


def test_each_layout_is_tried_by_about_as_many_tests():
    layouts = [f"layout{number}" for number in range(7)]
    tried, chosen = Counter(), Counter()
    for test in range(21):
        rows = [
            SimpleNamespace(
                nodeid=f"test_{test}[{layout}]",
                callspec=SimpleNamespace(params={"layout": layout, "count": test}),
            )
            for layout in layouts
        ]
        before = tried.copy()
        those = least_tried(rows, 2, tried)
        assert those == least_tried(rows[::-1], 2, before)  # whatever their order
        chosen.update(value for row in those for value in values_of(row))
    assert chosen == Counter(dict.fromkeys(layouts, 6))
