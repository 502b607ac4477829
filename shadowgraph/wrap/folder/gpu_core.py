"""Core dumps of a GPU that a run with fences left: small ones, which name the kernel and the line of the access.

`core_variables` is for the environment of the wrapped program; `read_cores` runs in the supervising process, after the
program's end. Where ``cuda-gdb`` is not installed, only the file is named.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

_ENABLE = "CUDA_ENABLE_COREDUMP_ON_EXCEPTION"
_STEM = "gpu-core-"
# No contents of memory; and the process goes on, so that it reports the lost device itself.
_FLAGS = (
    *("skip_nonrelocated_elf_images", "skip_global_memory", "skip_shared_memory", "skip_local_memory"),
    *("skip_constbank_memory", "skip_abort"),
)
_DEBUGGERS = "cuda-gdb", "/usr/local/cuda/bin/cuda-gdb"
_PATIENCE = 60.0  # seconds for one core dump
_CORES = 2  # the command waits for them
_EXCEPTION = re.compile(r"^CUDA Exception: (.+)$", re.MULTILINE)
_FRAME = re.compile(r"^#0\s+(?:0x[0-9a-f]+ in )?(.+)$", re.MULTILINE)
_PLACE = re.compile(r" at (\S+:\d+)\s*$")
_LONGEST = 200  # characters of a kernel's name
_CHECKS = ("graph_check<<<", "check_step<<<")  # ours, which read no memory behind a fence
_ENDED = ": a store past the fence, whose kernel had ended when it was reported; it is one of the last launches"


def core_variables(folder: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that have CUDA leave core dumps in a run folder; none where the program has its own."""
    if _ENABLE in environment:
        return {}
    name = os.path.join(folder, f"{_STEM}%p")
    return {_ENABLE: "1", "CUDA_COREDUMP_FILE": name, "CUDA_COREDUMP_GENERATION_FLAGS": ",".join(_FLAGS)}


def read_cores(folder: Path) -> list[str]:
    """What the core dumps in a run folder say, in a line each."""
    debugger = next(filter(None, map(shutil.which, _DEBUGGERS)), None)
    return [_said(core, debugger) for core in sorted(folder.glob(f"{_STEM}*"))[:_CORES]]


def _said(core: Path, debugger: str | None) -> str:
    if debugger is None:
        return f"core dump of the GPU: {core.name}; open it with cuda-gdb (target cudacore {core.name}), not found here"
    command = [debugger, "-nx", "-batch", "-ex", f"target cudacore {core}", "-ex", "bt 1"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE)
    except (OSError, subprocess.SubprocessError) as error:
        return f"core dump of the GPU: {core.name}; cuda-gdb gave no answer: {type(error).__name__}"
    return f"core dump of the GPU: {core.name}: {read_debugger(done.stdout.decode('utf-8', 'replace'))}"


def read_debugger(text: str) -> str:
    """The exception, the kernel and its line in the output of ``cuda-gdb``. A load stops its kernel; a store is told
    later, when a short kernel has ended."""
    exception, frame = _EXCEPTION.search(text), _FRAME.search(text)
    if frame is None and exception is None:
        return "cuda-gdb found no exception in it"
    if exception is not None and (frame is None or frame[1].startswith(_CHECKS)):
        return f"{exception[1].strip()}{_ENDED}"
    assert frame is not None
    place = _PLACE.search(frame[1])
    kernel = (frame[1][: place.start()] if place is not None else frame[1]).removesuffix(" ()").strip()[:_LONGEST]
    return f"{exception[1].strip() if exception else 'stopped'} in {kernel}{f' at {place[1]}' if place else ''}"
