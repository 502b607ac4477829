"""Rows of a manifest, made of live records: the one encoder and decoder of records, texts and stacks.

The types of a record's own fields tell how they stand in its row (`shadowgraph.model.saved_fields`), so that a field is
declared with its record and nowhere else. Rows have types of their own, made here of the records' types, by which
msgspec checks what a file says before a record is made of it. No state is shared between threads.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter, itemgetter
from types import GenericAlias, UnionType
from typing import Annotated, Any, ForwardRef, NamedTuple, Union, get_args, get_origin

import msgspec

from shadowgraph.dumps.schema import GraphRecord, Index, Offset
from shadowgraph.dumps.tables import Kept, Tables
from shadowgraph.model.device_nodes import Word
from shadowgraph.model.launches import Launch, Pointer
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.saved_fields import Mark
from shadowgraph.model.stacks import Stack
from shadowgraph.model.views import TensorView

_OBJECTS = (GraphRecord,)  # JSON objects; all other records are arrays
# Rows that begin otherwise than their records do. Fields that are not named here follow in the record's order: one that
# is added to a record stands at the end of its row.
_COLUMNS: dict[type, tuple[str, ...]] = {
    Launch: ("kind", "name", "stack"),
    Pointer: ("argument", "access"),
    TensorView: ("address", "shape", "stride", "dtype", "itemsize", "device", "storage_address", "storage_nbytes"),
    Word: ("argument", "offset", "name", "address", "sureness"),
}
# Records that lie in a buffer. After the columns above their rows have its serial, and the bytes from its start: for
# other readers of the file, since `Holders` tells the same.
_PLACED: dict[type, Callable[[Any], tuple[int, int]]] = {
    TensorView: lambda view: (view.start, view.stop),
    Word: lambda word: (word.address, word.address),
}


class RangeRow(msgspec.Struct, frozen=True, array_like=True):
    """A `ByteRange`, by its size; `buffer` and `at` as in other rows of what lies in a buffer."""

    start: Index
    nbytes: Index
    buffer: int | None = None
    at: Offset = 0


class Form(NamedTuple):
    """How values of one type stand in a file.

    Attributes
    ----------
    type
        Their type there.
    lower, lift
        To the file, and from it, with the value's place in a list; both None for values that stay as they are.
    """

    type: Any
    lower: Callable[[Any, Tables], Any] | None = None
    lift: Callable[[Any, Kept, int], Any] | None = None


_TEXT = Form(Index, lambda text, tables: tables.text(text), lambda index, kept, place: kept.texts[index])
_STACK = Form(Index, lambda stack, tables: tables.stack(stack), lambda index, kept, place: kept.stacks[index])
_RANGE = Form(
    RangeRow,
    lambda where, tables: RangeRow(where.start, where.nbytes, *tables.home(where.start, where.stop)),
    lambda row, kept, place: ByteRange(row.start, row.start + row.nbytes),
)


class RowTypes:
    """Makes the types of rows, each once."""

    def __init__(self) -> None:
        self._rows: dict[type, _Row] = {}

    def form(self, hint: Any) -> Form:
        """How values of a field's type stand in a row."""
        marks, plain = marks_of(hint), get_args(hint)[0] if get_origin(hint) is Annotated else hint
        form = _TEXT if Mark.TEXT in marks else self._plain(plain) or Form(hint)
        return _or_null(form, plain()) if Mark.SPARSE in marks else form  # the empty text or tuple

    def _plain(self, plain: Any) -> Form | None:
        """The same for a type without marks; None where values stay as they are."""
        origin, inner = get_origin(plain), get_args(plain)
        if plain in (Stack, ByteRange):
            return _STACK if plain == Stack else _RANGE
        if origin is tuple and inner[-1] is ...:
            return _many(self.form(inner[0]))
        if origin in (Union, UnionType):
            return _or_null(self.form(inner[0]), None)
        return self._record(plain) if isinstance(plain, type) and issubclass(plain, msgspec.Struct) else None

    def _record(self, record: type[msgspec.Struct]) -> Form:
        row = self._rows.get(record)
        if row is None:
            row = self._rows[record] = _Row(record)
            row.define(self)
        return Form(row.type, row.lower, row.lift)


class _Row:
    """A record as a row. Its type can be named before it is defined: a record may have others of its own inside."""

    def __init__(self, record: type[msgspec.Struct]) -> None:
        self.record = record
        self.type: Any = ForwardRef(record.__name__)

    def define(self, types: RowTypes) -> None:
        """Make the row's type of the record's fields."""
        record = self.record
        fields = {field.name: field for field in msgspec.structs.fields(record)}
        marks = {name: marks_of(field.type) for name, field in fields.items()}
        absent = [name for name in fields if Mark.ABSENT in marks[name]]
        place = [name for name in fields if Mark.PLACE in marks[name]]
        first = _COLUMNS.get(record, ())
        names = [*first, *(name for name in fields if name not in (*first, *absent, *place))]
        forms = {name: types.form(fields[name].type) for name in names}
        columns = [(name, form.type, default_of(fields[name], form)) for name, form in forms.items()]
        self._span, self._home = _PLACED.get(record), slice(len(first), len(first))
        if self._span is not None:
            columns[self._home] = [("buffer", int | None, None), ("at", Offset, 0)]
        self.type = struct_of(record.__name__, columns, array_like=record not in _OBJECTS)
        self._get = attrgetter(*names)
        self._lower = [(names.index(name), form.lower) for name, form in forms.items() if form.lower is not None]
        read = [*(name for name, _, _ in columns), *absent, *place]
        self._lift = [(read.index(name), form.lift) for name, form in forms.items() if form.lift is not None]
        self._absent = [fields[name].default for name in absent]
        self._order = itemgetter(*(read.index(name) for name in fields))

    def lower(self, record: Any, tables: Tables) -> Any:
        values = list(self._get(record))
        for column, lower in self._lower:
            values[column] = lower(values[column], tables)
        if self._span is not None:
            values[self._home] = tables.home(*self._span(record))
        return self.type(*values)

    def lift(self, row: Any, kept: Kept, place: int) -> Any:
        values = [*msgspec.structs.astuple(row), *self._absent, place]
        for column, lift in self._lift:
            values[column] = lift(values[column], kept, 0)
        return self.record(*self._order(values))


def _many(form: Form) -> Form:
    """Lists of values of a form."""
    kind, lower, lift = GenericAlias(tuple, (form.type, ...)), form.lower, form.lift
    if lower is None or lift is None:
        return Form(kind)
    return Form(
        kind,
        lambda values, tables: tuple([lower(value, tables) for value in values]),
        lambda values, kept, _: tuple([lift(value, kept, place) for place, value in enumerate(values)]),
    )


def _or_null(form: Form, empty: Any) -> Form:
    """Values of a form, null for the empty one."""
    lower, lift = form.lower, form.lift
    if lower is None or lift is None:
        return Form(form.type | None)
    return Form(
        form.type | None,
        lambda value, tables: None if value == empty else lower(value, tables),
        lambda value, kept, place: empty if value is None else lift(value, kept, place),
    )


def struct_of(name: str, columns: list[tuple[str, Any, Any]], array_like: bool) -> type[msgspec.Struct]:
    """A type for decoding; its fields are required up to the last one without a default."""
    required = max((n for n, column in enumerate(columns) if column[2] is msgspec.NODEFAULT), default=-1)
    fields: list[Any] = [column[:2] if n <= required else column for n, column in enumerate(columns)]
    made = msgspec.defstruct(name, fields, frozen=True, gc=False, array_like=array_like, module=__name__)
    setattr(made, name, made)  # where msgspec looks up the `ForwardRef` of rows inside such rows
    return made


def default_of(field: msgspec.structs.FieldInfo, form: Form) -> Any:
    """The value of a field in a file that lacks it. An index has none: 0 would be any text."""
    if form.type in (Index, Index | None):
        return msgspec.NODEFAULT if form.type == Index else None
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def marks_of(hint: Any) -> tuple[Any, ...]:
    """What a field's type has beside the plain type."""
    return get_args(hint)[1:] if get_origin(hint) is Annotated else ()
