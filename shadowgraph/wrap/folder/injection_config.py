"""Configuration that `shadowgraph wrap` passes to the processes below it, in one environment variable."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

VARIABLE = "SHADOWGRAPH_WRAP"
DUMP_MOMENTS = ("never", "findings", "exception", "exit")


class InjectionConfig(NamedTuple):
    """Configuration of a wrapped process.

    Attributes
    ----------
    folder
        The run folder, an absolute path.
    backend
        ``"host"``, ``"cuda"``, or ``"auto"``: cuda where a GPU is usable, else host.
    options
        Fields of `shadowgraph.common.settings.Settings` other than the backend.
    dumps
        When to dump: any of ``findings`` (the first of a process), ``exception``, ``exit``.
    redact
        Leave values of memory, command lines and messages of exceptions out of dumps and of the run folder.
    dump_signal
        Signal at which a process dumps, ``USR2``; empty for none.
    quiet
        Do not log findings to the program's standard error.
    run
        The run's token, in the names of its files outside the folder.
    python
        The Python version that shadowgraph runs with; interpreters of other versions are not watched.
    """

    folder: str
    backend: str = "auto"
    options: dict[str, Any] = {}  # noqa: RUF012  # never changed
    dumps: tuple[str, ...] = ()
    redact: bool = False
    quiet: bool = False
    dump_signal: str = ""
    run: str = ""
    python: str = f"{sys.version_info.major}.{sys.version_info.minor}"

    def encode(self) -> str:
        """The value of the environment variable."""
        return json.dumps(self._asdict(), separators=(",", ":"))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> InjectionConfig | None:
        """The configuration in an environment, or None outside any wrap.

        Raises
        ------
        ValueError
            When the variable holds anything else.
        """
        text = environment.get(VARIABLE)
        if not text:
            return None
        values = json.loads(text)
        if not isinstance(values, dict) or not isinstance(values.get("folder"), str):
            raise ValueError(f"{VARIABLE} holds no configuration of a wrap")
        known = {name: values[name] for name in cls._fields if name in values}
        return cls(**{**known, "dumps": tuple(known.get("dumps", ()))})
