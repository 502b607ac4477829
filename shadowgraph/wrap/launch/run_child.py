"""Runs a command transparently for the caller of `shadowgraph wrap`: same streams, signals and exit status.

Its environment carries the start-up hook of `wrap/inject` to it and its descendants. Runs in the main thread of the
supervising process, with the forwarded signals blocked.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, NoReturn

from shadowgraph.common.errors import CommandNotFoundError, NotExecutableError
from shadowgraph.wrap.folder.gpu_core import core_variables
from shadowgraph.wrap.folder.injection_config import VARIABLE, InjectionConfig

SITE = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "inject", "site")  # of the hook
_FORWARDED = frozenset(
    {
        *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
        *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH),
    }
)
_MOMENT, _OFTEN = 1.0, 5.0  # seconds
_CHANGED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)  # ignored in every Python process, and inherited by a child


class Ended(NamedTuple):
    """The end of a command: an exit code, or the number of the signal that killed it."""

    pid: int
    code: int
    signal: int | None = None


def run_child(
    command: Sequence[str],
    environment: Mapping[str, str],
    started: Callable[[int], None] = lambda pid: None,
    meanwhile: Callable[[], object] = lambda: None,
    again: Callable[[], object] = lambda: None,
) -> Ended:
    """Run a command to its end with the caller's standard streams, and forward signals to it.

    A terminal sends its signals to the whole foreground group, the command included; these are not forwarded.

    Parameters
    ----------
    started
        Called with the process id once the command runs.
    meanwhile
        Called when the command has run for a moment: for work needed after its end that can be done while waiting.
    again
        Called every few seconds from then on: for what processes leave that end before the command does.

    Raises
    ------
    CommandNotFoundError, NotExecutableError
        When the command cannot be started.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED | {signal.SIGCHLD})
    handler = signal.signal(signal.SIGCHLD, lambda number, frame: None)  # if ignored, waitpid finds no child
    try:
        pid = _spawn(command, environment, before)
        with contextlib.suppress(Exception):
            started(pid)
        return _wait(pid, meanwhile, again)
    finally:
        signal.signal(signal.SIGCHLD, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def wrapped_environment(config: InjectionConfig, environment: Mapping[str, str]) -> dict[str, str]:
    """A copy of an environment with the hook first on ``PYTHONPATH`` and the configuration beside it.

    Inside another wrap, this configuration replaces the outer one; the hook is not added twice. With fences, CUDA is
    asked for a core dump of a lost device.
    """
    own = environment.get("PYTHONPATH")
    before = [part for part in own.split(os.pathsep) if part != SITE] if own else []  # an empty entry is significant
    fenced = config.options.get("fence") is not None and config.backend != "host"
    cores = core_variables(config.folder, environment) if fenced else {}
    return {**environment, **cores, "PYTHONPATH": os.pathsep.join([SITE, *before]), VARIABLE: config.encode()}


def die_of(number: int) -> NoReturn:
    """End by the same signal as the command, so that a shell reports the same status; without a core file."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _spawn(command: Sequence[str], environment: Mapping[str, str], mask: set[int]) -> int:
    try:
        return os.posix_spawnp(
            command[0], list(command), environment, setsigmask=mask, setsigdef=list(_CHANGED_BY_PYTHON)
        )
    except FileNotFoundError:
        missing = "no such file, or its interpreter is missing" if os.sep in command[0] else "not found on the PATH"
        raise CommandNotFoundError(f"cannot run {command[0]}: {missing}") from None
    except NotADirectoryError:
        raise CommandNotFoundError(f"cannot run {command[0]}: no such file") from None
    except OSError as error:
        raise NotExecutableError(f"cannot run {command[0]}: {error.strerror}") from None


def _wait(pid: int, meanwhile: Callable[[], object], again: Callable[[], object]) -> Ended:
    waited = _FORWARDED | {signal.SIGCHLD}
    moment, work = _MOMENT, meanwhile
    while True:
        info = signal.sigtimedwait(waited, moment)
        if info is None:
            with contextlib.suppress(Exception):  # the command must not be abandoned for work that can be done later
                work()
            moment, work = _OFTEN, again
        elif info.si_signo != signal.SIGCHLD:
            if info.si_code <= 0:  # sent by a process; higher codes come from the kernel, for a terminal
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, info.si_signo)
        else:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended == pid:
                code = os.waitstatus_to_exitcode(status)
                return Ended(pid, code) if code >= 0 else Ended(pid, 128 - code, -code)
