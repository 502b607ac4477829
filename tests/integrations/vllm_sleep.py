"""vLLM's sleep mode on the host: its allocator and its worker, over the model runner of `vllm_runner`.

As in vLLM 0.21.0: ``device_allocator/cumem.py`` and ``v1/worker/gpu_worker.py``; `test_vllm_source` compares names with
the original where that is there. Memory that is unmapped holds 0xEE, memory that is mapped anew zeros.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import torch
import vllm_runner as fakes

WORKER, CUMEM = "vllm.v1.worker.gpu_worker", "vllm.device_allocator.cumem"

HandleType = tuple[int, int, int, int]  # device, size, address, handle of the driver


@dataclass
class AllocationData:
    handle: HandleType
    tag: str
    cpu_backup_tensor: torch.Tensor | None = None


def create_and_map(allocation_handle: HandleType) -> None:
    ctypes.memset(allocation_handle[2], 0, allocation_handle[1])


def unmap_and_release(allocation_handle: HandleType) -> None:
    ctypes.memset(allocation_handle[2], 0xEE, allocation_handle[1])


class CuMemAllocator:
    instance: ClassVar[CuMemAllocator | None] = None
    default_tag: str = "default"

    @staticmethod
    def get_instance() -> CuMemAllocator:
        assert CuMemAllocator.instance is not None
        return CuMemAllocator.instance

    def __init__(self) -> None:
        self.pointer_to_data: dict[int, AllocationData] = {}
        self.current_tag: str = CuMemAllocator.default_tag

    def _python_malloc_callback(self, allocation_handle: HandleType) -> None:
        self.pointer_to_data[allocation_handle[2]] = AllocationData(allocation_handle, self.current_tag)

    def _python_free_callback(self, ptr: int) -> HandleType:
        data = self.pointer_to_data.pop(ptr)
        data.cpu_backup_tensor = None
        return data.handle

    def sleep(self, offload_tags: tuple[str, ...] | str | None = None) -> None:
        if offload_tags is None:
            offload_tags = (CuMemAllocator.default_tag,)
        elif isinstance(offload_tags, str):
            offload_tags = (offload_tags,)
        assert isinstance(offload_tags, tuple)
        for ptr, data in self.pointer_to_data.items():
            if data.tag in offload_tags:
                held = bytearray(ctypes.string_at(ptr, data.handle[1]))  # a copy that no operator makes
                data.cpu_backup_tensor = torch.frombuffer(held, dtype=torch.uint8)
            unmap_and_release(data.handle)

    def wake_up(self, tags: list[str] | None = None) -> None:
        for ptr, data in self.pointer_to_data.items():
            if tags is None or data.tag in tags:
                create_and_map(data.handle)
                if data.cpu_backup_tensor is not None:
                    ctypes.memmove(ptr, data.cpu_backup_tensor.data_ptr(), data.handle[1])
                    data.cpu_backup_tensor = None

    @contextmanager
    def use_memory_pool(self, tag: str | None = None) -> Iterator[None]:
        old_tag = self.current_tag
        self.current_tag = tag or CuMemAllocator.default_tag
        try:
            yield
        finally:
            self.current_tag = old_tag

    def take(self, *tensors: torch.Tensor) -> None:
        """What torch's allocator does in a pool: each tensor is an allocation here."""
        for each in tensors:
            self._python_malloc_callback((0, each.nbytes, each.data_ptr(), 0))


class Layers(torch.nn.Module):
    """A weight, a buffer, and a table that is neither: no worker saves that."""

    rope: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((1,), 3, dtype=torch.int64), requires_grad=False)
        self.register_buffer("rope", torch.full((1,), 5, dtype=torch.int64), persistent=False)
        self.scale = torch.full((1,), 2, dtype=torch.int64)

    def load(self) -> None:
        """What a reload of weights does."""
        self.weight.data.copy_(torch.full((1,), 3, dtype=torch.int64))


class Model(fakes.Model):
    """A model whose pieces read weights."""

    def __init__(self, vllm_config: Any, layers: Layers) -> None:
        super().__init__(vllm_config)
        self.layers = layers

    def named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self.layers.named_buffers()

    def first(self, input_ids: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = input_ids * self.layers.weight + positions + self.layers.rope
        return hidden * self.layers.scale, torch.zeros_like(hidden)


class Worker:
    def __init__(self, vllm_config: Any, runner: type[Any]) -> None:
        self._sleep_saved_buffers: dict[str, torch.Tensor] = {}
        self.model_runner = runner(vllm_config, torch.device("cpu"))

    def init_device(self) -> None: ...

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        allocator = CuMemAllocator.get_instance()
        with allocator.use_memory_pool(tag="weights"):
            layers = Layers()
            allocator.take(layers.weight, layers.rope, layers.scale)
        config = self.model_runner.vllm_config
        model = Model(config, layers)
        model.runner = self.model_runner
        self.model_runner.model = fakes.CUDAGraphWrapper(model, config, fakes.CUDAGraphMode.FULL)

    def determine_available_memory(self) -> int:
        return 1 << 20

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        allocator, runner = CuMemAllocator.get_instance(), self.model_runner
        with allocator.use_memory_pool(tag="kv_cache"):
            runner.initialize_kv_cache(kv_cache_config)
            builder, tables = runner.attn_groups[0][0].metadata_builders[0], runner.input_batch.block_table[0]
            allocator.take(runner.kv_caches[0], builder.scheduler_metadata)
            allocator.take(tables.block_table.gpu, tables.slot_mapping.gpu)

    def compile_or_warm_up_model(self) -> int:
        captured: int = self.model_runner.capture_model()
        return captured

    def sleep(self, level: int = 1) -> None:
        if level == 2:
            model = self.model_runner.model
            self._sleep_saved_buffers = {name: buffer.cpu().clone() for name, buffer in model.named_buffers()}
        allocator = CuMemAllocator.get_instance()
        allocator.sleep(offload_tags=("weights",) if level == 1 else ())

    def wake_up(self, tags: list[str] | None = None) -> None:
        allocator = CuMemAllocator.get_instance()
        allocator.wake_up(tags)
        if len(self._sleep_saved_buffers):
            model = self.model_runner.model
            for name, buffer in model.named_buffers():
                if name in self._sleep_saved_buffers:
                    buffer.data.copy_(self._sleep_saved_buffers[name].data)
            self._sleep_saved_buffers = {}
        if tags is None or "kv_cache" in tags:
            self.model_runner.post_kv_cache_wake_up()


def modules() -> dict[str, ModuleType]:
    """The modules, by their names in vLLM."""
    worker, cumem = ModuleType(WORKER), ModuleType(CUMEM)
    vars(worker).update(Worker=fakes.copied(Worker))
    vars(cumem).update(CuMemAllocator=fakes.copied(CuMemAllocator))
    return {**fakes.modules(), WORKER: worker, CUMEM: cumem}
