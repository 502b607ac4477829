"""Options from the command line, the ini file and the environment, validated before any test runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shadowgraph.common.options import OPTIONS, Option, defaults_of, given, option

if TYPE_CHECKING:
    from shadowgraph.common.settings import Settings


@dataclass(frozen=True)
class Asked:
    """Options of a run.

    Attributes
    ----------
    everywhere
        Whether every test is watched, not only marked ones.
    options
        Fields of `Settings` that the command line gives; a backend may be ``"auto"``.
    dumps
        Directory for a dump of each failing test, or None.
    """

    everywhere: bool
    options: dict[str, Any]
    dumps: Path | None

    def settings(self, more: dict[str, Any], declares: bool = False) -> Settings:
        """Settings of a test with its own options. With ``auto``, torch is imported to look for a GPU.

        Parameters
        ----------
        declares
            Whether the test asks for shadowgraph itself, so that it declares what needs a declaration.

        Raises
        ------
        UsageError
            For an unknown option or an invalid value.
        """
        from shadowgraph.common.settings import Settings

        defaults = defaults_of("pytest", os.environ)
        if declares:
            defaults.pop("stale_rows", None)
        base = Settings.from_environment()
        options = {**defaults, **self.options, **more}
        if options.get("backend") == option("backend").defaults["pytest"]:
            from shadowgraph.integrations.pytest.backend import resolved_auto

            options["backend"] = resolved_auto()
        return base.with_options(**options)


def asked_for(config: pytest.Config) -> Asked:
    """Read and validate all options.

    Raises
    ------
    pytest.UsageError
        In one line, for an unknown option or an invalid value.
    """
    from shadowgraph.common.errors import ShadowgraphError

    everywhere = bool(config.getoption("shadowgraph") or config.getini("shadowgraph"))
    folder = config.getoption("shadowgraph_dump")
    dumps = Path(folder).absolute() if folder is not None else None
    words = config.getoption("shadowgraph_option")
    try:
        flags = {row.name: config.getoption(f"shadowgraph_{row.name}") for row in OPTIONS if "pytest" in row.flags}
        asked = Asked(everywhere, {**parsed(words), **given(flags, "pytest")}, dumps)
        if everywhere or words:
            _try_out(asked)
    except ShadowgraphError as error:
        raise pytest.UsageError(f"shadowgraph: {error}") from None
    except ImportError as error:
        advice = "shadowgraph, installed from a checkout or a wheel file, brings what it needs"
        raise pytest.UsageError(f"shadowgraph: {error}; {advice}") from None
    if dumps is not None and not hasattr(config, "workerinput"):
        try:
            dumps.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise pytest.UsageError(f"--shadowgraph-dump: cannot make {dumps}: {error.strerror}") from None
    return asked


def parsed(words: Iterable[str], rows: Sequence[Option] = OPTIONS) -> dict[str, Any]:
    """Parse ``key=value`` words into options.

    Raises
    ------
    UsageError
    """
    from shadowgraph.common.errors import UsageError

    flags = {row.name: row.flags["pytest"] for row in rows if "pytest" in row.flags}
    known = {row.name: row for row in rows if row.name not in flags}
    options = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise UsageError(f"--shadowgraph-option takes key=value, not {word!r}")
        if key in flags:
            raise UsageError(f"the {key} is given by {flags[key].names[0]}")
        if key not in known:
            raise UsageError(f"--shadowgraph-option: no option {key!r}; options are: {', '.join(sorted(known))}")
        options[key] = known[key].kind.parse(text, f"--shadowgraph-option {key}")
    return options


def _try_out(asked: Asked) -> None:
    """Validate that the options fit together, that files can be read and that the backend works."""
    settings = asked.settings({} if asked.everywhere else {"backend": "host"})  # the latter without torch
    if settings.suppressions is not None:
        from shadowgraph.model.suppression_file import read_suppressions

        read_suppressions(settings.suppressions)
    if settings.backend == "cuda":
        from shadowgraph.common.compat import require_cupy, require_gpu

        require_gpu()
        require_cupy()
