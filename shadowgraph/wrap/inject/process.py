"""Monitor of one wrapped process: its findings log, its debugger, its forks and its end.

Methods run in the program's threads: of its operators and captures, of the debugger's start and end, of forks, and at
exit.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shadowgraph.common import fork_safety
from shadowgraph.common.exception_text import first_line, message
from shadowgraph.common.uncaught import is_crash, uncaught
from shadowgraph.model import recorded_files
from shadowgraph.model.recorded_files import Place, new_token
from shadowgraph.wrap.folder.findings_log import FORMAT, RAISED, FindingsLog, command_line, rank, say, tell_rank
from shadowgraph.wrap.folder.injection_config import InjectionConfig

if TYPE_CHECKING:
    from shadowgraph.debugger import Debugger
    from shadowgraph.graphs.dispatch.eager import EagerMode
    from shadowgraph.wrap.inject.fenced_process import FencedProcess
    from shadowgraph.wrap.inject.findings_logger import FindingsLogger
    from shadowgraph.wrap.status.heartbeat_writer import HeartbeatWriter

_WAITING, _STARTING, _WATCHING, _OVER = range(4)
_PATIENCE = 30.0  # seconds that a thread waits for another thread to start the debugger
_WITHOUT_GPU = "0 active drivers"  # how Triton says that it would compile for a GPU, and that there is none
_INTERPRET = "no GPU here: set TRITON_INTERPRET=1 in the environment, and Triton runs its kernels on the CPU, watched"


class ProcessMonitor:
    """Starts the debugger when the program begins tensor work, logs its findings, and ends it with the process.

    An internal error gives one line on standard error and one in the run folder; the program continues.

    Parameters
    ----------
    backend
        ``"host"`` or ``"cuda"``.
    when_imported
        Calls back once a module has been imported.
    """

    def __init__(
        self, config: InjectionConfig, backend: str, when_imported: Callable[[str, Callable[[], None]], None]
    ) -> None:
        self.config, self.backend = config, backend
        self.findings_log = FindingsLog(config.folder)
        self._assign()
        self._when_imported = when_imported
        self._state = _WAITING
        self._starting = threading.Lock()
        self._starter: int | None = None
        self._debugger: Debugger | None = None  # the active debugger
        self._own: Debugger | None = None  # the debugger started here
        self._cuda = False
        self._recorders: list[FindingsLogger] = []
        self._beat: HeartbeatWriter | None = None
        self._fenced: FencedProcess | None = None
        self._books = itertools.count(1)
        self._erred = False
        self._held: dict[int, list[Any]] = {}  # by thread: several threads may fork at a time

    def introduce(self, born: str) -> None:
        """Write the start record; in a forked child only together with its next record."""
        write = self.findings_log.preface if born == "fork" else self.findings_log.write
        write(
            "start",
            format=FORMAT,
            pid=os.getpid(),
            ppid=os.getppid(),
            argv=command_line(sys.orig_argv, self.config.redact),
            born=born,
            rank=rank(),
            python=platform.python_version(),
            torch=str(getattr(sys.modules.get("torch"), "__version__", "")),
        )

    def entitle(self, title: str) -> None:
        """Write the title of this process."""
        self.findings_log.write("title", title=title)

    def tell(self, text: str) -> None:
        """Write an event line for the report."""
        self.findings_log.write("event", text=text)

    def place(self, number: int) -> None:
        """The program has reported the rank of this process; ignored where a launcher set one."""
        before = rank()
        tell_rank(number)
        if rank() != before:
            self.findings_log.write("rank", rank=number)

    def _assign(self) -> None:
        """Where the check log and the launch log of this process go."""
        stem = self.findings_log.path.stem.removeprefix("findings-")
        recorded_files.assigned = Place(self.config.folder, self.config.run or new_token(), stem, self.config.redact)

    # -- the debugger ------------------------------------------------------------------------------------------

    def target(self, args: Any, kwargs: Any) -> EagerMode | None:
        """The mode that receives an eager operator. The first operator starts the debugger; with a GPU, the first one
        on a GPU after the program has initialised CUDA: that GPU is watched."""
        if self._state in (_WAITING, _STARTING):
            if self.backend == "host":
                self.start()
            elif self._has_device():
                self._start_on(args, kwargs)
        return self._own.eager_mode if self._own is not None else None

    def _start_on(self, args: Any, kwargs: Any) -> None:
        from torch.cuda import device, device_count, is_current_stream_capturing

        from shadowgraph.common.internal_errors import error_barrier_all

        with error_barrier_all("device of an operator"):  # a tensor subclass may refuse to answer
            index = device_index(args, kwargs)
            if index is None or index >= device_count() or is_current_stream_capturing():
                return
            with device(index):
                self.start()

    def start_here(self) -> None:
        """A capture is about to begin on the current device, and no operator has started the debugger."""
        if self._state == _WAITING and self._has_device():
            self.start()

    def cuda_began(self) -> None:
        """The program is initialising CUDA; afterwards, the next operator on a GPU starts the debugger."""
        self._cuda = True

    def _has_device(self) -> bool:
        return self._cuda and bool(sys.modules["torch"].cuda.is_initialized())

    def start(self) -> None:
        """Start the debugger, in the first thread that asks. Other threads wait, so that none of their operators is
        missed, but not for ever: one of them may hold what the first needs, such as the import lock of a module."""
        if self._starter == threading.get_ident():
            return
        if not self._starting.acquire(timeout=_PATIENCE):
            return
        try:
            self._starter = threading.get_ident()
            if self._state == _WAITING:
                self._state = _STARTING
                with self.findings_log.room():
                    self._begin()
                self._state = _WATCHING
        except Exception as error:
            self._state = _OVER
            said = "" if self.config.redact else f": {first_line(error)}"
            reason = f"{type(error).__name__}{said}"
            self.findings_log.write("event", text=f"not watched: {reason}")
            say(f"process {os.getpid()} is not watched: {reason}")
        finally:
            self._starter = None
            self._starting.release()

    def _begin(self) -> None:
        # Imports needed at a finding and at the end, when the program may have no free file descriptor.
        import numpy.ma  # noqa: F401

        from shadowgraph import session
        from shadowgraph.common.internal_errors import internal_errors
        from shadowgraph.common.settings import Settings
        from shadowgraph.dumps.process_dumps import dump_on_signal
        from shadowgraph.graphs.triton import host as triton_host
        from shadowgraph.monitor.recorder.recorder import recorder
        from shadowgraph.wrap.inject.findings_logger import log_to_stderr

        settings = Settings.from_environment().with_options(**self.config.options, backend=self.backend)
        log_to_stderr(self.config.quiet, self.config.redact)
        internal_errors.heard = self._fault
        recorder.heard = self.tell
        if self.backend == "host":
            triton_host.wait_for_triton()
            self._when_imported("triton", triton_host.triton_imported)
        session.observers.append(self)
        self._dumps = itertools.count(1)
        if self.config.dump_signal:
            dump_on_signal(self.config.dump_signal, self._asked)
        theirs = session.current()
        if theirs is None:
            self._own = session.attach(settings)
        else:  # the program has started its own debugger first
            self.started(theirs)

    def started(self, debugger: Debugger) -> None:
        """A debugger of this process watches: started here, or by the program."""
        self._debugger = debugger
        self._record(debugger, self.findings_log.write)

    def _record(self, debugger: Debugger, write: Callable[..., None]) -> None:
        from shadowgraph.wrap.folder.heartbeats import heartbeat_file
        from shadowgraph.wrap.inject.fenced_process import follow_fences
        from shadowgraph.wrap.inject.findings_logger import FindingsLogger
        from shadowgraph.wrap.status.heartbeat_writer import HeartbeatWriter

        book = next(self._books)
        reruns = self.config.options.get("partial_reruns", debugger.settings.partial_reruns)
        debugger.runner.adjust(partial_reruns=reruns)  # also where the program has started its own debugger
        debugger.runner.subscribe_report_lines(self.tell)
        self._recorders.append(FindingsLogger(self.findings_log, debugger, book, self._first_error, self.config.redact))
        if self._beat is None:
            self._beat = HeartbeatWriter(self.config.folder, heartbeat_file(self.findings_log.path))
        self._beat.follow(debugger, book)
        dump = partial(self._write_dump, "fence") if self.config.dumps else None
        self._fenced = follow_fences(self._fenced, self.findings_log.path, debugger, dump, partial(write, "event"))
        write("watch", backend=debugger.settings.backend)

    def ended(self, debugger: Debugger) -> None:
        """A debugger has checked a last time."""
        if debugger is self._debugger:
            self._debugger = None
        for recorder in [r for r in self._recorders if r.debugger is debugger]:
            recorder.summarise()
            recorder.leave_replays()
            self._recorders.remove(recorder)
        if self._beat is not None:
            self._beat.leave(debugger)

    def _fault(self, what: str) -> None:
        from shadowgraph.dumps.redaction import redacted_fault

        self.findings_log.write("fault", text=redacted_fault(what) if self.config.redact else what)

    # -- dumps -------------------------------------------------------------------------------------------------

    def _first_error(self) -> None:
        """A debugger has its first error; only the process's first one is dumped."""
        if not self._erred:
            self._erred = True
            self._dump("findings", "finding", background=True)

    def _asked(self) -> None:
        """The dump signal has arrived; each one gets its own dump."""
        self._write_dump("signal", f"-{next(self._dumps)}")

    def _dump(self, moment: str, reason: str, background: bool = False) -> None:
        if moment in self.config.dumps:
            self._write_dump(reason, background=background)

    def _write_dump(self, reason: str, mark: str = "", background: bool = False) -> None:
        """Write a dump; in the background when called in a thread of the program that continues."""
        from shadowgraph.dumps.process_dumps import dump_to

        if self._debugger is None:
            return
        stem = self.findings_log.path.stem.replace("findings", "dump", 1) + mark
        folder, told = Path(self.config.folder), self.findings_log
        with self.findings_log.room():
            dump_to(
                *(folder, self._debugger, stem, reason, self.config.redact),
                background=background,
                written=lambda path: told.write("event", text=f"dump written: {path.name}"),
                room=told.room,
            )

    # -- forks -------------------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Check, and hold all internal locks, so that the child copies consistent state."""
        debugger = self._debugger
        if debugger is not None and self._state == _WATCHING:
            with contextlib.suppress(Exception):  # no caller can receive a finding of sync mode
                debugger.before_fork()
        self._held[threading.get_ident()] = fork_safety.hold()

    def forked_in_parent(self) -> None:
        fork_safety.release(self._held.pop(threading.get_ident(), []))

    def forked_in_child(self) -> None:
        """Continue with a log of its own; on a device, which belongs to the parent, stop watching."""
        self._held.clear()
        fork_safety.renew()
        self._starting = threading.Lock()
        self.findings_log.abandon()
        self.findings_log = FindingsLog(self.config.folder)
        self._assign()
        self.introduce("fork")
        debugger = self._debugger
        if debugger is None:
            return
        from shadowgraph.common.internal_errors import error_barrier

        with error_barrier("fork"):
            self._carry_on(debugger)

    def _carry_on(self, debugger: Debugger) -> None:
        from shadowgraph import session
        from shadowgraph.common import finalizer_safe_lock
        from shadowgraph.common.internal_errors import internal_errors
        from shadowgraph.wrap.folder.heartbeats import heartbeat_file

        on_device = debugger.settings.backend == "cuda"
        finalizer_safe_lock.forked(abandon=on_device)
        internal_errors.clear()
        for recorder in self._recorders:
            recorder.leave()
        self._recorders.clear()
        self._beat = self._beat and self._beat.forked(heartbeat_file(self.findings_log.path))
        self._erred = False
        if on_device:
            session.detach(debugger)
            self._debugger, self._own, self._state = None, None, _OVER
            self.findings_log.write("event", text="not watched: forked from a process that has a CUDA context")
            return
        debugger.after_fork()
        self._record(debugger, self.findings_log.preface)

    # -- the end -----------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Check a last time and write the end record. Runs once; `os._exit` and a signal skip it."""
        if self._state == _OVER and self.findings_log.closed:
            return
        self._state = _OVER
        error = uncaught()
        crashed = error is not None and is_crash(error)
        if error is not None:
            self._write_exception(error, crashed)
        with self.findings_log.room():
            if self._debugger is not None:
                if error is not None and crashed:
                    self.join(error)
                self._conclude(crashed)
            self._write_the_rest()
        if self._fenced is not None:
            self._fenced.remove()
        self.findings_log.write("end", lost=self.findings_log.lost)
        self.findings_log.close()
        if not self._device_lost:  # what a lost device has written to its log is read after the process's end
            self._remove_logs()

    @property
    def _device_lost(self) -> bool:
        return self._own is not None and self._own.monitor.lost is not None

    def _remove_logs(self) -> None:
        recording = sys.modules.get("shadowgraph.monitor.recorder.recorder")
        if recording is not None:
            recording.recorder.end()

    def _write_exception(self, error: BaseException, crashed: bool) -> None:
        """Write which uncaught exception ended the process."""
        said = "" if self.config.redact or not crashed else first_line(error)
        how = RAISED if crashed else "stopped, which is no crash, by "
        self.findings_log.write("event", text=f"{how}{type(error).__name__}{': ' if said else ''}{said}")
        if _WITHOUT_GPU in message(error) and os.environ.get("TRITON_INTERPRET") != "1":
            self.findings_log.write("event", text=_INTERPRET)

    def _write_the_rest(self) -> None:
        """Write the pending work of other threads, which may have ended or be stopped half way."""
        from shadowgraph.common.outbox import outbox

        outbox.write_all()
        taking = sys.modules.get("shadowgraph.dumps.taking")
        if taking is not None and not taking.finish():
            self.tell(f"a dump was not written within {taking.LIMIT:g} s of the end")

    def join(self, error: BaseException, where: str = "") -> None:
        """Record an exception of the program with its context, at once."""
        if self._debugger is not None:
            self._debugger.adapter.join(error, where)

    def _conclude(self, failed: bool) -> None:
        from shadowgraph import session
        from shadowgraph.common.internal_errors import error_barrier

        with error_barrier("end of the process"):
            if failed:
                self._dump("exception", "exception")
            self._dump("exit", "exit")
            session.uninstall()


def device_index(args: Any, kwargs: Any) -> int | None:
    """The index of the CUDA device of an operator's tensors, or of the device it is told to use; None for neither.

    A server's rank often initialises CUDA before it chooses its device, so the current device is not yet meaningful.
    """
    import torch

    from shadowgraph.graphs.dispatch.tensors import is_plain, tensors_in

    told = (
        each for each in (*args, *(kwargs or {}).values()) if isinstance(each, torch.device) and each.type == "cuda"
    )
    device = next(told, None)
    if device is not None:
        return torch.cuda.current_device() if device.index is None else device.index
    with torch._C.DisableTorchFunctionSubclass():  # a subclass's own overrides must not run
        tensors = (tensor for tensor in tensors_in((args, kwargs)) if is_plain(tensor, "cuda"))
        return next((tensor.get_device() for tensor in tensors), None)
