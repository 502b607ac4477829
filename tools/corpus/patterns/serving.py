"""What servers do: a graph for each batch size over prefixes of the same buffers, decode loops, planned page tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from corpus.env import Env, seed_all
from corpus.patterns.registry import mlp, pattern

VOCABULARY, WIDTH = 64, 16
# What rows without a request hold.
PADS = {"input_ids": 0, "positions": 0, "seq_lens": 1, "out_cache_loc": 0}
SIZES = {"four": [8, 4, 2, 1], "two": [4, 2], "large": [16, 8]}


def _zero(target: torch.Tensor, value: torch.Tensor, pad: int, size: int) -> None:
    target.fill_(pad) if pad else target.zero_()
    target[: len(value)].copy_(value)


def _fill(target: torch.Tensor, value: torch.Tensor, pad: int, size: int) -> None:
    target[len(value) :].fill_(pad)
    target[: len(value)].copy_(value)


def _full(target: torch.Tensor, value: torch.Tensor, pad: int, size: int) -> None:
    whole = torch.full_like(target, pad)
    whole[: len(value)] = value
    target.copy_(whole)


def _where(target: torch.Tensor, value: torch.Tensor, pad: int, size: int) -> None:
    whole = F.pad(value, (0, len(target) - len(value)), value=pad)
    real = torch.arange(len(target), device=target.device) < len(value)
    target.copy_(torch.where(real, whole, torch.full_like(whole, pad)))


def _tail(target: torch.Tensor, value: torch.Tensor, pad: int, size: int) -> None:
    target[: len(value)] = value
    if len(value) < size:
        target[len(value) : size] = pad


PADDING = {"zero": _zero, "fill": _fill, "full": _full, "where": _where, "tail": _tail}


@pattern(*(f"{sizes}-{pad}" for sizes in SIZES for pad in PADDING))
def batches(env: Env, how: str) -> None:
    """Several graphs over prefixes of the same buffers, in one pool, replayed by how many requests there are."""
    name, pad = how.split("-")
    sizes, dev = SIZES[name], env.device
    most = max(sizes)
    model = mlp(env, WIDTH, VOCABULARY)
    with env.guarded():
        embedding = nn.Embedding(VOCABULARY, WIDTH).to(dev)
        input_ids = torch.zeros(most, dtype=torch.int64, device=dev)
        positions = torch.zeros(most, dtype=torch.int64, device=dev)
        lengths = torch.ones(most, dtype=torch.int32, device=dev)
        slots = torch.zeros(most, dtype=torch.int32, device=dev)
        cache = torch.zeros(33, WIDTH, device=dev)
        logits = torch.zeros(most, VOCABULARY, device=dev)
    buffers = {"input_ids": input_ids, "positions": positions, "seq_lens": lengths, "out_cache_loc": slots}
    env.name("runner", {**buffers, "cache": cache})

    def step(n: int) -> Any:
        with torch.no_grad():
            x = embedding(input_ids[:n]) + positions[:n, None].float() * 0.01
            cache.index_copy_(0, slots[:n].long(), x)
            logits[:n].copy_(model(x + cache[slots[:n].long()]) / lengths[:n, None])
            return logits[:n].argmax(-1)

    pool, graphs = env.pool(), {}
    for n in sizes:
        env.warm(lambda n=n: step(n), 1)  # type: ignore[misc]
        graphs[n] = env.capture(lambda n=n: step(n), pool=pool)  # type: ignore[misc]
        cache.zero_()
    for turn in range(8):
        seed_all(400 + turn)
        real = int(1 + torch.randint(0, most, ()).item())
        n = min(size for size in sizes if size >= real)
        requests = _requests(real, dev)
        with env.prepare(graphs[n]):
            for key, value in requests.items():
                PADDING[pad](buffers[key], value, PADS[key], n)
        token = graphs[n].replay()
        env.keep(f"token{turn}", token[:real])
        env.keep(f"logits{turn}", logits[:real])


def _requests(real: int, dev: str) -> dict[str, torch.Tensor]:
    return {
        "input_ids": torch.randint(1, VOCABULARY, (real,), device=dev),
        "positions": torch.randint(1, 50, (real,), device=dev),
        "seq_lens": torch.randint(2, 50, (real,), dtype=torch.int32, device=dev),
        "out_cache_loc": (torch.randperm(32, device=dev)[:real] + 1).int(),
    }


@pattern("device", "host-writes", "host-reads-after", "host-reads-both", "list", "numpy")
def decode(env: Env, how: str) -> None:
    """Attention over a cache, one token a replay: fed back in the graph, or by the host in several ways."""
    batch, longest, vocabulary, dev = 3, 32, 50, env.device
    seed_all(31)
    with env.guarded():
        embedding, head = nn.Embedding(vocabulary, WIDTH).to(dev), nn.Linear(WIDTH, vocabulary).to(dev)
        qkv = nn.Linear(WIDTH, 3 * WIDTH).to(dev)
        k, v = (torch.zeros(batch, longest, WIDTH, device=dev) for _ in range(2))
        token = torch.tensor([3, 7, 11], device=dev)
        position = torch.zeros(1, dtype=torch.int64, device=dev)
    env.name("decode", {"k": k, "v": v, "token": token, "position": position})
    in_graph = how not in ("host-writes", "numpy")

    @torch.no_grad()
    def body() -> Any:
        x = embedding(token)
        q, new_k, new_v = qkv(x).chunk(3, -1)
        k.index_copy_(1, position, new_k[:, None])
        v.index_copy_(1, position, new_v[:, None])
        score = (k @ q[:, :, None])[..., 0] / WIDTH**0.5
        score = score.masked_fill(torch.arange(longest, device=dev) > position, -1e9)
        chosen = head(x + (score.softmax(-1)[:, None] @ v)[:, 0]).argmax(-1)
        if in_graph:
            token.copy_(chosen)
        position.add_(1)
        return chosen

    env.warm(body, 1)
    graph = env.capture(body)
    token.copy_(torch.tensor([3, 7, 11], device=dev))
    position.zero_()
    if how == "host-reads-both":
        env.keep("start", token.tolist())
    for i in range(6):
        chosen = graph.replay()
        if how in ("host-reads-after", "host-reads-both", "list"):
            env.keep(f"token{i}", token.tolist() if how == "list" else [token.cpu()])
        elif not in_graph:
            token.copy_(chosen if how == "host-writes" else torch.from_numpy(chosen.cpu().numpy()))
        env.keep(f"chosen{i}", chosen)
    env.note("cache", [k, v, position])


# Tokens before the first step, and after each.
TOKENS = {
    "same-first": ([5, 9], [[5, 9], [6, 9], [7, 2]]),
    "repeats": ([1, 2], [[3, 4], [3, 4], [3, 5]]),
    "constant-start": ([5, 5], [[5, 5], [6, 5], [7, 7]]),
    "counter-start": ([5, 9], [[5, 9], [6, 10], [7, 11]]),
}


@pattern(*TOKENS)
def feedback(env: Env, how: str) -> None:
    """The host reads tokens after each step only; the model may choose the same token twice."""
    start, rows = (torch.tensor(values, device=env.device) for values in TOKENS[how])
    token, table = env.static(start), env.static(rows)
    position = env.static(torch.zeros(1, dtype=torch.int64, device=env.device))
    env.name("loop", {"token": token, "table": table, "position": position})

    def body() -> Any:
        token.copy_(table.index_select(0, position)[0])
        position.add_(1)
        return token * 2

    env.warm(body, 1)
    position.zero_()
    token.copy_(start)
    graph = env.capture(body)
    for i in range(3):
        env.keep(f"out{i}", graph.replay())
        env.keep(f"token{i}", token.tolist())


def _rebuild(indptr: torch.Tensor, pages: torch.Tensor) -> None:
    indptr.copy_(torch.cat([torch.zeros(1, dtype=torch.int64), pages.cumsum(0)]).int())


def _cumsum(indptr: torch.Tensor, pages: torch.Tensor) -> None:
    indptr[1:].copy_(torch.cumsum(pages, 0))


def _in_place(indptr: torch.Tensor, pages: torch.Tensor) -> None:
    indptr.zero_()
    for at, count in enumerate(pages.tolist()):
        indptr[at + 1] = indptr[at] + count


PLANNERS: dict[str, Callable[[torch.Tensor, torch.Tensor], None]] = {
    "rebuild": _rebuild,
    "in-place": _in_place,
    "cumsum": _cumsum,
    "graph": lambda indptr, pages: None,
}


@pattern(*PLANNERS)
def paged(env: Env, how: str) -> None:
    """Index pointers and page indices planned by the host, or in the graph."""
    batch, pages, per, dev = 4, 32, 4, env.device
    seed_all(33)
    with env.guarded():
        keys = torch.randn(pages, per, 8, device=dev)
        kv_indptr = torch.zeros(batch + 1, dtype=torch.int32, device=dev)
        kv_indices = torch.zeros(batch * 6, dtype=torch.int32, device=dev)
        last_page, lengths = (torch.ones(batch, dtype=torch.int32, device=dev) for _ in range(2))
        query = torch.zeros(batch, 8, device=dev)
    plans = {"_paged_kv_indptr_buf": kv_indptr, "_paged_kv_indices_buf": kv_indices}
    env.name("wrapper", {**plans, "_last": last_page, "lengths": lengths})

    def body() -> Any:
        if how == "graph":
            kv_indptr[1:].copy_(torch.cumsum((lengths + per - 1) // per, 0))
        at = torch.arange(6 * per, device=dev)
        page = kv_indptr[:-1, None] + (at // per)[None]
        page = kv_indices[page.clamp(max=kv_indices.numel() - 1).long()].long()
        read = keys[page, (at % per)[None].expand_as(page)]
        used = at[None] < (kv_indptr[1:] - kv_indptr[:-1] - 1)[:, None] * per + last_page[:, None]
        score = (read @ query[:, :, None])[..., 0].masked_fill(~used, -1e9).softmax(-1)
        return (score[:, None] @ read)[:, 0]

    def plan(i: int) -> None:
        seed_all(500 + i)
        new = torch.randint(1, 6 * per, (batch,))
        count = (new + per - 1) // per
        order, total = torch.randperm(pages), int(count.sum())
        lengths.copy_(new)
        PLANNERS[how](kv_indptr, count)
        kv_indices[:total].copy_(order[:total])
        last_page.copy_((new - 1) % per + 1)
        query.copy_(torch.randn(batch, 8))

    plan(0)
    env.warm(body, 1)
    graph = env.capture(body)
    for i in range(5):
        with env.prepare(graph):
            plan(i + 1)
            if i % 2 and how != "graph":
                env.keep(f"plan{i}", kv_indptr.tolist())
        env.keep(f"out{i}", graph.replay())
        env.note(f"indptr{i}", kv_indptr.tolist() if how != "graph" else kv_indptr)
