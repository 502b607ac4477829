"""Operators that compute otherwise where a dispatch mode is on: they run outside of ours.

Composite operators and formulas of autograd ask whether they are given a tensor subclass; torch answers yes as soon as
any mode is on the thread's stack, and they take another way: singular values come with vectors, a product's gradient
without a division. So a mode that only looks would change bits.

The dispatcher enters the key `PythonTLSSnapshot` first, before autograd, and only where a mode is on. A kernel there
for each such operator takes our modes off, hands the operator whole to the topmost of them, and puts them back. Where
the backward formula is the one that asks, the kernel hangs a hook on the autograd node; it takes our modes off the
stack that the engine gives each node, and throws away after it.

Which operators, `tools/mode_sensitive.py` finds out by running torch's own operator database
(`mode_sensitive_table.py`). Called by the dispatcher, on any thread; no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from shadowgraph.common.compat import torch_version
from shadowgraph.graphs.dispatch.calling import call, redispatch
from shadowgraph.graphs.dispatch.mode_sensitive_table import BACKWARD, FORWARD

Kernel = Callable[..., Any]

KEY = "PythonTLSSnapshot"
_depth: Callable[[], int] = torch._C._len_torch_dispatch_stack
_functorch: Callable[[], int | None] = torch._C._functorch.maybe_current_level
_kept: list[torch.library.Library] = []


def install() -> None:
    """Register the kernels, once. For the life of the process: where no mode is on, none of them is reached."""
    if not _kept:
        _kept.append(torch.library.Library("aten", "IMPL"))
        if goes_on():
            register(_kept[0], FORWARD, BACKWARD)


def goes_on() -> bool:
    """Whether a kernel in Python at `KEY` can go on to what lies below it, modes included.

    Torch 2.11 keeps the dispatcher's state for modes in the kernel that ours would replace, and aborts the operator
    ("tls_on_entry.has_value()"). There nothing is registered, and the operators of the table compute otherwise while
    they are watched. 2.13 is the first that was seen to go on.
    """
    return torch_version() >= (2, 13)


def register(library: torch.library.Library, forward: tuple[str, ...], backward: tuple[str, ...]) -> None:
    """Put kernels for operators into a library; overloads that this torch does not have are left out."""
    for names, make in ((forward, whole), (backward, hooked)):
        for operator in filter(None, map(overload, names)):
            library.impl(operator, make(operator), KEY, with_keyset=True)


def overload(name: str) -> OpOverload | None:
    """An overload of `torch.ops.aten` by name, ``prod.dim_int``; None where there is none."""
    packet, _, which = name.partition(".")
    found = getattr(getattr(torch.ops.aten, packet, None), which or "default", None)
    return found if isinstance(found, OpOverload) else None


def whole(operator: OpOverload) -> Kernel:
    """A kernel that hands an operator whole to the topmost mode of ours."""
    after = below()

    def kernel(keys: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        stack = mode_stack()
        # Whatever is differentiated or transformed takes the other way with and without a mode.
        if not _all_ours(stack) or _functorch() is not None or _differentiates(args, kwargs):
            return redispatch(operator, keys & after, args, kwargs)
        with taken_off(stack):
            top = next((mode for mode in reversed(stack) if not getattr(mode, "inert", False)), None)
            if top is None:
                return call(operator, args, kwargs)
            return top.take_whole(operator, args, kwargs)

    return kernel


def hooked(operator: OpOverload) -> Kernel:
    """A kernel that keeps our modes from an operator's backward formula."""
    after = below()

    def kernel(keys: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        made = redispatch(operator, keys & after, args, kwargs)
        if _differentiates(args, kwargs) and all_step_aside(mode_stack()) and _functorch() is None:
            for node in {tensor.grad_fn for tensor in _tensors(made)}:
                if node is not None:
                    node.register_prehook(_take_off)
        return made

    return kernel


def below() -> torch._C.DispatchKeySet:
    """The keys that the dispatcher comes to after `KEY`."""
    return torch._C._dispatch_keyset_full_after(KEY)


def mode_stack() -> list[Any]:
    """The modes of this thread, the lowest first."""
    return [torch._C._get_dispatch_stack_at(at) for at in range(_depth())]


def _all_ours(stack: list[Any]) -> bool:
    return bool(stack) and all(hasattr(mode, "take_whole") for mode in stack)


def all_step_aside(stack: list[Any]) -> bool:
    """Whether there are modes, and none but those of ours that may be taken off."""
    return _all_ours(stack) and all(getattr(mode, "steps_aside", False) for mode in stack)


def _differentiates(args: Any, kwargs: Any) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in _tensors((args, kwargs)))


def _tensors(value: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(value) if isinstance(each, torch.Tensor)]


@contextmanager
def taken_off(stack: list[Any]) -> Iterator[None]:
    """Without the modes of a stack, which are all there are."""
    for _ in stack:
        torch._C._pop_torch_dispatch_stack(None)
    try:
        yield
    finally:
        for mode in stack:
            torch._C._push_on_torch_dispatch_stack(mode)


def _take_off(gradients: Any) -> None:
    """Before a node of autograd's runs: the engine puts the stack back after it, whatever becomes of the node."""
    stack = mode_stack()
    if all_step_aside(stack):
        for _ in stack:
            torch._C._pop_torch_dispatch_stack(None)
