"""Reads files of service levels, which `--levels` names."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from joinengine.model.errors import InvalidRequest

_EXAMPLE = 'write for example {"hot": {"top": 20, "backups": 2}}'


def read_file(path: Path) -> dict[str, Any]:
    """The mapping in a file of JSON or TOML. Raises InvalidRequest if it is neither."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidRequest(f"levels: {path} cannot be read: {why}") from None
    try:
        content = json.loads(text)
    except ValueError as no_json:
        try:
            content = tomllib.loads(text)
        except tomllib.TOMLDecodeError as no_toml:
            errors: dict[bool, ValueError] = {True: no_json, False: no_toml}
            raise InvalidRequest(
                f"levels: {path} is neither JSON nor TOML: {errors[path.suffix == '.json']}; "
                f"{_EXAMPLE}"
            ) from None
    if not isinstance(content, dict) or not content:
        raise InvalidRequest(f"levels: {path} has no level; {_EXAMPLE}")
    return content
