"""The code of compiled Triton kernels, joined to the launches that ran it.

Called in the launching thread, without a lock, right after a launch that is observed or captured. The code is read when
a check first asks; the kernel is not kept alive.
"""

from __future__ import annotations

import weakref
from typing import Any

from msgspec.structs import force_setattr

from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.model.kernel_code import KernelCode
from shadowgraph.model.launches import Launch

_known: weakref.WeakKeyDictionary[Any, KernelCode] = weakref.WeakKeyDictionary()


def note_code(launch: Launch, compiled: Any) -> None:
    """Give a launch the code of the kernel that Triton returned for it; None where a hook of Triton ran it."""
    if compiled is not None:
        with error_barrier("code of a kernel"):
            force_setattr(launch, "code", code_of(compiled))


def code_of(compiled: Any) -> KernelCode | None:
    """The facts of a compiled kernel; None for an object of another kind."""
    if not hasattr(compiled, "asm"):
        return None
    known = _known.get(compiled)
    if known is None:
        held = weakref.ref(compiled)
        known = _known[compiled] = KernelCode(lambda: getattr(held(), "asm", None), _arguments(compiled))
    return known


def _arguments(compiled: Any) -> tuple[str, ...]:
    """Names of the compiled function's arguments: what is constant is none of them. Empty where they are not known."""
    signature = getattr(getattr(compiled, "src", None), "signature", None)
    if not isinstance(signature, dict) or not all(isinstance(kind, str) for kind in signature.values()):
        return ()
    return tuple(str(name) for name, kind in signature.items() if kind != "constexpr")
