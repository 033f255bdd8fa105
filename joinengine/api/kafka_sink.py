"""`format("kafka")`: reads its options, and checks them before a query starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joinengine.api import options as given
from joinengine.api.file_sinks import check_untransformed
from joinengine.model.errors import InvalidRequest, StoreUnreachable
from joinengine.results.kafka_messages import Shape, Value, avro_schema, check_schema, chosen_value
from joinengine.results.kafka_target import Guarantee, KafkaTarget, Writers, check_note
from joinengine.results.sinks import Sink, SinkFactory
from joinengine.results.token_sinks import TokenSink
from joinengine.spark.jobs.result_jobs import deliveries
from joinengine.spark.sources.kafka_streams import KafkaStream
from joinengine.world.kafka_clients import Cluster, library
from joinengine.world.schema_registry import NoSuchSchema, registry_of

if TYPE_CHECKING:
    from joinengine.api.resolved import ResolvedJoin
    from joinengine.state.checkpoint import Checkpoint

_PREFIX = "kafka."
_SERVERS = "kafka.bootstrap.servers"


def kafka_sink(join: ResolvedJoin, options: Mapping[str, str], name: str | None) -> SinkFactory:
    """A function that makes the sink. `name`: the name of the query.

    Raises InvalidRequest if options or results do not fit, if no broker answers, if the topic is
    missing or not writable, and if a schema registry refuses the schema of the results.
    """
    check_untransformed(join, "kafka")
    if not options.get(_SERVERS, "").strip():
        raise InvalidRequest(
            f"kafka: {_SERVERS} is missing; give .option('{_SERVERS}', 'host:port')"
        )
    library()
    passed = _passed(options)
    registry = registry_of(passed)
    cluster = Cluster(options[_SERVERS], passed)
    chosen = given.value_of(options, "value")
    shape = Shape(
        chosen_value(join.schema) if chosen is None else chosen,
        options.get("topic"),
        options.get("key"),
        given.value_of(options, "includeHeaders"),
    )
    check_schema(join.schema, shape)
    topics = [] if shape.topic is None else [shape.topic]
    for source in join.sources:
        if isinstance(source, KafkaStream) and source.is_of(cluster, shape.topic):
            raise InvalidRequest(
                f"topic: the query reads {source.place}, so it would read its own results; give "
                "another topic"
            )
    cluster.check_reachable(topics, "WRITE")
    if shape.value is Value.AVRO and registry is not None:
        sent = {"schema": avro_schema(join.schema)}
        try:
            answer = registry.ask(f"subjects/{shape.topic}-value/versions", sent)
        except (NoSuchSchema, StoreUnreachable) as error:
            raise InvalidRequest(str(error)) from None
        shape = replace(shape, schema_id=int(answer["id"]))
    asked = given.value_of(options, "producers")
    exactly_once = given.value_of(options, "delivery") is Guarantee.EXACTLY_ONCE
    every_s = given.value_of(options, "commitEvery") or 0.0

    def made(checkpoint: Checkpoint, query: str) -> Sink:
        count = asked or 1
        if exactly_once:
            count = check_note(checkpoint, query, cluster, shape.topic, asked)
        carry_out = deliveries(join.spark, name)
        writers = Writers(count, exactly_once)
        target = KafkaTarget(checkpoint, query, cluster, shape, writers, carry_out)
        return TokenSink(checkpoint, target, every_s)

    return made


def _passed(options: Mapping[str, str]) -> dict[str, Any]:
    """The settings of librdkafka and of a schema registry among the options."""
    lowered = {key.lower(): text for key, text in options.items() if key != _SERVERS}
    return {
        key.removeprefix(_PREFIX): text for key, text in lowered.items() if key.startswith(_PREFIX)
    }
