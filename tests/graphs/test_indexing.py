"""Index rules against what torch itself accepts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from shadowgraph.graphs.dispatch.indexing import IndexUse, index_uses, takes_indices

TARGET = torch.arange(12.0).reshape(3, 4)


class Listing(TorchDispatchMode):
    """Notes the index uses of every operator before it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.uses: list[IndexUse] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        names = [argument.name for argument in func._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
        if takes_indices(str(func)):
            self.uses += index_uses(str(func), given)
        return func(*args, **(kwargs or {}))


def index(*values: int) -> torch.Tensor:
    return torch.tensor(values)


CALLS: dict[str, Any] = {
    "scatter_": lambda at: TARGET.clone().scatter_(1, at[None, :], 0.0),
    "scatter src": lambda at: TARGET.scatter(-1, at[None, :], torch.ones(1, len(at))),
    "scatter_add": lambda at: TARGET.scatter_add(1, at[None, :], torch.ones(1, len(at))),
    "gather": lambda at: TARGET.gather(1, at[None, :]),
    "index_select": lambda at: TARGET.index_select(1, at),
    "index_add": lambda at: TARGET.index_add(1, at, torch.ones(3, len(at))),
    "index_copy_": lambda at: TARGET.clone().index_copy_(1, at, torch.ones(3, len(at))),
    "advanced": lambda at: TARGET[:, at],
    "advanced put": lambda at: TARGET.clone().index_put_((torch.zeros_like(at), at), torch.ones(len(at))),
    "embedding": lambda at: torch.nn.functional.embedding(at, TARGET.T.contiguous()),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_the_rule_forbids_torch_refuses_and_nothing_else(name: str) -> None:
    for value in (-5, -4, -1, 0, 3, 4, 1000):
        with Listing() as listing:
            try:
                CALLS[name](index(0, value))
                refused = False
            except (IndexError, RuntimeError):
                refused = True
        (use,) = [use for use in listing.uses if use.high == 4]
        allowed = use.low <= value < use.high
        assert allowed == (not refused), f"{value}: {use}"
        assert use.index.tolist() in ([0, value], [[0, value]])


def test_dimensions_are_counted_past_masks_and_slices() -> None:
    cube = torch.zeros(2, 3, 5, 7)
    with Listing() as listing:
        _ = cube[:, :, index(1)]
        _ = cube[torch.ones(2, 3, dtype=torch.bool), index(4)]
    assert [(use.argument, use.dim, use.high) for use in listing.uses] == [("indices[2]", 2, 5), ("indices[1]", 2, 5)]


def test_take_counts_all_elements_from_both_ends() -> None:
    with Listing() as listing:
        TARGET.take(index(-12, 11))
    (use,) = listing.uses
    assert (use.dim, use.low, use.high) == (None, -12, 12)
    rule = use.rule()
    assert (rule.argument, rule.index.start, rule.target.start) == ("index", use.index.data_ptr(), TARGET.data_ptr())


def test_nothing_to_look_at() -> None:
    with Listing() as listing:
        TARGET.index_select(0, torch.empty(0, dtype=torch.int64))
        TARGET.add(1)
    assert listing.uses == []
    assert not takes_indices("aten.add.Tensor")
    assert not takes_indices("sgl_kernel.gather.default")
