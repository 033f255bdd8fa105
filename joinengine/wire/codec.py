"""The codec of instructions and reports: a JSON header, and Arrow for the arrays in it.

Why: a file of a checkpoint or of the exchange must not be able to name code, as a pickle can. The
bytes hold only values, and the reader says which type it expects. So only the types that the
annotations of that type name can appear.

Layout: one line with the length of the header; the header, a JSON value padded with blanks; an
Arrow stream of one record batch. The batch has one column for each dtype, which holds all arrays of
that dtype one after another. In the header, an array is replaced by the place of its values there.

Law: `decode(encode(value), type(value))` equals `value`; arrays come back read-only, with the same
dtype and shape.
Cost: some microseconds a field, one copy of each array when encoded, and none when decoded.
"""

from __future__ import annotations

import base64
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import is_dataclass
from functools import lru_cache, partial
from operator import eq
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa
from cattrs import Converter
from numpy.typing import NDArray

from joinengine.model.keys import Side
from joinengine.state.plain_states import RUN_COLUMNS, Names
from joinengine.state.run import Place, Run, RunsByIdent, Spread
from joinengine.wire.reports import InstanceReport, InstanceReports

T = TypeVar("T")

_MAGIC = b"joinengine values 1 "
_SIDES = tuple(Side)
#: The header ends at a multiple of this, so that Arrow's buffers are aligned.
_ALIGN = 64
#: The name of an array's place in the header: no field of a dataclass can be called that, and
#: mappings are lists of pairs.
_ARRAY = "[]"


def encode(value: object) -> bytes:
    """The bytes of a dataclass or named tuple.

    Its fields hold plain values, arrays, schemas, and other dataclasses or named tuples.
    """
    arrays = _Arrays()
    # A member of a union gets a tag, so the converter must know the annotation.
    plain = _CONVERTER.unstructure(value, type(value))
    header = json.dumps(plain, separators=(",", ":"), default=arrays.put, allow_nan=False).encode()
    first = _MAGIC + b"%d\n" % len(header)
    padding = b" " * (-(len(first) + len(header)) % _ALIGN)
    return b"".join((first, header, padding, arrays.to_arrow()))


def decode(content: bytes, kind: type[T]) -> T:
    """The value of type `kind` that `encode` was given. Raises ValueError for other content."""
    end = content.find(b"\n", 0, 64)
    if not content.startswith(_MAGIC) or end < 0:
        raise ValueError(
            "these bytes are not instructions or reports of this version of joinengine"
        )
    start = end + 1
    stop = start + int(content[len(_MAGIC) : end])
    arrays = _columns(memoryview(content)[stop + -stop % _ALIGN :])

    def resolve(fields: dict[str, Any]) -> Any:
        return _taken(arrays, *fields[_ARRAY]) if fields.keys() == {_ARRAY} else fields

    plain = json.loads(content[start:stop], object_hook=resolve)
    return _CONVERTER.structure(plain, kind)


class _Arrays:
    """Gathers the arrays of a value by dtype."""

    def __init__(self) -> None:
        self._parts: dict[str, list[NDArray[Any]]] = defaultdict(list)
        self._sizes: dict[str, int] = defaultdict(int)

    def put(self, value: object) -> Any:
        """Replace what JSON cannot hold: a NumPy number by a number, an array by its place."""
        if isinstance(value, np.generic):
            return value.item()
        if not isinstance(value, np.ndarray):
            raise TypeError(
                f"{type(value).__name__} is not a value that the codec knows: {value!r}"
            )
        kind, start = value.dtype.str, self._sizes[value.dtype.str]
        self._parts[kind].append(value.ravel().view(_carrier(value.dtype)))
        self._sizes[kind] = start + value.size
        return {_ARRAY: [kind, start, *value.shape]}

    def to_arrow(self) -> bytes:
        """The arrays as an Arrow stream; empty if there are none."""
        if not self._parts:
            return b""
        columns = list[pa.Array]()
        for kind, parts in self._parts.items():
            values = pa.array(np.concatenate(parts))
            columns.append(pa.LargeListArray.from_arrays([0, self._sizes[kind]], values))
        sink = pa.BufferOutputStream()
        batch = pa.RecordBatch.from_arrays(columns, names=list(self._parts))
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return bytes(sink.getvalue())


def _carrier(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which Arrow carries `dtype`: bytes for booleans, which Arrow packs into bits."""
    return np.dtype(np.uint8) if dtype == np.bool_ else dtype


def _columns(content: memoryview) -> dict[str, NDArray[Any]]:
    """Dtype, as text -> the values of all its arrays."""
    if not len(content):
        return {}
    with pa.ipc.open_stream(pa.py_buffer(content)) as reader:
        (batch,) = reader
    return {
        kind: column.values.to_numpy(zero_copy_only=True)
        for kind, column in zip(batch.schema.names, batch.columns, strict=True)
    }


def _taken(columns: Mapping[str, NDArray[Any]], kind: str, start: int, *shape: int) -> NDArray[Any]:
    size = math.prod(shape)
    return columns[kind][start : start + size].view(np.dtype(kind)).reshape(shape)


# The form of values in JSON: a dataclass is an object, a named tuple a list.


def _make_converter() -> Converter:
    converter = Converter(unstruct_collection_overrides={Set: sorted}, detailed_validation=False)
    converter.register_unstructure_hook(float, _float_to_json)
    converter.register_structure_hook(float, lambda value, _: _float_from_json(value))
    converter.register_unstructure_hook(bytes, lambda content: base64.b64encode(content).decode())
    converter.register_structure_hook(bytes, lambda text, _: base64.b64decode(text))
    converter.register_unstructure_hook(pa.Schema, _schema_to_json)
    converter.register_structure_hook(pa.Schema, lambda text, _: _schema_from_json(text))
    converter.register_unstructure_hook_func(_is_array, lambda array: array)
    converter.register_structure_hook_func(_is_array, lambda array, _: array)
    converter.register_unstructure_hook_factory(_is_choice, lambda kind: _tag(kind, converter))
    converter.register_structure_hook_factory(_is_choice, lambda kind: _untag(kind, converter))
    converter.register_unstructure_hook_factory(
        _is_named, lambda kind: _columns_of(kind, converter)
    )
    converter.register_structure_hook_factory(_is_named, lambda kind: _named(kind, converter))
    converter.register_unstructure_hook_factory(_is_table, lambda kind: _pairs(kind, converter))
    converter.register_structure_hook_factory(_is_table, lambda kind: _unpair(kind, converter))
    for kind, to_json, from_json in (
        (Spread, _spread_to_json, _spread_from_json),
        (RunsByIdent, _runs_to_json, _runs_from_json),
        (InstanceReports, _instances_to_json, _instances_from_json),
    ):
        converter.register_unstructure_hook_func(partial(eq, kind), to_json)
        converter.register_structure_hook_func(partial(eq, kind), from_json)
    return converter


# Runs and instances are encoded as tables, since there are thousands of them, with a dozen fields
# each. A field of integers is an array.

_NULLABLE = [RUN_COLUMNS.index(one) for one in ("into", "min_time", "max_time", "settled_time")]
_EXCLUSIONS = RUN_COLUMNS.index("exclusions")


def _runs_to_json(runs: RunsByIdent) -> list[Any]:
    return _run_columns(runs.values())


def _runs_from_json(columns: list[Any], _: Any) -> RunsByIdent:
    return {run.ident: run for run in _run_rows(columns)}


def _spread_to_json(spread: Spread) -> list[Any]:
    return _run_columns(run for spine in spread.values() for run in spine)


def _spread_from_json(columns: list[Any], _: Any) -> Spread:
    """Place -> its runs, from the instance and side in each run."""
    spines = dict[Place, list[Run]]()
    for run in _run_rows(columns):
        spines.setdefault((run.instance, run.side), []).append(run)
    return {place: tuple(runs) for place, runs in spines.items()}


def _run_columns(runs: Iterable[Run]) -> list[Any]:
    """Runs -> [file names, (row, exclusions) of runs with any, rows of None by field, *fields]."""
    names = Names(())
    rows = names.rows(runs)
    cut = [[row, facts[_EXCLUSIONS]] for row, facts in enumerate(rows) if facts[_EXCLUSIONS]]
    columns, missing = [*zip(*rows, strict=True)], list[Any]()
    for place in _NULLABLE if rows else ():
        column = columns[place]
        missing.append(
            np.array([row for row, value in enumerate(column) if value is None], np.int64)
        )
        columns[place] = tuple(value or 0 for value in column)
    del columns[_EXCLUSIONS : _EXCLUSIONS + 1]
    return [names.others, cut, missing, *(np.array(numbers, np.int64) for numbers in columns)]


def _run_rows(plain: list[Any]) -> Iterable[Run]:
    names, cut, missing, *columns = plain
    values = [column.tolist() for column in columns]
    if not values:
        return ()
    for place, rows in zip(_NULLABLE, missing, strict=True):
        for row in rows.tolist():
            values[place][row] = None
    ranges: list[tuple[tuple[int, int], ...]] = [()] * len(values[0])
    for row, exclusions in cut:
        ranges[row] = tuple((lower, upper) for lower, upper in exclusions)
    values.insert(_EXCLUSIONS, ranges)
    files, parts, sides, *facts = values
    files, sides = [names[number] for number in files], [_SIDES[number] for number in sides]
    return map(Run, files, parts, sides, *facts)


def _instances_to_json(reports: InstanceReports) -> list[Any]:
    """Reports -> [integers, seconds, how many seconds each instance has]."""
    numbers = [(instance, *report.numbers) for instance, report in reports.items()]
    seconds = [value for report in reports.values() for value in (report.busy_s, *report.seconds)]
    sizes = [len(report.seconds) + 1 for report in reports.values()]
    return [
        np.array(numbers, np.int64).reshape(-1, 12),
        np.array(seconds, np.float64),
        np.array(sizes, np.int64),
    ]


def _instances_from_json(columns: list[Any], _: Any) -> InstanceReports:
    numbers, seconds, sizes = (column.tolist() for column in columns)
    reports, start = InstanceReports(), 0
    for (instance, *counts), size in zip(numbers, sizes, strict=True):
        busy_s, *spent = seconds[start : start + size]
        start += size
        facts: list[Any] = [
            counts[0:2],
            counts[2:4],
            counts[4:6],
            *counts[6:],
            busy_s,
            tuple(spent),
        ]
        reports[instance] = InstanceReport(*facts)
    return reports


def _float_to_json(value: float) -> float | str:
    return value if math.isfinite(value) else repr(float(value))


def _float_from_json(value: float | str) -> float:
    """Keeps a finite value as it is: a time in microseconds may be an integer beyond any float."""
    return float(value) if isinstance(value, str) else value


def _schema_to_json(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize()).decode()


@lru_cache(maxsize=256)
def _schema_from_json(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _is_array(kind: Any) -> bool:
    return (get_origin(kind) or kind) is np.ndarray


def _choices(kind: Any) -> list[type]:
    """The members of a union, without None."""
    return [member for member in get_args(kind) if member is not NoneType]


def _is_choice(kind: Any) -> bool:
    """Whether a value of the union must say which member it is."""
    if get_origin(kind) not in (Union, UnionType):
        return False
    members = _choices(kind)
    return len(members) > 1 and all(is_dataclass(member) or _is_named(member) for member in members)


def _tag(kind: Any, converter: Converter) -> Any:
    """A hook that encodes a member of the union as the name of its class and its value."""

    def to_json(value: Any) -> Any:
        if value is None:
            return None
        return [type(value).__name__, converter.unstructure(value, type(value))]

    return to_json


def _untag(kind: Any, converter: Converter) -> Any:
    members = {member.__name__: member for member in _choices(kind)}

    def from_json(tagged: Any, _: Any) -> Any:
        return None if tagged is None else converter.structure(tagged[1], members[tagged[0]])

    return from_json


def _is_named(kind: Any) -> bool:
    """Whether it is a named tuple; cattrs 26 does not resolve its annotations if they are text."""
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def _fields_of(kind: Any) -> Any:
    hints = get_type_hints(kind)
    return tuple[tuple(hints[name] for name in kind._fields)]  # type: ignore[misc]


def _columns_of(kind: Any, converter: Converter) -> Any:
    fields = _fields_of(kind)
    return lambda value: converter.unstructure(tuple(value), fields)


def _named(kind: Any, converter: Converter) -> Any:
    fields = _fields_of(kind)
    return lambda columns, _: kind(*converter.structure(columns, fields))


def _is_table(kind: Any) -> bool:
    """A mapping, of which JSON gets the pairs: its objects are dataclasses and places of arrays."""
    origin = get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _pairs(kind: Any, converter: Converter) -> Any:
    key, value = get_args(kind)

    def to_json(table: Mapping[Any, Any]) -> Any:
        return [
            [converter.unstructure(name, key), converter.unstructure(content, value)]
            for name, content in table.items()
        ]

    return to_json


def _unpair(kind: Any, converter: Converter) -> Any:
    key, value = get_args(kind)

    def from_json(pairs: Any, _: Any) -> Any:
        return {
            converter.structure(name, key): converter.structure(content, value)
            for name, content in pairs
        }

    return from_json


_CONVERTER = _make_converter()
