"""Object stores on loopback for tests: servers from PyPI as processes of their own, and a proxy.

`moto` keeps everything in memory and starts in a second. Tests that kill the server itself take
SeaweedFS, which has its objects on disk. The proxy stands between for a store that stalls. All of
them end with the process that has started them, however that ends.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

LOOPBACK = "127.0.0.1"
#: The credentials of a client; the servers here accept anybody who signs requests.
ACCESS = {
    "AWS_ACCESS_KEY_ID": "tester",
    "AWS_SECRET_ACCESS_KEY": "not-a-secret-of-anyone",
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
}
#: A program that ends the server when the pipe from its parent closes, however the parent ends.
_MOTO = """
import os, sys, threading, time
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
import moto.server

run, alone = moto.server.run_simple, threading.Lock()
latency_s = float(sys.argv[1])

def run_simple(host, port, app, **named):
    # It looks whether a name is there and then takes it, which two threads may do at once.
    def served(environ, start_response):
        time.sleep(latency_s)
        if "HTTP_IF_NONE_MATCH" not in environ:
            return app(environ, start_response)
        with alone:
            return app(environ, start_response)

    run(host, port, served, **named)

moto.server.run_simple = run_simple
moto.server.main(["-H", "127.0.0.1", "-p", "0"])
"""
_WEED = """
import os, subprocess, sys
server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
print(server.pid, flush=True)
sys.stdin.read()
server.kill()
"""
#: Far longer than a server takes to start, in seconds.
_READY_S = 60.0


def access(endpoint):
    """The environment variables with which a client finds and enters a server."""
    return ACCESS | {"AWS_ENDPOINT_URL": endpoint}


def make_bucket(environment):
    """A new bucket of the server that `environment` names; its URL."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    with urlopen(
        Request(f"{environment['AWS_ENDPOINT_URL']}/{name}", method="PUT"), timeout=_READY_S
    ):
        return f"s3://{name}"


@contextmanager
def s3_server(latency_s=0.0):
    """Run `moto`; gives the environment of its clients. `latency_s`: of each request."""
    server = subprocess.Popen(
        [sys.executable, "-c", _MOTO, str(latency_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    said = []
    try:
        for line in server.stderr:
            said.append(line)
            if "Running on http" in line:
                break
        else:
            raise RuntimeError(f"moto has not started: {''.join(said)}")
        # Each request is a line: a full pipe would stop the server.
        threading.Thread(target=server.stderr.read, daemon=True).start()
        yield access(line.split()[-1])
    finally:
        server.kill()
        server.wait()


@contextmanager
def environment(values):
    """In the block, this process's environment has `values`."""
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


class SeaweedServer:
    """SeaweedFS over a folder: `start`, `kill` (as a power failure does it), and `start` again."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.ports = dict(zip(("master", "volume", "filer", "s3"), free_ports(4), strict=True))
        self.endpoint = f"http://{LOOPBACK}:{self.ports['s3']}"
        self.environment = access(self.endpoint)
        self._guard = None

    @staticmethod
    def program():
        """The server's program; None: it is not installed."""
        return shutil.which("weed", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")

    def start(self):
        """Start on what the folder holds; returns when the server answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [self.program(), f"-logdir={self.folder}", "server", f"-dir={self.folder}"]
        command += [f"-ip={LOOPBACK}", f"-ip.bind={LOOPBACK}", "-s3", "-s3.port.iceberg=0"]
        command += [f"-{name}.port={port}" for name, port in self.ports.items()]
        command += ["-volume.max=20", "-master.volumeSizeLimitMB=64"]
        with (self.folder / "log").open("ab") as log:
            self._guard = subprocess.Popen(
                [sys.executable, "-c", _WEED, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._pid = int(self._guard.stdout.readline())
        wait_until(lambda: answers(self.endpoint), "SeaweedFS answers")

    def kill(self):
        """End the server at once; returns when it is gone."""
        if self._guard is not None:
            self._guard.stdin.close()
            self._guard.wait()
            self._guard = None


class Proxy:
    """Passes the bytes of TCP connections on to an address; while it is held, none pass."""

    def __init__(self, endpoint):
        there = urlsplit(endpoint)
        self._there = there.hostname, there.port
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._open.set()
        self.passed = 0
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        start = asyncio.start_server(self._serve, LOOPBACK, 0)
        self._server = asyncio.run_coroutine_threadsafe(start, self._loop).result()
        self.endpoint = f"http://{LOOPBACK}:{self._server.sockets[0].getsockname()[1]}"

    def hold(self):
        """Stop all bytes from now on, without breaking connections."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def release(self):
        """Pass on the bytes that have waited, and all later ones."""
        self._loop.call_soon_threadsafe(self._open.set)

    def close(self):
        """Break all connections."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self):
        self._server.close()
        ended = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)

    async def _serve(self, reader, writer):
        with suppress(OSError):
            back, forth = await asyncio.open_connection(*self._there)
            await asyncio.gather(self._pass(reader, forth), self._pass(back, writer))

    async def _pass(self, reader, writer):
        try:
            while data := await reader.read(1 << 16):
                await self._open.wait()
                self.passed += len(data)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # one end is gone, and so will be the other
        finally:
            writer.close()


def free_port():
    """A port of loopback that nobody has now."""
    return free_ports(1)[0]


def free_ports(count):
    """Free ports of loopback whose numbers plus 10,000 are free, too (SeaweedFS takes both).

    All are below the ports that the system gives to clients: a client that keeps trying to reach a
    stopped server could otherwise get its port, and connect to itself.
    """
    found = list[int]()
    for port in range(10_000 + os.getpid() * 7 % 12_000, 22_700):
        with socket.socket() as low, socket.socket() as high, suppress(OSError):
            low.bind((LOOPBACK, port))
            high.bind((LOOPBACK, port + 10_000))
            found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError("no free ports")


def answers(endpoint):
    """Whether a server gives any answer there."""
    try:
        with urlopen(endpoint, timeout=5):
            return True
    except URLError as error:
        return hasattr(error, "code")
    except OSError:
        return False


def wait_until(holds, what, patience_s=_READY_S):
    """Wait until `holds()`; RuntimeError if it does not come true."""
    end = time.monotonic() + patience_s
    while not holds():
        if time.monotonic() > end:
            raise RuntimeError(f"not after {patience_s:.0f} s: {what}")
        time.sleep(0.1)
