"""The operators that are noted are those that a profiler of torch's counts: every one that writes, once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from shadowgraph.graphs.observer.observer import OperatorObserver


def step(state: dict[str, torch.Tensor], at: int) -> None:
    """What a server does between two replays: copies, fills, indices, and results that it makes anew."""
    state["ids"].copy_(torch.arange(8) + at)
    state["table"][: at % 4 + 1] = at
    state["table"].index_put_((torch.tensor([0, 2]),), torch.ones(2, 16, dtype=torch.int32))
    torch.cumsum(state["ids"], 0, out=state["indptr"])
    state["scores"].mul_(0.5).add_(torch.softmax(torch.randn(8, 16), -1))
    torch._foreach_copy_([state["a"], state["b"]], [state["b"], state["a"]])
    state["mask"].zero_()
    state["mask"].masked_fill_(torch.ones(8, dtype=torch.bool), True)
    state["scores"].view(-1)[3:9].clamp_(max=1).tolist()


WRITES = {
    *("copy_", "fill_", "zero_", "masked_fill_", "clamp_", "mul_", "add_", "normal_", "cumsum"),
    *("index_put_", "_index_put_impl_", "_foreach_copy_"),
}


def test_every_operator_that_a_profiler_counts_is_noted(observer: OperatorObserver) -> None:
    state = {
        "ids": torch.zeros(8, dtype=torch.int64), "indptr": torch.zeros(8, dtype=torch.int64),
        "table": torch.zeros((4, 16), dtype=torch.int32), "scores": torch.zeros(8, 16),
        "a": torch.zeros(4), "b": torch.ones(4), "mask": torch.zeros(8, dtype=torch.bool),
    }  # fmt: skip
    step(state, 0)
    before = observer.latest_sequence()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        for at in range(12):
            step(state, at)
    noted = Counter(each.launch.name.split(".")[1] for each in observer.since(before))
    assert observer.failures == 0
    assert noted == counted(profiled)
    assert sum(noted.values()) > 100, "invalid: too little was done"


def counted(profiled: profile) -> Counter[str]:
    """The operators that write and are not called by another one of those."""
    return Counter(
        named(each) for each in profiled.events() if named(each) in WRITES and not is_inside(each.cpu_parent)
    )


def is_inside(event: Any) -> bool:
    return event is not None and (named(event) in WRITES or is_inside(event.cpu_parent))


def named(event: Any) -> str:
    return str(event.name).removeprefix("aten::")
