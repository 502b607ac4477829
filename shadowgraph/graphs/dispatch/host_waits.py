"""Operators after which the host may know the current stream's work to be over.

A copy to or from pageable memory waits unless it is told not to, a value that is read waits, and many operators that
size their result by their input read it in C++. Only operators that are known not to wait are taken not to: any other
one, and any operator of a library, counts as a wait of the host for the current stream, told to
`tracking.stream_order`. Called in the thread of each operator, without a lock, while the order of streams is observed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._ops import OpOverload

from shadowgraph.tracking.stream_order import order

# Besides those that are pointwise, views or allocations. An operator that is missing here costs findings, no error.
_NEVER = {
    "fill", "fill_", "zero", "zero_", "zeros", "zeros_like", "ones", "ones_like", "full", "full_like", "new_zeros",
    "new_ones", "new_full", "eye", "eye_", "arange", "linspace", "clone", "contiguous", "cat", "stack",
    "constant_pad_nd", "pad", "repeat", "tile", "flip", "roll", "tril", "triu", "tril_", "triu_", "random_",
    "normal_", "uniform_", "bernoulli_", "exponential_", "rand", "randn", "randint", "rand_like", "randn_like",
    "randint_like", "sum", "mean", "prod", "amax", "amin", "max", "min", "argmax", "argmin", "all", "any",
    "aminmax", "norm", "linalg_vector_norm", "logsumexp", "var", "std", "var_mean", "std_mean", "median", "cumsum",
    "cumsum_", "cumprod", "cumprod_", "cummax", "cummin", "logcumsumexp", "sort", "argsort", "topk", "kthvalue",
    "where", "searchsorted", "bucketize", "count_nonzero", "mm", "bmm", "addmm", "baddbmm", "addmv", "mv", "dot",
    "addr", "matmul", "linear", "baddbmm_", "addmm_", "_scaled_mm", "_int_mm", "softmax", "_softmax", "log_softmax",
    "_log_softmax", "layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm", "native_group_norm",
    "group_norm", "gelu", "silu", "dropout", "native_dropout", "glu", "embedding", "gather", "index_select",
    "index_add", "index_add_", "index_copy", "index_copy_", "scatter", "scatter_", "scatter_add", "scatter_add_",
    "scatter_reduce", "scatter_reduce_", "take", "take_along_dim", "select_scatter", "slice_scatter",
    "diagonal_scatter", "as_strided_scatter", "select_backward", "slice_backward", "_foreach_copy_",
    "_foreach_add_", "_foreach_add", "_foreach_mul_", "_foreach_mul", "_foreach_zero_", "_foreach_sub_",
    "_foreach_div_", "reshape", "expand_as", "flatten", "unflatten", "squeeze", "unsqueeze", "narrow", "chunk",
    "split", "swapaxes", "moveaxis", "ravel", "type_as", "_reshape_copy", "_unsafe_view", "scalar_tensor", "lift",
    "lift_fresh", "detach_", "resize_", "set_", "record_stream", "_fused_adam_", "_fused_adamw_", "sym_size",
    "sym_numel",
}  # fmt: skip
_COPIES = {"copy_", "_to_copy", "copy", "_copy_from", "_copy_from_and_resize"}
_INDEXED = {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"}
_VALUED = {"fill", "fill_", "masked_fill", "masked_fill_", "index_fill", "index_fill_"}
_known: dict[OpOverload, bool | None] = {}  # None where it depends on the call
never: set[int] = set()  # ids of the operators, kept in `_known`, that do not wait: no call of `note` for most


def note(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """An operator has run in this thread: note that the host has waited for the current stream, if it may have."""
    if operator not in _known:
        _known[operator] = _always(operator)
        if _known[operator] is False:
            never.add(id(operator))
    waits = _known[operator]
    if waits or (waits is None and _in_this_call(operator._opname, args, kwargs)):
        order.host_waits_here()


def _always(operator: OpOverload) -> bool | None:
    name, tags = operator._opname, operator.tags
    if operator.namespace != "aten":
        return operator.namespace not in ("prim", "inductor")
    if name == "to":  # in inference mode; its forms differ
        return operator._overloadname != "dtype"
    if name in _COPIES or name in _INDEXED or name in _VALUED:
        return None
    if torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags:
        return True
    quick = operator.is_view or torch.Tag.pointwise in tags or name in _NEVER or name.startswith(("empty", "new_empty"))
    return not quick


def _in_this_call(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if name in _COPIES:
        return _copy_waits(name, args, kwargs)
    if name in _INDEXED:
        return any(_is_mask_or_on_host(index) for index in _tensors((*args[1:2], kwargs.get("indices"))))
    # A number that stands in a tensor is read by the host, to hand it to the kernel.
    return any(tensor.dim() == 0 and tensor.is_cuda for tensor in _tensors((*args[1:], *kwargs.values())))


def _copy_waits(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if kwargs.get("non_blocking") or any(argument is True for argument in args[1:]):
        return False
    places = {tensor.device.type for tensor in _tensors(args)}
    if name == "_to_copy" and kwargs.get("device") is not None:
        places.add(torch.device(kwargs["device"]).type)
    return len(places) > 1


def _is_mask_or_on_host(index: torch.Tensor) -> bool:
    return index.dtype in (torch.bool, torch.uint8) or not index.is_cuda


def _tensors(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
