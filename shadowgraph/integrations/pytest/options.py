"""Options from the command line, the ini file and the environment, validated before any test runs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from shadowgraph.common.settings import Settings

_EAGER = "auto"  # tests are unmodified: they contain no `guard()` blocks


@dataclass(frozen=True)
class Asked:
    """Options of a run.

    Attributes
    ----------
    everywhere
        Whether every test is watched, not only marked ones.
    backend
        ``"host"``, ``"cuda"`` or ``"auto"``; None when not given.
    options
        Fields of `Settings`.
    dumps
        Directory for a dump of each failing test, or None.
    """

    everywhere: bool
    backend: str | None
    options: dict[str, Any]
    dumps: Path | None

    def settings(self, more: dict[str, Any]) -> Settings:
        """Settings of a test with its own options. With ``auto``, torch is imported to look for a GPU.

        Raises
        ------
        UsageError
            For an unknown option or an invalid value.
        """
        from shadowgraph.common.settings import PREFIX, Settings

        base = Settings.from_environment()
        guard = {} if PREFIX + "GUARD_EAGER" in os.environ else {"guard_eager": _EAGER}
        backend = more.get("backend", self.backend)
        if backend is None:
            backend = base.backend if PREFIX + "BACKEND" in os.environ else "auto"
        if backend == "auto":
            from shadowgraph.integrations.pytest.backend import resolved_auto

            backend = resolved_auto()
        return base.with_options(**{**guard, **self.options, **more, "backend": backend})


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
        asked = Asked(everywhere, config.getoption("shadowgraph_backend"), _parsed(words), dumps)
        if everywhere or words:
            _try_out(asked)
    except ShadowgraphError as error:
        raise pytest.UsageError(f"shadowgraph: {error}") from None
    except ImportError as error:
        raise pytest.UsageError(f"shadowgraph: {error}; install what it needs: pip install shadowgraph") from None
    if dumps is not None and not hasattr(config, "workerinput"):
        try:
            dumps.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise pytest.UsageError(f"--shadowgraph-dump: cannot make {dumps}: {error.strerror}") from None
    return asked


def _parsed(words: Iterable[str]) -> dict[str, Any]:
    """Parse ``key=value`` words into options."""
    from shadowgraph.common.errors import UsageError
    from shadowgraph.common.settings import Settings, parse_option

    known = sorted({field.name for field in fields(Settings)} - {"backend"})
    options = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise UsageError(f"--shadowgraph-option takes key=value, not {word!r}")
        if key == "backend":
            raise UsageError("the backend is given by --shadowgraph-backend")
        if key not in known:
            raise UsageError(f"--shadowgraph-option: no option {key!r}; options are: {', '.join(known)}")
        options[key] = parse_option(key, text, f"--shadowgraph-option {key}")
    return options


def _try_out(asked: Asked) -> None:
    """Validate that the options fit together, that files can be read and that the backend works."""
    settings = asked.settings({} if asked.everywhere else {"backend": "host"})  # the latter without torch
    if settings.suppressions is not None:
        from shadowgraph.monitor.finding_store import read_suppressions

        read_suppressions(settings.suppressions)
    if settings.backend == "cuda":
        from shadowgraph.common.compat import require_cupy, require_gpu

        require_gpu()
        require_cupy()
