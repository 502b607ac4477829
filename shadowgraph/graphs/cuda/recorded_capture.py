"""A capture that the compiled observer records: no dispatch mode, and after a runner's first graph no tracer either.

Stands in for `CaptureMode`. Made, entered and left in the capturing thread; `triton` runs in any thread of the capture.
No lock of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.graphs.cuda.capture_watch import CaptureTracer
from shadowgraph.graphs.cuda.runner_lines import Lines
from shadowgraph.graphs.observer.recorder import CaptureRecorder
from shadowgraph.graphs.observer.recording import Recording, Taught, Tensor
from shadowgraph.model.buffers import Buffer, Ledger, Role
from shadowgraph.model.graphs import Graph, Launch
from shadowgraph.model.ranges import ByteRange
from shadowgraph.tracking.foreign import track_gone, track_storage


class RecordedCapture:
    """Notes the launches of one capture.

    Parameters
    ----------
    recorder
        Is on for the capture that has just begun.
    lines
        Of the runner. Where it is to learn, a `CaptureTracer` attributes what C functions launch past the dispatcher.

    Attributes
    ----------
    model
        The graph.
    over
        As in `CaptureMode`.
    traced
        Whether there is a tracer.
    made, origin
        Dtype, shape and stack of each tensor that the capture allocated, by address, and the owners of the graph's
        nodes; complete after `finish`.
    taught
        What later captures can learn from this one, if its kernels turn out to be those that were expected.
    """

    over = False

    def __init__(self, recorder: CaptureRecorder, graph: Graph, ledger: Ledger, lines: Lines) -> None:
        self.model, self._ledger, self.lines, self.traced = graph, ledger, lines, lines.wanted
        self.marks = recorder
        self.watch: CaptureTracer | None = None
        self.before: Any = None  # the capture around this one in its thread
        self._began = ledger.next_serial()
        self._launched: dict[int, Launch] = {}
        self.made = self.origin = Recording.empty()
        self.taught: Taught | None = None

    @property
    def strays(self) -> int:
        """How often there were new nodes of which no launch is known."""
        return self.marks.strays

    def begin(self) -> None:
        """The recording is on since it was made."""

    def end(self) -> None:
        """Record no more."""
        self.marks.stop()

    @contextmanager
    def triton(self, launch: Launch) -> Iterator[None]:
        """Around a Triton launch of the capture."""
        number = self.marks.begin()
        self._launched[number] = launch
        try:
            yield
        finally:
            self.marks.end(number)
        with error_barrier("captured launch"):
            self._note_owners(launch)

    def finish(self) -> None:
        """Take what was recorded, and release the capture's tensors; the model is built on first use."""
        try:
            with error_barrier("inputs of a capture"):
                for tensor, storage in self.marks.inputs():
                    self._note_input(tensor, storage)
            made = self.made = self.origin = self.marks.recording()
            made.launched = self._launched
            self.taught = self.marks.teaches(self.model.name)
            self.model.build_later(made.nodes)
            self.model.ended = self._ledger.next_serial()
            self.model.build_allocations_later(partial(made.allocations, self.model.ended))
        finally:
            self.marks.release()

    def drop(self) -> None:
        """Release the recording and its tensors unread."""
        self.marks.release()

    def _note_input(self, tensor: Tensor, storage: torch.UntypedStorage | None) -> None:
        shape = tensor.shape if tensor.spans else None
        device = tensor.view().device
        if storage is not None and storage.nbytes() and storage.data_ptr() == tensor.storage:
            buffer = track_storage(self._ledger, storage, tensor.torch_dtype, shape, device)
        else:
            where = ByteRange(tensor.storage, tensor.storage + tensor.nbytes)
            buffer = track_gone(self._ledger, where, tensor.torch_dtype, shape, device, self._began)
        self._note(buffer)

    def _note_owners(self, launch: Launch) -> None:
        """Note the ledger's buffers that a kernel was given; buffers of pools may be this capture's own."""
        for view in (pointer.view for pointer in launch.pointers):
            owner = self._ledger.owner(view.storage_address, view.storage_address + view.storage_nbytes)
            if owner is not None and owner.role is not Role.POOL:
                self._note(owner)

    def _note(self, buffer: Buffer) -> None:
        self.model.note_input(buffer)
