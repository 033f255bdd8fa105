"""A real broker on loopback, for the demo, benchmarks and tests; its jars are fetched once."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

TOOL = Path(__file__).parent.parent.parent / "tools" / "ensure-kafka"
#: Seconds until a broker answers: a JVM starts twice, beside the other tests.
STARTS_S = 90.0


class NoBroker(Exception):
    """The broker did not start or does not answer; the text has the end of its log."""


class Broker:
    """One broker, whose data lie in `folder`; `servers`: where clients find it.

    `port`: None for a free one; `properties`: settings of Kafka beside those of the tool.
    """

    def __init__(
        self, folder: Path, port: int | None = None, properties: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.properties = properties or {}
        self.servers = f"127.0.0.1:{port}" if port else ""
        self._process: subprocess.Popen[str] | None = None
        self._client: Any = None

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start, on the earlier port if there was one, and wait until the broker answers."""
        self.begin()
        self.wait()

    def begin(self) -> None:
        """Start without waiting: one broker of several answers only once others have started."""
        port = [self.servers.rpartition(":")[2]] if self.servers else []
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = [f"{name}={value}\n" for name, value in self.properties.items()]
        (self.folder / "more.properties").write_text("".join(lines))
        with (self.folder / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                [TOOL, "--start", self.folder, *port],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        self.servers = self._process.stdout.readline().strip() or self.servers

    def stop(self, *, kill: bool = False) -> None:
        """Stop the broker; `kill`: as a power cut would. Messages that it has acknowledged stay."""
        if self._process is None:
            return
        os.killpg(self._process.pid, signal.SIGKILL if kill else signal.SIGTERM)
        self._process.communicate(timeout=60)
        self._process = self._client = None

    @property
    def is_running(self) -> bool:
        """Whether it was started and not stopped."""
        return self._process is not None

    @property
    def admin(self) -> Any:
        """A client that makes and changes topics; it lives as long as the broker runs."""
        if self._client is None:
            self._client = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        return self._client

    def wait(self) -> None:
        """Wait until the broker answers. Raises NoBroker if it does not."""
        assert self._process is not None
        until = time.monotonic() + STARTS_S
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise NoBroker((self.folder / "broker.log").read_text()[-1000:])
            try:
                if self.admin.list_topics(timeout=2).brokers:
                    return
            except KafkaException:
                time.sleep(0.1)
        raise NoBroker(f"no answer after {STARTS_S:g} s; see {self.folder / 'broker.log'}")
