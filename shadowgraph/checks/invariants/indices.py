"""SG109 for a launch that takes an index out of its target's range: before the launch runs, or from copies after it.

In sync mode called before the launch, in its thread, without the debugger's lock. Else called once the device is lost,
with copies of the indices that reached host memory.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shadowgraph.checks.attribution import eager_phase
from shadowgraph.checks.base import Check, Checkpoint, Detection
from shadowgraph.checks.invariants import CODE
from shadowgraph.checks.invariants.facts import INDEX_RULE, RuleDetail
from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.model.launches import IndexRule, Launch
from shadowgraph.model.phases import Phase
from shadowgraph.model.ranges import RangeSet
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.writes import Write


class Indices(Check):
    """Index rules of single launches; independent of graphs."""

    def look(self, launch: Launch, rules: tuple[IndexRule, ...], checkpoint: Checkpoint) -> None:
        """Check a launch that is about to run; reading its indices waits for the device."""
        for rule in rules:
            self.judge(launch, rule, self.context.engine.read(rule.index.hull), checkpoint)

    def judge(self, launch: Launch, rule: IndexRule, data: bytes, checkpoint: Checkpoint) -> bool:
        """Whether the bytes of an index tensor, or the beginning that is at hand, break its rule; reported if so."""
        values = elements(rule.index, data)
        outside = values[(values < rule.low) | (values >= rule.high)]
        if not outside.size:
            return False
        self._report(launch, rule, int(outside.flat[0]), (int(values.min()), int(values.max())), checkpoint)
        return True

    def _report(
        self, launch: Launch, rule: IndexRule, bad: int, extremes: tuple[int, int], checkpoint: Checkpoint
    ) -> None:
        where = f"along dim {rule.dim}" if rule.dim is not None else "into all elements"
        held = f"{rule.argument} holds {extremes[0]} to {extremes[1]}"
        write = Write(launch, RangeSet())
        target, index = rule.target.hull, self.context.ledger.owner(rule.index.start, rule.index.stop)
        done = checkpoint.step.done if checkpoint.step is not None else self.context.replays()
        blame = eager_phase(self.context, checkpoint.graph, target, (), done)
        if checkpoint.phase is Phase.PREPARE:  # marked as such
            blame = checkpoint.phase, checkpoint.graph, checkpoint.replay
        self.context.report(
            Detection(
                code=CODE,
                checkpoint=checkpoint,
                buffer=self.context.ledger.owner(target.start, target.stop) or _unknown(rule.target),
                first=target.start,
                last=target.start,
                count=0,
                ranges=(),
                culprits=(write,),
                phase=blame[0],
                graph=blame[1],
                replay=blame[2],
                facts=RuleDetail(
                    f"{INDEX_RULE}: {bad} {where}, which ends at {rule.high}; {held}",
                    index.serial if index is not None else None,
                ),
                key=f"{launch.name} {rule.argument}",
                view=rule.target,
            )
        )


def elements(view: TensorView, data: bytes) -> npt.NDArray[np.int64]:
    """The values of an integer tensor from the bytes of its hull, or the values that a prefix of them holds."""
    kept = np.frombuffer(data[: len(data) // view.itemsize * view.itemsize], dtype=view.dtype)
    # A dimension of stride 0 repeats the same elements.
    dims = [(size if stride else min(size, 1), stride) for size, stride in zip(view.shape, view.stride, strict=True)]
    first = (view.address - view.start) // view.itemsize
    if len(kept) * view.itemsize >= view.stop - view.start:  # all of it
        shape, strides = [size for size, _ in dims], [stride * view.itemsize for _, stride in dims]
        whole = np.lib.stride_tricks.as_strided(kept[first:], shape, strides, writeable=False)
        return whole.astype(np.int64).reshape(-1)
    places = np.full(1, first)
    for size, stride in dims:
        places = (places[:, None] + stride * np.arange(size)).reshape(-1)
    values: npt.NDArray[np.int64] = kept[places[places < len(kept)]].astype(np.int64)
    return values


def _unknown(view: TensorView) -> Buffer:
    """A stand-in for memory that the ledger does not have."""
    return Buffer(
        serial=0,
        start=view.start,
        nbytes=view.stop - view.start,
        role=Role.FOREIGN,
        dtype=view.dtype,
        shape=view.shape,
        itemsize=view.itemsize,
        device=view.device,
    )
