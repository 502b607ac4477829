"""Plans from index pointers that its graphs rewrite, until the planner refuses: planning.py crash|caught|child."""

import multiprocessing
import os
import signal
import sys

import torch
from flashinfer.decode import BatchDecodeWithPagedKVCacheWrapper, fast_decode_plan

import shadowgraph as sg

kv_indptr = torch.arange(5, dtype=torch.int32) * 16
lens = torch.full((4,), 16, dtype=torch.int32)
kv_indices, last = torch.zeros(64, dtype=torch.int32), torch.ones(4, dtype=torch.int32)
workspace = torch.zeros(64)


def plan(wrapper: BatchDecodeWithPagedKVCacheWrapper, how: object) -> None:
    size = len(wrapper._paged_kv_last_page_len_buf)
    how(wrapper, kv_indptr[: size + 1], kv_indices, last[:size])


def serve() -> None:
    wrappers, graphs = {}, {}
    for size in (4, 2):
        wrappers[size] = wrapper = BatchDecodeWithPagedKVCacheWrapper(
            workspace, kv_indptr[: size + 1], kv_indices, last[:size]
        )
        plan(wrapper, BatchDecodeWithPagedKVCacheWrapper.plan)
        graphs[size] = sg.HostGraph()
        with sg.host_graph(graphs[size]):
            kv_indptr[1 : size + 1].copy_(lens[:size].cumsum(0))
            wrapper.run()
    for size, length in ((4, 5), (2, 16), (4, 5)):
        lens[:size].fill_(length)
        plan(wrappers[size], fast_decode_plan)
        graphs[size].replay()


if __name__ == "__main__":
    if sys.argv[1] == "child":
        child = multiprocessing.get_context("spawn").Process(target=serve)
        child.start()
        child.join()
        sys.exit(child.exitcode)
    try:
        serve()
    except RuntimeError:
        if sys.argv[1] == "crash":
            raise
        os.kill(os.getpid(), signal.SIGKILL)
