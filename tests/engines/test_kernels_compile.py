"""The kernels compile for each architecture that sglang and vLLM run on: a machine without a GPU can say that much."""

from __future__ import annotations

import ctypes
import importlib.util
import platform
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from shadowgraph import engines
from shadowgraph.engines.cupy_shadow import CHUNK, PART
from shadowgraph.engines.graph_shadows import MARK, SHADOWED
from shadowgraph.engines.graph_watches import WATCH
from shadowgraph.engines.guard_table import GUARD
from shadowgraph.engines.kernels import Kernels
from shadowgraph.model.check_log import GRAPH_ROW, RECORD

pytestmark = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="NVRTC's wheel is for Linux on x86-64"
)
SOURCE = Path(engines.__file__).with_name("kernels.cu")
ENTRY = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(')


def compiler() -> ctypes.CDLL:
    """NVRTC, the compiler that cupy uses on a device's machine; from its wheel, which needs no driver."""
    spec = importlib.util.find_spec("nvidia.cuda_nvrtc")
    assert spec is not None, "invalid: nvidia-cuda-nvrtc-cu12 is not installed"
    assert spec.submodule_search_locations is not None
    (library,) = Path(next(iter(spec.submodule_search_locations)), "lib").glob("libnvrtc.so.*")
    return ctypes.CDLL(str(library))


def compiled(source: str, *options: str) -> tuple[int, str, bytes]:
    """Error code, log and PTX."""
    nvrtc, program = compiler(), ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None) == 0
    given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    code = int(nvrtc.nvrtcCompileProgram(program, len(options), given))
    texts = []
    for what in ("ProgramLog", "PTX"):
        size = ctypes.c_size_t()
        getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(max(size.value, 1))
        getattr(nvrtc, f"nvrtcGet{what}")(program, text)
        texts.append(text.value)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return code, texts[0].decode(), texts[1]


@pytest.mark.parametrize("architecture", ["compute_75", "compute_80", "compute_90", "compute_100"])
def test_the_kernels_compile(architecture: str) -> None:
    source = SOURCE.read_text()
    code, log, ptx = compiled(source, "-std=c++17", f"--gpu-architecture={architecture}")
    assert code == 0, log
    names = ENTRY.findall(source)
    assert len(names) > 8, "precondition: the entry points are found"
    assert [name for name in names if f".entry {name}(".encode() not in ptx] == []


def test_a_mistake_would_be_seen() -> None:
    code, log, _ = compiled(SOURCE.read_text() + "\nvoid broken( {", "-std=c++17", "--gpu-architecture=compute_90")
    assert code != 0
    assert "error" in log


def test_the_engine_loads_what_stands_there() -> None:
    assert set(Kernels._fields) <= set(ENTRY.findall(SOURCE.read_text()))


STRUCTS: dict[str, np.dtype[np.void]] = {
    "Watch": WATCH,
    "Shadowed": SHADOWED,
    "Mark": MARK,
    "Part": PART,
    "Chunk": CHUNK,
    "Guard": GUARD,
    "Record": RECORD,
    "GraphRow": GRAPH_ROW,
}


def test_structures_are_as_python_packs_them() -> None:
    """Sizes, and the places of those fields that have one name on both sides; NVRTC has no ``offsetof`` of its own."""
    said = []
    for name, dtype in STRUCTS.items():
        said.append(f'static_assert(sizeof({name}) == {dtype.itemsize}, "size of {name}");')
        (fields,) = re.findall(rf"^struct {name} {{(.*?)}};", SOURCE.read_text(), re.MULTILINE | re.DOTALL)
        assert dtype.fields is not None
        for field, (_, at, *_) in dtype.fields.items():
            if re.search(rf"\b{field}\b", fields):
                said.append(f'static_assert(__INTADDR__(&(({name}*)0)->{field}) == {at}, "{name}.{field}");')
    assert len(said) > 3 * len(STRUCTS), "precondition: fields are found"
    code, log, _ = compiled("\n".join((SOURCE.read_text(), *said)), "-std=c++17", "--gpu-architecture=compute_90")
    assert code == 0, log
