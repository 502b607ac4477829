"""Base class of the dispatch modes: minimal cost for each operator, and invisible to compiled code.

torch wraps the ``__torch_dispatch__`` of every mode so that dynamo stays out of it, at several microseconds a call and
the import of the compiler at the first. Telling dynamo's frame hook once to skip that code and all that it calls has
the same effect, and costs nothing where no code is being compiled.
"""

from __future__ import annotations

from types import CodeType
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from shadowgraph.graphs.dispatch import inference_guards, mode_sensitive


def skip_when_compiling(code: CodeType) -> bool:
    """Make dynamo run frames of `code`, and all frames below them, uncompiled. False where torch has no such switch."""
    try:
        from torch._C._dynamo.eval_frame import (  # type: ignore[attr-defined, unused-ignore]
            _FrameAction,
            _FrameExecStrategy,
            set_code_exec_strategy,
        )
    except ImportError:
        return False
    set_code_exec_strategy(code, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
    return True


class ObserverMode(TorchDispatchMode):
    """Base of modes that only observe: compiled code stays the same under them, and so do results.

    Attributes
    ----------
    steps_aside
        Whether the mode may be taken off a thread's stack during a capture there.
    home
        The thread that entered the mode, and in which it may leave.
    """

    supports_higher_order_operators = True
    steps_aside = False
    home: int | None = None

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        mode_sensitive.install()
        inference_guards.install()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        own = vars(cls).get("__torch_dispatch__")
        cls._skipped = own is None or skip_when_compiling(own.__code__)
        super().__init_subclass__(**kwargs)  # type: ignore[no-untyped-call]

    _skipped = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch must wrap the mode."""
        return not cls._skipped

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Make a compiled function compile exactly as without the mode; the operators inside are not seen."""
        return True

    def take_whole(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator whose inner operators must not meet a mode (`mode_sensitive`)."""
        return self.__torch_dispatch__(func, (), args, kwargs)  # type: ignore[no-untyped-call]
