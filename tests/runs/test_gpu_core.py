"""Core dumps of a GPU: the variables that ask for them, and what a debugger says of one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shadowgraph.wrap.folder import gpu_core
from shadowgraph.wrap.folder.gpu_core import core_variables, read_cores, read_debugger
from shadowgraph.wrap.folder.injection_config import InjectionConfig
from shadowgraph.wrap.launch.run_child import wrapped_environment

ANSWER = """\
Opening GPU coredump: gpu-core-7

CUDA Exception: Warp Illegal Address
The exception was triggered at PC 0x7f31abb9f6d0  fill (kernels.py:31)
[Current focus set to CUDA kernel 0, grid 12, block (0,0,0), thread (64,0,0), device 0, sm 1, warp 2, lane 0]
#0  0x00007f31abb9f6e0 in fill<<<(1,1,1),(128,1,1)>>> () at /srv/kernels.py:31
31\t    tl.store(out + at, at, mask=at < count)
"""


def test_only_fences_on_a_device_ask_for_core_dumps() -> None:
    def asked(environment: dict[str, str], **facts: object) -> set[str]:
        made = wrapped_environment(InjectionConfig("/run", **facts), environment)  # type: ignore[arg-type]
        return {name for name in made if name.startswith("CUDA_")} - set(environment)

    fence = {"fence": "in:a:b"}
    assert asked({}, options=fence) == {
        *("CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "CUDA_COREDUMP_FILE", "CUDA_COREDUMP_GENERATION_FLAGS"),
    }
    assert asked({}) == asked({}, options=fence, backend="host") == set()
    assert asked({"CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "0"}, options=fence) == set()


def test_the_process_goes_on_after_a_core_dump() -> None:
    assert "skip_abort" in core_variables("/run", {})["CUDA_COREDUMP_GENERATION_FLAGS"].split(",")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (ANSWER, "Warp Illegal Address in fill<<<(1,1,1),(128,1,1)>>> at /srv/kernels.py:31"),
        (
            "CUDA Exception: Warp Illegal Address\n#0  0x7f in void copy<int*, 4>(int*, int)<<<(1,1,1),(9,1,1)>>> ()",
            "Warp Illegal Address in void copy<int*, 4>(int*, int)<<<(1,1,1),(9,1,1)>>>",
        ),
        ("CUDA Exception: Warp Illegal Address\n", f"Warp Illegal Address{gpu_core._ENDED}"),
        (ANSWER.replace("fill<<<", "graph_check<<<"), f"Warp Illegal Address{gpu_core._ENDED}"),
        ("no core file", "cuda-gdb found no exception in it"),
        ("", "cuda-gdb found no exception in it"),
    ],
)
def test_what_the_debugger_says(answer: str, said: str) -> None:
    assert read_debugger(answer) == said


def test_a_debugger_reads_each_core_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "bin" / "cuda-gdb"
    tool.parent.mkdir()
    asked = f"target cudacore {tmp_path}/gpu-core-"
    tool.write_text(f"#!/bin/sh\ncase \"$*\" in *'{asked}'*) cat <<'END'\n{ANSWER}END\nesac\n")
    tool.chmod(0o755)
    for pid in (7, 9):
        (tmp_path / f"gpu-core-{pid}").write_bytes(b"core")
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    told = "Warp Illegal Address in fill<<<(1,1,1),(128,1,1)>>> at /srv/kernels.py:31"
    assert read_cores(tmp_path) == [f"core dump of the GPU: gpu-core-{pid}: {told}" for pid in (7, 9)]


def test_without_a_debugger_the_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_core, "_DEBUGGERS", ("no-such-debugger",))
    assert read_cores(tmp_path) == []
    (tmp_path / "gpu-core-7").write_bytes(b"core")
    (line,) = read_cores(tmp_path)
    assert line.startswith("core dump of the GPU: gpu-core-7; open it with cuda-gdb")
