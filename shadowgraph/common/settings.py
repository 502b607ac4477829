"""`Settings`: one value for each option. What an option is stands in its row of `shadowgraph.common.options`.

A field repeats the name and the type of an option for type checkers. Immutable; any thread.
"""
# ruff: noqa: RUF009  # `of` makes a field, as `dataclasses.field` does

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from textwrap import indent
from typing import Any

from shadowgraph.common.errors import UsageError
from shadowgraph.common.options import (
    BackendName,
    CaptureLines,
    Checks,
    Layout,
    Locate,
    Operators,
    Option,
    StaleRows,
    WatchEager,
    from_variables,
    option,
)
from shadowgraph.common.suggestions import did_you_mean


def of(row: Option) -> Any:
    """The field of an option."""
    return field(default=row.default, metadata={"option": row})


def rows_of(settings: type[Settings]) -> tuple[Option, ...]:
    """The options of a class of settings, in order."""
    return tuple(each.metadata["option"] for each in fields(settings))


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of a debugger."""

    backend: BackendName = of(option("backend"))
    sync: bool = of(option("sync"))
    layout: Layout = of(option("layout"))
    near_guard: int = of(option("near_guard"))
    far_guard: int | None = of(option("far_guard"))
    guard_memory: int | None = of(option("guard_memory"))
    shadow_limit: int = of(option("shadow_limit"))
    suppressions: str | os.PathLike[str] | None = of(option("suppressions"))
    infer: bool = of(option("infer"))
    list_inferred: bool = of(option("list_inferred"))
    dump_limit: int = of(option("dump_limit"))
    dump_whole: int = of(option("dump_whole"))
    variable_names: bool = of(option("variable_names"))
    guard_eager: str = of(option("guard_eager"))
    fence: str | None = of(option("fence"))
    fence_anyway: bool = of(option("fence_anyway"))
    watch_eager: WatchEager = of(option("watch_eager"))
    checks: Checks = of(option("checks"))
    operators: Operators = of(option("operators"))
    capture_lines: CaptureLines = of(option("capture_lines"))
    every: int = of(option("every"))
    overhead_percent: float | None = of(option("overhead_percent"))
    fault_limit: int | None = of(option("fault_limit"))
    locate: Locate = of(option("locate"))
    locate_memory: int = of(option("locate_memory"))
    stale_rows: StaleRows = of(option("stale_rows"))
    undefined: bool = of(option("undefined"))
    partial_reruns: bool = of(option("partial_reruns"))

    def __post_init__(self) -> None:
        for row in rows_of(type(self)):
            row.check(getattr(self, row.name))

    def with_options(self, **options: Any) -> Settings:
        """A copy with some options changed.

        Parameters
        ----------
        **options
            Fields of this class.

        Raises
        ------
        UsageError
            For an option that does not exist or a value that does not fit.
        """
        known = {row.name for row in rows_of(type(self))}
        for name in options:
            if name not in known:
                raise UsageError(
                    f"no option {name!r}{did_you_mean(name, known)}; options are: {', '.join(sorted(known))}"
                )
        return replace(self, **options)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Defaults overridden by ``SHADOWGRAPH_<OPTION>`` variables.

        Parameters
        ----------
        environment
            The variables; this process's unless given.

        Raises
        ------
        UsageError
            For a variable whose value does not parse, and for one that begins so and is no option's.
        """
        return cls(**from_variables(os.environ if environment is None else environment, rows_of(cls)))

    def live(self) -> dict[str, Any]:
        """The options that may change while a debugger runs."""
        return {row.name: getattr(self, row.name) for row in rows_of(type(self)) if row.live}

    def fixed(self) -> Settings:
        """A copy with the defaults of the options that may change while a debugger runs. One debugger can serve, in
        turn, all settings that are equal in the others."""
        return replace(self, **{row.name: row.default for row in rows_of(type(self)) if row.live})


def _documented(rows: tuple[Option, ...]) -> str:
    """A class's list of attributes, from the rows."""
    told = "\n".join(f"{row.name}\n{indent(row.reference, '    ')}" for row in rows)
    return indent(f"Attributes\n----------\n{told}\n", "    ")


Settings.__doc__ = f"{Settings.__doc__}\n\n{_documented(rows_of(Settings))}"
