"""Supported versions of sglang, the hooked methods of each range, and reasons for the adapter to be off."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points

from shadowgraph.integrations import releases
from shadowgraph.integrations.releases import Version, written
from shadowgraph.integrations.releases import parsed as parsed

GROUP, NAME = "sglang.srt.plugins", "shadowgraph"

_RUNNER = "sglang.srt.model_executor"
_DRAFTS = (
    "sglang.srt.speculative.eagle_draft_cuda_graph_runner.EAGLEDraftCudaGraphRunner",
    "sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner.EAGLEDraftExtendCudaGraphRunner",
)


@dataclass(frozen=True, slots=True)
class Layout:
    """Full dotted names of the hooked methods for a range of versions, both ends included.

    Attributes
    ----------
    backends
        The model runner's method that creates its attention backends; its memory pools exist by then.
    capture
        The graph runner's method that captures all batch sizes; its buffers exist by then. Draft runners call it or
        inherit it.
    prepare
        The graph runner's method that refreshes the inputs of a replay.
    loops
        The scheduler's methods that do all its work. Its process catches their exceptions, logs them, and has its
        parent kill all processes.
    watchdog
        The constructor of the scheduler's watchdog.
    drafts
        Methods that both prepare and replay, each with the method that it calls between the two.
    """

    first: Version
    last: Version
    backends: str
    capture: str
    prepare: str
    loops: tuple[str, ...] = tuple(
        f"sglang.srt.managers.scheduler.Scheduler.{n}" for n in ("__init__", "run_event_loop")
    )
    watchdog: str = "sglang.srt.utils.watchdog.WatchdogRaw.__init__"
    drafts: tuple[tuple[str, str], ...] = ()


LAYOUTS = (
    Layout(
        (0, 5, 11),
        (0, 5, 13),
        backends=f"{_RUNNER}.model_runner.ModelRunner.init_attention_backend",
        capture=f"{_RUNNER}.cuda_graph_runner.CudaGraphRunner.capture",
        prepare=f"{_RUNNER}.cuda_graph_runner.CudaGraphRunner.replay_prepare",
        drafts=tuple((f"{draft}.replay", f"{draft}._replay") for draft in _DRAFTS),
    ),
    Layout(
        (0, 5, 14),
        (0, 5, 23),
        backends=f"{_RUNNER}.model_runner.ModelRunner.init_attention_backends",
        capture=f"{_RUNNER}.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner.capture",
        prepare=f"{_RUNNER}.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner.load_batch",
    ),
)


def installed() -> str | None:
    """Version of the installed sglang, or None when it is not installed. Imports nothing."""
    return releases.installed("sglang")


def layout_of(text: str | None) -> Layout | None:
    """The layout of a version, or None for an unsupported version."""
    release = parsed(text or "")
    if release is None:
        return None
    return next((layout for layout in LAYOUTS if layout.first <= release <= layout.last), None)


def why_off(environment: Mapping[str, str] = os.environ) -> str | None:
    """Why sglang will not start the adapter in this environment, as one line, or None when it will."""
    found = installed()
    first, last = written(LAYOUTS[0].first), written(LAYOUTS[-1].last)
    reason = None
    if layout_of(found) is None:
        release = parsed(found or "")
        old = release is not None and release < LAYOUTS[0].first
        reason = f"sglang {found} is {'older than' if old else 'none of'} the versions that it knows, {first} to {last}"
    elif _excluded(environment.get("SGLANG_PLUGINS", "")):
        reason = f"SGLANG_PLUGINS does not name {NAME}"
    elif not any(entry.name == NAME for entry in entry_points(group=GROUP)):
        reason = "shadowgraph is not installed as a package here, so that sglang cannot find it"
    if reason is None:
        return None
    return f"the sglang adapter is off: {reason}; generic tracking goes on"


def _excluded(allowed: str) -> bool:
    names = {name.strip() for name in allowed.split(",") if name.strip()}
    return bool(names) and NAME not in names
