"""The options that say where brokers of Kafka are, and how to speak to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from joinengine.lab.commands.generated_options import PATH
from joinengine.lab.commands.headings import Heading, headed
from joinengine.model.errors import InvalidRequest


def broker_options(text: str, *, required: bool = False) -> list[Any]:
    """The options; `text`: what the brokers are for."""
    return [
        headed(Heading.PLACES)("--servers", metavar="HOST:PORT,..", required=required, help=text),
        headed(Heading.PLACES)(
            "--servers-config",
            type=PATH,
            help="A file with settings for --servers, which may be secret: lines of NAME=VALUE, by "
            "librdkafka's names, such as sasl.password=...",
        ),
    ]


def cluster_from(settings: dict[str, Any]) -> Any:
    """The brokers that a command is given, as a Cluster; None: none are given.

    Raises click.UsageError for settings without brokers, InvalidRequest for a file that has none.
    """
    from joinengine.world.kafka_clients import Cluster  # noqa: PLC0415

    servers, config = settings.get("servers"), settings.get("servers_config")
    if servers is None:
        if config is not None:
            raise click.UsageError("--servers-config applies to --servers; give both")
        return None
    return Cluster(servers, {} if config is None else _settings_in(config))


def _settings_in(file: Path) -> dict[str, str]:
    """The settings in a file. No error repeats its content, which may be secret."""
    try:
        lines = [line.strip() for line in file.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise InvalidRequest(f"--servers-config: {file} cannot be read: {why}") from None
    settings = dict[str, str]()
    for number, line in enumerate(lines, 1):
        if line and not line.startswith("#"):
            name, sign, value = (part.strip() for part in line.partition("="))
            if not (name and sign and value) or name in settings:
                what = "says the same setting again" if name in settings else "is no NAME=VALUE"
                raise InvalidRequest(
                    f"--servers-config: line {number} of {file} {what}; give each setting in a "
                    "line of its own, such as sasl.username=me"
                )
            settings[name] = value
    return settings
