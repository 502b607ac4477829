from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import shadowgraph
from shadowgraph.model import stacks as stacks_module
from shadowgraph.model.stacks import Frame, Stack, current_stack

PACKAGE = os.path.dirname(os.path.abspath(shadowgraph.__file__))
STDLIB = os.path.dirname(os.__file__)
SITE = os.path.dirname(os.path.dirname(os.path.abspath(torch.__file__)))


def outer() -> Stack:
    return inner()


def inner() -> Stack:
    return current_stack()


def stack_from(filename: str) -> Stack:
    """The stack seen in a function of a file with the given name."""
    code: CodeType = compile("def place(look):\n    return look()\n", filename, "exec")
    namespace: dict[str, object] = {}
    exec(code, namespace)
    return namespace["place"](current_stack)  # type: ignore[operator, no-any-return]


def test_innermost_first_with_file_line_and_function() -> None:
    stack = outer()
    first = inner.__code__.co_firstlineno
    assert [frame.function for frame in stack[:3]] == [
        "inner",
        "outer",
        "test_innermost_first_with_file_line_and_function",
    ]
    assert (stack[0].file, stack[0].line) == (__file__, first + 1)


@pytest.mark.parametrize("limit", [1, 3])
def test_the_limit_keeps_the_innermost(limit: int) -> None:
    def deep(levels: int) -> Stack:
        return deep(levels - 1) if levels else current_stack(limit)

    assert [frame.function for frame in deep(20)] == ["deep"] * limit


def test_twelve_frames_are_kept_unless_asked_otherwise() -> None:
    def deep(levels: int) -> Stack:
        return deep(levels - 1) if levels else current_stack()

    assert len(deep(20)) == 12


def test_frames_of_context_managers_partials_and_threads_are_left_out() -> None:
    found: list[Stack] = []

    @contextlib.contextmanager
    def block() -> Iterator[None]:
        found.append(current_stack())
        yield

    thread = threading.Thread(target=functools.partial(block().__enter__))
    thread.start()
    thread.join()
    with block():
        pass
    for stack in found:
        assert stack[0].function == "block"
        assert not {os.path.basename(frame.file) for frame in stack} & {"contextlib.py", "threading.py", "functools.py"}
    assert len(found[0]) == 1, "nothing of the program's own stands above a thread's target"


def test_frames_of_torch_are_left_out() -> None:
    found: list[Stack] = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            found.append(current_stack())
            return func(*args, **(kwargs or {}))

    with Mode():
        torch.nn.Linear(2, 2)(torch.zeros(1, 2))
    functions = [frame.function for frame in found[-1][:2]]
    assert functions == ["__torch_dispatch__", "test_frames_of_torch_are_left_out"]


@pytest.mark.parametrize(
    ("filename", "kept"),
    [
        ("/home/me/serve.py", True),
        ("/home/me/torch/serve.py", True),
        ("serve.py", True),
        ("/tmp/ipykernel_12/345.py", True),
        ("<stdin>", True),
        (f"{SITE}/sglang/srt/model.py", True),
        (f"{SITE}/torchvision/ops.py", True),
        (f"{SITE}/torch.py", True),
        ("/usr/lib/python3/dist-packages/vllm/worker.py", True),
        (f"{PACKAGE}/demos/founding.py", True),
        (f"{PACKAGE}/demos/sglang/eagle.py", False),
        (f"{PACKAGE}_extra/file.py", True),
        ("/home/me/contextlib.py", True),
        (f"{STDLIB}/asyncio/events.py", True),
        (f"{PACKAGE}/debugger.py", False),
        (f"{PACKAGE}/tracking/stacks.py", False),
        (f"{PACKAGE}/demos.py", False),
        (f"{SITE}/torch/nn/modules/linear.py", False),
        (f"{SITE}/triton/runtime/jit.py", False),
        (f"{SITE}/numpy/core/numeric.py", False),
        ("/usr/lib/python3/dist-packages/torch/_ops.py", False),
        (f"{STDLIB}/contextlib.py", False),
        (f"{STDLIB}/threading.py", False),
        ("<frozen importlib._bootstrap>", False),
        ("<string>", False),
    ],
)
def test_whose_frames_are_kept(filename: str, kept: bool) -> None:
    frame = stack_from(filename)[0]
    assert (frame.file == filename) is kept
    if kept:
        assert (frame.line, frame.function) == (2, "place")


def test_a_library_that_was_imported_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton or torch built from source, or packages in a folder of PYTHONPATH."""
    kernels = types.ModuleType("triton")
    kernels.__file__ = "/home/me/source/triton/python/triton/__init__.py"
    monkeypatch.setitem(sys.modules, "triton", kernels)
    monkeypatch.setattr(stacks_module, "_skip_cache", {})
    assert stacks_module.is_machinery("/home/me/source/triton/python/triton/runtime/jit.py")
    assert not stacks_module.is_machinery("/home/me/source/triton/python/tutorials/matmul.py")
    assert not stacks_module.is_machinery("/home/me/source/triton/python/triton_kernels/routing.py")
    assert stacks_module.is_machinery(torch.__file__)
    assert not stacks_module.is_machinery("/home/me/serve.py")


def test_the_code_of_a_notebooks_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell is called by its number, and below it there is nothing of the program's own."""

    class Compiler:
        def format_code_name(self, name: str) -> tuple[str, str] | None:
            return ("Cell", "In[3]") if name == "/tmp/ipykernel_1/77.py" else None

    shell = types.SimpleNamespace(compile=Compiler())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))  # type: ignore[arg-type]
    namespace: dict[str, object] = {"look": current_stack}
    exec(compile("def f():\n    return look()\nseen = f()\n", "/tmp/ipykernel_1/77.py", "exec"), namespace)
    assert namespace["seen"] == (Frame("In[3]", 2, "f"), Frame("In[3]", 3, "<module>"))
    assert current_stack(1)[0].file == __file__
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: None))  # type: ignore[arg-type]
    assert stack_from("/tmp/ipykernel_1/77.py")[0].file == "/tmp/ipykernel_1/77.py"


def test_what_a_file_is_found_out_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []
    monkeypatch.setattr(stacks_module, "_classify", lambda name: asked.append(name) or False)
    name = str(tmp_path / "asked_once.py")
    for _ in range(3):
        stack_from(name)
    assert asked.count(name) == 1
    monkeypatch.undo()
    stacks_module._skip_cache.clear()


@pytest.mark.parametrize("chosen", [True, False], ids=["a folder of the user's", "inductor's own"])
def test_compiled_code_is_no_place_in_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: bool
) -> None:
    """It is where inductor writes it, which a user may choose; a file of the program's own beside it is one."""
    from torch._inductor import codecache

    folder = tmp_path / ("cache" if chosen else "torchinductor_user")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
    _, path = codecache.write("def place(look):\n    return look()\n", "py")
    own = folder / "own.py"
    own.write_text(Path(path).read_text())
    assert stack_from(path)[0].file != path
    assert (stack_from(str(own))[0].file == str(own)) is chosen
