"""What the adapter of a package may ask of a debugger: declare, bind, prepare, subscribe, join an exception.

An adapter patches a package that the program uses, such as a server or an attention library, and reports what the
package knows: which object holds which tensor, which graph a replay is prepared for, what host code planned. It reaches
the active debugger by ``shadowgraph.session.current().adapter``. Entries of ``shadowgraph.session.observers`` are told
of the start and the end of debuggers, and those of ``shadowgraph.graphs.events.listeners`` of captures and replays.
`shadowgraph.graphs.lookup.model_of` gives the `Graph` of a ``torch.cuda.CUDAGraph``.

Rules for an adapter:

- It changes neither arguments nor results of the package. None of its own errors, and no exception of a method below,
  reaches the package: `shadowgraph.common.internal_errors.error_barrier_all` counts them. `PlannerInterface.reads` is
  the exception: with `Settings.sync` it raises the finding of a read into the program.
- Every method may be called in any thread of the program, but not in a finalizer. No method but `loses_contents`
  waits for a device or reads one; none keeps a tensor or an owner alive.
- Methods take the locks of the ledger, of the name book and of the allocator for microseconds. `PlannerInterface.reads`
  and `PlannerInterface.note` may call the subscribers of a finding before they return. An adapter may hold a lock of
  its own meanwhile, if neither its listener nor its callbacks take that lock.
- The interface lives as long as its debugger, which holds it. An adapter keeps neither: it asks `session.current` at
  each call, because a program may end a debugger and start another one.
- While ``passing.on`` is true, replays pass unobserved and the program runs at full speed. Hooks on the path of every
  replay note what a report needs, report the sizes of the step to `AdapterInterface.novelty`, and then test it: a step
  larger than all before it has ended it by then.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress

import torch

from shadowgraph.checks.headroom.check import Headroom
from shadowgraph.checks.headroom.forecast import Limits
from shadowgraph.checks.invariants.rules import Rule, index_range, nondecreasing
from shadowgraph.checks.lost_preparation.check import LostPreparations
from shadowgraph.checks.lost_preparation.comparison import LARGEST
from shadowgraph.checks.mutation.check import PLANNER, InGraphMutation
from shadowgraph.checks.rebound.bindings import Planned
from shadowgraph.checks.rebound.check import ReboundInputs
from shadowgraph.checks.stale_rows.check import StaleRows
from shadowgraph.declarations import declare_padding, keep_rows, keep_rule, lose_contents, name_owner
from shadowgraph.graphs.dispatch import host_reads
from shadowgraph.graphs.dispatch.tensors import view_of_memory
from shadowgraph.model.failures import Failure
from shadowgraph.model.findings import Finding
from shadowgraph.model.graphs import Graph
from shadowgraph.model.host_plans import Again, HostPlan, HostPlans
from shadowgraph.model.launches import Launch, LaunchKind
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.stacks import current_stack
from shadowgraph.model.views import TensorView
from shadowgraph.monitor.exception_context import join, join_timeout, telling_line
from shadowgraph.monitor.monitor import Monitor
from shadowgraph.monitor.preparing import PrepareBlock, Preparing
from shadowgraph.monitor.program_failures import BatchSource
from shadowgraph.tracking import launch_recording, passing
from shadowgraph.tracking.novelty import Novelty

__all__ = [
    "AdapterInterface",
    "BatchSource",
    "Novelty",
    "PlannerInterface",
    "PrepareBlock",
    "Preparing",
    "Rule",
    "index_range",
    "launch_recording",
    "nondecreasing",
    "passing",
]

_MOST = 1 << 16  # bytes of a buffer in which a rule of an adapter is looked at, before each replay that is observed


class PlannerInterface:
    """For packages whose host code plans a replay from index pointers, such as flashinfer's wrappers.

    Attributes
    ----------
    recorded
        The latest plans. An adapter may append to it directly where the cost of `note` matters.
    """

    def __init__(self, work: Monitor) -> None:
        self._work = work
        self._rebound, self._mutation = work.checks[ReboundInputs], work.checks[InGraphMutation]
        self._headroom = work.checks[Headroom]
        self.recorded: HostPlans = work.flight_recorder.host_plans

    def note(self, plan: HostPlan) -> None:
        """Record a planner's call that is about to run. A crash report shows the last one.

        Parameters
        ----------
        plan
            Owned by the debugger from here on. Its index pointers are compared with what a graph left in the memory
            that they stand for (SG102).
        """
        self.recorded.note(plan)
        if plan.into is not None and plan.into.dtype == plan.dtype:
            self._mutation.planned(plan.into, plan.indptr)

    @property
    def compares(self) -> bool:
        """Whether `expect` has an effect: not while the operators that refresh inputs pass unobserved."""
        return not self._work.observation.incomplete

    def expect(
        self,
        owner: object,
        values: Mapping[str, bytes],
        used: Mapping[str, int] | None = None,
        planned_into: Mapping[str, int] | None = None,
    ) -> None:
        """Say what the bound inputs of an owner's graphs must hold at their coming replays (SG108).

        Parameters
        ----------
        owner
            The object of `AdapterInterface.bind`; weakly referenced. Its plan holds until its next one.
        values
            By attribute: the values that a graph must find in the first bytes of the memory it was captured with.
        used
            By attribute: how many of the first bytes count, where the values are not known here.
        planned_into
            By attribute: the address that the planner itself is about to write to, where that write is not observed.
            A plan for another graph that is still to be read there is lost (SG114).
        """
        into = planned_into or {}
        self._rebound.plan(owner, Planned(next(self._work.context.clock), values, used or {}, into))
        graph = self._work.preparing.graph or _only(self._rebound.graphs_of(owner))
        for address in into.values():
            self._planned(owner, graph, address)

    def _planned(self, owner: object, graph: Graph | None, address: int) -> None:
        """Note that an owner's planner is about to write to an address, for a graph's coming replay (SG114)."""
        buffer = self._work.context.ledger.at(address)
        if buffer is not None:
            where = ByteRange(address, min(buffer.stop, address + LARGEST))
            launch = Launch(LaunchKind.CALLABLE, f"{type(owner).__name__}.plan", (), current_stack())
            self._work.planned(launch, graph, where)

    def uses(self, graph: Graph, tensor: torch.Tensor, nbytes: int) -> None:
        """Say how much of a static buffer a plan uses for a graph's next replay (SG113, high-water marks).

        Parameters
        ----------
        graph
            The graph.
        tensor
            The memory that the graph reads, whole: its size is what there is. Contiguous; no effect on memory that is
            not tracked.
        nbytes
            Bytes that the plan uses, from the tensor's start.
        """
        with suppress(ValueError):  # a tensor without plain memory
            self._headroom.planned(view_of_memory(tensor), nbytes, graph)

    def reads(self, arguments: Iterable[object]) -> None:
        """Report that compiled code is about to read the host tensors among some arguments.

        Parameters
        ----------
        arguments
            Of the call that is about to run, in the calling thread.

        Raises
        ------
        FindingsError
            With `Settings.sync`, for a value that a graph had changed.
        """
        if host_reads.resting():
            return
        for argument in arguments:
            if isinstance(argument, torch.Tensor) and argument.is_cpu:
                host_reads.note_read(argument, PLANNER)

    def failed(self, plan: HostPlan | Again, error: BaseException) -> None:
        """Record the exception of a planner with its plan, at once: a server may catch it and have itself killed.

        Parameters
        ----------
        plan
            The record of the call that raised.
        error
            Not kept; its text is.
        """
        self.recorded.whole(plan).error = telling_line(error) or type(error).__name__
        join(self._work, error)


class AdapterInterface:
    """One debugger, as adapters see it; `Debugger.adapter`. The module's docstring has the rules.

    Attributes
    ----------
    preparing
        The open prepare blocks, of adapters and of `Debugger.prepare`. True when the calling thread has one; its
        `graph` is the one announced last.
    plans
        For packages that plan on the host.
    novelty
        The largest sizes of steps so far. `Novelty.see`, called before a step is prepared and whether or not
        ``passing.on``, has a step beyond them observed in full.
    """

    def __init__(self, work: Monitor) -> None:
        self._work = work
        self._rebound = work.checks[ReboundInputs]
        self.preparing: Preparing = work.preparing
        self.novelty: Novelty = work.novelty
        self.plans = PlannerInterface(work)

    # -- declare -----------------------------------------------------------------------------------------------

    def name(self, name: str, owner: object, without: Container[str] = ()) -> int:
        """Name the tensors reachable from an object; as `Debugger.name`.

        Parameters
        ----------
        name
            The first part of every path.
        owner
            Weakly referenced, and walked again as memory comes and goes. An object without weak references is walked
            once.
        without
            Attributes that are not followed, of the owner and of what it leads to: models, configurations, requests.

        Returns
        -------
        int
            Number of tensors found.

        Raises
        ------
        UnknownBufferError
            For an object that cannot hold tensors.
        """
        return name_owner(self._work, name, owner, without)

    def is_named(self, tensor: torch.Tensor, attribute: str) -> bool:
        """Whether a name of the program's own leads to a tensor, so that an adapter need not `name` the tensor's owner.

        Parameters
        ----------
        tensor
            Any tensor with plain memory.
        attribute
            The last part of the names that count.

        Returns
        -------
        bool
            True when a path that ends in the attribute leads to the tensor's memory.
        """
        names = self._work.context.names
        names.refresh()
        return any(owner.path.endswith(f".{attribute}") for owner in names.owners_of(TensorView.of(tensor).hull))

    def padding(self, tensor: torch.Tensor, policy: str) -> None:
        """Declare how padded rows of a static input are treated; as `Debugger.padding`.

        Parameters
        ----------
        tensor
            The input, or some of its rows. The declaration ends with the memory.
        policy
            ``"refresh"``, ``"dont_care"`` or ``"judged"``.

        Raises
        ------
        UsageError
            For an unknown policy.
        UnknownBufferError
            For an object that is no tensor, or has no plain memory on the backend's device.
        """
        declare_padding(self._work, tensor, policy)

    def keeps_rows(self, tensor: torch.Tensor) -> None:
        """Declare that the padded rows of a static input keep old values on purpose: their results are cut off.

        Other than `padding` with ``"dont_care"`` it may be given a whole input: values of the rows that hold requests
        still count.

        Parameters
        ----------
        tensor
            The declaration ends with the memory.

        Raises
        ------
        UnknownBufferError
            For an object that is no tensor, or has no plain memory on the backend's device.
        """
        keep_rows(self._work, tensor)

    def rule(self, tensor: torch.Tensor, rule: Rule) -> None:
        """Declare a rule that the package keeps for a buffer's values, by its source: SG109 where a graph is about to
        read values that break it.

        Unlike a user's rule it is checked at replays that are observed, on what the coming graph captured.

        Parameters
        ----------
        tensor
            The whole buffer; no effect on one with gaps. A later range replaces an earlier one. It ends with the
            memory.
        rule
            `index_range` or `nondecreasing`.

        Raises
        ------
        UnknownBufferError
            For an object that is no tensor, or has no plain memory on the backend's device.
        """
        keep_rule(self._work, tensor, rule, _MOST)

    def scratch(self, tensor: torch.Tensor) -> None:
        """Declare that a workspace needs no refresh between two replays.

        Parameters
        ----------
        tensor
            The declaration ends with its memory. No effect on memory that is not tracked.
        """
        where = TensorView.of(tensor).hull
        buffer = self._work.context.ledger.owner(where.start, where.stop)
        if buffer is not None:
            self._work.checks[StaleRows].declare(buffer, where, "dont_care")

    def loses_contents(self, ranges: Sequence[ByteRange], how: str) -> Callable[[], None]:
        """Say that memory is about to lose its contents while it keeps its addresses: a pause, a sleep.

        Unlike the other methods it waits for the device: for checks that are queued, which may read that memory, and to
        read a few bytes of what graphs read there. Call it where the package waits as well.

        Parameters
        ----------
        ranges
            Addresses, the last one exclusive.
        how
            What drops the contents, for the report.

        Returns
        -------
        Callable
            To be called, in any thread, once there is memory at these addresses again. From then on, what a graph
            reads there before it writes it must be written before the next replay; else SG116.
        """
        return lose_contents(self._work, ranges, how, read=True)

    def limit_batches(self, requests: int = 0, longest: int = 0, tokens: int = 0) -> None:
        """Say how large a batch can be, by the program's configuration: what a buffer must have room for (SG113).

        Parameters
        ----------
        requests
            Most requests of one batch that a graph is replayed for; 0, as below, where it is not known.
        longest
            Most tokens of one request.
        tokens
            Most tokens of all requests of a batch, where less than the product of both. After several calls the
            smallest numbers hold.
        """
        self._work.checks[Headroom].limit(Limits(requests, longest, tokens))

    # -- bind --------------------------------------------------------------------------------------------------

    def bind(self, graph: Graph, owner: object, attribute: str, tensor: torch.Tensor) -> bool:
        """Note that a graph is captured with the tensor behind an attribute of an object that plans its replays.

        SG108 is reported when the attribute later leads to other memory, or a plan to other values, while the memory
        that the graph reads stays unchanged. Call it during the capture, in the capturing thread, at the launch that is
        given the tensor.

        Parameters
        ----------
        graph
            From `Listener.capture_began`.
        owner
            Weakly referenced; the binding ends with it or with the graph.
        attribute
            Read again from the owner's instance dictionary, so that none of its code runs.
        tensor
            Contiguous.

        Returns
        -------
        bool
            False for a tensor without plain memory, and for a binding that exists already.
        """
        made = self._rebound.bind(graph, owner, attribute, tensor)
        if made:
            self._work.checks[LostPreparations].bind(graph, TensorView.of(tensor))
        return made

    def graphs_of(self, owner: object) -> list[Graph]:
        """Live graphs that were captured with memory bound to an owner.

        Parameters
        ----------
        owner
            The object of `bind`.

        Returns
        -------
        list of Graph
            In order of the captures; the caller's own list.
        """
        return self._rebound.graphs_of(owner)

    # -- prepare -----------------------------------------------------------------------------------------------

    def prepare(self, graph: Graph | None) -> PrepareBlock:
        """Open a prepare block: from here on, launches of the calling thread refresh the inputs of a coming replay.

        Guards are not checked at its ends, unlike at those of `Debugger.prepare`.

        Parameters
        ----------
        graph
            The graph that replays next; None when it is not known.

        Returns
        -------
        PrepareBlock
            The caller owns it and must call its `end`, in a ``finally`` clause, before the replay. Any thread may.
        """
        block = self.preparing.begin(graph)
        if graph is None:
            block.since = next(self._work.context.clock)
        return block

    def prepares(self, block: PrepareBlock, graph: Graph | None) -> None:
        """Say which graph a block prepares that was opened without one, as soon as it is known.

        It counts for SG114 for what has been launched since the block was opened, in any thread, and for everything for
        what is launched from here on.

        Parameters
        ----------
        block
            Of `prepare`, not ended.
        graph
            The graph; None where nothing is replayed. The caller ends the block in either case.
        """
        self._work.prepared(block, graph)

    def watch_step(self, reason: str) -> None:
        """Have the step that is about to be prepared observed in full, with the operators of this thread.

        Parameters
        ----------
        reason
            Why, for the log. No effect where operators are observed already.
        """
        self._work.watch_step(reason)

    # -- subscribe ---------------------------------------------------------------------------------------------

    def subscribe_findings(self, callback: Callable[[Finding], object]) -> Callable[[], None]:
        """Receive every stored finding, new, seen again or revised.

        What a suppression rule hides is not received, unless it was stored before its culprit was known: the revision
        that withdraws it then has `Finding.suppressed_by`.

        Parameters
        ----------
        callback
            Called in the thread of the event that led to the finding, without a lock of the debugger, before the event
            returns to the program. It may write files and read the debugger. Calls of two threads may come in another
            order than the findings were stored; `Finding.revision` and ``occurrences`` tell the order. Held until the
            subscription or the debugger ends.

        Returns
        -------
        Callable
            Ends the subscription.
        """
        return self._work.subscriptions.findings.subscribe(callback)

    def subscribe_failures(self, callback: Callable[[Failure], object]) -> Callable[[], None]:
        """Receive every exception of the program that was joined with its context.

        Parameters
        ----------
        callback
            Called as that of `subscribe_findings`, in the thread that joined the exception.

        Returns
        -------
        Callable
            Ends the subscription.
        """
        return self._work.subscriptions.failures.subscribe(callback)

    def provide_batches(self, source: BatchSource) -> None:
        """Say which batch of requests each replay is prepared for; findings and exceptions show it.

        Parameters
        ----------
        source
            Called with a graph and a replay's number, in any thread, often under the debugger's lock: it must take no
            lock and run no code of the program. Returns None for a replay that it does not know. Held as long as the
            debugger; providing it again has no effect.
        """
        self._work.batches.add(source)

    # -- join --------------------------------------------------------------------------------------------------

    def join(self, error: BaseException, where: str = "") -> Failure | None:
        """Record an exception of the program with its context, in the thread that caught it; never raises.

        Parameters
        ----------
        error
            Recorded once per text, even when it is caught, raised again or quoted. Not kept.
        where
            The place in the package, in words.

        Returns
        -------
        Failure or None
            None for an exception of another kind than those of devices, planners and timeouts, and without context.
        """
        return join(self._work, error, where)

    def join_timeout(self, said: str, where: str = "") -> Failure | None:
        """Record a timeout alarm that is no exception, with its context, in the thread of the alarm; never raises.

        Parameters
        ----------
        said
            The text of the alarm.
        where
            The place in the package, in words.

        Returns
        -------
        Failure or None
            None without context, and for an alarm that is recorded already.
        """
        return join_timeout(self._work, said, where)

    # -- memory ------------------------------------------------------------------------------------------------

    @property
    def device(self) -> str:
        """Name of the watched device, such as ``"cpu"`` or ``"cuda:0"``."""
        return self._work.allocator.device

    @property
    def reserved_bytes(self) -> int:
        """Bytes of the device's memory that shadowgraph holds now, which a package that sizes its pools finds gone."""
        return self._work.allocator.arena.reserved


def _only(graphs: list[Graph]) -> Graph | None:
    """The one graph, where there is one."""
    return graphs[0] if len(graphs) == 1 else None
