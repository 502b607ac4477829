"""Run a program, unchanged, under the debugger: `shadowgraph wrap [options] -- command ...`."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from shadowgraph.common.atomic_files import atomic_write
from shadowgraph.common.errors import FenceError, MissingFileError, ShadowgraphError, UsageError
from shadowgraph.common.option_kinds import File
from shadowgraph.common.options import OPTIONS, add_flags, defaults_of, from_variables, given, option, require
from shadowgraph.model.recorded_files import collect, new_token, remove_leftovers
from shadowgraph.wrap.folder.injection_config import DUMP_MOMENTS, InjectionConfig
from shadowgraph.wrap.folder.run_folder import DEFAULT_PARENT, RunFolder, default_folder

if TYPE_CHECKING:
    from shadowgraph.model.run_facts import RunFacts
    from shadowgraph.render.text.run_text import RunReport
    from shadowgraph.wrap.launch.run_child import Ended
    from shadowgraph.wrap.status.server import StatusServer

HELP = "run any Python program, unchanged, under the debugger"
_BACKEND = option("backend")
_PATIENCE = 2.0  # seconds for processes that outlive the command to run their last check


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "shadowgraph wrap [options] -- command [argument ...]"
    parser.add_argument("--run-dir", metavar="DIR", help=f"the run folder (default: {DEFAULT_PARENT}/<time>-<pid>)")
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON too")
    parser.add_argument(
        "--error-exitcode",
        type=int,
        metavar="N",
        help="exit with N where there are findings and the program ended with 0",
    )
    parser.add_argument("--quiet", action="store_true", help="log no finding and print no report")
    add_flags(parser.add_argument, "wrap")
    parser.add_argument(
        "--from",
        dest="fence_from",
        metavar="RUN",
        help="what --fence says is the name of a buffer, which this earlier run folder or dump has: the line that "
        "allocated it there",
    )
    parser.add_argument(
        "--status",
        metavar="PORT|unix:PATH",
        help="show findings, coverage and overhead over HTTP while the program runs: on a port of 127.0.0.1 (0: any "
        "free one) with the token of the address that is printed, or on a Unix socket with mode 0600",
    )
    parser.add_argument(
        "--status-memory", action="store_true", help="the status pages' JSON has the bytes of memory of findings too"
    )
    parser.add_argument(
        "--dump",
        default="findings,exception",
        metavar="WHEN",
        help=f"when to write dumps: some of {', '.join(DUMP_MOMENTS)} (default: findings,exception)",
    )
    parser.add_argument(
        "--dump-signal",
        choices=("USR1", "USR2", "none"),
        default="USR2",
        help="signal at which a process dumps, where the program does not handle it itself (default: USR2)",
    )
    parser.add_argument(
        "--redact", action="store_true", help="leave values, arguments and messages out of what is written"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command, then report on it to standard error; returns the command's exit code if it failed."""
    from shadowgraph.common.version import VERSION
    from shadowgraph.wrap.launch.run_child import run_child, wrapped_environment

    options = _options(args)
    folder = RunFolder(args.run_dir or default_folder())
    config = InjectionConfig(folder.path, **options)
    folder.begin(args.program, config, VERSION)
    _tell_outer_wrap(folder.path)
    environment = wrapped_environment(config, os.environ)
    gather = partial(collect, folder.path, config.run, config.redact)
    server = _status_server(args, folder) if args.status is not None else None

    def started(pid: int) -> None:
        folder.note(child=pid, host=os.uname().nodename)
        if server is not None:
            server.start()

    try:
        ended = run_child(args.program, environment, started, partial(_prepare, folder.path), gather)
    except ShadowgraphError as error:
        folder.note(exit_code=error.exit_code, error=str(error))
        raise
    finally:
        if server is not None:
            server.stop()
    name = signal.Signals(ended.signal).name if ended.signal else None
    folder.note(exit_code=ended.code, **({"signal": name} if name else {}))
    gather()
    if config.options.get("fence") is not None:
        from shadowgraph.wrap.folder.gpu_core import read_cores

        with contextlib.suppress(OSError, ValueError):
            folder.note(gpu_cores=read_cores(Path(folder.path)))
    return _conclude(args, folder, ended, gather)


def _status_server(args: argparse.Namespace, folder: RunFolder) -> StatusServer | None:
    """A server that does not answer yet; on failure one line and None: the program runs all the same."""
    from shadowgraph.wrap.folder.findings_log import say
    from shadowgraph.wrap.status.server import ADDRESS, StatusServer

    where = _status_place(args.status)
    try:
        server = StatusServer(folder.path, where, args.status_memory)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        place = f"port {where} of {ADDRESS}" if isinstance(where, int) else where
        say(f"no status page: {place}: {reason}; the program runs without")
        return None
    folder.note(status=server.url)
    if not args.quiet:
        say(f"status on {server.url}")
    return server


def _prepare(folder: str) -> None:
    """Import the report's modules while the command runs, if it has a debugger: its end need not wait for that."""
    remove_leftovers()
    if any(b'"kind":"watch"' in file.read_bytes()[:4096] for file in Path(folder).glob("findings-*")):
        import shadowgraph.render.text.run_text  # noqa: F401


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """The command line as fields of an `InjectionConfig` without the folder; checks values before anything starts."""
    if not args.program:
        raise UsageError("no command; use: shadowgraph wrap [options] -- command ...")
    if args.error_exitcode is not None and not 1 <= args.error_exitcode <= 255:
        raise UsageError(f"--error-exitcode must be from 1 to 255, not {args.error_exitcode}")
    dumps = _dumps(args.dump)
    settings = _settings(args)
    if args.status is not None:
        _status_place(args.status)
    if args.json is not None:
        _require_place(args.json)
    return {
        "backend": settings.pop("backend"), "options": settings, "dumps": dumps, "redact": args.redact,
        "quiet": args.quiet, "dump_signal": "" if args.dump_signal == "none" else args.dump_signal, "run": new_token(),
    }  # fmt: skip


def _dumps(text: str) -> tuple[str, ...]:
    """The moments at which to dump, from a list with commas."""
    moments = [moment for moment in text.split(",") if moment]
    if not moments or not set(moments) <= set(DUMP_MOMENTS) or ("never" in moments and len(moments) > 1):
        raise UsageError(f"--dump must be some of {', '.join(DUMP_MOMENTS)}, not {text!r}")
    return tuple(moment for moment in moments if moment != "never")


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """The options of every debugger; a bad value is an error now, and not in every process."""
    own = given(vars(args), "wrap")
    if "fence" in own or args.fence_from is not None:
        own["fence"] = _fence(own, args)
    variables = from_variables(os.environ)
    for row in OPTIONS:
        if isinstance(row.kind, File) and (row.name in own or variables.get(row.name)):
            own[row.name] = _readable(str({**variables, **own}[row.name]))  # the program may change its folder
    backend = own.pop("backend", None)  # one of the choices; its variable counts in no wrapped process
    require({**variables, **own})
    defaults = defaults_of("wrap", {name: text for name, text in os.environ.items() if name != _BACKEND.variable})
    return {**defaults, **own, **({"backend": backend} if backend is not None else {})}


def _fence(own: dict[str, Any], args: argparse.Namespace) -> str:
    from shadowgraph.commands.fence_places import fence_places, refuse_mps

    if "fence" not in own:
        raise UsageError("--from says where a buffer of --fence is allocated; name one with --fence")
    refuse_mps(own.get("backend", _BACKEND.default_of("wrap")), own.get("fence_anyway", False))
    return fence_places(own["fence"], args.fence_from, args.program)


def _status_place(text: str) -> int | str:
    """A port, or the path of a socket."""
    if text.startswith("unix:") and text != "unix:":
        return text.removeprefix("unix:")
    if text.isdecimal() and int(text) <= 65535:
        return int(text)
    raise UsageError(f"--status must be a port from 1 to 65535, 0 for any free one, or unix:PATH, not {text}")


def _require_place(path: str) -> None:
    """Refuse a path where no report can be written, before a program runs for hours and not after it."""
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise MissingFileError(f"cannot write {path}: it is a folder")
    if not os.path.isdir(folder):
        raise MissingFileError(f"cannot write {path}: there is no folder {folder}")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise MissingFileError(f"cannot write {path}: no permission")


def _readable(path: str) -> str:
    from shadowgraph.model.suppression_file import read_suppressions

    read_suppressions(path)  # reports errors now, and not in every process
    return os.path.abspath(path)


def _tell_outer_wrap(inner: str) -> None:
    """Tell an outer wrap about this one's run folder."""
    try:
        outer = InjectionConfig.from_environment(os.environ)
    except ValueError:
        return  # the variable was not set by a wrap
    if outer is not None:
        from shadowgraph.wrap.folder.findings_log import FORMAT, FindingsLog

        log = FindingsLog(outer.folder)
        log.write("start", format=FORMAT, pid=os.getpid(), ppid=os.getppid(), argv=sys.orig_argv, born="wrap")
        log.write("event", text=f"another wrap, with a run folder of its own: {inner}")
        log.write("end")
        log.close()


def _conclude(args: argparse.Namespace, folder: RunFolder, ended: Ended, gather: Callable[[], None]) -> int:
    """Report; no failure here may hide the command's exit status."""
    code = ended.code
    try:
        facts = _report(args, folder, ended)
        if not code and facts is not None and facts.findings and args.error_exitcode is not None:
            code = args.error_exitcode
        code = code or _fence_code(folder, facts)
    except Exception as error:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"shadowgraph: error: no report: {str(error) or type(error).__name__}\n")
        code = code or getattr(error, "exit_code", MissingFileError.exit_code)
    gather()  # of processes that outlived the command for a moment
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    if ended.signal:
        _die_of(ended.signal)
    return code


def _fence_code(folder: RunFolder, facts: RunFacts | None) -> int:
    """The exit code of a run that was to lay a fence, with a line where it laid none."""
    where = folder.manifest["settings"]["options"].get("fence")
    if where is None:
        return 0
    from shadowgraph.commands.fence_places import why_none

    reason = why_none(facts, where)
    if reason is None:
        return 0
    sys.stderr.write(f"shadowgraph: error: {reason}\n")
    return FenceError.exit_code


def _report(args: argparse.Namespace, folder: RunFolder, ended: Ended) -> RunFacts | None:
    """Print and write the requested reports; returns the facts, None where no process did tensor work."""
    if args.json is None and ended.signal is None:
        from shadowgraph.wrap.folder.idle_report import idle_report

        shown = folder.path.removeprefix(os.getcwd() + os.sep)
        idle = idle_report(folder.path, shown, args.program, ended.code)
        if idle is not None:
            sys.stderr.write("" if args.quiet else "".join(f"{line}\n" for line in idle))
            return None
    from shadowgraph.render.text.run_text import RunReport
    from shadowgraph.wrap.folder.reader import read_settled

    report = RunReport(read_settled(folder.path, _PATIENCE, folder.manifest))
    if not args.quiet:
        report.print(sys.stderr)
    if args.json is not None:
        _write(args.json, report)
    return report.facts


def _write(path: str, report: RunReport) -> None:
    atomic_write(path, (report.to_json() + "\n").encode("utf-8", "backslashreplace"))


def _die_of(number: int) -> NoReturn:
    from shadowgraph.wrap.launch.run_child import die_of

    die_of(number)
