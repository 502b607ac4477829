"""Context of a program's exception: the last plan, the writers of its index pointers, the last replay and its batch.

Called in the thread that caught the exception, by `session`, the adapters and the injected process; `join` takes no
lock. Reads host memory only, because the exception may come from a lost device.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.model.failures import Failure, LastWriter, PlanFacts
from shadowgraph.model.findings import Batch, Finding
from shadowgraph.model.graphs import Graph
from shadowgraph.model.host_plans import HostPlan
from shadowgraph.model.journal import Ran, Replayed
from shadowgraph.model.launches import Access, Launch
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.views import TensorView
from shadowgraph.monitor.finding_builder import culprit_of
from shadowgraph.monitor.monitor import Monitor
from shadowgraph.tracking.writes import write_of

_PLANNER = re.compile(r"indptr\[\d+\]|should be non-negative|Error in (standard|alternate MLA) plan")
_DEVICE = re.compile(r"CUDA error|device-side assert|illegal memory access|CUDA_ERROR_|cudaError[A-Z]")
_TIMEOUT = re.compile(r"watchdog|timed? ?out", re.IGNORECASE)
_AROUND, _BROKEN = 32, 8  # entries shown on either side of the first broken one; broken entries listed
_CHAIN = 8


def join(work: Monitor, error: BaseException, where: str = "") -> Failure | None:
    """Record an exception with its context if it is of a known kind; never raises.

    An exception is recorded once per text, even when it is caught, raised again or quoted.
    """
    with error_barrier("joining of an exception"):
        kind = kind_of(error, work.flight_recorder.host_plans.last)
        if kind is not None:
            return _keep(work, kind, type(error).__name__, telling_line(error), where)
    return None


def join_timeout(work: Monitor, said: str, where: str = "") -> Failure | None:
    """Record a timeout alarm that is not an exception, with its context."""
    with error_barrier("joining of a timeout"):
        return _keep(work, "timeout", "", said, where)
    return None


def kind_of(error: BaseException, plan: HostPlan | None) -> str | None:
    """The kind of failure that an exception and its causes show; None when the debugger has nothing to explain."""
    texts = [f"{type(each).__name__}: {telling_line(each)}" for each in _chain(error)]
    if any(_DEVICE.search(text) or text.startswith("AcceleratorError") for text in texts):
        return "device"
    if _by_planner(texts, plan):
        return "planner"
    return "timeout" if any(_TIMEOUT.search(text) for text in texts) else None


def _by_planner(texts: list[str], plan: HostPlan | None) -> bool:
    """Whether texts are those of a planner, or quote the error of the last plan."""
    if any(_PLANNER.search(text) for text in texts):
        return True
    error = plan.error if plan is not None else ""
    return bool(error) and any(error in text for text in texts)


def _chain(error: BaseException) -> Iterator[BaseException]:
    each: BaseException | None = error
    for _ in range(_CHAIN):
        if each is None:
            return
        yield each
        each = each.__cause__ or each.__context__


def telling_line(error: BaseException) -> str:
    """The line of an exception's text that identifies its kind, else the first line."""
    try:
        lines = str(error).strip().split("\n")
        telling = (line for line in lines if _PLANNER.search(line) or _DEVICE.search(line))
        return next(telling, lines[0]).strip()[:300]
    except Exception:  # raised by the program's own exception class
        return "(cannot be printed)"


def _keep(work: Monitor, kind: str, error: str, said: str, where: str) -> Failure | None:
    if work.failures.knows(kind, said):
        return None
    last = work.flight_recorder.taken()[1][-1:]
    graph = work.context.graphs.get(last[0].graph) if last else None
    plan = work.flight_recorder.host_plans.last
    if graph is None and plan is None:
        return None  # no context
    failure = Failure(
        kind=kind,
        error=error,
        said=said,
        where=where,
        time=time.time(),
        plan=_plan(work, plan),
        graph=graph.name if graph is not None else None,
        replay=last[0].replay if graph is not None else None,
        seconds=time.time() - last[0].time if last else 0.0,
        batch=_batch(work, plan if kind == "planner" else None, graph, last[0].replay if last else 0),
    )
    work.failures.keep(failure)
    return failure


def _batch(work: Monitor, plan: HostPlan | None, graph: Graph | None, replay: int) -> Batch | None:
    """The batch of the replay for which a plan was made, else of the last replay that began."""
    planned = work.context.graphs.get(plan.serial) if plan is not None else None
    if planned is not None and plan is not None and plan.replay is not None:
        return work.batches.of(planned, plan.replay)
    return work.batches.of(graph, replay) if graph is not None else None


def _plan(work: Monitor, plan: HostPlan | None) -> PlanFacts | None:
    if plan is None:
        return None
    values = np.frombuffer(plan.indptr, plan.dtype)
    broken = [int(at) + 1 for at in np.flatnonzero(values[1:] < values[:-1])]
    first = max(0, broken[0] - _AROUND) if broken else 0
    facts = PlanFacts(
        planner=plan.planner,
        kind=plan.kind,
        batch_size=plan.batch_size,
        entries=plan.entries,
        indptr=tuple(values[first : first + 2 * _AROUND].tolist()),
        first=first,
        broken=tuple(broken[:_BROKEN]),
        buffer=f"{plan.planner}.{plan.attribute}" if plan.attribute else "",
        graph=plan.graph,
        replay=plan.replay,
        failed=bool(plan.error),
    )
    return _with_writers(work, plan, facts, broken[0] if broken else None)


def _with_writers(work: Monitor, plan: HostPlan, facts: PlanFacts, broken: int | None) -> PlanFacts:
    """Adds the name of the buffer that holds the plan's index pointers, their writers, and the finding about it."""
    view, context = plan.into, work.context
    if view is None:
        return facts
    buffer = context.ledger.owner(view.start, view.stop)
    finding: Finding | None = None
    if buffer is not None:
        facts = msgspec.structs.replace(facts, buffer=context.names.name_of(buffer, view.hull)[0])
        finding = work.book.about(buffer.serial)
    writers = (_writer(work, entry, where) for entry, where in _suspects(view, broken))
    return msgspec.structs.replace(
        facts,
        writers=tuple(writer for writer in writers if writer is not None),
        finding=finding.id if finding is not None else None,
        found=finding.message if finding is not None else "",
    )


def _suspects(view: TensorView, broken: int | None) -> list[tuple[int, ByteRange]]:
    """The index pointers whose writers matter, with their bytes: the broken one and its predecessor, else all."""
    if broken is None:
        return [(0, view.hull)]
    size = view.itemsize
    return [(at, ByteRange(view.start + at * size, view.start + (at + 1) * size)) for at in (broken - 1, broken)]


def _writer(work: Monitor, entry: int, where: ByteRange) -> LastWriter | None:
    """The latest launch that was given these bytes to write, eager or in a replay."""
    launches, replays = work.flight_recorder.taken()
    ran = next((ran for ran in reversed(launches) if _writes(ran.launch, where)), None)
    later = _replay_after(work, entry, where, replays, ran)
    if later is not None or ran is None:
        return later
    graph = work.context.graphs.get(ran.graph) if ran.graph is not None else None
    before = (one.replay for one in reversed(replays) if one.graph == ran.graph and one.time <= ran.time)
    name = graph.name if graph is not None else None
    return _of(ran.launch, entry, ran.node, name, next(before, None), _wrote_unseen(work, ran.time))


def _replay_after(
    work: Monitor, entry: int, where: ByteRange, replays: Sequence[Replayed], ran: Ran | None
) -> LastWriter | None:
    """The last node to write these bytes in a replay later than a recorded launch; none if that was itself a node."""
    for replayed in reversed(replays):
        if ran is not None and (ran.node is not None or ran.time > replayed.time):
            return None
        graph = work.context.graphs.get(replayed.graph)
        nodes = graph.writers(where) if graph is not None else []
        if graph is not None and nodes:
            unseen = _wrote_unseen(work, replayed.time)
            return _of(nodes[-1].launch, entry, nodes[-1].index, graph.name, replayed.replay, unseen)
    return None


def _wrote_unseen(work: Monitor, since: float) -> bool:
    """Whether unobserved operators may have written since then, in the steady state."""
    return work.observation.incomplete or since < work.observation.observed_since


def _writes(launch: Launch, where: ByteRange) -> bool:
    return any(p.may_write and p.view.touches(where.start, where.stop) for p in launch.pointers)


def _of(
    launch: Launch, entry: int, node: int | None, graph: str | None, replay: int | None, unsure: bool = False
) -> LastWriter:
    """`unsure`: later writes may have passed unobserved."""
    unsure = unsure or any(p.access is Access.UNKNOWN for p in launch.pointers)
    write = msgspec.structs.replace(write_of(launch, None, node), opaque=unsure)
    return LastWriter(entry, culprit_of(write), graph, replay)
