"""Operations that a host graph cannot capture, each with the reason as one clause. Pure functions."""

from __future__ import annotations

from typing import Any

import torch

from shadowgraph.graphs.dispatch.schemas import Schema

READS = {
    "__repr__": "print of a tensor",
    "__array__": "numpy.asarray of a tensor",
    "__reduce_ex__": "pickling of a tensor",
}
HOST_READ = "it hands values to the host, which a graph cannot; read them after the replay"
SEEDED = "the generator was seeded or set inside the capture, which a replay would not repeat; do that before it"
_SHAPED = "the shape of its result depends on data; use a form with a fixed shape"
_MASK = "a boolean index makes the result's shape depend on data; use torch.where"
_FRIENDLY = {"aten._local_scalar_dense.default": "Tensor.item()", "aten.equal.default": "torch.equal()"}


def call_name(schema: Schema) -> str:
    """An operator by the name that its caller uses."""
    friendly = _FRIENDLY.get(schema.name)
    return f"{friendly} ({schema.name})" if friendly else schema.name


def shaped_by_data(schema: Schema, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Why a replay could change the shape of the result, or None."""
    if schema.data_shaped and kwargs.get("output_size") is None:
        return _SHAPED
    if schema.indexes and _masked(args):
        # torch turns the write of one value through a mask into masked_fill, whose shape is fixed.
        filled = len(args) > 2 and isinstance(args[2], torch.Tensor) and args[2].numel() == 1
        return None if filled else _MASK
    return None


def no_plain_memory(tensor: torch.Tensor) -> str | None:
    """Why address and strides do not describe a tensor that is not plain; None where it has no bytes."""
    if tensor.is_nested:
        return "nested tensors have no fixed memory here"
    if tensor.layout is not torch.strided:
        return f"{str(tensor.layout).removeprefix('torch.')} tensors have no fixed memory here"
    if tensor.is_quantized:
        return "quantized tensors cannot be moved into a graph's memory here"
    if tensor.device.type not in {"cpu", "meta"}:
        return f"a host graph holds host memory only, not {tensor.device}"
    return None


def _masked(args: tuple[Any, ...]) -> bool:
    indices = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else ()
    return any(isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8) for i in indices)
