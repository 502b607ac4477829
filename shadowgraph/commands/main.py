"""Entry point of the `shadowgraph` command: finds the verb, runs it in the main thread, and maps errors to exit codes.
The module docstring of each verb is its description in ``--help`` and in ``docs/cli.md``.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

from shadowgraph.common.command_lines import Parser
from shadowgraph.common.errors import MissingFileError, ShadowgraphError, UsageError
from shadowgraph.common.exception_text import summary

# Each verb is a module, imported only when it is used: `wrap` must start fast.
_COMMANDS = (
    "aliases",
    "demo",
    "diff",
    "doctor",
    "explain",
    "hexdump",
    "map",
    "nodes",
    "pause",
    "report",
    "resume",
    "suppress",
    "timeline",
    "wrap",
)
# These make many objects of a large dump and free none: garbage collection would take a fifth of their time.
_KEEP_ALL = frozenset(("aliases", "diff", "hexdump", "map", "nodes", "report", "suppress", "timeline"))
_INTERNAL = 70  # EX_SOFTWARE


def _verb(name: str) -> ModuleType:
    return import_module(f"shadowgraph.commands.{name}")


def parser(only: str | None = None) -> Parser:
    """The command line of every verb, or of one alone."""
    from shadowgraph.common.version import VERSION

    top = Parser(prog="shadowgraph", description="A memory debugger for CUDA graphs in PyTorch programs.")
    top.add_argument("--version", action="version", version=f"shadowgraph {VERSION}")
    top.set_defaults(refuse=top.refuse)
    verbs = top.add_subparsers(dest="command", metavar="command", parser_class=Parser)
    for name in _COMMANDS if only is None else (only,):
        module = _verb(name)
        verb = verbs.add_parser(name, help=module.HELP, description=module.__doc__)
        module.add_arguments(verb)
        verb.set_defaults(refuse=verb.refuse)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; an error is one line on standard error and a distinct exit code."""
    _repair_streams()
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except BrokenPipeError:
        _silence_stdout()  # the reader of the pipe is gone: no error, and no further output
        return 0
    except (Exception, KeyboardInterrupt) as error:
        return _complain(error)


def _repair_streams() -> None:
    """Standard streams that the parent closed lead nowhere; those that are there take any letter of a name."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _run(words: list[str]) -> int:
    """Run the verb that the words ask for."""
    top = parser(words[0] if words and words[0] in _COMMANDS else None)
    wraps = words[:1] == ["wrap"]
    cut = words.index("--") if wraps and "--" in words else len(words)
    if wraps and cut == len(words) and any(not word.startswith("-") for word in words[1:]):
        raise UsageError("no -- before the command; use: shadowgraph wrap [options] -- command ...")
    args, unknown = top.parse_known_args(words[:cut])
    if unknown:  # argparse would refer to the help of all verbs
        args.refuse(unknown)
    args.program = words[cut + 1 :]  # none of ours, whatever it looks like
    if args.command is None:
        top.print_help()
        return UsageError.exit_code
    with _collecting(args.command not in _KEEP_ALL):
        code: int = _verb(args.command).run(args)
    sys.stdout.flush()
    return code


def _complain(error: BaseException) -> int:
    """One line about an error, and its exit code."""
    if isinstance(error, ShadowgraphError):
        text, code = f"error: {error}", error.exit_code
    elif isinstance(error, OSError):
        text, code = f"error: cannot read or write: {error}", MissingFileError.exit_code
    elif isinstance(error, KeyboardInterrupt):
        text, code = "interrupted", 130
    elif os.environ.get("SHADOWGRAPH_TRACEBACK"):
        raise error
    else:
        first = summary(error)
        text, code = f"internal error: {first} (SHADOWGRAPH_TRACEBACK=1 shows the trace)", _INTERNAL
    print(f"shadowgraph: {text}", file=sys.stderr)
    if isinstance(error, OSError):
        _silence_stdout()
    return code


@contextmanager
def _collecting(wanted: bool) -> Iterator[None]:
    """Disable the garbage collector inside the block unless wanted; restore its state afterwards."""
    was = gc.isenabled()
    if not wanted:
        gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _silence_stdout() -> None:
    from shadowgraph.common.console import silence_stdout

    silence_stdout()


if __name__ == "__main__":
    sys.exit(main())
