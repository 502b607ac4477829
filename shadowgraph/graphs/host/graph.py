"""`HostGraph` and `host_graph`: the interfaces of `torch.cuda.CUDAGraph` and `torch.cuda.graph` on the CPU.

Methods run and emit their events in the calling thread, without a lock. A graph's finalizer only queues its work:
`report_collected` emits the event later.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import msgspec
import torch

from shadowgraph.common.errors import BackendError, CaptureError, FreedInputError, UsageError
from shadowgraph.common.exception_text import summary
from shadowgraph.common.finalizer_safe_lock import defer, run_deferred
from shadowgraph.common.option_kinds import shown
from shadowgraph.graphs.dispatch import eager, host_reads
from shadowgraph.graphs.events import events, listeners
from shadowgraph.graphs.host.nodes import Step, TenancyNode
from shadowgraph.graphs.host.observed_replay import run_telling, run_telling_each
from shadowgraph.graphs.host.probe import run_probed
from shadowgraph.graphs.host.recorder import Recorder
from shadowgraph.graphs.host.reruns import conducted
from shadowgraph.graphs.triton import host as triton_host
from shadowgraph.model.graphs import Graph
from shadowgraph.model.probes import Probe
from shadowgraph.model.reruns import Experiment
from shadowgraph.tracking import launch_recording, passing, steps
from shadowgraph.tracking.allocator import Pool, host_allocator

PoolHandle = tuple[int, int]

_ABOVE_KERNELS = torch._C._dispatch_keyset_full() - torch._C._dispatch_keyset_full_after(
    torch._C.DispatchKey.ADInplaceOrView
)
_serials = itertools.count(1)
_pools: weakref.WeakValueDictionary[PoolHandle, Pool] = weakref.WeakValueDictionary()
_active = threading.local()
_collected: deque[Graph] = deque()  # models of graphs that were garbage collected and not yet reported


def graph_pool_handle() -> PoolHandle:
    """A handle for a new memory pool that several captures may share, as `torch.cuda.graph_pool_handle`.

    It owns no memory and stays valid for the life of the process.
    """
    return (0, host_allocator().new_pool().serial)


class HostGraph:
    """A graph captured from eager code on the CPU and replayed over the same storage.

    The interface of `torch.cuda.CUDAGraph`. During a capture every aten operator of the capturing thread, every launch
    in Triton's interpreter and every `call` becomes a node. `replay` runs the nodes again at the captured addresses;
    the captured Python does not run. As on CUDA, the graph owns the memory of its pool and does not keep static inputs
    alive: a replay over a freed input raises `FreedInputError`. Its nodes are in `model`.

    Parameters
    ----------
    keep_graph
        Accepted and ignored: the model is always kept.
    """

    def __init__(self, keep_graph: bool = False) -> None:
        self.model = Graph(next(_serials), "")
        self.model.name = f"graph#{self.model.serial}"
        self._steps: list[Step] = []
        self._recorder: Recorder | None = None
        self._pool: Pool | None = None
        self._foreign: dict[int, Any] = {}
        self._constants: list[torch.UntypedStorage] = []
        self._undo = ExitStack()
        self._captured = False

    def capture_begin(
        self,
        pool: PoolHandle | None = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
    ) -> None:
        """Start recording this thread.

        Parameters
        ----------
        pool
            A handle from `graph_pool_handle` or another graph's `pool`, to share its memory; None for a new pool.
        capture_error_mode
            One of torch's three, ``"global"``, ``"thread_local"``, ``"relaxed"``; they make no difference here.
        check_input_liveness
            Has no effect: a host graph always refuses to replay over freed inputs.

        Raises
        ------
        CaptureError
            When this thread is capturing already, when this graph holds a capture already (as with torch: `reset` it,
            or take a new one), or for an unknown pool handle or error mode.
        """
        if getattr(_active, "graph", None) is not None:
            raise CaptureError("this thread captures already; end that capture first")
        if self._captured:
            raise CaptureError(
                f"{self.model.name} holds a capture already; capture into a new HostGraph, or reset() this one first"
            )
        if capture_error_mode not in {"global", "thread_local", "relaxed"}:
            raise CaptureError(
                f"capture_error_mode must be global, thread_local or relaxed, not {capture_error_mode!r}"
            )
        chosen = _lookup(pool if pool is not None else graph_pool_handle())
        report_collected()
        events.capture_began(self.model)
        allocator = host_allocator()
        allocator.enter_pool(chosen)
        self._pool = chosen
        self._recorder = Recorder(self.model, chosen, allocator)
        chosen.hold = allocator.isolate_captures
        _active.graph = self
        try:
            self._undo = _recording(self._recorder)
        except BaseException:
            self._abort()
            raise

    def capture_end(self) -> None:
        """Stop recording; restores static inputs to their bytes from before the capture.

        Raises
        ------
        CaptureError
            When no capture is active, or an operation in it was refused.
        """
        recorder = self._stop()
        if recorder.failure is not None:
            self.reset()
            raise recorder.failure
        self._steps, self._foreign = recorder.steps, recorder.foreign
        self._constants = list(recorder.constants.values())
        self._captured = self.model.checks_itself = True
        events.capture_ended(self.model)

    def _abort(self) -> None:
        """Stop recording and drop the capture; for an exception in the captured code."""
        self._stop()
        self.reset()

    def _stop(self) -> Recorder:
        recorder = self._recorder
        if recorder is None or getattr(_active, "graph", None) is not self:
            raise CaptureError("no capture of this graph is active in this thread")
        self._undo.close()
        recorder.restore()
        self._recorder, _active.graph = None, None
        assert self._pool is not None
        self._pool.hold = False
        self._pool.release_quarantine()
        return recorder

    def replay(self) -> None:
        """Run the nodes in order over the captured addresses.

        Raises
        ------
        CaptureError
            When there is no capture, or when this thread is capturing: a graph cannot hold another one here.
        FreedInputError
            When a static input outside any guarded memory was freed, or got other memory, since the capture.
        """
        self._require_replayable()
        self.model.replays += 1
        passes, checks = self._begin_replay()
        probe, self.model.probe = self.model.probe, None
        try:
            while self.model.experiments:
                self._experiment(self.model.experiments.pop(0))
            self._run_steps(bool(listeners) and not passes, probe)
        except BaseException:
            self._settle_guards()
            if passes:
                passing.ended(self.model)
            events.replay_failed(self.model)
            raise
        if not passes:
            events.replay_ended(self.model)
            return
        if checks:
            events.checks_itself(self.model, True)
        if passing.ended(self.model):
            events.replays_passed(self.model)

    def _begin_replay(self) -> tuple[bool, bool]:
        """Report that a replay begins; returns whether it passes unobserved, and whether it is checked then."""
        model = self.model
        if listeners and steps.begins(model):
            steps.switched(model, steps.wants_checks(model))
        if not (passing.on and model.probe is None and listeners):
            events.replay_began(model)
            return False, False
        checks = steps.checks(model)
        if checks:
            events.checks_itself(model, False)
        else:
            log = launch_recording.current
            if log is not None:
                log.replay_passes(model.serial, model.replays)
        return True, checks

    def _require_replayable(self) -> None:
        """Raise what `replay` says where this graph cannot be replayed now."""
        if not self._captured:
            raise CaptureError(f"{self.model.name} holds no capture to replay")
        recording = getattr(_active, "graph", None)
        if recording is not None:
            recording._recorder.refuse("HostGraph.replay()", "a graph cannot hold another graph's replay here")
        run_deferred()
        report_collected()
        try:
            self._check_inputs()
        except FreedInputError:
            events.replay_refused(self.model)
            raise

    def _settle_guards(self) -> None:
        """Leave every guard where it stands after a whole replay, in place of one that an exception cut short."""
        for step in self._steps:
            if isinstance(step, TenancyNode):
                step.run(False)

    def _experiment(self, experiment: Experiment) -> None:
        """Conduct an experiment that is to precede this replay. Meanwhile no other thread checks guards, or is given
        memory: guards may hold other bytes."""
        refused: str | None = None
        try:
            with (
                host_allocator().lock.section,
                torch._C._DisableTorchDispatch(),  # from here on as in `_run_steps`
                torch._C._ExcludeDispatchKeyGuard(_ABOVE_KERNELS),
                torch.enable_grad(),
            ):
                refused = conducted(self._steps, experiment)
        except Exception as error:  # a node that raises may raise in the replay, too
            refused = summary(error)
        experiment.ended(refused)

    def _run_steps(self, watched: bool, probe: Probe | None) -> None:
        # Below autograd, autocast and version counters: the captured operators are the results of these.
        with torch._C._DisableTorchDispatch(), torch._C._ExcludeDispatchKeyGuard(_ABOVE_KERNELS), torch.enable_grad():
            if probe is not None:
                run_probed(self._steps, self.model, watched, probe)
                return
            if watched and any(listener.wants_each_node for listener in listeners):
                run_telling_each(self._steps, self.model)
            elif watched:
                run_telling(self._steps, self.model)
            else:
                for step in self._steps:
                    step.run(False)

    def call(
        self,
        function: Callable[..., object],
        *args: Any,
        reads: tuple[torch.Tensor, ...] = (),
        writes: tuple[torch.Tensor, ...] = (),
        **kwargs: Any,
    ) -> None:
        """Put a Python callable into the capture as a node (CUDA's host node).

        Parameters
        ----------
        function
            Runs at each replay, not now; its result is discarded. The graph holds it until `reset`.
        *args
            Passed at each replay; tensors among them are replaced by aliases that own no memory.
        reads, writes
            Tensors that it accesses. Undeclared writes are still caught by the guards.
        **kwargs
            As `args`.

        Raises
        ------
        CaptureError
            Outside a capture of this graph.
        UsageError
            For a function that cannot be called, and for reads or writes that are no tensors.
        """
        if self._recorder is None:
            raise CaptureError("call() belongs inside a capture of this graph")
        if not callable(function):
            raise UsageError(f"call() takes a function first, not {shown(function)}")
        for each in (*reads, *writes):
            if not isinstance(each, torch.Tensor):
                raise UsageError(f"call() takes tuples of tensors as reads and writes, not {shown(each)} in them")
        self._recorder.record_callable(function, args, kwargs, reads, writes)

    def reset(self) -> None:
        """Drop the capture and release the pool: its memory is freed where no tensor and no other graph holds it.

        Raises
        ------
        CaptureError
            While this graph is capturing.
        """
        if self._recorder is not None:
            raise CaptureError(f"{self.model.name} captures; end the capture before reset()")
        events.graph_reset(self.model)
        serial = self.model.serial if not self._captured else next(_serials)
        self.model = Graph(serial, f"graph#{serial}")
        self._steps, self._foreign, self._constants = [], {}, []
        self._captured = False
        self._leave_pool()

    def _leave_pool(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            host_allocator().leave_pool(pool)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if ending():
            return  # the globals used here may be gone
        pool = getattr(self, "_pool", None)
        if pool is not None:
            _collected.append(self.model)
            defer(partial(host_allocator().leave_pool, pool))

    def pool(self) -> PoolHandle:
        """The handle of this graph's memory pool.

        Raises
        ------
        CaptureError
            Before the first capture has begun, and after `reset`.
        """
        if self._pool is None:
            raise CaptureError("a graph has a pool only after capture_begin")
        return (0, self._pool.serial)

    def instantiate(self) -> None:
        """No effect on the host; there for programs that keep their graph."""

    def register_generator_state(self, generator: torch.Generator) -> None:
        """No effect on the host: replayed operators draw from the generator they were captured with.

        Parameters
        ----------
        generator
            Ignored.
        """

    def enable_debug_mode(self) -> None:
        """No effect on the host: the model is always kept."""

    def debug_dump(self, debug_path: str) -> None:
        """Write the nodes as JSON.

        Parameters
        ----------
        debug_path
            The file to write; an existing one is replaced.

        Raises
        ------
        UsageError
            For something else than a path.
        """
        if not isinstance(debug_path, (str, os.PathLike)):
            raise UsageError(f"debug_dump() takes the path of a file, not {shown(debug_path)}")
        Path(debug_path).write_bytes(msgspec.json.format(msgspec.json.encode(self.model.nodes), indent=1))

    def __repr__(self) -> str:
        if self._recorder is not None:
            return f"<HostGraph {self.model.name}: capturing>"
        if not self._captured:
            return f"<HostGraph {self.model.name}: nothing captured>"
        return f"<HostGraph {self.model.name}: {self.model.contents}>"

    def raw_cuda_graph(self) -> NoReturn:
        """Not available: a host graph has no ``cudaGraph_t``.

        Raises
        ------
        BackendError
            Always.
        """
        raise BackendError("a host graph has no cudaGraph_t; read its nodes in HostGraph.model")

    def _check_inputs(self) -> None:
        for reference, view, node in self._foreign.values():
            storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
            size, address = (storage.nbytes(), storage.data_ptr()) if storage is not None else (-1, -1)
            if size < view.storage_nbytes or address != view.storage_address:
                fate = "was freed" if storage is None else "was resized or moved to other memory"
                at = f" at {node.launch.stack[0].file}:{node.launch.stack[0].line}" if node.launch.stack else ""
                raise FreedInputError(
                    f"{self.model.name} cannot replay: {view.dtype}{list(view.shape)} read by node {node.index} "
                    f"({node.launch.name}){at} {fate} since the capture; keep static inputs alive and in place"
                )


class host_graph:
    """Capture a `HostGraph` in a ``with`` block, as `torch.cuda.graph` does for a CUDA graph.

    Parameters
    ----------
    cuda_graph
        The `HostGraph` to capture into; named as in `torch.cuda.graph`.
    pool
        A handle from `graph_pool_handle` or another graph's ``pool()``, to share its memory.
    stream
        Accepted and ignored: the host has no streams.
    capture_error_mode
        One of torch's three; they make no difference here.
    enable_annotations
        Accepted and ignored: there are no kernels to annotate.
    check_input_liveness
        Accepted; replays over freed inputs are always refused.

    Raises
    ------
    UsageError
        For something else than a `HostGraph`.
    """

    def __init__(
        self,
        cuda_graph: HostGraph,
        pool: PoolHandle | None = None,
        stream: object | None = None,
        capture_error_mode: str = "global",
        enable_annotations: bool = False,
        check_input_liveness: bool = False,
    ) -> None:
        if not isinstance(cuda_graph, HostGraph):
            raise UsageError(f"host_graph() captures into a HostGraph, not {shown(cuda_graph)}; make one: HostGraph()")
        self._graph, self._pool, self._mode = cuda_graph, pool, capture_error_mode
        self._check_input_liveness = check_input_liveness

    def __repr__(self) -> str:
        return f"<host_graph of {self._graph!r}>"

    def __enter__(self) -> None:
        self._graph.capture_begin(self._pool, self._mode, self._check_input_liveness)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._graph.capture_end()
        else:
            self._graph._abort()


def _recording(recorder: Recorder) -> ExitStack:
    """Send this thread's work to a recorder until the returned stack is closed."""
    with ExitStack() as stack:
        triton_host.install()
        stack.callback(triton_host.uninstall)
        host_reads.install()
        stack.callback(host_reads.uninstall)
        if "torch._dynamo" in sys.modules:
            # A function that falls back to eager under a dispatch mode stays eager afterwards; a stance does not.
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        eager.set_capturing(True)
        stack.callback(eager.set_capturing, False)
        host_reads.set_refuser(recorder.refuse_host_read)
        stack.callback(host_reads.set_refuser, None)
        triton_host.set_recorder(recorder.record_triton)
        stack.callback(triton_host.set_recorder, None)
        stack.enter_context(recorder)
        return stack.pop_all()


def report_collected() -> None:
    """Emit the events for graphs that were garbage collected, outside the collector. Any thread."""
    while _collected:
        events.graph_reset(_collected.popleft())


def _lookup(handle: PoolHandle) -> Pool:
    key = (handle[0], handle[1]) if isinstance(handle, tuple) and len(handle) == 2 else None
    if key is None or key[0] != 0 or not host_allocator().issued(key[1]):
        raise CaptureError(
            f"unknown pool handle {handle!r}; take one from graph_pool_handle() or another graph's pool()"
        )
    pool = _pools.get(key)
    if pool is None:  # issued and not used yet, or all its users are gone
        pool = _pools[key] = Pool(key[1])
    return pool
