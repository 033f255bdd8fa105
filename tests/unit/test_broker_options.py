"""The file of settings for brokers: what it may hold, and that no error tells what it holds."""

from __future__ import annotations

import click
import pytest

from joinengine.lab.commands.broker_options import cluster_from
from joinengine.model.errors import InvalidRequest

SECRET = "hunter2"


def cluster(file, text):
    file.write_text(text)
    return cluster_from({"servers": "host:1", "servers_config": file})


def test_settings_are_lines_of_name_and_value(tmp_path):
    text = f"# of me\n\n sasl.username = me\r\nsasl.password={SECRET}=\n  # the end"
    read = cluster(tmp_path / "config", text)
    assert read.servers == "host:1"
    assert read.options == {"sasl.username": "me", "sasl.password": f"{SECRET}="}
    assert SECRET not in repr(read)
    assert cluster_from({"servers": "host:1"}).options == {}
    assert cluster_from({}) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"a=b\nsasl.password: {SECRET}", "line 2 of .* is no NAME=VALUE; give each setting in a"),
        (f"={SECRET}", "line 1 of .* is no NAME=VALUE"),
        ("sasl.password=", "line 1 of .* is no NAME=VALUE"),
        (f"a={SECRET}\na={SECRET}", "line 2 of .* says the same setting again"),
    ],
)
def test_a_file_that_has_something_else_is_refused(tmp_path, text, said):
    with pytest.raises(InvalidRequest, match=said) as refused:
        cluster(tmp_path / "config", text)
    assert SECRET not in str(refused.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(InvalidRequest, match=r"missing cannot be read: No such file"):
        cluster_from({"servers": "host:1", "servers_config": tmp_path / "missing"})
    (tmp_path / "config").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidRequest, match=r"config cannot be read: it is no text"):
        cluster_from({"servers": "host:1", "servers_config": tmp_path / "config"})
    with pytest.raises(click.UsageError, match="--servers-config applies to --servers"):
        cluster_from({"servers_config": tmp_path / "config"})
