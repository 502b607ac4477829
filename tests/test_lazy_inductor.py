"""Stacks are symbolized without the import of inductor, which torch looks for; the program's own import is as ever."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from shadowgraph.common.lazy_inductor import inductor_stays_out

SYMBOLIZE = """
import sys
import torch
from shadowgraph.tracking.traces import gather, stacks_of

hook, before = torch.__getattr__, set(sys.modules)
stacks = stacks_of([gather()], 3)
assert [frame.function for frame in stacks[0]] == ["<module>"], stacks
print(sorted(set(sys.modules) - before))
assert torch.__getattr__ is hook
if sys.argv[1] == "imported":
    import torch._inductor.codecache
    assert stacks_of([gather()], 3)[0][0].function == "<module>"
"""

PLAIN = """
import sys
import torch

before = set(sys.modules)
torch._C._profiler.symbolize_tracebacks([torch._C._profiler.gather_traceback(True, False, False)])
print("torch._inductor" in set(sys.modules) - before)
"""


def run(folder: Path, program: str, *arguments: str) -> str:
    file = folder / "program.py"
    file.write_text(program)
    command = [sys.executable, str(file), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("later", ["imported", "not imported"])
def test_symbolizing_imports_nothing(tmp_path: Path, later: str) -> None:
    if run(tmp_path, PLAIN) != "True":
        pytest.skip("invalid: this torch does not look for inductor")
    assert run(tmp_path, SYMBOLIZE, later) == "[]"


@pytest.fixture
def without_inductor(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A torch that has not imported inductor, and the names that its own hook is asked for."""
    asked: list[str] = []

    def hook(name: str) -> object:
        asked.append(name)
        if name == "_inductor":
            return "inductor"
        raise AttributeError(name)

    monkeypatch.delattr(torch, "_inductor", raising=False)
    monkeypatch.setattr(torch, "__getattr__", hook)
    return asked


def test_another_thread_finds_it_meanwhile(without_inductor: list[str]) -> None:
    found: list[object] = []
    with inductor_stays_out():
        assert not hasattr(torch, "_inductor")
        assert not hasattr(torch, "no_such_thing")
        assert without_inductor == ["no_such_thing"]
        other = threading.Thread(target=lambda: found.append(torch._inductor))
        other.start()
        other.join()
    assert found == ["inductor"]
    assert getattr(torch, "_inductor") == "inductor"  # noqa: B009


def test_blocks_within_blocks_and_of_two_threads(without_inductor: list[str]) -> None:
    hook = vars(torch)["__getattr__"]
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with inductor_stays_out():
            entered.set()
            leave.wait(60)

    other = threading.Thread(target=hold)
    other.start()
    assert entered.wait(60)
    with inductor_stays_out(), inductor_stays_out():
        assert not hasattr(torch, "_inductor")
    assert getattr(torch, "_inductor") == "inductor"  # noqa: B009
    leave.set()
    other.join()
    assert vars(torch)["__getattr__"] is hook


def test_a_hook_that_the_program_puts_over_it_stays(
    without_inductor: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with inductor_stays_out():
        below = vars(torch)["__getattr__"]

        def over(name: str) -> object:
            return below(name)

        monkeypatch.setattr(torch, "__getattr__", over)
    assert vars(torch)["__getattr__"] is over
    with inductor_stays_out():
        assert not hasattr(torch, "_inductor")
    assert vars(torch)["__getattr__"] is over
    assert getattr(torch, "_inductor") == "inductor"  # noqa: B009


def test_an_exception_in_the_block_ends_it(without_inductor: list[str]) -> None:
    hook = vars(torch)["__getattr__"]
    with pytest.raises(ValueError, match="here"), inductor_stays_out():
        raise ValueError("here")
    assert vars(torch)["__getattr__"] is hook
    assert getattr(torch, "_inductor") == "inductor"  # noqa: B009
