"""An object store on this machine, for tests: a server that speaks the protocol of S3."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from contextlib import contextmanager

#: What a client of the server must have in its environment, beside its address.
ACCESS = {
    "AWS_ACCESS_KEY_ID": "tester",
    "AWS_SECRET_ACCESS_KEY": "not-a-secret-of-anyone",
    "AWS_REGION": "us-east-1",
}
_PATIENCE_S = 60


def free_port():
    """A port of the loopback address that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def s3_server():
    """A server of moto's, which holds everything in memory; its environment for clients."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **quiet) as server:
        try:
            endpoint = f"http://127.0.0.1:{port}"
            _await(endpoint, server)
            yield ACCESS | {"AWS_ENDPOINT_URL": endpoint}
        finally:
            server.kill()


def make_bucket(environment):
    """A new bucket; its URL."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    request = urllib.request.Request(f"{environment['AWS_ENDPOINT_URL']}/{name}", method="PUT")
    urllib.request.urlopen(request).close()
    return f"s3://{name}"


@contextmanager
def environment(values):
    """`values` in this process's environment, inside."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _await(endpoint, server):
    give_up = time.monotonic() + _PATIENCE_S
    while server.poll() is None and time.monotonic() < give_up:
        try:
            urllib.request.urlopen(endpoint).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"no object store at {endpoint}")
