"""The clean programs: real uses of CUDA graphs in which nothing may be found.

A program is built once and stepped many times. It is handed a debugger, or what stands in for one, so that the same
code runs watched and unwatched. What a program needs beyond torch is imported where it is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers_cuda import captured, overflow, warm_kernels

# Read when cuBLAS makes a handle; without it results may differ between streams and runs.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

REPLAYS = 200
EVERY = 20  # replays from one comparison to the next
INPUTS = 7  # different inputs; prime to `EVERY`, so that compared replays saw different ones
ROOM = 256  # tokens that the language model's cache holds


def batches(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """`INPUTS` inputs, the same at every call."""
    made = torch.randn(INPUTS, *shape, generator=torch.Generator().manual_seed(11))
    return made.to(device="cuda", dtype=dtype)


@contextmanager
def deterministic() -> Iterator[None]:
    """Settings with which a program gives the same bits each time it runs."""
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before


@dataclass(frozen=True)
class Built:
    """A program that is ready to run.

    Attributes
    ----------
    static
        A static input that a debugger guards.
    step
        One prepare and one replay, given the replay's number from 1.
    outputs
        The tensors that hold the last step's results.
    keep
        What the graph reads and must live as long.
    """

    static: torch.Tensor
    step: Callable[[int], None]
    outputs: Callable[[], tuple[torch.Tensor, ...]]
    keep: Any = None


@dataclass(frozen=True)
class Ran:
    """A program that ran: copies of its outputs at every `EVERY`-th replay. Keeps its graphs alive."""

    built: Built
    seen: list[tuple[torch.Tensor, ...]]


def run(program: Callable[[Any], Built], debugger: Any, replays: int = REPLAYS, plant: int | None = None) -> Ran:
    """Build and step a program; in the prepare of replay `plant` 4 bytes are written past its static input."""
    warm_kernels()
    built = program(debugger)
    debugger.name("static", built.static)
    seen = []
    for replay in range(1, replays + 1):
        if replay == plant:
            overflow(built.static)
        built.step(replay)
        if replay % EVERY == 0:
            seen.append(tuple(output.detach().clone() for output in built.outputs()))
    torch.cuda.synchronize()
    return Ran(built, seen)


@torch.no_grad()
def language_model(debugger: Any) -> Built:
    """Greedy decoding with a small Llama, random weights and a static KV cache; the next token never leaves the GPU."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    sizes = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": ROOM}
    config = transformers.LlamaConfig(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, **sizes)
    device = torch.device("cuda")
    with debugger.guard():
        model = transformers.LlamaForCausalLM(config).eval().to(device)
        cache = transformers.StaticCache(config=config, max_cache_len=ROOM)
        cache.early_initialization(1, 2, 16, torch.float32, device)  # batch, KV heads, width of a head
        token = torch.full((1, 1), 7, device=device)
        position = torch.zeros((1, 1), dtype=torch.int64, device=device)
        mask = torch.zeros((1, 1, 1, ROOM), dtype=torch.bool, device=device)

    def forward() -> torch.Tensor:
        result = model(token, attention_mask=mask, position_ids=position, past_key_values=cache, use_cache=True)
        logits: torch.Tensor = result.logits
        return logits

    @torch.no_grad()
    def step(replay: int) -> None:
        position.fill_(replay - 1)
        mask[..., :replay] = True
        graph.replay()
        token.copy_(logits[:, -1].argmax(-1, keepdim=True))

    mask[..., :1] = True
    graph, logits = captured(forward)
    cache.reset()  # the runs before the capture counted as tokens
    return Built(token, step, lambda: (logits, token), (model, cache))


@torch.no_grad()
def resnet(debugger: Any) -> Built:
    """Inference with torchvision's ResNet-18, random weights."""
    models = pytest.importorskip("torchvision").models
    torch.manual_seed(4)
    with debugger.guard():
        model = models.resnet18(weights=None, num_classes=16).eval().to("cuda")
        images = torch.zeros(2, 3, 64, 64, device="cuda")
    data = batches(2, 3, 64, 64)
    graph, logits = captured(lambda: model(images))

    def step(replay: int) -> None:
        images.copy_(data[replay % INPUTS])
        graph.replay()

    return Built(images, step, lambda: (logits,), model)


def training(debugger: Any) -> Built:
    """Training steps: forward and backward from `make_graphed_callables`, the optimiser eager."""
    torch.manual_seed(5)
    with debugger.guard():
        model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).to("cuda")
        rows = torch.zeros(16, 32, device="cuda")
    data, target = batches(16, 32), batches(16, 8)[0]
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    forward: Any = torch.cuda.make_graphed_callables(model, (rows,))
    latest: list[torch.Tensor] = []

    def step(replay: int) -> None:
        rows.copy_(data[replay % INPUTS])
        optimiser.zero_grad(set_to_none=True)
        loss = (forward(rows) - target).square().mean()
        loss.backward()
        optimiser.step()
        latest[:] = [loss, *model.parameters()]

    return Built(rows, step, lambda: tuple(latest), (model, forward))


@torch.no_grad()
def compiled(debugger: Any) -> Built:
    """``torch.compile(mode="reduce-overhead")``: inductor captures with its own cudagraph trees."""
    from torch._inductor.cudagraph_trees import reset_cudagraph_trees

    torch._dynamo.reset()
    reset_cudagraph_trees()
    torch.manual_seed(6)
    with debugger.guard():
        layers = torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64)
        model = torch.nn.Sequential(*layers).eval().to("cuda")
        rows = torch.zeros(8, 64, device="cuda")
    data = batches(8, 64)
    forward = torch.compile(model, mode="reduce-overhead")
    latest: list[torch.Tensor] = []

    @torch.no_grad()
    def step(replay: int) -> None:
        rows.copy_(data[replay % INPUTS])
        torch.compiler.cudagraph_mark_step_begin()
        latest[:] = [forward(rows).clone()]  # the next step overwrites what it returned

    for _ in range(3):  # compiles, warms up, captures
        step(0)
    return Built(rows, step, lambda: tuple(latest), (model, forward))


@torch.no_grad()
def attention(debugger: Any) -> Built:
    """Causal scaled dot-product attention in half precision."""
    data = batches(2, 4, 128, 64, dtype=torch.float16)
    with debugger.guard():
        query, key, value = (torch.zeros_like(data[0]) for _ in range(3))
    key.copy_(data[0])
    value.copy_(data[1])
    graph, out = captured(lambda: F.scaled_dot_product_attention(query, key, value, is_causal=True))

    def step(replay: int) -> None:
        query.copy_(data[replay % INPUTS])
        graph.replay()

    return Built(query, step, lambda: (out,), (key, value))


def triton_matmul(debugger: Any) -> Built:
    """A matrix product in Triton into a tensor that the capture allocates."""
    from kernels_cuda import matmul

    size, block = 128, 32
    data = batches(size, size, dtype=torch.float16)
    with debugger.guard():
        left, right = torch.zeros_like(data[0]), torch.zeros_like(data[0])
    right.copy_(data[0])

    def body() -> torch.Tensor:
        out = torch.empty(size, size, device="cuda")
        matmul[(size // block, size // block)](left, right, out, size, size, BLOCK=block)
        return out

    graph, out = captured(body)

    def step(replay: int) -> None:
        left.copy_(data[replay % INPUTS])
        graph.replay()

    return Built(left, step, lambda: (out,), right)


@torch.no_grad()
def streams(debugger: Any) -> Built:
    """A capture that forks to two more streams and joins them again."""
    data = batches(64, 64)
    with debugger.guard():
        rows, first, second = (torch.zeros_like(data[0]) for _ in range(3))
    first.copy_(data[0])
    second.copy_(data[1])
    sides = torch.cuda.Stream(), torch.cuda.Stream()

    def body() -> list[torch.Tensor]:
        main, parts = torch.cuda.current_stream(), []
        for side, weight in zip(sides, (first, second), strict=True):
            side.wait_stream(main)
            with torch.cuda.stream(side):
                parts.append(torch.relu(rows @ weight) @ weight)
        for side in sides:
            main.wait_stream(side)
        return [*parts, parts[0] + parts[1]]

    graph, outs = captured(body)

    def step(replay: int) -> None:
        rows.copy_(data[replay % INPUTS])
        graph.replay()

    return Built(rows, step, lambda: tuple(outs), (first, second, sides))


PROGRAMS: dict[str, Callable[[Any], Built]] = {
    "language-model": language_model,
    "resnet": resnet,
    "training": training,
    "compiled": compiled,
    "attention": attention,
    "triton-matmul": triton_matmul,
    "streams": streams,
}
