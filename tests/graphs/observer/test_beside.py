"""Programs are the same with the observer on: profilers, compiled code, inference mode, autograd, forks."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

from shadowgraph.graphs.observer.observer import OperatorObserver


def work(x: torch.Tensor) -> torch.Tensor:
    with record_function("a block of the program"):
        y = torch.nn.functional.gelu(x @ x.t()).add_(1)
    y[:, 0] = 3
    return y.index_select(0, torch.tensor([1, 0])).softmax(-1)


def both(observer: OperatorObserver, run: Callable[[], object]) -> tuple[object, object]:
    """What a program gives with the observer, and without."""
    before = observer.latest_sequence()
    on = run()
    assert observer.latest_sequence() > before, "precondition"
    observer.stop()
    return on, run()


@pytest.mark.parametrize("shapes", [False, True])
def test_a_profiler_sees_the_same_events(observer: OperatorObserver, shapes: bool) -> None:
    def profiled() -> list[tuple[str, object, int]]:
        with profile(activities=[ProfilerActivity.CPU], record_shapes=shapes) as found:
            work(torch.ones(4, 4))
        return [(each.name, each.input_shapes, each.sequence_nr) for each in found.events()]

    on, off = both(observer, lambda: [name_and_shapes[:2] for name_and_shapes in profiled()])
    assert on == off


def test_the_observer_sees_what_runs_under_a_profiler(observer: OperatorObserver) -> None:
    x = torch.zeros(3)
    before = observer.latest_sequence()
    with profile(activities=[ProfilerActivity.CPU]):
        x.fill_(1)
    assert [each.launch.name for each in observer.since(before)][-1] == "aten.fill_.Scalar"


def test_compiled_code_is_compiled_once_and_computes_the_same(observer: OperatorObserver) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    compiled = torch.compile(work, backend=counter, fullgraph=True)
    x = torch.randn(4, 4)
    first, frames = compiled(x), counter.frame_count
    observer.stop()
    second = compiled(x)
    observer.start()
    third = compiled(x)
    assert frames == counter.frame_count == 1, "no guard depends on the observer"
    assert torch.equal(first, second)
    assert torch.equal(first, third)
    torch._dynamo.reset()


def test_operators_of_compiled_code_are_noted(observer: OperatorObserver) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda target, source: target.copy_(source), backend="aot_eager")
    target, source = torch.zeros(4), torch.ones(4)
    compiled(target, source)
    before = observer.latest_sequence()
    compiled(target, source)
    assert any(
        p.view.start == target.data_ptr() and p.may_write
        for each in observer.since(before)
        for p in each.launch.pointers
    )
    torch._dynamo.reset()


def test_inference_mode_and_no_grad(observer: OperatorObserver) -> None:
    for context in (torch.inference_mode, torch.no_grad):
        before = observer.latest_sequence()
        with context():
            x = torch.empty(3)
            x.fill_(1)
        assert [each.launch.name for each in observer.since(before)] == ["aten.fill_.Scalar"]
        assert x.is_inference() is (context is torch.inference_mode)


def test_gradients_are_the_same(observer: OperatorObserver) -> None:
    def gradients() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout())
        optimizer = torch.optim.Adam(model.parameters(), foreach=True)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
        return [each.detach().clone() for each in model.parameters()]

    on, off = both(observer, lambda: [pickle.dumps(each.numpy()) for each in gradients()])
    assert on == off


def test_no_tensor_lives_longer(observer: OperatorObserver) -> None:
    import weakref

    x = torch.zeros(3)
    torch._foreach_zero_([x] * 9)
    gone = weakref.ref(x)
    del x
    assert gone() is None


def test_a_forked_child_goes_on_and_the_parent_too(cached: Path) -> None:
    """In a process of its own: this one has threads of torch, which a child lacks."""
    program = """
        import os, sys, threading
        import torch
        from shadowgraph.graphs.observer.observer import observer

        torch.set_num_threads(1)
        observer.start()
        assert observer.wait(60), observer.sentence()
        x, begun, over = torch.zeros(3), threading.Event(), threading.Event()

        def spin():
            y = torch.zeros(3)
            while not over.is_set():
                y.add_(1)
                begun.set()

        thread = threading.Thread(target=spin)
        thread.start()
        begun.wait()  # a thread's first operator takes a lock of torch's, which no child may inherit
        for _ in range(20):
            before = observer.latest_sequence()
            child = os.fork()
            if not child:
                try:
                    before = observer.latest_sequence()
                    x.fill_(1)
                    (found,) = observer.since(before)
                    assert found.launch.name == "aten.fill_.Scalar", found
                    late = threading.Thread(target=x.zero_)
                    late.start()
                    late.join()
                    assert len(observer.since(before)) == 2
                    observer.stop()
                    before = observer.latest_sequence()
                    x.fill_(1)
                    assert observer.latest_sequence() == before
                    os._exit(0)
                except BaseException as error:
                    print("child:", repr(error), file=sys.stderr)
                    os._exit(1)
            assert os.waitpid(child, 0)[1] == 0
        over.set()
        thread.join()
        before = observer.latest_sequence()
        x.fill_(1)
        assert len(observer.since(before)) == 1
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(program)],  # Python 3.12's, of forks
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ.copy(),
    )
    assert (done.returncode, done.stderr) == (0, "")
