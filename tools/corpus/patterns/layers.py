"""One layer, sampler or formula a program: what models are made of, without gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from corpus.env import REPLAYS, Env, seed_all
from corpus.patterns.registry import pattern


@dataclass
class Given:
    """Static buffers and the module."""

    module: Any
    x: torch.Tensor
    image: torch.Tensor
    tokens: torch.Tensor
    state: torch.Tensor

    def logits(self) -> torch.Tensor:
        logits: torch.Tensor = self.module(self.x[:, -1])
        return logits


MODULES: dict[str, Callable[[], nn.Module]] = {
    "transformer": lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True),
    "decoder": lambda: nn.TransformerDecoderLayer(16, 4, 32, batch_first=True),
    "lstm": lambda: nn.LSTM(16, 8, 2, batch_first=True, bidirectional=True),
    "gru": lambda: nn.GRU(16, 8, batch_first=True),
    "conv": lambda: nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 1, groups=4)
    ),
    "convt": lambda: nn.ConvTranspose2d(4, 3, 3, 2),
    "mha": lambda: nn.MultiheadAttention(16, 4, batch_first=True),
    "groupnorm": lambda: nn.GroupNorm(2, 4),
    "embeddingbag": lambda: nn.EmbeddingBag(20, 8, mode="mean"),
    "bilinear": lambda: nn.Bilinear(16, 16, 4),
    "rmsnorm": lambda: nn.RMSNorm(16),
    "moe": lambda: nn.ModuleList([nn.Linear(16, 16) for _ in range(4)]),
}


def _lstm(g: Given) -> Any:
    out, (h, c) = g.module(g.x, (g.state, g.state))
    g.state.copy_(h.clamp(-1, 1))
    return out, c


def _gru(g: Given) -> Any:
    out, h = g.module(g.x, g.state[:1])
    g.state[:1].copy_(h)
    return out


def _attention(g: Given, grouped: bool = False, masked: bool = False, causal: bool = False) -> Any:
    q = g.x.view(2, 6, 4, 4).transpose(1, 2)
    k = q[:, :2] if grouped else q.flip(2)
    mask = (g.tokens[:, None, None, :] > 3) if masked else None
    out = F.scaled_dot_product_attention(q, k, k, attn_mask=mask, is_causal=causal, enable_gqa=grouped)
    return out.nan_to_num()


def _interpolate(g: Given) -> Any:
    return F.interpolate(g.image, scale_factor=2, mode="bilinear"), F.interpolate(g.image, size=5, mode="nearest")


def _grid_sample(g: Given) -> Any:
    turn = torch.eye(2, 3, device=g.x.device).expand(2, 2, 3)
    return F.grid_sample(g.image, F.affine_grid(turn, [2, 4, 5, 5], align_corners=False), align_corners=False)


def _losses(g: Given) -> Any:
    crossed = F.cross_entropy(g.x[:, :, :10].reshape(-1, 10), (g.tokens % 10).view(-1))
    return crossed, F.nll_loss(g.x.log_softmax(-1).view(12, 16), (g.tokens % 16).view(-1))


def _experts(g: Given) -> Any:
    gate = g.x[..., :4].softmax(-1)
    weight, index = gate.topk(2, -1)
    weights = torch.zeros_like(gate).scatter_(-1, index, weight)
    return sum(weights[..., at : at + 1] * expert(g.x) for at, expert in enumerate(g.module))


def _rotary(g: Given) -> Any:
    dev = g.x.device
    angle = torch.arange(6, device=dev)[:, None] * (10000 ** (-torch.arange(0, 8, device=dev) / 8))
    a, b = g.x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def _sample(g: Given) -> Any:
    p = g.logits().softmax(-1)
    return (p / torch.empty_like(p).exponential_(1)).argmax(-1)


def _top_p(g: Given) -> Any:
    s, i = g.logits().softmax(-1).sort(descending=True)
    s = s.masked_fill(s.cumsum(-1) - s > 0.8, 0)
    return i.gather(-1, (s / s.sum(-1, keepdim=True)).argmax(-1, keepdim=True))


def _beam(g: Given) -> Any:
    score, index = g.logits().log_softmax(-1).view(-1).topk(3)
    return score, index // 20, index % 20


def _solve(g: Given) -> Any:
    a = g.x[:, :, :6] @ g.x[:, :, :6].mT + torch.eye(6, device=g.x.device)
    return torch.linalg.cholesky(a), torch.linalg.solve_triangular(a.tril(), a, upper=False)


def _buckets(g: Given) -> Any:
    edges = torch.linspace(-2, 2, 9, device=g.x.device)
    return torch.bucketize(g.x, edges), torch.searchsorted(g.x.sort(-1).values, g.x)


LAYERS: dict[str, Callable[[Given], Any]] = {
    "transformer": lambda g: g.module(g.x),
    "decoder": lambda g: g.module(g.x, g.x.flip(1)),
    "lstm": _lstm,
    "gru": _gru,
    "conv": lambda g: g.module(g.image),
    "convt": lambda g: g.module(g.image),
    "mha": lambda g: g.module(g.x, g.x, g.x, need_weights=True),
    "sdpa": lambda g: _attention(g, causal=True),
    "sdpa-mask": lambda g: _attention(g, masked=True),
    "sdpa-gqa": lambda g: _attention(g, grouped=True),
    "groupnorm": lambda g: g.module(g.image),
    "embeddingbag": lambda g: g.module(g.tokens),
    "bilinear": lambda g: g.module(g.x, g.x),
    "interpolate": _interpolate,
    "gridsample": _grid_sample,
    "pixelshuffle": lambda g: (F.pixel_shuffle(g.image, 2), F.pad(g.image, (1, 2, 0, 1), mode="reflect")),
    "fold": lambda g: F.fold(F.unfold(g.image, 3, padding=1), (8, 8), 3, padding=1),
    "losses": _losses,
    "moe": _experts,
    "rope": _rotary,
    "rmsnorm": lambda g: g.module(g.x),
    "sampling": _sample,
    "multinomial": lambda g: torch.multinomial(g.logits().softmax(-1), 3, replacement=True),
    "gumbel": lambda g: F.gumbel_softmax(g.logits(), hard=True),
    "topk-topp": _top_p,
    "beam": _beam,
    "fft": lambda g: torch.fft.irfft(torch.fft.rfft(g.x, dim=-1) * 0.5, n=16, dim=-1),
    "linalg": _solve,
    "einsum": lambda g: (
        torch.einsum("bik,bjk->bij", g.x, g.x),
        torch.tensordot(g.x, g.x, dims=([0, 1], [0, 1])),
    ),
    "buckets": _buckets,
}


@pattern(*LAYERS, eager=True)
def layers(env: Env, how: str) -> None:
    dev = env.device
    seed_all(71)
    buffers = {
        "x": env.static(torch.randn(2, 6, 16, device=dev)),
        "image": env.static(torch.randn(2, 4, 8, 8, device=dev)),
        "tokens": env.static(torch.randint(0, 20, (2, 6), device=dev)),
    }
    with env.guarded():
        module = MODULES.get(how, lambda: nn.Linear(16, 20))().to(dev).eval()
    given = Given(module, **buffers, state=env.static(torch.zeros(4, 2, 8, device=dev)))
    env.name("layer", vars(given))

    @torch.no_grad()
    def body() -> Any:
        return LAYERS[how](given)

    env.warm(body, 1)
    given.state.zero_()
    graph = env.capture(body)
    for i in range(REPLAYS):
        seed_all(120 + i)
        with env.prepare(graph):
            given.x.copy_(torch.randn(2, 6, 16, device=dev))
            given.image.copy_(torch.randn(2, 4, 8, 8, device=dev))
            given.tokens.copy_(torch.randint(0, 20, (2, 6), device=dev))
        env.keep(f"out{i}", graph.replay(seed=1000 + i))
        env.note(f"state{i}", given.state)
