"""Detections of lost preparations: one for each buffer.

Called by `LostPreparations`, under the debugger's lock, or by the finding pipeline (`detail_of`).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from shadowgraph.checks.base import Context, Detection, bytes_in
from shadowgraph.checks.lost_preparation import CODE
from shadowgraph.checks.lost_preparation.comparison import Difference, Loss, difference
from shadowgraph.checks.lost_preparation.facts import Known, LostDetail, LostWrite
from shadowgraph.engines.base import WINDOW
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.findings import Severity
from shadowgraph.model.phases import Phase


def detections(loss: Loss, context: Context) -> Iterator[Detection]:
    """The bytes that differ, by buffer. Without values there is no detection: both writes may have written the same."""
    for buffer in _buffers(loss, context):
        found = difference(loss, buffer, WINDOW)
        if found is not None:
            yield _detection(loss, found, context)


def _buffers(loss: Loss, context: Context) -> list[Buffer]:
    found = (b for part in loss.parts for b in context.ledger.overlapping(part.start, part.stop))
    return list({buffer.serial: buffer for buffer in found}.values())


def _detection(loss: Loss, found: Difference, context: Context) -> Detection:
    assert loss.known is not None
    assert loss.other is not None
    by = loss.by
    write = by.write if by.sure else msgspec.structs.replace(by.write, opaque=True)
    return Detection(
        code=CODE,
        checkpoint=loss.checkpoint,
        buffer=found.buffer,
        **bytes_in(found.ranges),
        window=found.window,
        expected=found.expected,
        found=found.found,
        culprits=(write,),
        phase=Phase.PREPARE,
        graph=loss.graph,
        replay=loss.replay,
        severity=Severity.NOTE if _is_guess(loss) else Severity.ERROR,
        confidence=_confidence(loss, context),
        key=f"{loss.graph.serial} {loss.other.serial}",
        facts=_facts(loss),
    )


def _is_guess(loss: Loss) -> bool:
    """Whether the program may intend it: two writes may be for one replay as well as for two."""
    return loss.known is Known.COUNT or (loss.other is loss.graph and loss.by.meant is None)


def _confidence(loss: Loss, context: Context) -> str:
    if loss.doubtful or _is_guess(loss):
        return "low"
    return "high" if loss.known is Known.DECLARED and not context.engine.asynchronous else "medium"


def _facts(loss: Loss) -> LostDetail:
    assert loss.known is not None
    assert loss.other is not None
    launch = loss.lost.write.launch
    frame = launch.stack[0] if launch.stack else None
    file, line = (frame.file, frame.line) if frame is not None else (None, None)
    lost = LostWrite(launch.name, str(launch.kind), file, line, launch.stack)
    return LostDetail(lost, loss.other.name, loss.other_replay, loss.known)
