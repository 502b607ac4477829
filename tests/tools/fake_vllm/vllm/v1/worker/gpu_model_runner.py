"""The runner of the adapter's tests, with the states of a step and the kernel for slots."""

from __future__ import annotations

from typing import Any

import vllm_runner as fakes
from vllm.v1.worker.block_table import BlockTable

fakes.BlockTable = BlockTable  # type: ignore[misc]
GPUModelRunner: Any = fakes.copied(fakes.GPUModelRunner)
AsyncGPUModelRunnerOutput = fakes.AsyncGPUModelRunnerOutput
AsyncGPUPoolingModelRunnerOutput = fakes.AsyncGPUPoolingModelRunnerOutput


def _update_states(self: Any, scheduler_output: Any) -> None:
    """What a step begins with."""


def execute_model(self: Any, scheduler_output: Any, intermediate_tensors: Any = None) -> Any:
    self._update_states(scheduler_output)
    return fakes.GPUModelRunner.execute_model(self, scheduler_output, intermediate_tensors)


GPUModelRunner._update_states, GPUModelRunner.execute_model = _update_states, execute_model
