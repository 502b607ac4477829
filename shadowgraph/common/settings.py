"""Every debugger option and its ``SHADOWGRAPH_`` environment variable: names, types, defaults, parsing, validation."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from shadowgraph.common.errors import UsageError

Layout = Literal["isolate", "faithful"]
BackendName = Literal["host", "cuda"]
Locate = Literal["auto", "off", "all"]
WatchEager = Literal["always", "sampled"]

PREFIX = "SHADOWGRAPH_"
SMALLEST_DUMP = 64 << 10


_BYTES = ("near_guard", "far_guard", "guard_memory", "shadow_limit", "dump_limit", "dump_whole", "locate_memory")
_OF_THE_DEVICE = ("far_guard", "guard_memory")  # None: chosen by the size of a buffer, and of the device


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of a debugger.

    Attributes
    ----------
    backend
        ``"host"`` (no GPU needed) or ``"cuda"``.
    sync
        Check after every launch and raise `FindingsError` at the first finding.
    layout
        ``"isolate"``: memory freed during a capture is not reused in it, and every tensor has guards. ``"faithful"``:
        reused as the program's own pool would; on CUDA the pool is the program's own, and guards stand in bytes that
        it never allocated.
    near_guard
        Bytes of canary directly before and after a buffer that every check reads.
    far_guard
        Bytes of canary beyond the near guard after a buffer, read after a near hit and in rotation; None: as many as
        the buffer has, from 4 KiB to 1 MiB.
    guard_memory
        Most bytes that guards may add in total; past it guards shrink to the near ones, then stop. None: 1 GiB on the
        host, 5 % of a card.
    shadow_limit
        Largest buffer in bytes whose values are compared across a replay unless it is protected or watched.
    suppressions
        Path of a file of fingerprints (one a line, ``#`` comments) whose findings are counted but not shown.
    infer
        Apply the inferred rules (SG102 and SG109 without a declaration).
    list_inferred
        Show as notes findings that are only counted otherwise: host reads of bytes that a graph changed (SG102), which
        are intended for outputs, counters and tokens that are fed back. `Debugger.inferred` lists them in any case.
    dump_limit
        Largest dump in bytes; contents that do not fit are left out, the least useful first.
    dump_whole
        Largest buffer in bytes whose contents a dump holds in full; of a larger one it holds both ends.
    guard_eager
        Which eager allocations become guarded static buffers without a `guard()` block: ``"off"``; ``"auto"`` (results
        of allocating operators up to 64 MiB, except parameters of modules, until the eighth replay after the latest
        capture); ``"all"`` (every result of every operator, at any time); ``"in:module:qualname"`` (like auto, in a
        function and its callees, at any time; several separated by commas). In watched threads.
    watch_eager
        ``"always"``, or ``"sampled"``: after a long time without an event, eager operators are watched around one
        replay in 256 only, and one in 64 to 192 of the others is checked; after 100,000 operators without a capture
        they are not watched until the next capture. See `shadowgraph.monitor.sampling.naps` and
        `shadowgraph.monitor.idleness`.
    every
        Check one in this many replays of each graph, from the first on. Damage by a replay in between is seen at the
        next checked replay.
    overhead_percent
        Most of the wall time that checking may take, in percent; past it checks thin out, then stop. Checks that
        were thinned out come back once there is time for them. None: no limit.
    fault_limit
        Internal errors after which checks thin out; at twice as many they stop. None: no limit.
    locate
        When a replay runs its nodes one after the other, with a memory check after each: ``"auto"`` (the replay
        after a failed check whose culprit is not known), ``"off"``, or ``"all"`` (also every graph's second replay, to
        learn which bytes each of its nodes writes).
    locate_memory
        Most bytes that copies for such a replay may take; a replay that needs more is refused.
    """

    backend: BackendName = "host"
    sync: bool = False
    layout: Layout = "isolate"
    near_guard: int = 256
    far_guard: int | None = None
    guard_memory: int | None = None
    shadow_limit: int = 1 << 20
    suppressions: str | os.PathLike[str] | None = None
    infer: bool = True
    list_inferred: bool = False
    dump_limit: int = 64 << 20
    dump_whole: int = 64 << 10
    guard_eager: str = "off"
    watch_eager: WatchEager = "always"
    every: int = 1
    overhead_percent: float | None = None
    fault_limit: int | None = None
    locate: Locate = "auto"
    locate_memory: int = 2 << 30

    def __post_init__(self) -> None:
        _check_choice("backend", self.backend, ("host", "cuda"))
        _check_choice("layout", self.layout, ("isolate", "faithful"))
        _check_choice("locate", self.locate, ("auto", "off", "all"))
        _check_choice("watch_eager", self.watch_eager, ("always", "sampled"))
        for name in ("sync", "infer", "list_inferred"):
            _check_flag(name, getattr(self, name))
        _check_every(self.every)
        _check_guard_eager(self.guard_eager)
        _check_limit("overhead_percent", self.overhead_percent, (int, float))
        _check_limit("fault_limit", self.fault_limit, (int,))
        if self.suppressions is not None and not isinstance(self.suppressions, (str, os.PathLike)):
            raise UsageError(f"suppressions must be the path of a file, not {_shown(self.suppressions)}")
        for name in _BYTES:
            if name not in _OF_THE_DEVICE or getattr(self, name) is not None:
                _check_bytes(name, getattr(self, name))
        if self.near_guard < 16:
            raise UsageError(f"near_guard must be at least 16 bytes, not {self.near_guard}")
        if self.dump_limit < SMALLEST_DUMP:
            raise UsageError(f"dump_limit must be at least {SMALLEST_DUMP:,} bytes, not {self.dump_limit}")

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
        known = {field.name for field in fields(self)}
        for name in options:
            if name not in known:
                raise UsageError(f"no option {name!r}; options are: {', '.join(sorted(known))}")
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
            For a variable whose value does not parse.
        """
        environment = os.environ if environment is None else environment
        options: dict[str, Any] = {}
        for field in fields(cls):
            text = environment.get(PREFIX + field.name.upper())
            if text is not None:
                options[field.name] = parse_option(field.name, text, PREFIX + field.name.upper())
        return cls(**options)


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise UsageError(f"{name} must be True or False, not {_shown(value)}")


def _check_bytes(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise UsageError(f"{name} must be a whole number of bytes, not {_shown(value)}")
    if value < 0 and name != "near_guard":  # which has a bound of its own
        raise UsageError(f"{name} must not be negative, not {value}")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise UsageError(f"{name} must be one of {', '.join(choices)}, not {_shown(value)}")


def _check_every(value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"every must be a whole number from 1, not {_shown(value)}")


def _check_guard_eager(value: object) -> None:
    known = isinstance(value, str) and (
        value in ("off", "auto", "all") or all(re.fullmatch(r"in:[\w.]+:[\w.<>]+", part) for part in value.split(","))
    )
    if not known:
        raise UsageError(f"guard_eager must be off, auto, all or in:module:qualname, not {_shown(value)}")


def _check_limit(name: str, value: object, kinds: tuple[type[float], ...]) -> None:
    fits = isinstance(value, kinds) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    if value is not None and not fits:
        raise UsageError(f"{name} must be a number above 0, or None, not {_shown(value)}")


def _shown(value: object) -> str:
    """The `repr` of a value in one line of at most 80 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def parse_option(name: str, text: str, called: str) -> Any:
    """Parse the text of an option.

    Parameters
    ----------
    called
        The caller's name for the option.

    Raises
    ------
    UsageError
        For a text that does not parse.
    """
    if name in {"sync", "infer", "list_inferred"}:
        lowered = text.strip().lower()
        if lowered in {"1", "true", "yes", "on"}:
            return True
        if lowered in {"0", "false", "no", "off", ""}:
            return False
        raise UsageError(f"{called} must be 0 or 1, not {text!r}")
    if name in {"backend", "layout", "suppressions", "guard_eager", "locate", "watch_eager"}:
        return text
    if name in {"overhead_percent", "fault_limit", "every"}:
        try:
            return float(text) if name == "overhead_percent" else int(text)
        except ValueError:
            raise UsageError(f"{called} must be a number, not {text!r}") from None
    try:
        return parse_bytes(text)
    except ValueError:
        raise UsageError(f"{called} must be a number of bytes such as 65536 or 64K, not {text!r}") from None


def parse_bytes(text: str) -> int:
    """``"65536"``, ``"64K"``, ``"1.5M"``, ``"2GiB"`` in bytes; ValueError otherwise."""
    cleaned = text.strip().lower().removesuffix("ib").removesuffix("b")
    units = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
    if cleaned and cleaned[-1] in units:
        number = float(cleaned[:-1])
        if not math.isfinite(number):
            raise ValueError(f"{text!r} is no number of bytes")
        return int(number * units[cleaned[-1]])
    return int(cleaned)
