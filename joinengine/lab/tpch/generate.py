"""TPC-H tables as Parquet in a cache folder, generated once per scale.

The folder is `JOINENGINE_HOME`, else the user's cache folder. If two processes ask for a table at
once, it is generated once; a kill half-way leaves nothing that looks whole. Source: tpchgen-cli
(Apache-2.0), which writes the tables of the TPC-H specification.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_path

from joinengine.model.errors import InvalidRequest, JoinEngineError

TABLES = ("region", "nation", "supplier", "customer", "part", "partsupp", "orders", "lineitem")

#: The environment variable that names the cache folder.
HOME = "JOINENGINE_HOME"
#: Called with a line on the work in progress, for people who wait.
Say = Callable[[str], None]


def silent(message: str) -> None:
    """Say nothing."""


def home() -> Path:
    """The folder of generated data."""
    chosen = os.environ.get(HOME)
    return Path(chosen).expanduser() if chosen else user_cache_path("joinengine")


def tables(scale: float, names: Iterable[str], say: Say = silent) -> dict[str, Path]:
    """The Parquet files of `names` at TPC-H scale factor `scale`, generated if they are missing.

    Raises InvalidRequest if the scale is not positive, or a table is not one of TPC-H's.
    """
    check_scale(scale)
    folder = home() / "tables" / f"sf{scale:g}"
    paths = dict[str, Path]()
    for name in names:
        if name not in TABLES:
            raise InvalidRequest(f"table: expected one of {', '.join(TABLES)}, found {name!r}")
        paths[name] = folder / f"{name}.parquet"
    if _lacking(paths):
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            if lacking := _lacking(paths):
                _generate(folder, lacking, scale, say)
    return paths


def _lacking(paths: dict[str, Path]) -> list[str]:
    return [name for name, path in paths.items() if not path.exists()]


#: Below this scale, a table of TPC-H would be empty: there are 10,000 suppliers at scale 1.
LEAST_SCALE = 0.0001


def check_scale(scale: float) -> None:
    """Raise InvalidRequest for a TPC-H scale factor that makes no tables."""
    if not scale >= LEAST_SCALE:
        raise InvalidRequest(
            f"scale: expected at least {LEAST_SCALE}, which makes one supplier, found {scale}; 1 "
            "means 6 million lineitems"
        )


def build_once(path: Path, build: Callable[[Path], None]) -> None:
    """Let `build` make `path` (a file or a folder) unless it exists; one process at a time.

    `build` gets a path beside `path`; when it returns, that file or folder is renamed to `path`.
    """
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        if path.exists():
            return
        draft = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
        try:
            build(draft)
            draft.rename(path)
        finally:
            if draft.is_dir():
                shutil.rmtree(draft, ignore_errors=True)
            else:
                draft.unlink(missing_ok=True)


def _generate(folder: Path, names: list[str], scale: float, say: Say) -> None:
    """Make tables by one process, for its start takes longer than a small table."""
    say(f"generating TPC-H {', '.join(names)} at scale {scale:g}")
    draft = folder / f".{uuid.uuid4().hex[:8]}"
    # The interpreter's folder comes first: a virtual environment need not be on PATH.
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    program = shutil.which("tpchgen-cli", path=search)
    if program is None:
        raise InvalidRequest(
            "generated streams need the package tpchgen-cli; run pip install 'joinengine[lab]'"
        )
    command = [program, "parquet", "--scale-factor", f"{scale:g}", "--tables", ",".join(names)]
    try:
        done = subprocess.run(
            [*command, "--output-dir", str(draft)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise JoinEngineError(
                f"tpchgen-cli failed to generate {', '.join(names)}: {done.stderr.strip()}"
            )
        for name in names:
            (draft / f"{name}.parquet").rename(folder / f"{name}.parquet")
    finally:
        shutil.rmtree(draft, ignore_errors=True)
