"""A real language model, its decode step captured: the same tokens as without shadowgraph, and nothing reported."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import shadowgraph as sg

# transformers remembers at import whether torchvision exists: the sglang stand-ins must be there first, where used.
pytestmark = pytest.mark.sglang

STEPS = 50


@pytest.fixture(scope="module")
def transformers() -> Any:
    from shadowgraph.demos.sglang.host import sglang_version
    from shadowgraph.demos.sglang.stub_modules import install_standins

    if sglang_version() is not None:
        install_standins()
    return pytest.importorskip("transformers")


def build(transformers: Any) -> Any:
    """A two-layer Llama with random weights."""
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    return transformers.LlamaForCausalLM(config).eval()


class Decoder:
    """Greedy decoding with a static KV cache; one step over static inputs."""

    def __init__(self, transformers: Any, model: Any) -> None:
        self.model = model
        self.cache = transformers.StaticCache(config=model.config, max_cache_len=64)
        self.token = torch.full((1, 1), 7)
        self.position = torch.zeros(1, dtype=torch.int64)
        self.mask = torch.zeros(1, 1, 1, 64, dtype=torch.bool)

    def step(self) -> torch.Tensor:
        output = self.model(
            self.token,
            attention_mask=self.mask,
            position_ids=self.position[None],
            past_key_values=self.cache,
            cache_position=self.position,
            use_cache=True,
        )
        logits: torch.Tensor = output.logits
        return logits

    def refresh(self, step: int, token: int) -> None:
        """Host side of the next step."""
        self.token.fill_(token)
        self.position.fill_(step)
        self.mask[..., : step + 1] = True


def decode(transformers: Any, debugger: sg.Debugger | None, captured: bool) -> list[torch.Tensor]:
    """Logits of every step."""
    with torch.no_grad():
        model = build(transformers)
        if debugger is not None:
            with debugger.guard():
                decoder = Decoder(transformers, model)
                decoder.step()  # lets the cache allocate its buffers
            debugger.name("decoder", decoder)
            debugger.protect(decoder.token)
        else:
            decoder = Decoder(transformers, model)
            decoder.step()
        for layer in decoder.cache.layers:
            layer.keys.zero_()
            layer.values.zero_()
        graph = sg.HostGraph()
        if captured:
            decoder.refresh(0, 7)
            with sg.host_graph(graph):
                logits = decoder.step()
        outputs = []
        token = 7
        for step in range(STEPS):
            decoder.refresh(step, token)
            if captured:
                graph.replay()
            else:
                logits = decoder.step()
            outputs.append(logits.clone())
            token = int(logits[0, -1].argmax())
    return outputs


@pytest.fixture(scope="module")
def eager(transformers: Any) -> list[torch.Tensor]:
    return decode(transformers, None, captured=False)


@pytest.mark.parametrize("layout", ["isolate", "faithful"])
def test_fifty_replays_are_bit_identical_and_silent(transformers: Any, eager: list[torch.Tensor], layout: str) -> None:
    plain = decode(transformers, None, captured=True)
    with sg.debug(backend="host", layout=layout) as debugger:
        watched = decode(transformers, debugger, captured=True)
        facts = debugger.report(quiet=True).facts
    assert len(watched) == STEPS
    assert len({int(output[0, -1].argmax()) for output in eager}) > 1, "the model says more than one thing"
    assert all(torch.equal(a, b) for a, b in zip(plain, eager, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(watched, plain, strict=True))
    assert facts.findings == ()
    assert facts.notes == ()
    assert facts.faults == {}
    assert facts.graphs[0][1] > 40
    assert facts.graphs[0][2] == STEPS
    assert facts.coverage.percent >= 99  # all but an 8-byte counter that the model allocates outside guard()


def test_an_overflow_in_the_cache_is_still_found(transformers: Any) -> None:
    """The silence above is not blindness: the same set-up with one planted write."""
    import ctypes

    with sg.debug(backend="host") as debugger, torch.no_grad():
        with debugger.guard():
            decoder = Decoder(transformers, build(transformers))
            decoder.step()
        debugger.name("decoder", decoder)
        graph = sg.HostGraph()
        keys = decoder.cache.layers[1].keys

        def overflow(target: torch.Tensor) -> None:
            ctypes.c_float.from_address(target.data_ptr() + 4 * target.numel()).value = 1.5

        with sg.host_graph(graph):
            decoder.step()
            graph.call(overflow, keys, writes=(keys,))
        graph.replay()
        found = debugger.check()
    assert [f.code for f in found] == ["SG101"]
    assert found[0].past_end == 4
    assert found[0].buffer.name == "decoder.cache.layers[1].keys"
    assert found[0].culprit.node == len(debugger.graphs[0].nodes) - 1
