"""Topics of a broker that asks for a password and lets each user do what it may, over TLS."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from benchmarks.kafka.broker import Broker
from joinengine import InvalidRequest, StreamJoin, equi, kafka_stream
from tests.brokers import consume, fresh_topic, produce
from tests.objects import free_ports

pytestmark = [pytest.mark.spark, pytest.mark.slow]
USER, PASSWORD, STORE_PASSWORD = "joins", "hunter2-and-more", "store-password"
LEFT, RIGHT = "id bigint, lv int", "rid bigint, rv int"
ROWS = 600
#: What the topics of tokens are, and how their names begin.
TOKENS = ResourceType.TOPIC, "joinengine-"


class Secured(Broker):
    """A broker with two listeners: one for this test, in the clear, and one for users."""

    def __init__(self, folder):
        plain, secured, controller = free_ports(3)
        store = {"location": folder / "broker.p12", "password": STORE_PASSWORD, "type": "PKCS12"}
        super().__init__(
            folder,
            plain,
            {
                "listeners": f"PLAINTEXT://127.0.0.1:{plain},SECURED://127.0.0.1:{secured},"
                f"CONTROLLER://127.0.0.1:{controller}",
                "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain},"
                f"SECURED://127.0.0.1:{secured}",
                "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
                "SECURED:SASL_SSL",
                **{f"ssl.keystore.{name}": str(value) for name, value in store.items()},
                "sasl.enabled.mechanisms": "SCRAM-SHA-512",
                "listener.name.secured.scram-sha-512.sasl.jaas.config": (
                    "org.apache.kafka.common.security.scram.ScramLoginModule required;"
                ),
                "authorizer.class.name": (
                    "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
                ),
                "super.users": "User:ANONYMOUS",  # who comes in the clear
            },
        )
        self.secured = f"127.0.0.1:{secured}"
        self.options = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
            "ssl.ca.location": str(folder / "ca.pem"),
        }

    def start(self):
        self.folder.mkdir(parents=True)
        store = ["-keystore", self.folder / "broker.p12", "-storepass", STORE_PASSWORD]
        for command in (
            ["-genkeypair", "-keyalg", "EC", "-dname", "CN=broker", "-ext", "SAN=ip:127.0.0.1"],
            ["-exportcert", "-rfc", "-file", self.folder / "ca.pem"],
        ):
            subprocess.run(["keytool", *command, *store], check=True, capture_output=True)
        super().start()
        how = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        user = UserScramCredentialUpsertion(USER, how, PASSWORD.encode())
        self.admin.alter_user_scram_credentials([user])[USER].result(30)

    def allow(self, kind, name, *operations, pattern=ResourcePatternType.LITERAL):
        """Let the user do that with topics or transactional ids."""
        told = pattern, f"User:{USER}", "*"
        rules = [
            AclBinding(kind, name, *told, operation, AclPermissionType.ALLOW)
            for operation in operations
        ]
        for done in self.admin.create_acls(rules).values():
            done.result(30)


@pytest.fixture(scope="module")
def secured(broker, tmp_path_factory):
    """It is `broker` that skips the tests where there is no Kafka."""
    with Secured(tmp_path_factory.mktemp("secured") / "broker") as running:
        ours = {"pattern": ResourcePatternType.PREFIXED}
        operations = AclOperation.CREATE, AclOperation.READ, AclOperation.WRITE
        running.allow(*TOKENS, *operations, **ours)
        running.allow(ResourceType.TRANSACTIONAL_ID, "*", AclOperation.WRITE)
        yield running


@pytest.fixture
def topics(secured):
    """Two topics with rows that the user may read, and one to which it may write."""
    names = [fresh_topic(secured, 2) for _ in range(3)]
    rows = [[(i % 50, i) for i in range(part)] for part in (ROWS, ROWS // 2)]
    for topic, columns, part in zip(names[:2], (("id", "lv"), ("rid", "rv")), rows, strict=True):
        values = [json.dumps(dict(zip(columns, row, strict=True))) for row in part]
        produce(secured, topic, values)
        secured.allow(ResourceType.TOPIC, topic, AclOperation.READ, AclOperation.DESCRIBE)
    secured.allow(ResourceType.TOPIC, names[2], AclOperation.WRITE)
    secured.expected = Counter(
        (*left, *right) for left in rows[0] for right in rows[1] if left[0] == right[0]
    )
    return names


@pytest.fixture
def writer(spark, secured, topics, tmp_path):
    def make(sources=None, target=None, topics=topics):
        sources, target = ({**secured.options, **(changed or {})} for changed in (sources, target))
        sides = [
            kafka_stream(spark, secured.secured, topic, schema=schema, options=sources)
            for topic, schema in zip(topics[:2], (LEFT, RIGHT), strict=True)
        ]
        joined = StreamJoin(*sides, on=equi("id", "rid"), instances=2)
        writer = joined.writeStream.format("kafka").option("topic", topics[2])
        writer = writer.options(**{f"kafka.{name}": value for name, value in target.items()})
        writer = writer.option("kafka.bootstrap.servers", secured.secured)
        writer = writer.option("checkpointLocation", tmp_path / "checkpoint")
        return writer.trigger(availableNow=True)

    return make


def test_results_are_in_the_topic_once_and_the_password_is_nowhere(
    writer, secured, topics, tmp_path
):
    query = writer().start()
    query.awaitTermination()
    writer().start().awaitTermination()  # delivers the last batch again, which is there
    rows = [json.loads(message.value()) for message in consume(secured, topics[2])]
    found = Counter(tuple(row[name] for name in ("id", "lv", "rid", "rv")) for row in rows)
    assert found == secured.expected
    assert found.total() > ROWS
    files = [one for one in tmp_path.rglob("*") if one.is_file()]
    assert len(files) > 5
    assert not [one for one in files if PASSWORD.encode() in one.read_bytes()]
    assert PASSWORD not in f"{query.explain()} {query.lastProgress} {query.progress()}"


@pytest.mark.parametrize("side", ["sources", "target"])
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"sasl.password": "wrong"}, "refuses the credentials .*correct sasl.username"),
        ({"sasl.username": "nobody"}, "refuses the credentials"),
        ({"sasl.mechanism": "PLAIN"}, "refuses the credentials .*sasl.mechanism"),
        ({"ssl.ca.location": ""}, "do not agree about TLS .*set .*ssl.ca.location"),
        ({"ssl.ca.location": "/missing.pem"}, "ssl.ca.location failed.*set security.protocol"),
        ({"security.protocol": "PLAINTEXT"}, "do not agree about TLS|does not answer"),
        ({"security.protocol": "SASL_PLAINTEXT"}, "do not agree about TLS|does not answer"),
        ({"security.protocol": "SSL"}, "do not agree about TLS|does not answer|refuses the cred"),
    ],
)
def test_what_does_not_fit_is_one_sentence_before_the_start(writer, tmp_path, side, changed, said):
    with pytest.raises(InvalidRequest, match=said) as refused:
        writer(**{side: changed}).start()
    assert "\n" not in str(refused.value)
    assert PASSWORD not in str(refused.value)
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize(("place", "right"), [(0, "READ"), (1, "READ"), (2, "WRITE")])
def test_a_right_that_lacks_is_named_before_the_start(
    writer, secured, topics, tmp_path, place, right
):
    """To a user without any right a topic is not there, or not to be seen."""
    other = fresh_topic(secured, 2)
    told = [other if number == place else topic for number, topic in enumerate(topics)]
    with pytest.raises(InvalidRequest, match=f"'{other}'.*grant them the right"):
        writer(topics=told).start()
    secured.allow(ResourceType.TOPIC, other, AclOperation.DESCRIBE)
    with pytest.raises(InvalidRequest, match=f"'{other}' .no right to {right}.; grant them the r"):
        writer(topics=told).start()
    assert not (tmp_path / "checkpoint").exists()


@pytest.fixture
def no_creating(secured):
    """The user may not make the topic of tokens."""
    told = *TOKENS, ResourcePatternType.PREFIXED, f"User:{USER}", "*"
    rule = AclBindingFilter(*told, AclOperation.CREATE, AclPermissionType.ALLOW)
    (gone,) = secured.admin.delete_acls([rule]).values()
    assert gone.result(30)
    yield
    secured.allow(*TOKENS, AclOperation.CREATE, pattern=ResourcePatternType.PREFIXED)


@pytest.mark.usefixtures("no_creating")
def test_a_topic_of_tokens_may_be_made_by_somebody_else(writer, secured, topics):
    """Where the user may not make it, its first delivery says how; then the query goes on."""
    with pytest.raises(InvalidRequest, match="make it, with 1 as its number of p") as refused:
        writer().start().awaitTermination()
    (name,) = set(re.findall(r"joinengine-\w+-tokens", str(refused.value)))
    fresh_topic(secured, 1, name=name, cleanup_policy="compact")
    writer().start().awaitTermination()
    rows = [json.loads(message.value()) for message in consume(secured, topics[2])]
    assert len(rows) == secured.expected.total()


def test_the_command_line_takes_settings_from_a_file(joinengine, secured, topics, tmp_path):
    config = tmp_path / "brokers.properties"
    config.write_text(
        "# of the user\n\n" + "".join(f"{name} = {x}\n" for name, x in secured.options.items())
    )
    at = ("--servers", secured.secured, "--servers-config", config)
    sides = [
        part
        for side, topic, columns in zip(("left", "right"), topics, (LEFT, RIGHT), strict=False)
        for part in (f"--{side}", f"kafka:{topic}", f"--{side}-schema", columns)
    ]
    report, checkpoint = tmp_path / "report.json", tmp_path / "checkpoint"
    told = ("--checkpoint", checkpoint, "--json", report)
    done = joinengine("run", *sides, "--on", "id=rid", *at, "--sink", f"kafka:{topics[2]}", *told)
    rows = [json.loads(message.value()) for message in consume(secured, topics[2])]
    assert len(rows) == secured.expected.total()
    assert PASSWORD not in report.read_text() + done.stdout + done.stderr
    files = [one for one in checkpoint.rglob("*") if one.is_file()]
    assert files
    assert not [one for one in files if PASSWORD.encode() in one.read_bytes()]
    statement = tmp_path / "join.sql"
    statement.write_text("select * from a join b on a.id = b.rid")
    sources = [
        part
        for name, topic, columns in zip("ab", topics, (LEFT, RIGHT), strict=False)
        for part in ("--source", f"{name}=kafka:{topic}", "--columns", f"{name}={columns}")
    ]
    joinengine("sql", statement, *sources, *at, "--sink", "noop", "--json", report)
    assert json.loads(report.read_text())["output_rows"] == secured.expected.total()
