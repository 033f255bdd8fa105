"""Settings of Kafka's clients, their secrets, and the sentences for brokers that do not answer."""

from __future__ import annotations

import socket
import threading

import pytest

from joinengine.model.errors import InvalidRequest, StoreUnreachable
from joinengine.world.kafka_clients import (
    MASK,
    Cluster,
    hidden,
    is_secret,
    library,
)

SECRET = "hunter2-of-the-test"


@pytest.mark.parametrize(
    "name",
    [
        *("sasl.password", "ssl.key.pem", "ssl.keystore.password", "sasl.username"),
        *("sasl.oauthbearer.client.secret", "schema.registry.basic.auth.user.info"),
    ],
)
def test_what_may_be_a_secret_is_masked(name):
    assert is_secret(name)
    options = {name: SECRET, "client.id": "me"}
    assert hidden(f"wrong: {SECRET}, me!", options) == f"wrong: {MASK}, me!"


@pytest.mark.parametrize(
    ("servers", "options", "said"),
    [
        ("", {}, "servers: expected the brokers"),
        (7, {}, "servers: expected the brokers"),
        ("a:1", {"group.id": "x"}, "joinengine sets 'group.id' itself"),
        ("a:1", {"sasl.password": [SECRET]}, "a value of type list"),
    ],
)
def test_settings_that_cannot_be(servers, options, said):
    with pytest.raises(InvalidRequest, match=said) as refused:
        Cluster(servers, options).config()
    assert SECRET not in str(refused.value)


def test_an_address_with_tls_is_no_error_of_tls():
    kafka = library().KafkaError
    where = "sasl_ssl://host:1/bootstrap: "
    for code, text, said in (
        (kafka._TRANSPORT, "Connection refused", "host:1 does not answer"),
        (kafka._TRANSPORT, "SSL handshake failed", "do not agree about TLS"),
        (kafka.CLUSTER_AUTHORIZATION_FAILED, "refused", "does not let these credentials use"),
    ):
        assert said in str(Cluster("host:1").told(kafka(code, where + text)))


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        ("_AUTHENTICATION", InvalidRequest, "refuses the credentials"),
        ("_SSL", InvalidRequest, "do not agree about TLS"),
        ("UNKNOWN_TOPIC_OR_PART", InvalidRequest, "has no topic 'clicks'"),
        ("TOPIC_AUTHORIZATION_FAILED", InvalidRequest, "does not let these credentials use"),
        ("_INVALID_ARG", InvalidRequest, "Kafka's client refuses a setting"),
        ("_TRANSPORT", StoreUnreachable, "does not answer"),
        ("CONCURRENT_TRANSACTIONS", StoreUnreachable, "still ending the transaction before"),
    ],
)
def test_each_error_has_its_sentence_and_tells_no_secret(code, kind, said):
    kafka = library()
    error = kafka.KafkaError(getattr(kafka.KafkaError, code), f"it was {SECRET}")
    for one in (error, kafka.KafkaException(error)):
        found = Cluster("host:1", {"sasl.password": SECRET}).told(one, "clicks")
        assert type(found) is kind
        assert said in str(found)
        assert SECRET not in str(found)
    cut = kafka.KafkaError(getattr(kafka.KafkaError, code), f"{'x' * 196} {SECRET} is wrong")
    assert SECRET[:2] not in str(Cluster("host:1", {"sasl.password": SECRET}).told(cut, "clicks"))


@pytest.fixture(scope="module")
def no_broker():
    """The address of a server that speaks something else."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            try:
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(100)
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            except OSError:
                return

        threading.Thread(target=answer, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_where_no_broker_is_a_start_is_refused_soon(no_broker, monkeypatch):
    monkeypatch.setattr("joinengine.world.kafka_clients.PATIENCE_S", 0.5)
    with pytest.raises(InvalidRequest, match=r"127\.0\.0\.1:1 does not answer .*refused"):
        Cluster("127.0.0.1:1", {"sasl.password": SECRET}).check_reachable()
    with pytest.raises(InvalidRequest, match="does not answer"):
        Cluster(no_broker).check_reachable(["clicks"])
    with pytest.raises(InvalidRequest, match="do not agree about TLS"):
        Cluster(no_broker, {"security.protocol": "ssl"}).check_reachable(["clicks"])
    with pytest.raises(InvalidRequest, match="refuses a setting"):
        Cluster(no_broker, {"no.such.setting": "x"}).check_reachable()


def test_a_topic_with_a_zero_byte_is_one_that_is_missing():
    with pytest.raises(InvalidRequest, match=r"has no topic 'a\\x00b'; create it"):
        Cluster("127.0.0.1:1").check_reachable(["a\0b"])
