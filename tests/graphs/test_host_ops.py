"""Tensor operators: what a replay computes is bit for bit what the same code computes eagerly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from replaying import Program, Programs, State, check

pytestmark = pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
programs = Programs()


def floats(*shape: int) -> Any:
    return lambda: {"x": torch.randn(*shape)}


def pair(*shape: int) -> Any:
    return lambda: {"x": torch.randn(*shape), "y": torch.randn(*shape)}


# -- views and metadata ------------------------------------------------------------------------------------------------


@programs.add(floats(6, 8))
def views(s: State) -> Any:
    x = s["x"]
    a = x.t()[2:5].reshape(-1)  # a reshape that copies
    b = x.view(3, 16).unfold(1, 4, 2).transpose(0, 1)
    return (
        a,
        b + 1,
        x.as_strided((3, 3), (2, 1), 5),
        x.flatten().view(torch.int32),
        x.diagonal().flip(0),
        x[..., None, 1:3],
    )


@programs.add(floats(6, 8))
def writes_through_views(s: State) -> Any:
    fresh = torch.zeros(4, 6)
    fresh.t()[1:3].add_(s["x"][:2, :4])
    fresh.view(-1)[::5].mul_(3)
    s["x"].diagonal().fill_(7)
    return fresh, fresh[1]


@programs.add(floats(1, 4, 6))
def metadata_in_place(s: State) -> Any:
    y = s["x"] * 2
    y.squeeze_(0).t_().unsqueeze_(1).transpose_(0, 2).swapaxes_(0, 1)
    y.add_(1)
    z = (s["x"] + 1).squeeze_().as_strided_((3, 2), (2, 1))
    return y, y.sum(0), z, z * 2


@programs.add(floats(12))
def split_chunk_unbind_of_fresh(s: State) -> Any:
    y = (s["x"] * 3).view(3, 4)
    a, b = y.split(2)
    c, d = y.chunk(2, dim=1)
    rows = y.unbind()
    a.add_(1)
    rows[2].zero_()
    return a, b, c + d, rows, torch.ops.aten.unbind_copy.int(y, 1), torch.tensor_split(y, (1, 3), dim=1)


@programs.add(floats(4, 4))
def set_points_elsewhere(s: State) -> Any:
    a, b = s["x"] + 1, torch.empty(0)
    b.set_(a)
    b.mul_(2)
    c = torch.empty(0).set_(a.untyped_storage(), 4, (2, 2), (4, 1))
    c += 1
    return a, b, c


@programs.add(floats(4, 4))
def resize_grows_and_shrinks(s: State) -> Any:
    y = s["x"] + 1
    y.resize_(8, 4)
    y[4:] = s["x"] * 5
    z = s["x"] * 2
    z.resize_(2, 3).add_(1)
    blank = torch.empty(0).resize_(4, 4).copy_(s["x"])
    return y, z, blank, torch.empty(2).resize_as_(z).zero_()


# -- in-place and out= -------------------------------------------------------------------------------------------------


@programs.add(pair(5, 7))
def in_place(s: State) -> Any:
    x, y = s["x"], s["y"]
    x.add_(y).mul_(0.5).clamp_(-1, 1)
    y[1:3] = x[:2]
    y[0, 0] += 1
    x.copy_(y.flip(1))
    return torch.relu_(x * y), x.masked_fill_(y > 0, -9.0)


@programs.add(pair(4, 5))
def out_variants(s: State) -> Any:
    right, grown, wide = torch.empty(4, 5), torch.empty(0), torch.empty(40)
    torch.add(s["x"], s["y"], out=right)
    torch.mul(s["x"], s["y"], out=grown)
    torch.mm(s["x"], s["y"].t(), out=wide[:16].view(4, 4))
    values, indices = torch.empty(0), torch.empty(0, dtype=torch.long)
    torch.topk(s["x"], 2, out=(values, indices))
    torch.cat([right, grown], out=(joined := torch.empty(0)))
    torch.sum(s["x"], 1, out=right[:, 2])
    return right, grown, wide[:16], values, indices, joined


@programs.add(pair(4, 5))
def out_of_the_wrong_size(s: State) -> Any:
    small, large = torch.ones(2), torch.ones(64)
    torch.add(s["x"], s["y"], out=small)
    torch.sub(s["x"], s["y"], out=large)
    return small, large, small + large


@programs.add(pair(4, 5))
def out_into_inputs(s: State) -> Any:
    torch.exp(s["x"], out=s["y"])
    torch.linalg.vector_norm(s["y"], dim=1, out=s["x"][:, 0])
    return s["y"] + s["x"]


# -- indexing ----------------------------------------------------------------------------------------------------------


def indexed() -> State:
    return {"x": torch.randn(6, 8), "y": torch.randn(4, 8), "i": torch.tensor([0, 3, 3, 5])}


@programs.add(indexed)
def index_reads(s: State) -> Any:
    x, i = s["x"], s["i"]
    column = i[:, None].expand(4, 8)
    return (
        x[i],
        x[i, i],
        x[:, i],
        x.gather(0, column),
        x.index_select(1, i),
        x.take(i),
        x[i, 2:4],
        x.take_along_dim(column, 0),
    )


@programs.add(indexed)
def index_writes(s: State) -> Any:
    x, y, i = s["x"], s["y"], s["i"]
    fresh = torch.zeros(6, 8)
    fresh.index_put_((i,), y, accumulate=True)
    x[i] = 2.0
    x.index_put_((i, i), torch.tensor(1.5), accumulate=True)
    x.index_add_(0, i, y, alpha=2).index_fill_(1, i, 0.25)
    x.index_copy_(0, torch.arange(4), y)
    return fresh, x + 1


@programs.add(indexed)
def scatters(s: State) -> Any:
    x, y, column = s["x"], s["y"], s["i"][:, None].expand(4, 8)
    x.scatter_(0, column[:, :3], 4.0).scatter_add_(0, column, y)
    return (
        x.scatter(0, column[:1], y),
        x.scatter_reduce(0, column, y, "amax"),
        torch.zeros(6, 8).scatter_add(0, column, y),
    )


@programs.add(lambda: {"x": torch.randn(6), "m": torch.rand(6) > 0.5})
def masks_with_fixed_shapes(s: State) -> Any:
    x, m = s["x"], s["m"]
    x[m] = -1.0
    return (
        torch.where(m, x, 0),
        x.masked_fill(m, 2),
        m.logical_not() & (x > 0),
        m.sum(),
        torch.nonzero_static(m, size=3),
    )


# -- reductions and multiple outputs -----------------------------------------------------------------------------------


@programs.add(floats(6, 8))
def multiple_outputs(s: State) -> Any:
    x = s["x"]
    low, where = x.min(dim=0)
    return (
        x.topk(3),
        x.sort(descending=True),
        x.max(1),
        low * where,
        x.median(0),
        x.mode(0),
        torch.var_mean(x, 1),
        x.aminmax(),
    )


@programs.add(floats(6, 8))
def reductions(s: State) -> Any:
    x = s["x"]
    return (
        x.cumsum(0),
        x.cumprod(1),
        x.sum(),
        x.mean(0),
        x.std(),
        x.argmax(),
        x.any(),
        x.logsumexp(1),
        x.norm(),
        x.cummax(0),
    )


@programs.add(lambda: {"x": torch.randn(3, 4), "y": torch.randn(5), "z": torch.randn(2, 2)})
def foreach(s: State) -> Any:
    values = [s["x"], s["y"], s["z"]]
    fresh = torch._foreach_mul(values, 2.0)
    torch._foreach_add_(values, fresh, alpha=0.5)
    torch._foreach_lerp_(fresh, values, 0.25)
    torch._foreach_copy_(fresh[:1], [values[0].clone()])
    return fresh, torch._foreach_norm(values), torch._foreach_sqrt(torch._foreach_abs(values))


@programs.add(pair(3, 4))
def joins(s: State) -> Any:
    x, y = s["x"], s["y"]
    parts = torch.cat([x, y[:1], torch.empty(0)])
    return parts, torch.stack([x, y], 1), torch.hstack([x, y]), x.repeat(2, 1), x.tile(2), torch.block_diag(x, y)


@pytest.mark.parametrize("program", programs, ids=lambda program: program.name)
def test_replay_is_bit_identical_to_eager(program: Program) -> None:
    check(program)
