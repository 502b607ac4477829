"""A `vllm` for the tests of `tools/live_vllm.py`: the runner of the adapter's tests on host graphs, with an engine that
serves batches continuously. The model is none: a token depends on positions and lengths."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import vllm_runner as fakes

from vllm.v1.worker.gpu_model_runner import GPUModelRunner

__version__ = "0.21.0"


class SamplingParams(SimpleNamespace):
    max_tokens: int


class Request:
    def __init__(self, number: int, prompt: list[int], most: int, row: int) -> None:
        self.id = f"{number}-{number * 2654435761 % (1 << 32):08x}"
        self.prompt, self.most, self.row = prompt, most, row
        self.tokens: list[int] = []

    @property
    def computed(self) -> int:
        return len(self.prompt) + len(self.tokens) - 1 if self.tokens else 0

    @property
    def scheduled(self) -> int:
        return 1 if self.tokens else len(self.prompt)


class LLM:
    def __init__(
        self,
        model: str,
        max_model_len: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        compilation_config: dict[str, Any],
        **others: Any,
    ) -> None:
        self.blocks = -(-max_model_len // fakes.BLOCK)  # of a request
        config = fakes.config(
            compilation_config["cudagraph_capture_sizes"],
            model_config=SimpleNamespace(max_model_len=max_model_len),
            scheduler_config=SimpleNamespace(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens),
        )
        self.runner = GPUModelRunner(config, torch.device("cpu"))
        self.runner.initialize_kv_cache(fakes.cache_config(1 + max_num_seqs * self.blocks))
        self.runner.capture_model()
        self.numbers = itertools.count()

    def generate(self, prompts: list[dict[str, list[int]]], sampling: list[SamplingParams], use_tqdm: bool) -> Any:
        pairs = zip(prompts, sampling, strict=True)
        requests = [
            Request(next(self.numbers), prompt["prompt_token_ids"], wanted.max_tokens, row)
            for row, (prompt, wanted) in enumerate(pairs)
        ]
        while running := [each for each in requests if len(each.tokens) < each.most]:
            self.step(running)
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=each.tokens)]) for each in requests]

    def step(self, running: list[Request]) -> None:
        batch = self.runner.input_batch
        batch._req_ids[:] = [each.id for each in running]
        for index, each in enumerate(running):
            batch.num_computed_tokens_cpu[index] = each.computed
            batch.block_table[0].block_table.np[index] = np.arange(self.blocks) + 1 + each.row * self.blocks
        counts = {each.id: each.scheduled for each in running}
        self.runner.execute_model(fakes.SchedulerOutput(counts))
        result = self.runner.sample_tokens(None)
        self.runner.results.clear()
        for each, end in zip(running, itertools.accumulate(counts.values()), strict=True):
            each.tokens.append(abs(result[end - 1]) % 1000)
