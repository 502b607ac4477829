"""Operators whose results differ under a dispatch mode: they run outside of our modes.

Composite operators and formulas of autograd test for tensor subclasses; torch says yes as soon as any mode is on the
thread's stack, and they take another path: singular values are computed with vectors, a product's gradient without a
division. So even a mode that only observes would change bits.

The dispatcher enters the key `PythonTLSSnapshot` first, before autograd, and only where a mode is on. A kernel there
for each such operator takes our modes off, hands the whole operator to the topmost of them, and puts them back. Where
the backward formula makes the test, the kernel hangs a hook on the autograd node; it takes our modes off the stack that
the engine sets up for each node, and discards after it.

`tools/mode_sensitive.py` finds these operators with torch's own operator database (`mode_sensitive_table.py`). Called
by the dispatcher, on any thread; no lock.
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
    """Register the kernels, once for the life of the process: where no mode is on, none of them is reached."""
    if not _kept:
        _kept.append(torch.library.Library("aten", "IMPL"))
        if goes_on():
            register(_kept[0], FORWARD, BACKWARD)


def goes_on() -> bool:
    """Whether a Python kernel at `KEY` can redispatch to the keys below it, modes included.

    Torch 2.11 keeps the dispatcher's state for modes in the kernel that ours would replace, and aborts the operator
    ("tls_on_entry.has_value()"). There no kernel is registered, and the operators of the table take the other path
    while they are observed. 2.13 is the first version that was seen to work.
    """
    return torch_version() >= (2, 13)


def register(library: torch.library.Library, forward: tuple[str, ...], backward: tuple[str, ...]) -> None:
    """Register kernels for operators in a library; overloads that this torch does not have are left out."""
    for names, make in ((forward, whole), (backward, hooked)):
        for operator in filter(None, map(overload, names)):
            library.impl(operator, make(operator), KEY, with_keyset=True)


def overload(name: str) -> OpOverload | None:
    """An overload of `torch.ops.aten` by name, ``prod.dim_int``; None where there is none."""
    packet, _, which = name.partition(".")
    found = getattr(getattr(torch.ops.aten, packet, None), which or "default", None)
    return found if isinstance(found, OpOverload) else None


def whole(operator: OpOverload) -> Kernel:
    """A kernel that hands the whole operator to the topmost of our modes."""
    after = below()

    def kernel(keys: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        stack = mode_stack()
        # Differentiated and transformed calls take the other path with and without a mode.
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
    """The dispatch keys that follow `KEY`."""
    return torch._C._dispatch_keyset_full_after(KEY)


def mode_stack() -> list[Any]:
    """The modes of this thread, bottom first."""
    return [torch._C._get_dispatch_stack_at(at) for at in range(_depth())]


def _all_ours(stack: list[Any]) -> bool:
    return bool(stack) and all(hasattr(mode, "take_whole") for mode in stack)


def all_step_aside(stack: list[Any]) -> bool:
    """Whether there are modes, and all of them are ours and may be taken off."""
    return _all_ours(stack) and all(getattr(mode, "steps_aside", False) for mode in stack)


def _differentiates(args: Any, kwargs: Any) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in _tensors((args, kwargs)))


def _tensors(value: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(value) if isinstance(each, torch.Tensor)]


@contextmanager
def taken_off(stack: list[Any]) -> Iterator[None]:
    """Context without the modes of `stack`, which holds all modes of the thread."""
    for _ in stack:
        torch._C._pop_torch_dispatch_stack(None)
    try:
        yield
    finally:
        for mode in stack:
            torch._C._push_on_torch_dispatch_stack(mode)


def _take_off(gradients: Any) -> None:
    """Hook before an autograd node: the engine restores the stack after the node in any case."""
    stack = mode_stack()
    if all_step_aside(stack):
        for _ in stack:
            torch._C._pop_torch_dispatch_stack(None)
