"""Constants, dtypes, layouts, libraries and modes: what a replay computes is bit for bit what eager code computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from replaying import Program, Programs, State, assert_same, capture, check

programs = Programs()


def floats(*shape: int) -> Any:
    return lambda: {"x": torch.randn(*shape)}


def pair(*shape: int) -> Any:
    return lambda: {"x": torch.randn(*shape), "y": torch.randn(*shape)}


# -- constants, dtypes, layouts ----------------------------------------------------------------------------------------


@programs.add(floats(4))
def constants(s: State) -> Any:
    scale = torch.tensor([1.0, 2.0, 3.0, 4.0])
    counter = torch.tensor(0)
    counter += 1  # starts anew at each replay, as the code does when it runs
    scale[1].add_(s["x"][0])
    return (
        s["x"] * scale,
        counter,
        torch.as_tensor([1, 2]).to(torch.float32),
        torch.tensor([True]),
        s["x"] + torch.tensor(2),
    )


@programs.add(lambda: {"x": torch.tensor(2.5), "n": torch.tensor(3)})
def zero_dimensional(s: State) -> Any:
    return (
        s["x"] * 2,
        s["x"] + s["n"],
        s["x"].expand(3) + 1,
        torch.full((2,), 1.0) * s["x"],
        s["n"].add_(1),
        s["x"].reshape(1),
    )


@programs.add(lambda: {"x": torch.randn(0, 4), "y": torch.randn(3, 4)})
def empty_tensors(s: State) -> Any:
    return (
        s["x"] + 1,
        s["x"].sum(),
        s["x"] @ s["y"].t(),
        torch.cat([s["x"], s["y"]]),
        s["x"].mean(0),
        torch.empty(0, 3).t() * 2,
    )


@programs.add(
    lambda: {"b": torch.rand(8) > 0.4, "h": torch.randn(8).bfloat16(), "i": torch.arange(8, dtype=torch.int8)}
)
def small_dtypes(s: State) -> Any:
    b, h, i = s["b"], s["h"], s["i"]
    b.logical_not_()
    half = h.half() + 1
    return (
        b & (h > 0),
        h * h,
        h.float() @ h.float(),
        i << 1,
        half,
        h.sum(),
        b.sum(),
        i.to(torch.uint8),
        h.to(torch.float8_e4m3fn).float(),
    )


@programs.add(lambda: {"z": torch.randn(4, 3, dtype=torch.complex64)})
def complex_and_conjugate(s: State) -> Any:
    z = s["z"]
    w = z.conj() * 2
    z.conj().add_(1j)
    return w, z.conj(), z.mH @ z, torch.view_as_real(z) + 1, z.imag.neg(), z.conj().imag, z.real.abs(), z.conj().clone()


def strided() -> State:
    base = torch.randn(6, 10)
    return {"base": base, "column": base[:, ::3], "turned": base.t()[1:4], "wide": torch.randn(5, 1).expand(5, 7)}


@programs.add(strided)
def strided_and_expanded(s: State) -> Any:
    s["column"].mul_(2)
    s["turned"][0] += 1
    lonely = s["base"][:, :1].expand(6, 10)
    return (
        s["column"] @ s["column"].t(),
        s["turned"].sum(1),
        s["wide"] + 1,
        lonely * 2,
        s["wide"].contiguous(),
        lonely.cumsum(1),
    )


@programs.add(
    lambda: {"x": torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last), "w": torch.randn(4, 3, 3, 3)}
)
def conv_channels_last(s: State) -> Any:
    y = torch.nn.functional.conv2d(s["x"], s["w"], padding=1)
    return (
        y,
        torch.nn.functional.max_pool2d(y, 2, return_indices=True),
        torch.nn.functional.interpolate(y, scale_factor=2),
    )


# -- libraries ---------------------------------------------------------------------------------------------------------


@programs.add(floats(5, 5))
def linalg(s: State) -> Any:
    x = s["x"]
    spd = x @ x.t() + 5 * torch.eye(5)
    return (
        torch.linalg.inv(spd), torch.linalg.cholesky(spd), torch.linalg.qr(x), torch.linalg.svd(x), torch.linalg.det(x),
        torch.linalg.solve(spd, x), torch.linalg.eigh(spd), torch.linalg.matrix_norm(x), torch.linalg.inv_ex(spd).info,
        torch.kron(x, x), torch.linalg.solve_triangular(spd.triu(), x, upper=True),
    )  # fmt: skip


@programs.add(floats(4, 16))
def fft(s: State) -> Any:
    spectrum = torch.fft.rfft(s["x"])
    return (
        spectrum,
        torch.fft.irfft(spectrum * 2, n=16),
        torch.fft.fft2(s["x"]).conj(),
        torch.stft(s["x"], 8, return_complex=True, window=torch.ones(8)),
    )


@programs.add(floats(3, 5))
def einsum_and_matmul(s: State) -> Any:
    x = s["x"]
    batch = x.expand(2, 3, 5)
    return (
        torch.einsum("ij,kj->ik", x, x),
        batch @ x.t(),
        torch.baddbmm(torch.ones(2, 3, 3), batch, batch.mT),
        torch.cdist(x, x),
        x.addr(x[:, 0], x[0]),
    )


@programs.add(lambda: {"x": torch.randn(4, 6), "g": torch.Generator().manual_seed(3)})
def random_numbers(s: State) -> Any:
    x = s["x"]
    noise = torch.randn(4, 6) + torch.rand_like(x)
    x.bernoulli_(0.5)
    own = torch.rand(3, generator=s["g"])
    return (
        noise,
        own,
        torch.randperm(9),
        torch.multinomial(torch.ones(5), 2),
        torch.nn.functional.dropout(x, 0.3),
        torch.empty(4).normal_(),
    )


# -- modes -------------------------------------------------------------------------------------------------------------


@programs.add(pair(4, 6))
def inference_mode(s: State) -> Any:
    with torch.inference_mode():
        y = s["x"].t().reshape(4, 6).contiguous() + 1
        y.add_(s["y"]).mul_(2)
        s["x"].mul_(3)
        return (
            torch.nn.functional.linear(y, s["y"]),
            y.view(-1)[::2].add_(1),
            y.to(torch.float64),
            y.expand(2, 4, 6).flatten(),
        )


@programs.add(lambda: {"x": torch.randn(2, 3, 4, 5)})
def composite_kernels_in_inference_mode(s: State) -> Any:
    with torch.inference_mode():
        return [
            torch.nn.functional.interpolate(s["x"], scale_factor=1.7, mode=m)
            for m in ("nearest", "bilinear", "bicubic")
        ]


@programs.add(pair(4, 6))
def no_grad_and_autocast(s: State) -> Any:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        return s["x"] @ s["y"].t(), (s["x"] @ s["y"].t()).float().softmax(0)


@pytest.mark.parametrize("program", programs, ids=lambda program: program.name)
def test_replay_is_bit_identical_to_eager(program: Program) -> None:
    check(program)


def test_replay_does_not_follow_the_callers_autocast() -> None:
    x = torch.randn(4, 4)

    def matmul(s: State) -> Any:
        return s["x"] @ s["x"]

    graph, out = capture(Program("matmul", floats(4, 4), matmul), {"x": x})
    with torch.autocast("cpu", dtype=torch.bfloat16):
        graph.replay()
    assert_same(out, x @ x, "matmul under autocast")
