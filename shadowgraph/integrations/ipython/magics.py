"""IPython magics: ``%%shadowgraph`` runs a cell under a debugger, ``%shadowgraph`` queries or controls it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from IPython.core.error import UsageError as MagicUsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, output_can_be_silenced

from shadowgraph.common.errors import FindingsError, ShadowgraphError, UsageError
from shadowgraph.debugger import Debugger
from shadowgraph.integrations.ipython.cells import Cell, as_its_own, compiled
from shadowgraph.integrations.ipython.options import CellOptions, LineOptions, cell_options, line_options
from shadowgraph.session import debug, latest

_NAME = "shadowgraph"


@magics_class
class ShadowgraphMagics(Magics):  # type: ignore[misc]  # a class without types
    """The magics of one shell."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self._latest: Debugger | None = None

    @output_can_be_silenced  # type: ignore[untyped-decorator]
    @line_cell_magic  # type: ignore[untyped-decorator]
    def shadowgraph(self, line: str, cell: str | None = None) -> Any:
        """Watch the CUDA graphs of a cell, or ask a debugger.

        ``%%shadowgraph [--backend host] [--layout isolate] [--sync] [--name dbg] ...`` runs the cell under
        ``sg.debug(...)``; every option of ``sg.Settings`` is there, with dashes, sizes such as 64K, and ``--no-`` for
        switches. The debugger is ``dbg`` (or the name given) in the cell and after it; the report comes at the end.

        ``%shadowgraph report`` checks and reports; ``map [FILE.html] [--scripts cdn]`` shows the interactive map, or
        writes it; ``pause`` and ``resume`` switch checking off and on; ``explain [SG101]`` explains a kind of
        finding. They ask the debugger that is active, else the last one: of a cell, or of ``with sg.debug() as dbg:``.
        """
        with _one_line():
            return self._ask(line_options(line)) if cell is None else self._watch(line, cell)

    def _watch(self, line: str, text: str) -> Any:
        options = cell_options(line)
        cell = compiled(self.shell, f"%%{_NAME} {line}".rstrip(), text)
        debugger: Debugger | None = None
        failed: BaseException | None = None
        value = None
        try:
            with debug(**options.settings) as debugger:
                value, failed = self._run(cell, debugger, options)
        except FindingsError as error:  # raised by the last check
            failed = failed or error
        if debugger is not None:
            self._latest = debugger
            if failed is None or _has_seen(debugger):
                debugger.report()
        try:
            if failed is not None:
                raise as_its_own(self.shell, failed, cell.name)
            return value
        finally:
            failed = None  # its traceback refers to this frame

    def _run(self, cell: Cell, debugger: Debugger, options: CellOptions) -> tuple[Any, BaseException | None]:
        """Run the cell; returns its value, or its exception, so that the debugger ends properly either way."""
        self.shell.user_ns[options.name] = debugger
        debugger.name_variables(now=False)  # variables may lead elsewhere after the cell
        try:
            return cell.run(self.shell), None
        except BaseException as error:
            return None, error
        finally:
            debugger.name_variables()  # for maps and dumps: findings were named when they were made

    def _ask(self, asked: LineOptions) -> Any:
        if asked.verb == "explain":
            return _explain(asked.what)
        debugger = latest() or self._latest
        if debugger is None:
            raise UsageError(
                "no debugger yet: run a cell under %%shadowgraph, write `with sg.debug() as dbg:` (the name keeps it "
                "after the block), or call sg.install()"
            )
        if asked.verb == "report":
            debugger.report()
        elif asked.verb == "map":
            return _map(debugger, asked)
        elif not debugger.started:
            raise UsageError(
                f"nothing to {asked.verb}: the last debugger has stopped; sg.install() starts one that stays"
            )
        elif asked.verb == "pause":
            debugger.pause()
        else:
            debugger.resume()
        return None


def _has_seen(debugger: Debugger) -> bool:
    """Whether a report would say anything of a cell that failed, other than that nothing was found in nothing."""
    facts = debugger.facts()
    return bool(facts.findings or facts.notes or facts.graphs or facts.replays.made or facts.failures)


def _explain(code: str | None) -> None:
    from shadowgraph.checks.kinds import known_code
    from shadowgraph.render.text.explanation_text import ExplanationReport

    ExplanationReport(None if code is None else known_code(code)).print()


def _map(debugger: Debugger, asked: LineOptions) -> Any:
    from shadowgraph.render.plots.interactive import interactive_map

    drawn = interactive_map(debugger, scripts="cdn" if asked.scripts == "cdn" else "inline")
    if asked.what is None:
        return drawn
    print(f"wrote {drawn.save(asked.what)}")
    return None


@contextmanager
def _one_line() -> Iterator[None]:
    """Render errors of the magic itself as IPython does: one line, no traceback."""
    try:
        yield
    except FindingsError:
        raise  # raised by the cell, with its line
    except ShadowgraphError as error:
        if hasattr(error, "_render_traceback_"):
            raise  # raised by the cell as well
        raise MagicUsageError(str(error)) from None


def load(shell: Any) -> None:
    """Register the magics with a shell."""
    shell.register_magics(ShadowgraphMagics(shell))


def unload(shell: Any) -> None:
    """Remove the magics from a shell."""
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop(_NAME, None)
    shell.magics_manager.registry.pop(ShadowgraphMagics.__name__, None)
