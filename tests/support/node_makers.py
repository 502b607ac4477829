"""Device nodes as CUDA would report them, over the memory of a program on the host."""

from __future__ import annotations

from pathlib import Path

import torch

import shadowgraph as sg
from shadowgraph.model.device_nodes import DeviceNode, NodeKind, Sureness, Word
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.stacks import Frame

ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<int>, std::array<char*, 3ul> >"
    "(int, at::native::CUDAFunctor_add<int>, std::array<char*, 3ul>)"
)
GEMM = "nvjet_tst_64x8_64x16_4x1_v_bz_TNT"
STEP = (Frame("/srv/app/model.py", 33, "step"), Frame("/srv/app/server.py", 7, "main"))
UNTRACKED = 0x123456789000


class Model:
    """A program with named memory and a graph of two launches."""

    def __init__(self, debugger: sg.Debugger) -> None:
        with debugger.guard():
            self.table = torch.zeros(4, 2, dtype=torch.int32)
            self.indptr = torch.zeros(9, dtype=torch.int32)
            self.weights = torch.zeros(64, 64)
        self.rows = self.table[1:3]
        debugger.name("model", self)
        self.graph = sg.HostGraph()
        with sg.host_graph(self.graph):
            self.output = self.table * 2
            self.indptr.add_(1)


def cuda_nodes(model: Model) -> tuple[DeviceNode, ...]:
    """A memset, two kernels of one launch, a copy, a child graph in a fork, a kernel without launch, an unread one."""
    table, indptr = model.table.data_ptr(), model.indptr.data_ptr()
    output, weights = model.output.data_ptr(), model.weights.data_ptr()
    struct = (
        Word(2, 0, "self", table),
        Word(2, 8, "", output + 16, Sureness.MEDIUM),
        Word(2, 24, "", UNTRACKED, Sureness.LOW),
    )
    inner = (
        DeviceNode(0, NodeKind.ALLOC, "mem_alloc"),
        DeviceNode(1, NodeKind.KERNEL, GEMM, (2, 1, 1), (384, 1, 1), (Word(0, 0, "", weights + 4096),), after=(0,)),
    )
    return (
        DeviceNode(
            *(0, NodeKind.MEMSET, "memset to 0x7f", None, None, (Word(0, 0, "dst", indptr),)),
            writes=(ByteRange(indptr, indptr + 36),),
        ),
        DeviceNode(1, NodeKind.KERNEL, ADD, (4, 1, 1), (128, 1, 1), struct, launch=0, after=(0,)),
        DeviceNode(2, NodeKind.KERNEL, "reduce<int>(int*)", (1, 1, 1), (32, 1, 1), launch=0, after=(1,)),
        DeviceNode(
            *(3, NodeKind.MEMCPY, "memcpy device to device, 16 bytes", None, None),
            reads=(ByteRange(table + 8, table + 24),),
            writes=(ByteRange(weights, weights + 16),),
            after=(1,),
        ),
        DeviceNode(4, NodeKind.CHILD, "2 nodes", stack=STEP, after=(1,), inner=inner),
        DeviceNode(
            *(5, NodeKind.KERNEL, "fill_pages", (3, 2, 1), (64, 1, 1)),
            words=(Word(0, 0, "pages", table + 4), Word(1, 0, "lens", indptr)),
            stack=STEP,
            after=(2, 3, 4),
        ),
        DeviceNode(
            6, NodeKind.KERNEL, "a kernel without a name", (1, 1, 1), launch=1, note="its arguments cannot be read"
        ),
        DeviceNode(7, NodeKind.EMPTY, "empty", after=(5, 6)),
    )


def dump_of_nodes(path: Path, past: int = 0) -> Path:
    """A dump of a graph with CUDA device nodes; with `past`, after an eager write that many elements too far."""
    with sg.debug() as debugger:
        model = Model(debugger)
        (graph,) = debugger.graphs
        graph.build_device_later(lambda: cuda_nodes(model))
        if past:
            from shadowgraph.demos.kernels import fill

            fill[(1,)](model.table, 0, model.table.numel() + past, 1, BLOCK=256)
        model.graph.replay()
        return debugger.dump(path)
