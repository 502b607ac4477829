"""Runs of a CUDA graph for an experiment, over a driver that is played on the host."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_cuda_prefixes import EMPTY, FORK, KERNEL, MEMSET, Memory, Played, no_runtime  # noqa: F401

from shadowgraph.graphs.cuda.prefixes import Copied, Disabled, State, must_not_run_alone
from shadowgraph.graphs.cuda.reruns import CudaReruns
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.reruns import Fill


class Recorded(Memory):
    """Notes what a run begins with."""

    def __init__(self, played: Played) -> None:
        super().__init__(played)
        self.said: list[object] = []

    def restore(self) -> None:
        super().restore()
        self.said.append("restored")

    def fill(self, fills: Any) -> None:
        self.said.append(tuple(fills))

    def wait(self) -> None:
        self.said.append("waited")


def reruns(kinds: list[int], edges: list[tuple[int, int]], able: bool = False) -> tuple[Played, Recorded, CudaReruns]:
    played = Played(kinds, edges, 0)
    memory = Recorded(played)
    runner: Any
    if able:
        runner = Disabled(played, 1, 5, lambda: 77, memory)  # type: ignore[arg-type]
    else:
        runner = Copied(played, 1, lambda: 77, memory)  # type: ignore[arg-type]
    return played, memory, CudaReruns(runner, memory)  # type: ignore[arg-type]


def test_one_copy_serves_all_whole_runs() -> None:
    played, memory, runs = reruns([KERNEL, MEMSET, KERNEL, EMPTY, KERNEL], FORK)
    fill = Fill(ByteRange(0, 4), b"\x01")
    for _ in range(3):
        runs.run([fill])
    assert len(played.runnable) == 1
    runs.run([], 2)
    runs.run([fill], 0)
    assert played.launched == [[10, 11, 12, 13, 14]] * 3 + [[10, 11]]
    assert memory.said[:3] == ["restored", (fill,), "waited"]
    assert memory.said[-3:] == ["restored", (fill,), "waited"], "without a node the state is set all the same"
    assert (runs.runs, list(runs.order), runs.how) == (4, [0, 1, 2, 3, 4], "removed")
    runs.close()
    assert (played.runnable, list(played.graphs)) == ({}, [1])
    assert (runs.trace([], [], bytes), runs.loads([], 0, ByteRange(0, 1))) == (None, [])


def test_a_graph_that_allocates_runs_with_nodes_disabled() -> None:
    played, _, runs = reruns([KERNEL, 10, KERNEL], [(0, 1), (1, 2)], able=True)
    runs.run()
    runs.run([], 1)
    assert played.launched == [[10, 11, 12], [10, 11]]
    assert (runs.how, runs.runs) == ("disabled", 2)


def state_over(memory: np.ndarray[Any, Any]) -> State:
    """A state whose device is host memory."""

    def copy(target: int, source: int, nbytes: int, *_: object) -> None:
        ctypes.memmove(target, source, nbytes)

    def fill(target: int, value: int, nbytes: int, *_: object) -> None:
        ctypes.memset(target, value, nbytes)

    made = State.__new__(State)
    made._device = SimpleNamespace(  # type: ignore[assignment]
        runtime=SimpleNamespace(memcpyAsync=copy, memsetAsync=fill), raw_stream=lambda: 77
    )
    made._sources = []
    return made


@pytest.mark.parametrize("nbytes", [1, 3, 4, 8, 12, 13, 64, 100])
@pytest.mark.parametrize("pattern", [b"\x57\x57", b"\1\0\0\0", b"\1\0\0\0\0\0\0\0", b"\0\0\1\0", bytes(range(100))])
def test_a_pattern_is_repeated(nbytes: int, pattern: bytes) -> None:
    memory = np.full(nbytes + 2, 9, dtype=np.uint8)
    start = memory.ctypes.data + 1
    state_over(memory).fill([Fill(ByteRange(start, start + nbytes), pattern)])
    assert memory[1:-1].tolist() == (list(pattern) * nbytes)[:nbytes]
    assert (memory[0], memory[-1]) == (9, 9)


@pytest.mark.parametrize(
    "name",
    [
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 4>", "sglang::quickreduce::allreduce_prototype_twoshot",
        "multimem_one_shot_all_reduce_kernel", "void deep_ep::internode_ll::dispatch<true>",
        "nvshmemi_signal_op_kernel", "ncclSymkDevKernel_AllGather_LL", "void trtllm_lamport_fusion",
        "symm_mem_barrier_kernel",
    ],
)  # fmt: skip
def test_kernels_that_wait_for_others_are_known_by_name(name: str) -> None:
    assert must_not_run_alone(["fill", name]) == "others take part in its replays"


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::reduce_kernel<512, 1>", "BatchPrefillWithPagedKVCacheKernel",
        "nvjet_tst_128x64_64x9_2x1_v_bz_TNT", "triton_red_fused_add_mean_0", "void cub::DeviceScanKernel",
        "fused_moe_kernel", "void flash::flash_fwd_splitkv_combine",
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop>", "silu_and_mul_kernel",
    ],
)  # fmt: skip
def test_other_kernels_are_not(name: str) -> None:
    assert must_not_run_alone([name]) is None
