"""`joinengine new`: a folder with a join that runs, and its test."""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path

import click

from joinengine.lab.commands import console
from joinengine.lab.commands.generated_options import PATH
from joinengine.model.errors import InvalidRequest

#: The suffix of templates, so that nothing takes them for modules.
_ENDING = ".txt"


@click.command()
@click.argument("folder", type=PATH)
def new(folder: Path) -> None:
    """Write a join of two folders into FOLDER, with data, a test against DuckDB and a Makefile."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidRequest(f"new: {folder} exists and is not an empty folder; give another name")
    with console.written(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for template in sorted(files("joinengine.lab").joinpath("starter").iterdir(), key=str):
        name = template.name.removesuffix(_ENDING)
        with console.written(folder / name):
            (folder / name).write_text(template.read_text(encoding="utf-8"), encoding="utf-8")
        console.tell(str(folder / name))
    console.tell(f"next: cd {shlex.quote(str(folder))} && make test && make run")
