"""Names of source files that no log could hold are refused, however they are found."""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinengine.model.errors import JoinEngineError
from joinengine.sources.discovery import Finding
from joinengine.sources.positions import Logged
from joinengine.sources.sourcefiles import find

REFUSED = r"source \S*\\xe9\S* has a name that is not UTF-8"


@pytest.mark.parametrize("inside", [b"", b"caf\xe9"])
def test_a_name_that_is_no_text_is_refused_in_a_sentence(tmp_path, inside):
    place = os.path.join(os.fsencode(tmp_path), inside)
    os.makedirs(place, exist_ok=True)
    for name in (b"a.parquet" if inside else b"\xe9.parquet", b"\xe9.txt", b"_\xe9.parquet"):
        with open(os.path.join(place, name), "wb"):
            pass
    with pytest.raises(JoinEngineError, match=REFUSED):
        list(find(str(tmp_path)))


@pytest.mark.skipif(not os.path.exists("/proc/self/mountinfo"), reason="needs Linux")
def test_a_noticed_name_that_is_no_text_is_refused_in_a_sentence(tmp_path):
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    finding = Finding(str(tmp_path), Logged(), is_bounded=True)
    assert [file.path for file in finding.look(1000.0)] == [str(tmp_path / "a.parquet")]
    with open(os.path.join(os.fsencode(tmp_path), b"\xe9.parquet"), "wb"):
        pass
    with pytest.raises(JoinEngineError, match=REFUSED):
        finding.look(1001.0)
    finding.close()


@pytest.mark.skipif(not os.path.exists("/proc/self/mountinfo"), reason="needs Linux")
def test_a_noticed_link_to_a_folder_is_a_folder_whatever_its_name(tmp_path):
    place, elsewhere = tmp_path / "in", tmp_path / "elsewhere.parquet"
    place.mkdir()
    elsewhere.mkdir()
    pq.write_table(pa.table({"x": [1]}), elsewhere / "part.parquet")
    finding = Finding(str(place), Logged(), is_bounded=True)
    assert finding.look(1000.0) == []
    os.symlink(elsewhere, place / "day.parquet")
    (found,) = finding.look(1001.0)
    assert found.path == f"{place}/day.parquet/part.parquet"
    finding.close()
