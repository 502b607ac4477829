"""Bindings of a graph's memory to attributes of objects, and the values that a plan gives them. Used by
`ReboundInputs`."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from shadowgraph.model.buffers import Buffer
from shadowgraph.model.graphs import Graph
from shadowgraph.model.launches import LaunchKind
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.names import stored
from shadowgraph.tracking.writes import extent


@dataclass(frozen=True, slots=True)
class Planned:
    """The inputs of the latest plan of an object.

    Attributes
    ----------
    order
        When the plan was made, by `Context.clock`.
    values
        By attribute: the values that a graph must find in the first bytes of the memory that it was captured with.
    used
        By attribute: how many of the first bytes count, where the values are not known here.
    planned_into
        By attribute: the address that the plan itself wrote to, where that write is not seen.
    """

    order: int
    values: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    used: Mapping[str, int] = field(default_factory=dict)
    planned_into: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Binding:
    """An attribute of an object, and the memory that a graph was captured with when the attribute led there.

    Attributes
    ----------
    kind
        The class of the object.
    planned
        Whether the object makes plans; then only a replay that was planned for is checked.
    since
        When the graph last began to replay, by `Context.clock`.
    written
        Bytes of the memory that host code has certainly written since; of `perhaps` it is not known.
    before
        The first bytes as last seen, with the refreshes that the checks have seen since.
    """

    graph: Graph
    owner: weakref.ref[Any]
    kind: str
    attribute: str
    view: TensorView
    buffer: Buffer
    planned: bool
    since: int = 0
    written: RangeSet = field(default_factory=RangeSet)
    perhaps: RangeSet = field(default_factory=RangeSet)
    before: bytes = b""


def made_by(graph: Graph, stores_seen: bool) -> list[ByteRange]:
    """Bytes that a graph's launches may write; those of Triton kernels only where their stores are not seen when they
    run."""
    return [
        part
        for node, pointer in graph.pointers()
        if pointer.may_write and not (stores_seen and node.launch.kind is LaunchKind.TRITON)
        for part in extent(pointer.view)[0]
    ]


def first_bytes(view: TensorView, size: int) -> ByteRange:
    """The first bytes of a view."""
    return ByteRange(view.start, min(view.stop, view.start + size))


def led_to(owner: object, attribute: str) -> TensorView | None:
    """The attribute's current target, read where it is stored, so that no code of the object runs."""
    tensor = stored(owner, attribute)
    if not isinstance(tensor, torch.Tensor):
        return None
    try:
        return TensorView.of(tensor)
    except ValueError:
        return None
