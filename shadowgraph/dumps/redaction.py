"""Redaction of dumps: drops all values of the program's memory, and texts that may quote them.

A float buffer or a freed buffer may still hold prompt ids of an earlier tenant, so no contents are kept at all.
Addresses, shapes, offsets, dtypes, kernels and source lines stay: what a record keeps is told by the types of its
fields (`shadowgraph.model.redaction`), and a field that says nothing is dropped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect
from msgspec.structs import replace

from shadowgraph.dumps.collecting import Collected
from shadowgraph.dumps.schema import GraphRecord, LeftOut
from shadowgraph.model.device_nodes import DeviceNode, NodeKind
from shadowgraph.model.owners import Owner
from shadowgraph.model.redaction import MARK, Redaction, hidden

_Record = TypeVar("_Record", bound=msgspec.Struct)
_Redactor = Callable[[Any], Any]
_REASON = "redacted"
_MEMSET = "memset"


def redacted_contents(collected: Collected) -> Collected:
    """The same contents without values. The bytes were not collected in the first place."""
    manifest = collected.manifest
    facts, live = manifest.facts, manifest.buffers
    shown = [finding for finding in (*facts.damage, *facts.notes, *facts.hidden) if finding.window is not None]
    dropped = [LeftOut("contents of memory", len(live), sum(b.nbytes for b in live), _REASON)]
    if shown:
        dropped.append(LeftOut("expected and found bytes of findings", len(shown), 0, _REASON))
    if facts.last_values:
        sizes = [len(data) for _, _, data in facts.last_values]
        dropped.append(LeftOut("mirrored values", len(sizes), sum(sizes), _REASON))
    return dataclasses.replace(
        collected,
        manifest=replace(
            manifest,
            facts=redacted(facts),
            owners=tuple(Owner(hidden(owner.path), owner.view) for owner in manifest.owners),
            graphs=tuple(map(_graph, manifest.graphs)),
            unread=tuple(replace(each, name=hidden(each.name)) for each in manifest.unread),
            left_out=(*manifest.left_out, *dropped),
        ),
    )


def _graph(graph: GraphRecord) -> GraphRecord:
    return graph if graph.device is None else replace(graph, device=tuple(map(_node, graph.device)))


def _node(node: DeviceNode) -> DeviceNode:
    """A node without the value of its memset, which its name may contain."""
    name = _MEMSET if node.kind is NodeKind.MEMSET else node.name
    return replace(node, name=name, inner=tuple(map(_node, node.inner)))


def redacted(record: _Record) -> _Record:
    """A record without values of the program's memory and texts that may quote them; its geometry stays.

    Parameters
    ----------
    record
        A frozen msgspec struct, such as `RunFacts`, `Finding`, `Failure` or the detail of a kind.
    """
    return replace(record, **{name: redact(getattr(record, name)) for name, redact in _redactors(type(record)).items()})


@cache
def _redactors(kind: type[msgspec.Struct]) -> dict[str, _Redactor]:
    """By field: what becomes of its value. Fields that are kept as they are have no entry."""
    known = inspect.type_info(kind)
    assert isinstance(known, inspect.StructType)
    made = {field.name: _redactor(field.type, _blank_of(field)) for field in known.fields}
    return {name: redact for name, redact in made.items() if redact is not _keep}


def _redactor(kind: inspect.Type, blank: Any) -> _Redactor:
    """What becomes of a value of a type; `blank` takes the place of one that is dropped."""
    if isinstance(kind, inspect.Metadata):
        mark = (kind.extra or {}).get(MARK)
        return _MARKED[mark] if mark is not None else _redactor(kind.type, blank)
    if isinstance(kind, inspect.UnionType):
        return _optional(kind, blank)
    if not _may_stay(kind):
        return lambda _: blank
    made = _BY_TYPE.get(type(kind))
    return made(kind) if made is not None else _keep


def _sequence(kind: Any) -> _Redactor:
    each = _redactor(kind.item_type, None)
    return lambda values: tuple(map(each, values))


def _row(kind: Any) -> _Redactor:
    parts = [_redactor(item, _zero(item)) for item in kind.item_types]
    return lambda values: tuple(redact(value) for redact, value in zip(parts, values, strict=True))


def _optional(kind: inspect.UnionType, blank: Any) -> _Redactor:
    """A value or None."""
    rest = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
    one = _redactor(rest[0], blank) if len(rest) == 1 else lambda _: blank
    return one if one is _keep else lambda value: None if value is None else one(value)


def _may_stay(kind: inspect.Type) -> bool:
    """Whether anything of a type may be kept: a closed set, or what has a mark in it.

    A record without marks is dropped as a whole, and a sequence of such: with blanks it would say what is not so.
    """
    return isinstance(kind, _CLOSED) or _is_marked(kind)


def _is_marked(kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.Metadata):
        return MARK in (kind.extra or {}) or _is_marked(kind.type)
    return isinstance(kind, inspect.CustomType) or any(map(_is_marked, _parts(kind)))


def _parts(kind: inspect.Type) -> list[inspect.Type]:
    """The types that a type is made of."""
    if isinstance(kind, inspect.StructType):
        return [field.type for field in kind.fields]
    if isinstance(kind, inspect.TupleType):
        return list(kind.item_types)
    if isinstance(kind, inspect.UnionType):
        return list(kind.types)
    if isinstance(kind, inspect.DictType):
        return [kind.key_type]
    return [kind.item_type] if isinstance(kind, inspect.VarTupleType) else []


def _counts(redact: _Redactor) -> _Redactor:
    """Counts by a text: those whose texts become equal are added up."""

    def added(counts: dict[str, int]) -> dict[str, int]:
        found: dict[str, int] = {}
        for text, count in counts.items():
            found[redact(text)] = found.get(redact(text), 0) + count
        return found

    return added


_CLOSED = (inspect.BoolType, inspect.EnumType, inspect.LiteralType)
_BY_TYPE: dict[type, Callable[[Any], _Redactor]] = {
    inspect.StructType: lambda kind: redacted,
    inspect.CustomType: lambda kind: redacted,  # the detail of a finding
    inspect.VarTupleType: _sequence,
    inspect.TupleType: _row,
    inspect.DictType: lambda kind: _counts(_redactor(kind.key_type, "")),
}


def _blank_of(field: inspect.Field) -> Any:
    """What a dropped field holds: its default, else nothing of its type."""
    if field.default is not msgspec.NODEFAULT:
        return field.default
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return _zero(field.type)


def _zero(kind: inspect.Type) -> Any:
    """Nothing, as a value of a type."""
    if isinstance(kind, inspect.Metadata):
        return _zero(kind.type)
    if isinstance(kind, inspect.UnionType):
        return None
    blanks: dict[type, Any] = {
        inspect.StrType: "", inspect.BytesType: b"", inspect.IntType: 0, inspect.FloatType: 0.0,
        inspect.VarTupleType: (), inspect.DictType: {},
    }  # fmt: skip
    return blanks.get(type(kind))


def _keep(value: Any) -> Any:
    return value


def _kernel(name: str | None) -> str | None:
    """A kernel's name, without the value of a memset."""
    return _MEMSET if name is not None and name.startswith(f"{_MEMSET} ") else name


def redacted_fault(fault: str) -> str:
    """An internal error's location and class, without the exception's message: a rule may have put a value into it."""
    return ": ".join(fault.split(": ", 2)[:2])


_MARKED: dict[str, _Redactor] = {
    Redaction.KEEP: _keep,
    Redaction.PATH: hidden,
    Redaction.KERNEL: _kernel,
    Redaction.RULE: lambda rule: rule.split(": ", 1)[0],
    Redaction.FAULT: redacted_fault,
}
