"""Clients of Kafka: their settings, which hold secrets, and their errors in plain words.

How: `confluent_kafka`, imported where it is used; its settings are librdkafka's and pass through.

Law: no text from this module contains the value of a setting that may be a secret.
Cost: `check_reachable` takes a round trip if all is well, and PATIENCE_S at most.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from joinengine.model.errors import InvalidRequest, JoinEngineError, StoreUnreachable
from joinengine.model.texts import in_a_line

#: How long a broker may take to answer before a start is refused, in seconds.
PATIENCE_S = 5.0
#: Replaces a secret.
MASK = "***"
#: The value of a setting is secret if its name contains one of these words.
_SECRET = re.compile(
    r"passw|pwd|secret|token|credential|(api|access|account|private).?key|sasl\.(?!mechanism)|ssl\.key|\.pem"
    r"|jaas|user\.info|oauth"
)
#: Found in errors of TLS, in any case; but each address of a TLS listener begins with ssl://.
_OF_TLS = re.compile(r"ssl(?!://)", re.IGNORECASE)
#: The logger of clients, which is silent because errors say the same.
_SILENT = logging.getLogger("joinengine.kafka")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False
#: Settings that joinengine sets by itself.
_OURS = {
    *("bootstrap.servers", "group.id", "enable.auto.commit", "enable.auto.offset.store"),
    *("enable.partition.eof", "isolation.level", "auto.offset.reset", "error_cb", "logger"),
    *("log_cb", "stats_cb", "on_commit", "transactional.id", "metadata.broker.list"),
}


def library() -> Any:
    """The package `confluent_kafka`. Raises InvalidRequest if it is missing."""
    try:
        import confluent_kafka  # noqa: PLC0415 # an extra: who has no Kafka need not have it
        import confluent_kafka.admin  # noqa: PLC0415
    except ImportError:
        raise InvalidRequest(
            "Kafka needs the package confluent-kafka; run: pip install 'joinengine[kafka]'"
        ) from None
    return confluent_kafka


def is_secret(name: str) -> bool:
    """Whether the value of a setting must not be shown.

    >>> is_secret("sasl.password"), is_secret("ssl.key.pem"), is_secret("security.protocol")
    (True, True, False)
    """
    return _SECRET.search(name.lower()) is not None


def hidden(text: str, options: Mapping[str, Any]) -> str:
    """A text without the secrets among the settings.

    >>> hidden("bad password hunter2", {"sasl.password": "hunter2"})
    'bad password ***'
    """
    secrets = [str(value) for name, value in options.items() if is_secret(name)]
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def is_of_group(error: Any) -> bool:
    """Whether an error is about the group that every consumer must name.

    The engine keeps positions by itself, so it needs no right to a group; yet clients look it up.
    """
    return bool(error.code() == library().KafkaError.GROUP_AUTHORIZATION_FAILED)


class Heard:
    """Collects the errors of a client's connections, which say why no broker answers."""

    def __init__(self) -> None:
        self.errors = list[Any]()

    def __call__(self, error: Any) -> None:
        """The client's `error_cb`, called again and again while no broker answers."""
        if error.name() != "_ALL_BROKERS_DOWN":
            self.errors = [*self.errors[-7:], error]

    def worst(self, otherwise: Any) -> Any:
        """The most informative error; `otherwise`: the error that the call itself raised."""
        known = ("_AUTHENTICATION", "_SSL")
        named = [error for error in self.errors if error.name() in known]
        return (named or self.errors or [otherwise])[-1]


@dataclass(frozen=True)
class Cluster:
    """The addresses and settings of brokers; its texts contain no secret.

    `options`: the user's settings, by librdkafka's names.
    """

    servers: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def config(self, **ours: Any) -> dict[str, Any]:
        """The settings of a client: `ours`, with _ for each dot, which the user's override.

        The client logs nothing by itself; its caller gets its errors. Raises InvalidRequest for a
        setting that joinengine sets itself, or a value that is neither text nor a number.
        """
        text = self.servers if isinstance(self.servers, str) else ""
        if not text.strip() or "@" in text:
            # Errors and pages name the brokers; what stands before an @ may be a secret.
            kind = "a user before an @" if text.strip() else f"a {type(self.servers).__name__}"
            raise InvalidRequest(
                f"servers: expected the brokers as 'host:port', joined by commas; found {kind}. A "
                "user and password are sasl.username and sasl.password in options"
            )
        for name, value in self.options.items():
            if name in _OURS:
                raise InvalidRequest(f"options: joinengine sets {name!r} itself; leave it out")
            if not isinstance(name, str) or not isinstance(value, (str, int, float)):
                raise InvalidRequest(
                    f"options: {name!r} has a value of type {type(value).__name__}; give a text or "
                    "a number, as librdkafka takes it"
                )
        return {
            "bootstrap.servers": self.servers,
            "socket.connection.setup.timeout.ms": 10_000,
            # If a broker dies, a client asks once for the new leader, before the others know it,
            # and then waits for the next refresh.
            "topic.metadata.refresh.interval.ms": 5_000,
            # Looking for a topic must not create it: a misspelt name would be an empty topic, and a
            # lost topic of tokens would exist again without its tokens.
            "allow.auto.create.topics": False,
            "log_level": 0,
            "logger": _SILENT,
            **{name.replace("_", "."): value for name, value in ours.items()},
            **self.options,
        }

    def told(self, error: Any, topic: str | None = None) -> JoinEngineError:
        """The engine's error for an error of the library.

        `error`: a KafkaError, or an exception with one. It is InvalidRequest if repeating does not
        help, and StoreUnreachable if a broker is away.
        """
        reason = error.args[0] if isinstance(error, Exception) and error.args else error
        text = in_a_line(hidden(str(getattr(reason, "str", lambda: reason)()), self.options))
        code, there = getattr(reason, "name", lambda: "")(), f"Kafka at {self.servers}"
        if code in ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED"):
            return InvalidRequest(
                f"{there} refuses the credentials ({text}); correct sasl.username, sasl.password "
                "and sasl.mechanism in options"
            )
        if code.endswith("AUTHORIZATION_FAILED"):
            return self._forbidden(topic, text)
        if code == "_SSL" or _OF_TLS.search(text):
            return InvalidRequest(
                f"{there} and security.protocol do not agree about TLS ({text}); set "
                "security.protocol, and ssl.ca.location for a certificate of your own, in options"
            )
        missing = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")
        if code in (*missing, "TOPIC_EXCEPTION"):
            return self._lacking(topic, text)
        if code in ("_INVALID_ARG", "_CONFLICT", "INVALID_CONFIG"):
            return InvalidRequest(f"options: Kafka's client refuses a setting ({text}); correct it")
        return StoreUnreachable(
            f"{there} is still ending the transaction before ({text}); check that each partition "
            "of the results, and of the topic of tokens, has a leader"
            if code == "CONCURRENT_TRANSACTIONS"
            else f"{there} does not answer ({text}); check that a broker runs there, its port, and "
            "that advertised.listeners names an address that this machine reaches"
        )

    def _lacking(self, topic: str | None, why: str) -> InvalidRequest:
        there = f"Kafka at {self.servers}"
        return InvalidRequest(
            f"{there} has no topic {topic!r}; create it, or correct the name"
            if topic is not None
            else f"{there} lacks the topic or the partition of a message ({why}); create it, or "
            "correct the option topic, or the columns topic and partition"
        )

    def _forbidden(self, topic: str | None, why: str) -> InvalidRequest:
        return InvalidRequest(
            f"Kafka at {self.servers} does not let these credentials use {topic or 'it'!r} "
            f"({why}); grant them the right in its access lists"
        )

    def check_reachable(
        self, topics: Iterable[str] = (), right: str | None = None
    ) -> dict[str, int]:
        """Each of the named topics -> how many partitions it has; called before a start.

        `right`: the right that the query needs on the topics, READ or WRITE; None: no check. Raises
        InvalidRequest with the words of `told`, within about PATIENCE_S, if no broker answers, a
        topic is missing, or its access lists do not give the right.
        """
        kafka, heard, topics = library(), Heard(), tuple(topics)
        for name in topics:
            if "\0" in name:  # the client refuses such a name without asking a broker
                raise self._lacking(name, "")
        try:
            admin = kafka.admin.AdminClient({**self.config(), "error_cb": heard})
            by_topic = {name: admin.list_topics(name, timeout=PATIENCE_S).topics for name in topics}
            if not by_topic:
                admin.list_topics(timeout=PATIENCE_S)
        except (kafka.KafkaException, ValueError, TypeError) as error:
            _hear(locals().get("admin"))
            raise InvalidRequest(str(self.told(heard.worst(error)))) from None
        counts = dict[str, int]()
        for name, topics_found in by_topic.items():
            topic = topics_found[name]
            if topic.error is not None:
                raise self.told(topic.error, name)
            counts[name] = len(topic.partitions)
        if right is not None and counts:
            self._check_right(admin, list(counts), right)
        return counts

    def _check_right(self, admin: Any, topics: list[str], right: str) -> None:
        """Raise InvalidRequest if a broker says that the client lacks the right on the topics."""
        kafka = library()
        asked = {"include_authorized_operations": True, "request_timeout": PATIENCE_S}
        for name, answer in admin.describe_topics(kafka.TopicCollection(topics), **asked).items():
            try:
                allowed = answer.result().authorized_operations
            except kafka.KafkaException:  # an old broker cannot say; using the topic will show
                continue
            # None or empty: the broker does not tell, since whoever sees a topic may describe it.
            if allowed and right not in {operation.name for operation in allowed}:
                raise self._forbidden(name, f"no right to {right}")


def _hear(admin: Any) -> None:
    """Let a client make its pending callbacks."""
    if admin is not None:
        admin.poll(0.2)
