"""Tensors by address: aliases that own no memory, moving results to other memory, mapping over an operator's arguments.

Any thread; no lock.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch

from shadowgraph.model.views import TensorView
from shadowgraph.tracking.memory import storage_at

Allocate = Callable[[int, torch.dtype, tuple[int, ...]], torch.UntypedStorage | None]

_NUMBERS = frozenset((int, float, bool, str, type(None)))  # types of most arguments; no tensor is inside
ORDINARY = (torch.Tensor, torch.nn.Parameter)
# A copy-on-write copy, which is made when its address is requested.
is_lazy_copy = torch._C._is_cow_tensor  # type: ignore[attr-defined, unused-ignore]
_is_functional = torch._is_functional_tensor
_is_functorch = torch._C._functorch.is_functorch_wrapped_tensor


def is_plain(tensor: torch.Tensor, device: str = "cpu") -> bool:
    """Whether a tensor has ordinary strided memory, which an address describes, on a device of that type.

    Tensors without memory of their own are not plain: fake and functional tensors, wrappers of others.
    """
    return (
        (tensor.is_cpu if device == "cpu" else tensor.is_cuda)
        and tensor.layout is torch.strided
        and not (tensor.is_quantized or tensor.is_nested or tensor._is_zerotensor())
        and not (_is_functional(tensor) or _is_functorch(tensor))
        and (type(tensor) in ORDINARY or _has_memory(tensor))
    )


def _has_memory(tensor: torch.Tensor) -> bool:
    """Whether a subclass has the memory that it claims: one that dispatches in Python may be a mere wrapper."""
    if not torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python):
        return True
    try:
        storage = torch.Tensor.untyped_storage(tensor)
        return storage.device.type != "meta" and bool(storage.data_ptr())
    except RuntimeError:
        return False


def view_facts(tensor: torch.Tensor, device: str = "cpu") -> TensorView:
    """`TensorView.of` for a tensor that is known to be plain and on that device, at a fraction of the cost."""
    if is_lazy_copy(tensor):
        return TensorView.of(tensor)  # which raises for it
    storage, dtype = tensor.untyped_storage(), tensor.dtype
    return TensorView(
        tensor.data_ptr(), storage.data_ptr(), storage.nbytes(), tuple(tensor.shape), tensor.stride(), _name_of(dtype),
        dtype.itemsize, device,
    )  # fmt: skip


def view_of_memory(tensor: torch.Tensor) -> TensorView:
    """`TensorView.of`, in the cheapest way that the tensor allows."""
    return view_facts(tensor, place_of(tensor)) if is_plain(tensor, "cuda") else TensorView.of(tensor)


def place_of(tensor: torch.Tensor) -> str:
    """The device of a CUDA tensor, as in views."""
    return _place(tensor.get_device())


@cache
def _place(index: int) -> str:
    return f"cuda:{index}"


@cache
def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def storage_key(tensor: torch.Tensor) -> int:
    """Identity of the storage behind a tensor, valid while the storage lives."""
    return int(tensor.untyped_storage()._cdata)


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor over the same bytes that keeps no memory alive. Valid as long as the memory is kept alive elsewhere."""
    return Aliases()(tensor)


class Aliases:
    """Makes aliases that relate to each other as their originals do: one object stays one, one storage stays one.

    Operators depend on that: attention takes another path when query and key are the same tensor.
    """

    def __init__(self) -> None:
        self._made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._storages: dict[tuple[int, int], torch.UntypedStorage] = {}

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """The alias of a tensor, or the tensor itself where no address describes its memory."""
        known = self._made.get(id(tensor))
        if known is None:
            made = view_of(self._borrowed(tensor), tensor) if is_plain(tensor) else tensor
            known = self._made[id(tensor)] = (tensor, made)
        return known[1]

    def _borrowed(self, tensor: torch.Tensor) -> torch.UntypedStorage:
        storage = tensor.untyped_storage()
        where = storage.data_ptr(), storage.nbytes()
        borrowed = self._storages.get(where)
        if borrowed is None:
            borrowed = self._storages[where] = storage_at(*where)
        return borrowed


def view_of(storage: torch.UntypedStorage, like: torch.Tensor) -> torch.Tensor:
    """The geometry of `like` over another storage, including conjugate and negative bits."""
    with torch._C._DisableTorchDispatch():  # modes are to see the program's tensors only
        blank = torch.empty(0, dtype=like.dtype, device=storage.device)
        made = blank.set_(storage, like.storage_offset(), like.size(), like.stride())
    if like.is_conj():
        made = torch._conj(made)
    if like.is_neg():
        made = torch._neg_view(made)
    return made


def map_tensors(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """A copy of an argument tree with every tensor replaced; lists, tuples and dicts are followed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list):
        return [map_tensors(item, change) for item in value]
    if isinstance(value, tuple):
        items = [map_tensors(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, dict):
        return {key: map_tensors(item, change) for key, item in value.items()}
    return value


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in an argument tree."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def named_tensors(
    names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor argument with its name; members of a list as ``name[i]``."""
    pairs = [*zip(names, args, strict=False), *kwargs.items()]
    for name, value in pairs:
        if type(value) in _NUMBERS:
            continue
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, list | tuple):
            for index, item in enumerate(value):
                if isinstance(item, torch.Tensor):
                    yield f"{name}[{index}]", item


def base_of(value: Any) -> Any:
    """The tensor behind a Triton descriptor or a tensor reinterpreted as another dtype; any other value unchanged."""
    if type(value) in _NUMBERS:
        return value
    base = None if isinstance(value, torch.Tensor) else getattr(value, "base", None)
    return base if isinstance(base, torch.Tensor) else value


def opened(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A Triton launch's arguments with `base_of` applied to each."""
    return tuple(base_of(value) for value in args), {key: base_of(value) for key, value in kwargs.items()}


class Rehomed:
    """Results of an operator moved to memory from `allocate`.

    Attributes
    ----------
    results
        The operator's results, with fresh tensors replaced.
    fresh
        The replaced tensors, in order of `tensors_in`; None where a result aliases an input or stayed where it was.
    strange
        The first result without plain memory, or None.
    """

    def __init__(self, results: Any, inputs: set[int], allocate: Allocate, device: str = "cpu") -> None:
        self._inputs, self._allocate, self._device = inputs, allocate, device
        self._homes: dict[int, torch.UntypedStorage | None] = {}
        self.fresh: list[torch.Tensor | None] = []
        self.strange: torch.Tensor | None = None
        self.results = map_tensors(results, self._move)

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        plain = is_plain(tensor, self._device)
        if not plain:
            self.strange = tensor if self.strange is None else self.strange
        home = self._home(tensor) if plain and storage_key(tensor) not in self._inputs else None
        if home is None:
            self.fresh.append(None)
            return tensor
        moved = view_of(home, tensor)
        self.fresh.append(moved)
        return moved

    def _home(self, tensor: torch.Tensor) -> torch.UntypedStorage | None:
        storage = tensor.untyped_storage()
        key = int(storage._cdata)
        if key not in self._homes:
            # A copy of memory that torch did not allocate, such as a view of host memory or an alias by its address,
            # would part the result from what it stands for.
            owned = storage.nbytes() and storage.resizable()
            home = self._allocate(storage.nbytes(), tensor.dtype, tuple(tensor.shape)) if owned else None
            if home is not None:
                self._copy(storage, home)
            self._homes[key] = home
        return self._homes[key]

    def _copy(self, storage: torch.UntypedStorage, home: torch.UntypedStorage) -> None:
        if self._device == "cpu":
            ctypes.memmove(home.data_ptr(), storage.data_ptr(), storage.nbytes())
        else:  # on the current stream, behind the producing work
            home.copy_(storage, non_blocking=True)
