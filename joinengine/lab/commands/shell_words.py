"""Errors at a shell: flags in place of the Python names of options."""

from __future__ import annotations

import re

from joinengine.api.option_table import OPTIONS
from joinengine.lab.commands.own_joins import OWN

_CALL = re.compile(r"\.option\('([\w.]+)', '?(\w+)'?\)")
#: Options whose flags are not in the table of options, since they have types of their own.
_PLACES = {"checkpointLocation": "--checkpoint", "stateLocation": "--state"}
#: Names that never are ordinary words of a sentence -> flags.
_FLAGS = _PLACES | {
    option.name: f"--{option.flag}"
    for option in OPTIONS.values()
    if option.flag is not None and option.name != option.name.lower()
}
_NAME = re.compile(rf"(?<![\w/-])({'|'.join(_FLAGS)})(?![\w/])")
#: Arguments of `StreamJoin`, where they begin a sentence.
_ARGUMENT = re.compile(rf"^({'|'.join(name.replace('-', '_') for name, _, _ in OWN)}): ")
#: Calls and arguments of Python -> what to write at a shell; often the sentence names both.
_WRITTEN = (
    (re.compile(r"(?:equi|sql)\([^()]*\), or (.+?) at a shell"), r"\1"),
    (re.compile(r"equi\([^()]*\) or (?=--)"), ""),
    (re.compile(r"\w+=\([^()]*\) \((--[^()]+)\)"), r"\1"),
    (re.compile(r"^path: "), ""),  # --out, --sink or none: the sentence names the folder
    (re.compile(r"^servers(?=: )"), "--servers"),
    (re.compile(r"^options(?=: )|(?<= in )options(?=,|$)"), "--servers-config"),
    (re.compile(r"write (?=\.withColumn\()"), "no flag casts: join in Python, with "),
    (re.compile(r"give within=$"), "give --within, --tumbling or --sliding"),
    (re.compile(r"Give within\(\.\., (\w+)=\.\.\), or .*"), r"Give the \1 bound in --within"),
)


def at_a_shell(message: str) -> str:
    """An error message with flags in place of names and calls of Python."""
    for python, flag in _WRITTEN:
        message = python.sub(flag, message)
    message = _ARGUMENT.sub(lambda match: f"--{match[1].replace('_', '-')}: ", message)
    return _NAME.sub(lambda match: _FLAGS[match[1]], _CALL.sub(_as_flag, message))


def _as_flag(match: re.Match[str]) -> str:
    name, value = match[1], match[2]
    if value in ("True", "False"):
        value = value.lower()
    option = OPTIONS.get(name)
    if option is not None and option.flag is not None:
        return f"--{option.flag} {value}"
    of_parquet = option is not None and option.sinks == ("parquet",)
    return f"{'--sink parquet:FOLDER ' * of_parquet}--sink-option {name}={value}"
