"""Tables in an object store: the same deliveries, with the credentials of the environment."""

from __future__ import annotations

import pytest
from deltalake import DeltaTable

from joinengine.model.errors import InvalidRequest
from joinengine.results.delta import check_table
from tests.lakes import SCHEMA, DeltaLake, IceLake, rows_of, table_of
from tests.objects import environment, make_bucket, s3_server


@pytest.fixture(scope="module")
def server():
    with s3_server() as variables, environment(variables):
        yield variables


class Delta(DeltaLake):
    @property
    def place(self):
        return f"{self.bucket}/table"

    def opened(self):
        return DeltaTable(self.place, storage_options={"allow_http": "true"})


class Iceberg(IceLake):
    @property
    def told(self):
        return super().told | {"warehouse": f"{self.bucket}/warehouse", "s3.endpoint": self.server}


@pytest.mark.parametrize("kind", [Delta, Iceberg])
def test_results_are_there_once(kind, server, tmp_path, monkeypatch):
    monkeypatch.setattr(kind, "bucket", make_bucket(server), raising=False)
    monkeypatch.setattr(kind, "server", server["AWS_ENDPOINT_URL"], raising=False)
    lake = kind(tmp_path)
    lake.partition()
    sink, generation = lake.sink()
    sink.deliver(0, lake.stage(sink, generation, range(10)), generation)
    files = lake.stage(sink, generation, range(10, 20))
    sink.deliver(1, files, generation)
    again, generation = lake.sink()
    again.deliver(1, files, generation)
    assert lake.rows() == rows_of(table_of(range(20)))
    assert sink.staging.names() == []


def test_a_bucket_that_is_not_there_is_named(server):
    with pytest.raises(InvalidRequest, match=r"the table s3://no-such-bucket/x cannot be read"):
        check_table("s3://no-such-bucket/x", SCHEMA, (), exact=True)
