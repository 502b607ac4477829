"""sglang's own graph runners without a model: real methods, real buffers, host graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import shadowgraph as sg
from shadowgraph import session
from shadowgraph.demos.sglang.decode import PaddedDecode
from shadowgraph.demos.sglang.eagle import EagleDraft
from shadowgraph.demos.sglang.load import forward_batch, load
from shadowgraph.integrations.sglang.adapter import hooks_of, register
from shadowgraph.integrations.sglang.hooks import Hooks
from shadowgraph.integrations.sglang.versions import LAYOUTS

DECODE = "sglang.srt.model_executor.cuda_graph_runner"
DRAFT = "sglang.srt.speculative.eagle_draft_cuda_graph_runner"
_OFF = (
    *("require_mlp_tp_gather", "require_gathered_buffer", "enable_two_batch_overlap", "enable_pdmux"),
    *("record_nolora_graph", "is_encoder_decoder", "nsa_enable_prefill_cp"),
)


@contextmanager
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], Hooks]]:
    """Replaces ``CudaGraphRunner.capture`` by what it is given, and hangs our hooks into what that leads to."""
    registry = load("sglang.srt.plugins.hook_registry")
    monkeypatch.setattr(registry.HookRegistry, "_hooks", type(registry.HookRegistry._hooks)(list))
    monkeypatch.setattr(registry.HookRegistry, "_patched", set())
    monkeypatch.setattr(load(DECODE), "enable_num_token_non_padded", lambda: False)  # asks a process group
    hooks = Hooks()
    others = ("ModelRunner", ".Scheduler.", ".WatchdogRaw.")
    wanted = [hook for hook in hooks_of(LAYOUTS[0], hooks) if not any(other in hook[0] for other in others)]
    for target, _, _ in wanted:
        owner = getattr(load(target.rsplit(".", 2)[0]), target.rsplit(".", 2)[1])
        monkeypatch.setattr(owner, target.rsplit(".", 1)[1], getattr(owner, target.rsplit(".", 1)[1]))

    def hang(capture: Any) -> Hooks:
        registry.HookRegistry.register(LAYOUTS[0].capture, capture, registry.HookType.REPLACE)
        for target, function, kind in wanted:
            register(target.rsplit(".", 2)[0], [(target, function, kind)])
        registry.HookRegistry.apply_hooks()
        assert len(registry.HookRegistry._patched) == len(wanted)
        return hooks

    yield hang
    session.observers[:] = [each for each in session.observers if each is not hooks]


def _model_runner(**more: Any) -> SimpleNamespace:
    nothing = SimpleNamespace(is_dflash=lambda: False, is_eagle=lambda: False, is_standalone=lambda: False)
    return SimpleNamespace(
        server_args=SimpleNamespace(enable_return_hidden_states=False),
        model_config=SimpleNamespace(vocab_size=16),
        spec_algorithm=nothing,
        hisparse_coordinator=None,
        device_timer=None,
        **more,
    )


def _shell(cls: Any, **facts: Any) -> Any:
    runner = cls.__new__(cls)
    vars(runner).update(dict.fromkeys(_OFF, False), seq_len_fill_value=1, graphs={}, output_buffers={}, **facts)
    return runner


class Decode:
    """A ``CudaGraphRunner`` for batches of 2 and 4; its ``capture`` is `capture`, put in place by the test."""

    def __init__(self) -> None:
        module = load(DECODE)
        self.attended: list[int] = []
        backend = SimpleNamespace(init_forward_metadata_replay_cuda_graph=self._attend, kv_indptr=torch.zeros(5))
        self.runner = _shell(
            module.CudaGraphRunner,
            buffers=PaddedDecode(4).buffers,
            capture_bs=[2, 4],
            num_tokens_per_bs=1,
            capture_forward_mode=None,
            capture_hidden_mode=load("sglang.srt.model_executor.forward_batch_info").CaptureHiddenMode.NULL,
            attn_backend=backend,
            model_runner=_model_runner(),
        )

    def _attend(self, bs: int, *args: Any, **kwargs: Any) -> None:
        self.attended.append(bs)

    def step(self, slots: Sequence[int]) -> None:
        """Prepare and replay a decode step of requests in these slots, each of as many tokens as its slot says."""
        source = torch.tensor(slots)
        batch = forward_batch(
            slots,
            input_ids=source + 100,
            req_pool_indices=source,
            positions=source - 1,
            out_cache_loc=source + 30,
            capture_hidden_mode=self.runner.capture_hidden_mode,
            rids=[f"request-{slot}" for slot in slots],
        )
        self.runner.replay_prepare(batch)
        self.runner.graphs[self.runner.bs].replay()


def capture(runner: Any) -> None:
    """In place of ``CudaGraphRunner.capture``: for each batch size a graph that reads all inputs."""
    for size in reversed(runner.capture_bs):
        graph, buffers = sg.HostGraph(), runner.buffers
        with sg.host_graph(graph):
            ids = buffers.input_ids[:size] + buffers.positions[:size]
            rows = buffers.req_pool_indices[:size] + buffers.out_cache_loc[:size]
            out = ids + rows + buffers.seq_lens[:size]
        runner.graphs[size] = graph
        runner.output_buffers[size] = {"next_token_logits": out}


class Draft:
    """An ``EAGLEDraftCudaGraphRunner`` for batches of 2 over the real draft backend; graphs as those of `capture`."""

    def __init__(self, debugger: sg.Debugger, topk: int = 4, steps: int = 3) -> None:
        module = load(DRAFT)
        with debugger.guard():
            self.draft = EagleDraft(2, topk, 64, steps)
            self.draft.init_cuda_graph_state()
            buffers = module.EagleDraftInputBuffers(
                **{name: torch.zeros(2 * topk, dtype=torch.int64) for name in ("input_ids", "positions")},
                req_pool_indices=torch.zeros(2, dtype=torch.int64),
                out_cache_loc=torch.zeros(2 * topk * steps, dtype=torch.int64),
                mrope_positions=torch.zeros((3, 2 * topk), dtype=torch.int64),
                seq_lens=torch.ones(2, dtype=torch.int32),
                seq_lens_cpu=torch.ones(2, dtype=torch.int32),
                extend_seq_lens=torch.ones(2, dtype=torch.int32),
                topk_p=torch.zeros((2, topk)),
                topk_index=torch.zeros((2, topk), dtype=torch.int64),
                hidden_states=None,
                global_num_tokens_gpu=None,
                global_num_tokens_for_logprob_gpu=None,
            )
        self.topk, self.steps = topk, steps
        self.runner = _shell(
            module.EAGLEDraftCudaGraphRunner,
            buffers=buffers,
            capture_bs=[2],
            num_tokens_per_bs=topk,
            speculative_num_steps=steps,
            draft_attn_backend=self.draft.backend,
            model_runner=_model_runner(),
            deepep_adapter=SimpleNamespace(replay=lambda: None),
        )

    def capture(self, runner: Any) -> None:
        """In place of ``CudaGraphRunner.capture``."""
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            out = self.draft.backend.cuda_graph_kv_indices.sum(1) + runner.buffers.positions.sum()
        runner.graphs[2] = graph
        runner.output_buffers[2] = (out, out, out)

    def step(self, lengths: Sequence[int], ids: Sequence[str] = (), accepted: Any = None) -> None:
        """A whole draft step by the runner's own ``replay``."""
        count = len(lengths)
        tokens = count * self.topk
        batch = forward_batch(
            lengths,
            req_to_token_pool=self.draft.pool,
            positions=torch.tensor(lengths).repeat_interleave(self.topk),
            out_cache_loc=torch.arange(tokens * self.steps),
            rids=list(ids),
            spec_info=load("sglang.srt.speculative.eagle_info").EagleDraftInput(
                topk_p=torch.ones(count, self.topk),
                topk_index=torch.ones(count, self.topk, dtype=torch.int64),
            ),
        )
        batch.spec_info.num_accept_tokens_cpu = accepted
        self.runner.replay(batch)
