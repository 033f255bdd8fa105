"""A client of a schema registry with Confluent's HTTP API: it maps numbers to schemas.

Law: no text from this module contains the registry's password.
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

#: The pause between two requests while the registry does not answer, in seconds.
_PAUSE_S = 1.0
_USERS = ("schema.registry.basic.auth.user.info", "basic.auth.user.info")
#: Settings that tell Java clients where the user is given; here every place is searched.
_SOURCES = ("schema.registry.basic.auth.credentials.source", "basic.auth.credentials.source")


class NoSuchSchema(Exception):
    """The registry answers that it does not have the schema, in its own words."""


@dataclass(frozen=True)
class Registry:
    """A schema registry; `user`: name and password, separated by a colon, or empty."""

    url: str
    user: str = field(default="", repr=False)

    def ask(self, path: str, sent: Any = None, patience_s: float = 0.0) -> Any:
        """The JSON answer to a request, with `sent` as its JSON body if given.

        `patience_s`: for how long to repeat it while the registry does not answer or says that it
        cannot. Raises NoSuchSchema, StoreUnreachable, or InvalidRequest if repeating cannot help.
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
    """The registry's own code and words; code 0: the web server is not a schema registry."""
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
    """Whether a URL names one server and contains nothing that may be a secret."""
    parts = urlsplit(url)
    try:
        is_server = parts.hostname is not None and parts.port != 0
    except ValueError:  # the port is not a number
        return False
    others = parts.query or parts.fragment or any(mark in url for mark in "@,")
    return is_server and not others and parts.scheme in ("http", "https")


def registry_of(settings: dict[str, Any]) -> Registry | None:
    """The schema registry that `settings` name; its settings are removed from them.

    None: they name no registry. Raises InvalidRequest for a text that is not a URL.
    """
    url = settings.pop("schema.registry.url", None)
    if url is None:
        return None
    for name in _SOURCES:
        settings.pop(name, None)
    users = [settings.pop(name, "") for name in _USERS]
    parts = urlsplit("")
    with suppress(ValueError):  # an unclosed bracket
        parts = urlsplit(str(url))
    bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    if not _is_address(bare):
        # The parts before and after the address may be secret.
        behind = re.split("[?#]", str(url).rpartition("@")[2])[0]
        raise InvalidRequest(
            f"options: schema.registry.url: expected one URL of http or https, such as "
            f"http://registry:8081; found {quoted(behind)}. Give name and password as "
            "schema.registry.basic.auth.user.info"
        )
    in_url = unquote(f"{parts.username}:{parts.password or ''}") if parts.username else ""
    return Registry(bare, next(filter(None, [*users, in_url]), ""))
