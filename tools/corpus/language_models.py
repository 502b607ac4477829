"""transformers: as many architectures as can be made tiny with random weights; a forward, and a decode step.

A decode step runs over a static cache; its token is fed back on the device, and the host reads it after each step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from corpus.env import REPLAYS, Captured, Env, NotCapturable, Skip, seed_all
from corpus.sources import Made
from corpus.tiny_models import build, model_types
from corpus.vision import models as torchvision_models

with suppress(Skip):  # transformers imports torchvision where it is installed; without its C extension that needs help
    torchvision_models()

_REFUSALS = (TypeError, ValueError, AttributeError, RuntimeError, AssertionError, IndexError)
_ways: dict[str, int] = {}  # how a type can be called, found by the first run of each
_Make = Callable[[], torch.Tensor]


def ids() -> list[str]:
    return [f"hf/{name}/{mode}" for name in model_types() for mode in ("forward", "decode")]


def program(pid: str) -> Made:
    """A program: ``hf/TYPE/forward`` or ``hf/TYPE/decode``."""
    _, name, mode = pid.split("/")
    run = run_decode if mode == "decode" else run_forward
    return Made(lambda env: run(env, name), mode == "forward")


def tensors(out: Any) -> list[torch.Tensor]:
    """The first tensors of an output."""
    found: list[torch.Tensor] = []

    def walk(value: Any, depth: int = 0) -> None:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple, dict)) and depth < 4:
            for each in value.values() if isinstance(value, dict) else value:
                walk(each, depth + 1)

    walk(out)
    return found[:6]


def run_forward(env: Env, name: str) -> None:
    with env.guarded():
        model = build(name, False, env.device)
    parameters = inspect.signature(model.forward).parameters
    seed_all(4)
    fresh = _inputs(name, model, parameters, env.device)
    inputs = {key: env.static(make()) for key, make in fresh.items()}
    env.name("inputs", inputs)
    env.name("model", model)
    ways = _ways_to_call(env, model, parameters)

    def body(extra: dict[str, Any]) -> Any:
        with torch.no_grad():
            return tensors(model(**inputs, **extra).to_tuple())

    graph = _captured(env, name, [lambda extra=extra: body(extra) for extra in ways])
    for i in range(REPLAYS):
        seed_all(300 + i)
        with env.prepare(graph), torch.no_grad():
            for key, value in inputs.items():
                value.copy_(fresh[key]())
        env.keep(f"out{i}", graph.replay(seed=1000 + i))


def _captured(env: Env, name: str, bodies: list[Callable[[], Any]]) -> Captured:
    """A capture of the first body that can be captured; later runs of the program begin with that one."""
    refused: NotCapturable | None = None
    for at in range(_ways.get(name, 0), len(bodies)):
        last = at + 1 == len(bodies)
        try:
            env.warm(bodies[at], 1)
            _ways[name] = at
            return env.capture(bodies[at])
        except NotCapturable as error:
            refused = refused or error
            if last:
                _ways.pop(name, None)
                raise
        except _REFUSALS:
            if env.kind in ("watched", "eager"):
                raise
            if last:
                _ways.pop(name, None)
                if refused is not None:
                    raise refused from refused.__cause__
                raise
    raise Skip("no way to call it")


def _inputs(name: str, model: Any, parameters: Any, device: str) -> dict[str, _Make]:
    """What makes each input of a model, anew at each call."""
    config, main = model.config, model.main_input_name
    text = getattr(config, "get_text_config", lambda: config)()
    vocab = min(int(getattr(text, "vocab_size", 0) or 128), 128)

    def tokens(length: int) -> _Make:
        return lambda: torch.randint(3, vocab, (2, length), device=device)

    if main == "input_ids":
        decoder = "decoder_input_ids" in parameters and getattr(config, "is_encoder_decoder", False)
        return {main: tokens(8), **({"decoder_input_ids": tokens(6)} if decoder else {})}
    if main == "pixel_values":
        shape = _picture(getattr(config, "vision_config", config), 64)
        return {main: lambda: torch.randn(shape, device=device)}
    if main == "input_values":
        return {main: lambda: torch.randn(2, 1600, device=device)}
    if main == "input_features":
        bins = int(getattr(config, "num_mel_bins", 0) or getattr(config, "input_feat_per_channel", 0) or 16)
        frames = 2 * int(getattr(config, "max_source_positions", 32) or 32)
        features = (2, bins, frames) if name.startswith(("whisper", "moonshine")) else (2, 32, bins)
        decoder = "decoder_input_ids" in parameters
        made: dict[str, _Make] = {main: lambda: torch.randn(features, device=device)}
        return {**made, **({"decoder_input_ids": tokens(6)} if decoder else {})}
    raise Skip(f"main input {main}")


def _picture(config: Any, largest: int) -> tuple[int, int, int, int]:
    size = getattr(config, "image_size", 32)
    size = size if isinstance(size, int) else (max(size) if size else 32)
    channels = int(getattr(config, "num_channels", 3) or 3)
    return 2, channels, min(size, largest), min(size, largest)


def _ways_to_call(env: Env, model: Any, parameters: Any) -> list[dict[str, Any]]:
    """Further arguments: of some models only one of these can be captured."""
    plain = {"use_cache": False} if "use_cache" in parameters else {}
    ways: list[dict[str, Any]] = [plain]
    of_text = model.main_input_name == "input_ids"
    if "attention_mask" in parameters and of_text:  # a mask of four dimensions is used as it is
        above = torch.ones(8, 8, device=env.device).triu(1).bool()
        mask = env.static(torch.zeros(2, 1, 8, 8, device=env.device).masked_fill(above, -1e9))
        ways.append({**plain, "attention_mask": mask})
    if "use_cache" in parameters:
        ways.append({"use_cache": True})
    if "pixel_values" in parameters and of_text:
        shape = _picture(getattr(model.config, "vision_config", model.config), 64)
        ways.append({**plain, "pixel_values": env.static(torch.randn(shape, device=env.device))})
    return ways


def run_decode(env: Env, name: str) -> None:
    """Prefill eagerly, then one captured step over a static cache, whose token is fed back on the device."""
    with env.guarded():
        model = build(name, True, env.device)
    parameters = inspect.signature(model.forward).parameters
    if "past_key_values" not in parameters:
        raise Skip("takes no past_key_values")
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    vocab = min(int(getattr(config, "vocab_size", 0) or 128), 128)
    seed_all(4)
    prompt = torch.randint(3, vocab, (2, 5), device=env.device)
    with env.guarded():
        cache = _static_cache(config, env.device)
        at = {"cache_position": torch.arange(5, device=env.device)} if "cache_position" in parameters else {}
        with torch.no_grad():
            out = model(input_ids=prompt, past_key_values=cache, use_cache=True, **at)
    token = env.static(out.logits[:, -1:].argmax(-1))
    position = env.static(torch.tensor([5], device=env.device))
    env.name("decode", {"token": token, "position": position})
    step = {"cache_position": position, "position_ids": position.view(1, 1)}
    step = {key: value for key, value in step.items() if key in parameters}

    def body() -> Any:
        with torch.no_grad():
            logits = model(input_ids=token, past_key_values=cache, use_cache=True, **step).logits
            token.copy_(logits[:, -1:].argmax(-1))
            position.add_(1)
            return logits

    env.warm(body, 1)
    graph = env.capture(body)
    for i in range(REPLAYS + 2):
        logits = graph.replay()
        env.keep(f"logits{i}", logits)
        env.keep(f"token{i}", token)


def _static_cache(config: Any, device: str) -> Any:
    from transformers import StaticCache

    try:
        return StaticCache(config=config, max_cache_len=24)
    except TypeError:
        return StaticCache(config=config, max_batch_size=2, max_cache_len=24, device=device, dtype=torch.float32)
