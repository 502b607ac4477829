"""Models of torchvision with random weights, some of them trained. Without torchvision all are skipped."""

from __future__ import annotations

import sys
import types
from typing import Any

import torch
from torch import nn

from corpus.env import REPLAYS, Env, Skip, seed_all
from corpus.sources import Made

VISION: dict[str, dict[str, Any]] = {
    "resnet18": {},
    "resnet50": {},
    "mobilenet_v2": {},
    "mobilenet_v3_small": {},
    "shufflenet_v2_x0_5": {},
    "squeezenet1_1": {},
    "mnasnet0_5": {},
    "efficientnet_b0": {},
    "densenet121": {},
    "googlenet": {"init_weights": False, "aux_logits": False},
    "regnet_y_400mf": {},
    "convnext_tiny": {},
    "swin_t": {},
    "swin_v2_t": {},
    "vit_b_16": {"image_size": 32},
    "alexnet": {},
    "vgg11": {},
    "inception_v3": {"init_weights": False, "aux_logits": False},
    "maxvit_t": {"input_size": (32, 32)},
    "wide_resnet50_2": {},
    "resnext50_32x4d": {},
    "efficientnet_v2_s": {},
    "mobilenet_v3_large": {},
    "regnet_x_400mf": {},
}
SIZES = {"inception_v3": 96, "swin_t": 64, "swin_v2_t": 64, "alexnet": 64, "vgg11": 32, "squeezenet1_1": 48}
TRAINED = (
    "resnet18",
    "mobilenet_v2",
    "squeezenet1_1",
    "shufflenet_v2_x0_5",
    "densenet121",
    "efficientnet_b0",
    "swin_t",
    "regnet_y_400mf",
)


def ids() -> list[str]:
    return [f"vision/{name}/eval" for name in VISION] + [f"vision/{name}/train" for name in TRAINED]


def models() -> Any:
    """``torchvision.models``; also with a build whose C extension does not fit this torch: models need none of it."""
    try:
        import torchvision.models
    except ImportError as error:
        raise Skip(f"torchvision: {error}") from error
    except RuntimeError:  # the operators that its meta registrations describe are not there
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        sys.modules["torchvision._meta_registrations"] = types.ModuleType("torchvision._meta_registrations")
        try:
            import torchvision.models
        except Exception as error:
            raise Skip(f"torchvision: {type(error).__name__}: {error}") from error
    return torchvision.models


def program(pid: str) -> Made:
    """A program: ``vision/NAME/MODE``."""
    _, name, mode = pid.split("/")
    return Made(lambda env: run_vision(env, name, mode == "train"), True)


def run_vision(env: Env, name: str, training: bool) -> None:
    make = getattr(models(), name, None)
    if make is None:
        raise Skip("not in this torchvision")
    seed_all(7)
    with env.guarded():
        model = make(weights=None, num_classes=10, **VISION[name]).to(env.device)
    model.train(training)
    size = SIZES.get(name, 32)
    x = env.static(torch.randn(2, 3, size, size, device=env.device))
    labels = env.static(torch.tensor([1, 2], device=env.device))
    env.name("model", model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01) if training else None

    def body() -> Any:
        if not training:
            with torch.no_grad():
                return model(x)
        optimizer.zero_grad(set_to_none=True)
        out = model(x)
        loss = nn.functional.cross_entropy(out, labels)
        loss.backward()
        optimizer.step()
        return out.detach(), loss.detach()

    seed_all(1)
    env.warm(body, 2 if training else 1)
    graph = env.capture(body)
    for i in range(REPLAYS):
        seed_all(300 + i)
        with env.prepare(graph), torch.no_grad():
            x.copy_(torch.randn(2, 3, size, size, device=env.device))
            labels.copy_(torch.randint(0, 10, (2,), device=env.device))
        env.keep(f"out{i}", graph.replay(seed=1000 + i))
    if training:
        env.note("parameters", [p.detach() for p in list(model.parameters())[:8]])
        env.note("buffers", list(model.buffers())[:8])
