"""Culprit as rows of a report: name and status, kernel, the pointer argument that led to the damage, all arguments."""

from __future__ import annotations

from collections.abc import Iterator

from shadowgraph.checks.verdicts import looked
from shadowgraph.common.kernel_names import brief
from shadowgraph.common.source_paths import at
from shadowgraph.model.findings import Argument, Culprit, Status

NAME = 60  # columns for a name within a line
_KERNEL = 85  # in a row of its own
_ARGUMENTS = 6

Row = tuple[str, str]


def culprit_rows(culprit: Culprit) -> Iterator[Row]:
    """Label and text of each row; a row with an empty label continues the row before."""
    yield "culprit", culprit_line(culprit, placed=not culprit.stack)
    if culprit.learnt_from:
        yield "", f"line as in {culprit.learnt_from}, which the same code captured"
    if culprit.name is None:
        if len(culprit.bounds) == 2:
            yield "between", _between(*(at(frame.file, frame.line) for frame in culprit.bounds))
        return
    kernel = culprit.kernel or culprit.name
    if kernel != brief(culprit.name, NAME):
        yield "kernel", brief(kernel, _KERNEL)
    if culprit.seen_in is not None and culprit.status is not Status.NOT_REPRODUCED:
        yield "seen in", f"replay {culprit.seen_in}, {looked(culprit.search)}"
    yield from _arguments(culprit)


def _between(before: str, after: str) -> str:
    """The checks around what an unseen writer did; a block of a ``with`` begins and ends at one line."""
    return f"two checks, both{before}" if before == after else f"the check{before} and the one{after}"


def culprit_line(culprit: Culprit, placed: bool = True) -> str:
    """A culprit in one line; `placed` adds its launch site."""
    if culprit.name is None:
        return "not seen: no launch, operator or node that we watch wrote these bytes"
    name = brief(culprit.name, NAME)
    said = culprit.kind is None or culprit.name.startswith(f"{culprit.kind}.")
    parts = [name if said else f"{culprit.kind} {name}"]
    if culprit.node is not None:
        parts.append(f"node {culprit.node}")
    for label, extent in (("grid", culprit.grid), ("block", culprit.block)):
        if extent:
            parts.append(f"{label} {'x'.join(map(str, extent))}")
    if culprit.source:
        parts.append(f"defined{at(culprit.source)}")
    where = at(culprit.file, culprit.line) if placed else ""
    return f"{', '.join(parts)}{where} ({_status(culprit)})"


def argument_line(argument: Argument) -> str:
    """``argument 2 (out) points at draft.kv_indices + 1,024``."""
    inside = f", byte {argument.offset}" if argument.offset else ""
    name = f" ({argument.name})" if argument.name else ""
    return f"argument {argument.argument}{inside}{name} points at {pointed_at(argument)}"


def pointed_at(argument: Argument) -> str:
    """``draft.kv_indices + 1,024``, with the sureness where it is not high."""
    where = f"{argument.buffer} + {argument.at:,}" if argument.buffer else f"{argument.address:#x}, not tracked"
    return where if argument.sureness == "high" else f"{where} ({argument.sureness} sureness)"


def _status(culprit: Culprit) -> str:
    if culprit.status is not Status.NOT_REPRODUCED:
        return str(culprit.status)
    return "not reproduced" if culprit.seen_in is None else f"not reproduced in replay {culprit.seen_in}"


def _arguments(culprit: Culprit) -> Iterator[Row]:
    if culprit.led_by is not None:
        yield "led by", argument_line(culprit.led_by)
    elif culprit.arguments:
        yield "led by", "no argument points near"
    others = [argument for argument in culprit.arguments if argument != culprit.led_by]
    for place, argument in enumerate(others[:_ARGUMENTS]):
        yield "" if place else "arguments", argument_line(argument)
    if len(others) > _ARGUMENTS:
        yield "", f"... and {len(others) - _ARGUMENTS:,} more"
