"""Say what is here, what is missing, and what to install for it."""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec
from rich.table import Column, Table
from rich.text import Text

from shadowgraph.checks.out_of_bounds.kind import OutOfBoundsKind
from shadowgraph.common.console import console
from shadowgraph.common.install_hint import install_command
from shadowgraph.common.internal_errors import unlogged

HELP = "say what is here, what is missing, what to install"
SELFTEST_FAILED = 13
_SELFTEST_PASSED = "the planted overflow was found, and nothing in the same program without it"
_OLDEST_TORCH = (2, 10)
_NEWEST_CUDA = "13"
_WIDE = 10_000  # columns outside of a terminal: a pipe has no width to cut a line at


class Line(msgspec.Struct, frozen=True):
    """One line of the examination. `state` is ``ok``, ``missing`` or ``wrong``; `advice` is empty when ok."""

    what: str
    state: str
    found: str
    needed_for: str
    advice: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--selftest", action="store_true", help="plant an overflow and see that it is found")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")


def run(args: argparse.Namespace) -> int:
    """Examine, and with ``--selftest`` prove that a planted overflow is found; 0 when nothing required is wrong."""
    lines = examine()
    problems = selftest() if args.selftest else []
    if args.json:
        body = {"schema": "shadowgraph.doctor/1", "lines": msgspec.to_builtins(lines), "selftest": problems}
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(body), indent=2).decode() + "\n")
    else:
        _show(lines)
        if args.selftest:
            print(f"selftest: {'; '.join(problems) or _SELFTEST_PASSED}")
    if problems:
        return SELFTEST_FAILED
    return 0 if all(line.state != "wrong" for line in lines) else 5


def examine() -> list[Line]:
    """Every line, in the order of importance."""
    cuda = f"cuda{_cuda_of_torch()}"
    gpu = _gpu()
    return [
        Line("python", "ok", platform.python_version(), "everything"),
        _torch(),
        gpu,
        _package("numpy", "the host engine", "pip install numpy"),
        _triton(gpu),
        _package("matplotlib", "memory maps", install_command("plot")),
        _package("bokeh", "interactive maps", install_command("notebook", "bokeh")),
        _sglang(),
        _package("transformers", "the sglang and language-model tests", install_command("sglang", "transformers")),
        *_for_gpu(gpu, cuda),
        _arena(),
    ]


def selftest() -> list[str]:
    """Plant an overflow of 12 bytes into a host graph's input, then a write that fits; returns the errors found."""
    problems: list[str] = []
    if _torch().state != "ok":
        return ["torch is needed for it"]
    for elements, wanted in ((3, 12), (0, 0)):
        with unlogged():
            seen = _planted(elements)
        if seen != ([wanted] if wanted else []):
            problems.append(f"an overflow of {wanted} bytes was reported as {seen}")
    return problems


def _planted(elements: int) -> list[int]:
    import torch

    import shadowgraph as sg

    with sg.debug(backend="host") as debugger:
        with debugger.guard():
            target = torch.zeros(16, dtype=torch.int32)
        graph = sg.HostGraph()

        def overflow(victim: torch.Tensor) -> None:
            count = victim.numel() + elements
            (ctypes.c_int32 * count).from_address(victim.data_ptr())[:] = [7] * count

        with sg.host_graph(graph):
            graph.call(overflow, target, writes=(target,))
        graph.replay()
        found = debugger.check()
    return [finding.past_end for finding in found if finding.code == OutOfBoundsKind.code]


def _torch() -> Line:
    try:
        found = version("torch")
    except PackageNotFoundError:
        return Line("torch", "wrong", "-", "everything", "pip install torch")
    numbers = tuple(int(part) for part in found.split("+")[0].split(".")[:2])
    if numbers < _OLDEST_TORCH:
        oldest = ".".join(map(str, _OLDEST_TORCH))
        return Line("torch", "wrong", found, "everything", f"have {found}, need {oldest}: pip install -U torch")
    return Line("torch", "ok", found, "everything")


def _cuda_of_torch() -> str:
    """The major version of CUDA that torch was built for; that of new builds where it was built for none, or where
    torch is not here."""
    try:
        import torch
    except ImportError:
        return _NEWEST_CUDA
    return (torch.version.cuda or _NEWEST_CUDA).split(".")[0]


def _gpu() -> Line:
    try:
        import torch
    except ImportError:
        return Line("GPU", "missing", "-", "CUDA graphs", "not known without torch")
    if torch.cuda.is_available():
        return Line("GPU", "ok", torch.cuda.get_device_name(), "CUDA graphs")
    return Line("GPU", "missing", "none", "CUDA graphs", "none needed for the host backend")


def _for_gpu(gpu: Line, cuda: str) -> list[Line]:
    """Packages that serve programs on a GPU alone; without one there is nothing to install."""
    lines = [
        _package(f"cupy-{cuda}x", "checks on a GPU", install_command(cuda, f"cupy-{cuda}x"), "cupy"),
        _package("cuda-bindings", "reading CUDA graphs", install_command(cuda, "cuda-bindings")),
        _package("flashinfer-python", "the flashinfer tests on a GPU", "pip install flashinfer-python"),
    ]
    if gpu.found != "none":
        return lines
    said = "not needed here: there is no GPU"
    return [msgspec.structs.replace(line, advice=said) if line.state == "missing" else line for line in lines]


def _triton(gpu: Line) -> Line:
    line = _package("triton", "Triton kernels on the host backend", install_command("triton"))
    if line.state == "ok" and line.found.startswith("3.6"):
        numpy_version = tuple(int(part) for part in version("numpy").split(".")[:2])
        if numpy_version >= (2, 4):
            said = "Triton 3.6's interpreter fails with numpy 2.4 and later: pip install 'numpy<2.4'"
            return Line("triton", "wrong", line.found, line.needed_for, said)
    if line.state == "ok" and gpu.found == "none" and os.environ.get("TRITON_INTERPRET") != "1":
        return msgspec.structs.replace(line, advice="no GPU here: set TRITON_INTERPRET=1 to run its kernels on the CPU")
    return line


def _sglang() -> Line:
    use, advice = "the founding cases", "python3 tools/bootstrap.py demo, in a checkout, installs it"
    try:
        from shadowgraph.demos.sglang.host import SGLANG_VERSION, sglang_version
    except ImportError:  # no torch
        return Line("sglang", "missing", "-", use, advice)
    found = sglang_version()
    if found is None:
        return Line("sglang", "missing", "-", use, advice)
    if found != SGLANG_VERSION:
        return Line("sglang", "missing", found, use, f"have {found}, need {SGLANG_VERSION}: {advice}")
    return Line("sglang", "ok", found, use)


def _package(name: str, use: str, advice: str, *others: str) -> Line:
    for candidate in (name, *others):
        try:
            return Line(name, "ok", version(candidate), use)
        except PackageNotFoundError:
            continue
    return Line(name, "missing", "-", use, advice)


def _arena() -> Line:
    return _tried("address space", "guarded memory on the host", _reserve)


def _reserve() -> str:
    from shadowgraph.tracking.allocator import host_allocator

    return f"{host_allocator().arena.size >> 30} GiB reserved"


def _tried(what: str, use: str, action: Callable[[], str]) -> Line:
    try:
        return Line(what, "ok", action(), use)
    except Exception as error:
        return Line(what, "wrong", "-", use, str(error).split("\n", 1)[0])


def _show(lines: list[Line]) -> None:
    out = console()
    if not out.is_terminal:
        out.width = _WIDE
    columns = (Column(header, overflow="fold") for header in ("", "found", "for", "what to do"))
    table: Any = Table(*columns, box=None)
    colours = {"ok": "green", "missing": "yellow", "wrong": "bold red"}
    for line in lines:
        cells = (Text(cell) for cell in (line.found, line.needed_for, line.advice))
        table.add_row(Text(line.what, style=colours[line.state]), *cells)
    out.print(table)
