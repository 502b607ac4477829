"""What sglang's scheduler catches, and what its watchdog kills, is joined with what is known before it is lost."""

from __future__ import annotations

import signal
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import shadowgraph as sg
from shadowgraph import session
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.demos.sglang.host import SGLANG_VERSION, load, sglang_version
from shadowgraph.integrations import notices
from shadowgraph.integrations.sglang.hooks import Hooks, tell_memory


def replayed(debugger: sg.Debugger) -> sg.HostGraph:
    with debugger.guard():
        rows = torch.arange(4, dtype=torch.int32)
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        rows + 1
    graph.replay()
    return graph


def forget(hooks: Hooks) -> None:
    session.observers[:] = [each for each in session.observers if each is not hooks]


def test_what_the_scheduler_raises() -> None:
    hooks, before = Hooks(), internal_errors.total
    error = RuntimeError("CUDA error: device-side assert triggered\nCompile with TORCH_USE_CUDA_DSA")

    def loop(scheduler: object, *args: object) -> None:
        assert args == (7,)
        raise error

    with sg.debug() as debugger:
        graph = replayed(debugger)
        with pytest.raises(RuntimeError) as raised:
            hooks.serving(loop, object(), 7)
        (failure,) = debugger.facts().failures
        assert hooks.serving(lambda scheduler, value: value, object(), 5) == 5
        said = str(debugger.report(quiet=True))
    forget(hooks)
    assert raised.value is error
    assert (failure.kind, failure.error, failure.where) == ("device", "RuntimeError", "sglang's scheduler")
    assert failure.said == "CUDA error: device-side assert triggered"
    assert (failure.graph, failure.replay) == (graph.model.name, 1)
    assert "the program met a dead device: RuntimeError: CUDA error: device-side assert triggered (caught by" in said
    assert f"  replayed   last, replay 1 of {graph.model.name}, " in said
    assert internal_errors.total == before


def test_other_exceptions_are_the_programs_own() -> None:
    hooks = Hooks()
    with sg.debug() as debugger:
        replayed(debugger)
        for error in (ValueError("no such token"), KeyboardInterrupt(), SystemExit(3)):
            with pytest.raises(type(error)):
                hooks.serving(_raises, error)
        assert debugger.facts().failures == ()
    forget(hooks)
    with pytest.raises(ValueError, match="nobody watches"):
        hooks.serving(_raises, ValueError("nobody watches"))
    forget(hooks)


def _raises(error: BaseException) -> None:
    raise error


@pytest.mark.sglang
@pytest.mark.skipif(sglang_version() != SGLANG_VERSION, reason=f"needs sglang {SGLANG_VERSION}")
def test_a_real_watchdog_asks_before_it_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = load("sglang.srt.utils.watchdog")
    monkeypatch.setattr(module, "pyspy_dump_schedulers", lambda: None)
    hooks, sent, known = Hooks(), [], []

    def kill(number: int) -> None:
        known.append(debugger.monitor.failures.all)
        sent.append(number)
        raise RuntimeError("the parent would be gone")  # ends the watchdog's thread

    monkeypatch.setattr(module, "psutil", SimpleNamespace(Process=lambda: SimpleNamespace(parent=lambda: parent)))
    monkeypatch.setattr(module.time, "sleep", lambda seconds: time_sleep(min(seconds, 0.05)))
    parent = SimpleNamespace(send_signal=kill)
    with sg.debug() as debugger:
        graph = replayed(debugger)
        watchdog = module.WatchdogRaw("Scheduler", lambda: 1, lambda: True, 0.2, dump_info=lambda: "a dump")
        hooks.watchdog_made(None, watchdog)
        assert watchdog.dump_info() == "a dump"
        debugger.monitor.failures.start_over()
        deadline = time.monotonic() + 20
        while not sent and time.monotonic() < deadline:
            time_sleep(0.05)
    forget(hooks)
    assert sent == [signal.SIGQUIT]
    ((failure,),) = known
    assert (failure.kind, failure.where) == ("timeout", "sglang's watchdog")
    assert failure.said == "Scheduler was not fed for 0.2 s"
    assert (failure.graph, failure.replay) == (graph.model.name, 1)


time_sleep = time.sleep


def test_what_is_ours_of_a_device_is_said_when_sglang_has_sized_its_pools(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []
    monkeypatch.setattr(notices, "_tell", said.append)
    monkeypatch.setattr(notices, "_told", set())

    def held(device: str) -> Any:
        return SimpleNamespace(device=device, reserved_bytes=256 << 20)

    tell_memory(held("cpu"), 1024)
    assert said == []
    tell_memory(held("cuda:0"), 16_159_846)
    (line,) = said
    assert line.startswith(
        "256 MiB of cuda:0 were shadowgraph's when sglang sized its pools: its max_total_num_tokens, "
    )
    assert "16,159,846" in line
    assert line in caplog.text


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"tp_size": 2, "tp_rank": 1}, [1]),
        ({"tp_size": 2, "tp_rank": 1, "pp_size": 3, "pp_rank": 2}, [5]),
        ({"tp_size": 1, "tp_rank": 0, "pp_size": 1, "pp_rank": 0}, []),
        ({}, []),
    ],
    ids=["tensor", "stages", "alone", "unknown"],
)
def test_which_rank_of_a_server_this_is(
    facts: dict[str, int], told: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[int] = []
    monkeypatch.setattr(notices, "_place", said.append)
    hooks, before = Hooks(), internal_errors.total
    hooks.backends_made(None, SimpleNamespace(is_draft_worker=False, **facts))
    forget(hooks)
    assert said == told
    assert internal_errors.total == before
