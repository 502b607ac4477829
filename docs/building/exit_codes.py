"""The exit codes, from the errors that end a command and from the verbs' own."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from building.markdown import code, markdown_of, table
from shadowgraph.commands import demo, diff, doctor, main
from shadowgraph.common.errors import ShadowgraphError


def errors(base: type[ShadowgraphError] = ShadowgraphError) -> Iterator[type[ShadowgraphError]]:
    """An error and all that are derived from it."""
    yield base
    for derived in base.__subclasses__():
        yield from errors(derived)


def exit_codes() -> str:
    """One row an error class, by code."""
    import shadowgraph.common.errors as home

    own = [error for error in errors() if error.__module__ == home.__name__]
    rows = [(str(error.exit_code), code(error.__name__), _meaning(error)) for error in own]
    return table(("code", "error", "when"), sorted(rows, key=lambda row: (int(row[0]), row[1])))


def verb_codes() -> str:
    """Codes that verbs end with though nothing went wrong with them, and those of the command itself."""
    return table(
        ("code", "of", "when"),
        [
            (str(diff._NEW), "`diff --exit-code`", "there are findings that were not there before"),
            (str(demo.FAILED), "`demo`", "a case failed, or its precondition did not hold"),
            (
                str(doctor.SELFTEST_FAILED),
                "`doctor --selftest`",
                "a planted overflow was not found, or its twin not silent",
            ),
            ("N", "`report`, `wrap`", "there are findings, and `--error-exitcode N` was given"),
            (str(main._INTERNAL), "every verb", "an internal error; `SHADOWGRAPH_TRACEBACK=1` shows the trace"),
            ("130", "every verb", "interrupted"),
        ],
    )


def _meaning(error: type[ShadowgraphError]) -> str:
    return markdown_of(" ".join(inspect.cleandoc(error.__doc__ or "").split("\n\n")[0].split()))
