"""A server of a live page with a made-up story, and what asks it."""

from __future__ import annotations

import http.client
import json
from contextlib import closing, contextmanager

from joinengine.reporting.server import PageServer, Place

TOKEN = "a-token_of.this~test"
#: Far longer than anything here takes, in seconds: a test that waits for it fails.
PATIENCE_S = 60


class Story:
    """A story that merges its entries, two by two, at every `merged`-th batch."""

    def __init__(self, merged=None):
        self.batches, self.ended, self.merged = [], None, merged

    def add(self, record):
        if record == "broken":
            raise ZeroDivisionError
        self.batches.append(record)
        return self.merged is not None and len(self.batches) % self.merged == 0

    def whole(self):
        return {"batches": list(self.batches), "ended": self.ended}

    def newest(self):
        return {"batch": self.batches[-1], "plans": []}

    def end(self, how, words, at):
        self.ended = {"how": how, "words": words, "at": at}


@contextmanager
def served(place=None, story=None, **hooks):
    server = PageServer(place or Place(token=TOKEN))
    server.serve(story or Story(), lambda: "<p>é</p>", **hooks)
    try:
        yield server
    finally:
        server.close()


def ask(server, path, host="127.0.0.1", method="GET", **headers):
    """(status, headers, body) of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    with closing(connection):
        connection.putrequest(method, path, skip_host=True)
        if host is not None:
            connection.putheader("Host", host)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


class Watching:
    """An open tab: a connection that reads events."""

    def __init__(self, server):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
        self.connection.request("GET", f"/events?token={TOKEN}")
        self.answer = self.connection.getresponse()
        assert self.answer.status == 200
        assert self.answer.headers["Content-Type"] == "text/event-stream"
        assert self.answer.readline().startswith(b"retry: ")
        assert self.answer.readline() == b"\n"

    def next(self):
        """(event, its JSON); None: the server has hung up."""
        lines = list[bytes]()
        while (line := self.answer.readline()) != b"\n":
            if not line:
                return None
            lines.append(line)
        if lines[0].startswith(b":"):
            return self.next()
        event, data = (line.decode().partition(": ")[2] for line in lines)
        return event.strip(), json.loads(data)

    def close(self):
        self.answer.close()
        self.connection.close()
