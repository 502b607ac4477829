"""Facts from an operator's schema: which arguments it writes, whether it only makes a view, whether it reads to the
host.

Cached for the process; any thread, no lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

from shadowgraph.graphs.dispatch.indexing import takes_indices
from shadowgraph.model.graphs import Access

# Allocation without a kernel: they leave no node in a graph.
_ALLOCATIONS = {
    "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided",
    "aten::empty_permuted", "aten::empty_quantized",
}  # fmt: skip
# In-place operators that do not read what they overwrite.
_OVERWRITES = {
    "copy_", "fill_", "zero_", "bernoulli_", "normal_", "uniform_", "random_", "exponential_", "log_normal_", "cauchy_",
    "geometric_", "_foreach_copy_", "_foreach_zero_", "eye_", "set_",
}  # fmt: skip
# In-place operators that store the values that they are given in some elements, and read no others.
PUTS = frozenset({
    "index_copy_", "index_put_", "_index_put_impl_", "index_fill_", "scatter_", "put_", "masked_fill_",
    "masked_scatter_",
})  # fmt: skip
_ACCUMULATING = {"index_put_", "_index_put_impl_", "put_"}  # where the argument of that name says so
# Operators that change a tensor object and not its bytes.
_METADATA = {"aten::set_", "aten::detach_", "aten::requires_grad_", "aten::_version", "aten::record_stream"}
_RESIZES = {"aten::resize_", "aten::resize_as_", "aten::_resize_output_"}
_DEVICES = {"cpu": "CPU", "cuda": "CUDA"}  # with the key of its own kernels
_OF_ANY = ("CompositeExplicitAutograd", "CompositeImplicitAutograd", "")  # without a key a kernel is composite
_BORROWING = {"aten::set_", "aten::lift_fresh"}
# Operators of servers, whatever their namespace, whose result stands at an argument's address and owns nothing.
_ALIASING = ("::weak_ref_tensor", "::get_cuda_view_from_cpu_tensor")
# Operators that return nothing and raise if a value is bad.
_ASSERTIONS = {"aten::_assert_async", "aten::_linalg_check_errors"}
# Operators that write running statistics, unmarked in their schema, if the argument at that position (training) is set.
_STATISTICS = frozenset({"running_mean", "running_var"})
_TRAINS = {"aten::native_batch_norm": 5, "aten::cudnn_batch_norm": 5, "aten::miopen_batch_norm": 5}


@dataclass(frozen=True, slots=True)
class Schema:
    """Facts about one operator overload.

    Attributes
    ----------
    names
        Argument names in order.
    written
        Names of the arguments that the operator writes.
    pure_view
        Only makes a view, allocates without writing, or changes metadata: needs no replay.
    host_read
        Returns bytes of its arguments to the host.
    data_shaped
        Its result's shape depends on data.
    overwrites
        It does not read the arguments that it writes.
    allocates
        Returns fresh memory without writing it: needs no replay.
    outs
        Names of its ``out=`` arguments.
    composite
        Consists of other operators on the host; a graph holds those.
    python_bodies
        Types of devices for which its kernel is a Python function; a graph holds that function's operators instead.
    random
        Draws from a generator.
    resizes
        Gives its first argument another size, and memory if need be.
    indexes
        Takes a list of index tensors, of which a boolean one is a mask.
    asserts
        Returns nothing and raises if a value is bad.
    takes_indices
        Its kernels stop the device at an index out of range; `indexing` holds the valid ranges.
    borrows
        Gives a tensor a storage that may own no memory: a raw pointer.
    aliases
        Returns a tensor at an address, of memory that something else owns.
    by_call
        Whether these facts depend on a call's arguments.
    """

    name: str
    names: tuple[str, ...]
    written: frozenset[str]
    pure_view: bool
    host_read: bool
    data_shaped: bool
    overwrites: bool
    allocates: bool
    outs: tuple[str, ...]
    composite: bool
    python_bodies: frozenset[str]
    random: bool
    resizes: bool
    indexes: bool
    asserts: bool
    takes_indices: bool
    borrows: bool
    aliases: bool
    by_call: bool

    def access(self, argument: str) -> Access:
        """How the operator accesses an argument, including list members (``name[i]``)."""
        if argument.split("[")[0] not in self.written:
            return Access.READ
        return Access.WRITE if self.overwrites else Access.READ_WRITE


def puts(operator: str) -> bool:
    """Whether an operator, such as ``aten.index_put_.default``, is one of `PUTS`."""
    namespace, _, rest = operator.partition(".")
    return namespace == "aten" and rest.partition(".")[0] in PUTS


def puts_over(operator: str, accumulates: bool | None) -> bool:
    """Whether an operator certainly stores the values that it is given as they are, and reads none that it stores over:
    no reduction, and no accumulation."""
    if not puts(operator):
        return False
    _, name, overload = operator.split(".", 2)
    return "reduce" not in overload and (name not in _ACCUMULATING or accumulates is False)


def accumulates(schema: Schema, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool | None:
    """Whether a call adds to what it stores over; None for an operator without such an argument."""
    if "accumulate" not in schema.names:
        return None
    position = schema.names.index("accumulate")
    return bool(args[position] if len(args) > position else kwargs.get("accumulate", False))


def schema_of(operator: OpOverload, args: tuple[Any, ...] = ()) -> Schema:
    """The facts of an overload, for a call with these arguments if they depend on them; cached for the process."""
    position = _TRAINS.get(operator._schema.name)
    return _facts(operator, position is not None and len(args) > position and bool(args[position]))


@cache
def _facts(operator: OpOverload, training: bool) -> Schema:
    schema, tags = operator._schema, operator.tags
    outs = tuple(a.name for a in schema.arguments if a.is_out)
    metadata = torch.Tag.inplace_view in tags and schema.name not in _RESIZES
    return Schema(
        name=str(operator),
        names=tuple(a.name for a in schema.arguments),
        written=_written(schema, training),
        pure_view=operator.is_view or metadata or schema.name in _ALLOCATIONS | _METADATA,
        host_read=torch.Tag.data_dependent_output in tags,
        data_shaped=torch.Tag.dynamic_output_shape in tags and schema.name != "aten::index",
        overwrites=bool(outs) or schema.name.split("::")[1] in _OVERWRITES,
        allocates=schema.name in _ALLOCATIONS,
        outs=outs,
        composite=_has_kernel(operator, "CompositeImplicitAutograd") and not _has_kernel(operator, "CPU"),
        python_bodies=_python_bodies(operator),
        random=torch.Tag.nondeterministic_seeded in tags,
        resizes=schema.name in _RESIZES,
        indexes=schema.name.startswith(("aten::index", "aten::_index_put", "aten::_unsafe_index")),
        asserts=schema.name in _ASSERTIONS,
        takes_indices=takes_indices(str(operator)),
        borrows=schema.name in _BORROWING or schema.name.endswith(_ALIASING),
        aliases=schema.name.endswith(_ALIASING),
        by_call=schema.name in _TRAINS,
    )


def _written(schema: torch.FunctionSchema, training: bool) -> frozenset[str]:
    marked = frozenset(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    return marked | _STATISTICS if training else marked


def _has_kernel(operator: OpOverload, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key)


def _python_bodies(operator: OpOverload) -> frozenset[str]:
    if operator.namespace in {"aten", "prim", "prims"}:
        return frozenset()
    name = operator.name().replace("::", "/")
    kernels = torch.library._impls
    return frozenset(
        device for device, own in _DEVICES.items() if any(f"{name}/{key}" in kernels for key in (own, *_OF_ANY))
    )
