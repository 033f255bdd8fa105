"""Secrets that a user has put into places, options and commands are repeated nowhere."""

from __future__ import annotations

import sys

import pytest

from joinengine.api import options as given
from joinengine.lab.comparison.provenance import made_by
from joinengine.model.errors import InvalidRequest
from joinengine.model.texts import without_secrets
from joinengine.spark.sources.locations import place
from joinengine.world.kafka_clients import Cluster

SECRET = "hunter2"


@pytest.mark.parametrize(
    "url",
    [
        *(f"s3n://id:{SECRET}@bucket/x", f"https://me:{SECRET}@host/x", f"hdfs://{SECRET}@host/x"),
        *(f"https://me:a/b@{SECRET}@host/x", f"wasbs://c@a.blob.core.windows.net/x?sig={SECRET}"),
    ],
)
def test_a_place_that_is_refused_is_shown_without_its_secrets(url):
    with pytest.raises(InvalidRequest, match="is not a path of a POSIX file system") as refused:
        place(url, "left")
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "text", ["abfss://c@account.dfs.core.windows.net/a", "s3://b/a@b", "/a@b/c?d", "hdfs://h:1/a"]
)
def test_what_is_no_secret_stays(text):
    assert without_secrets(text) == text


@pytest.mark.parametrize("servers", [f"me:{SECRET}@host:1", [f"me:{SECRET}@host:1"]])
def test_brokers_with_a_password_are_refused_and_not_repeated(servers):
    with pytest.raises(InvalidRequest, match="servers: expected the brokers") as refused:
        Cluster(servers).config()
    assert SECRET not in str(refused.value)


def test_an_option_that_is_no_text_is_not_repeated():
    with pytest.raises(InvalidRequest, match=r"kafka\.sasl\.password: .* found a list") as refused:
        given.named("kafka.sasl.password", [SECRET])
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "name", ["pwd", "credential", "s3.access-key-id", "fs.azure.account.key", "privateKey"]
)
def test_more_names_of_secrets(name):
    assert given.is_secret(name)


def test_a_report_has_its_command_without_secrets(monkeypatch):
    words = [
        *("/bin/joinengine", "run", "--sink", "iceberg:a.b", "--on", "token=token"),
        *("--sink-option", f"Catalog.uri=x://me:{SECRET}@host", "--sink-option", "codec=zstd"),
        *(f"--sink-option=catalog.token={SECRET}", "--left", f"https://me:{SECRET}@host/x"),
    ]
    monkeypatch.setattr(sys, "argv", words)
    assert made_by()["command"] == (
        "joinengine run --sink iceberg:a.b --on token=token --sink-option Catalog.uri=... "
        "--sink-option codec=zstd --sink-option=catalog.token=... --left https://..@host/x"
    )
