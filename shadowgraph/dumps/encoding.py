"""JSON of a manifest and back, with its texts, frames and stacks kept once. Any thread."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any, NamedTuple

import msgspec

from shadowgraph.dumps.rows import Form, RowTypes, default_of, marks_of, struct_of
from shadowgraph.dumps.schema import ROWS, Index, Manifest
from shadowgraph.dumps.tables import Holders, Tables, kept_in
from shadowgraph.model.kinds import decode_detail, kinds


class _Wire(NamedTuple):
    """The manifest's type in a file, and the forms of its fields that are lists of rows."""

    type: type[msgspec.Struct]
    forms: dict[str, Form]


@cache
def _wire() -> _Wire:
    types, fields = RowTypes(), msgspec.structs.fields(Manifest)
    forms = {field.name: types.form(field.type) for field in fields if ROWS in marks_of(field.type)}
    columns: list[tuple[str, Any, Any]] = []
    for field in fields:
        form = forms.get(field.name, Form(field.type))
        columns.append((field.name, form.type, default_of(field, form)))
    columns += [
        ("strings", tuple[str, ...], ()),
        ("frames", tuple[tuple[Index, int, Index], ...], ()),
        ("stacks", tuple[tuple[Index, ...], ...], ()),
    ]
    return _Wire(struct_of("Manifest", columns, array_like=False), forms)


@cache
def form_of_manifest() -> str:
    """A short hash of the manifest's JSON schema, which changes with every added field, also of a kind of finding."""
    details = [kind.detail for kind in kinds() if kind.detail is not None]

    def facts(_: type) -> dict[str, Any]:
        return {"anyOf": [detail.__name__ for detail in details]}

    parts = msgspec.json.schema_components([_wire().type, *details], schema_hook=facts)
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:12]


def encoded(manifest: Manifest) -> bytes:
    """A manifest as a file has it."""
    wire, tables = _wire(), Tables(Holders(manifest.buffers, manifest.freed))
    values = {name: getattr(manifest, name) for name in manifest.__struct_fields__}
    for name, form in wire.forms.items():
        if form.lower is not None:
            values[name] = form.lower(values[name], tables)
    values |= {name: tuple(getattr(tables, name)) for name in ("strings", "frames", "stacks")}
    return json_of(wire.type(**values))


def decoded(text: bytes) -> Manifest:
    """The manifest of a file.

    Raises
    ------
    msgspec.MsgspecError, ValueError, OverflowError, RecursionError
        When it is no manifest, or names a text, a frame or a stack that is not there.
    """
    wire = _wire()
    read: Any = msgspec.json.decode(text, type=wire.type, dec_hook=decode_detail)
    if read.form == form_of_manifest() and msgspec.json.encode(read) != text:
        raise ValueError("not in its one form")  # for example a duplicate key
    values = {name: getattr(read, name) for name in Manifest.__struct_fields__}
    try:
        kept = kept_in(read.strings, read.frames, read.stacks)
        for name, form in wire.forms.items():
            if form.lift is not None:
                values[name] = form.lift(values[name], kept, 0)
    except IndexError:
        raise ValueError("it names a text, a frame or a stack that is not there") from None
    return Manifest(**values)


def json_of(value: Any) -> bytes:
    """JSON, with escapes for what UTF-8 cannot encode: file names and arguments may contain invalid bytes."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_cleaned(msgspec.to_builtins(value)))


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(item) for key, item in value.items()}
    return [_cleaned(item) for item in value] if isinstance(value, (list, tuple)) else value
