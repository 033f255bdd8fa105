"""A schema registry: which schema a number stands for, asked over HTTP as Confluent's API has it.

Law: its password appears in no text that is made here.
Cost: a round trip for each request; callers keep the answers.
"""

from __future__ import annotations

import base64
import json
import re
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPException
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from joinengine.model.errors import InvalidRequest, StoreUnreachable
from joinengine.model.texts import in_a_line, quoted
from joinengine.world.kafka_clients import PATIENCE_S

#: Between two requests, while it does not answer.
_PAUSE_S = 1.0
_USERS = ("schema.registry.basic.auth.user.info", "basic.auth.user.info")
#: Says from where clients of Java take the user; here each place is looked at.
_SOURCES = ("schema.registry.basic.auth.credentials.source", "basic.auth.credentials.source")


class NoSuchSchema(Exception):
    """The registry answers, and does not have what was asked for; its words."""


@dataclass(frozen=True)
class Registry:
    """A schema registry; `user`: name and password, with a colon between, or empty."""

    url: str
    user: str = field(default="", repr=False)

    def ask(self, path: str, sent: Any = None, patience_s: float = 0.0) -> Any:
        """The answer to a request, or to what is sent, both of JSON.

        `patience_s`: how long to ask again while it does not answer, or says that it cannot. Raises
        NoSuchSchema; InvalidRequest for what no repetition mends; StoreUnreachable.
        """
        end = time.monotonic() + patience_s
        while True:
            try:
                return self._ask(path, sent)
            except StoreUnreachable:
                if time.monotonic() >= end:
                    raise
            time.sleep(_PAUSE_S)

    def _ask(self, path: str, sent: Any) -> Any:
        body = None if sent is None else json.dumps(sent).encode()
        request = urllib.request.Request(f"{self.url.rstrip('/')}/{path}", body)
        request.add_header("Content-Type", "application/json")
        if self.user:
            token = base64.b64encode(self.user.encode()).decode()
            request.add_header("Authorization", f"Basic {token}")
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                answer = json.load(response)
            if not isinstance(answer, dict):
                raise ValueError(f"it answers with a {type(answer).__name__}")
            return answer
        except urllib.error.HTTPError as error:
            code, words = _said(error)
            if code // 100 == HTTPStatus.NOT_FOUND:
                raise NoSuchSchema(words) from None
            if error.code >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise _away(self.url, words) from None
            raise InvalidRequest(
                f"schema registry {self.url} does not serve {path} ({words}); correct "
                "schema.registry.url or its user in options, give schema=, or make the schema "
                "agree with the topic's"
            ) from None
        except (OSError, ValueError, HTTPException) as error:
            raise _away(self.url, in_a_line(error)) from None


def _said(error: urllib.error.HTTPError) -> tuple[int, str]:
    """The registry's own code and words; 0: a web server that is none has answered."""
    try:
        answer = json.loads(error.read())
        return int(answer["error_code"]), in_a_line(answer["message"])
    except (OSError, ValueError, KeyError, TypeError, HTTPException):
        return 0, in_a_line(error)


def _away(url: str, why: str) -> StoreUnreachable:
    return StoreUnreachable(
        f"schema registry {url} does not answer ({why}); check that it runs there, and "
        "schema.registry.url"
    )


def _is_address(url: str) -> bool:
    """Whether a URL is of one server, and has nothing that may be a secret."""
    parts = urlsplit(url)
    try:
        is_server = parts.hostname is not None and parts.port != 0
    except ValueError:  # the port is no number
        return False
    others = parts.query or parts.fragment or any(mark in url for mark in "@,")
    return is_server and not others and parts.scheme in ("http", "https")


def registry_of(settings: dict[str, Any]) -> Registry | None:
    """The schema registry that settings name, which are then those of the client of Kafka.

    None: they name none. Raises InvalidRequest for what is no URL.
    """
    url = settings.pop("schema.registry.url", None)
    if url is None:
        return None
    for name in _SOURCES:
        settings.pop(name, None)
    users = [settings.pop(name, "") for name in _USERS]
    parts = urlsplit("")
    with suppress(ValueError):  # brackets that do not close
        parts = urlsplit(str(url))
    bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    if not _is_address(bare):
        # What is before and behind it may be a secret.
        behind = re.split("[?#]", str(url).rpartition("@")[2])[0]
        raise InvalidRequest(
            f"options: schema.registry.url: expected one URL of http or https, such as "
            f"http://registry:8081; found {quoted(behind)}. Give name and password as "
            "schema.registry.basic.auth.user.info"
        )
    in_url = unquote(f"{parts.username}:{parts.password or ''}") if parts.username else ""
    return Registry(bare, next(filter(None, [*users, in_url]), ""))
