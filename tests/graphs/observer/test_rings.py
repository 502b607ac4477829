"""Rows of many threads: none is lost in silence, read in halves, or told as another thread's."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch

from shadowgraph.graphs.observer.observer import OperatorObserver
from shadowgraph.model.views import TensorView

ROWS = 4096


def test_rows_that_later_ones_replaced_are_counted(observer: OperatorObserver) -> None:
    x = torch.zeros(2)
    before = observer.latest_sequence()
    for _ in range(ROWS + 100):
        x.fill_(1)
    found = observer.since(before)
    assert (len(found), observer.dropped) == (ROWS, 100)
    assert [each.sequence for each in found] == list(range(before + 101, before + ROWS + 101))
    assert len(observer.launches_between(before + 200, before + 210)) == 10
    assert observer.dropped == 100, "none of these was replaced"


def test_nothing_is_told_of_no_time(observer: OperatorObserver) -> None:
    torch.zeros(2).fill_(1)
    now = observer.latest_sequence()
    assert observer.launches_between(now, now) == observer.launches_between(now, now - 1) == []
    assert observer.dropped == 0


def test_each_thread_has_its_own_operators_in_its_own_order(observer: OperatorObserver) -> None:
    before, count, together = observer.latest_sequence(), 300, threading.Barrier(8)

    def run(_: int) -> tuple[int, torch.Tensor]:
        x = torch.empty(count)
        rows = [x[at] for at in range(count)]
        together.wait()
        for row in rows:
            row.fill_(1)
        return threading.get_ident(), x

    with ThreadPoolExecutor(8) as pool:
        ran = dict(pool.map(run, range(8)))
    found = observer.since(before)
    assert observer.dropped == 0
    assert [each.sequence for each in found] == list(range(before + 1, before + 8 * count + 1))
    for thread, x in ran.items():
        starts = [each.launch.pointers[0].view.start for each in found if each.thread == thread]
        assert starts == [TensorView.of(x).start + 4 * at for at in range(count)]


def test_a_thread_that_has_ended_leaves_its_rows_and_its_ring(observer: OperatorObserver) -> None:
    def run(x: torch.Tensor) -> None:
        thread = threading.Thread(target=x.fill_, args=(1,))
        thread.start()
        thread.join()

    tensors = [torch.empty(2) for _ in range(50)]
    run(tensors[0])
    library, before = observer._library, observer.latest_sequence()
    assert library is not None
    rows = library._calls.shadowgraph_rows()
    for each in tensors:
        run(each)
    grown = library._calls.shadowgraph_rows() / rows
    assert grown <= 5, "threads that come take the rings of those that are gone: a joined one may end a little later"
    assert [each.launch.pointers[0].view.hull for each in observer.since(before)] == [
        TensorView.of(each).hull for each in tensors
    ]


@torch.jit.script
def copies_in_turn(small: list[torch.Tensor], large: list[torch.Tensor], times: int) -> None:
    """Runs without the GIL, which a reader has."""
    for _ in range(times):
        small[0].copy_(small[1])
        large[0].copy_(large[1])


def test_rows_are_whole_while_threads_replace_them(observer: OperatorObserver) -> None:
    small, large = [torch.zeros(16), torch.zeros(16)], [torch.zeros(64), torch.zeros(64)]
    hulls = [tuple(TensorView.of(each).hull for each in pair) for pair in (small, large)]
    for _ in range(3):  # the executor makes its plan, with operators of its own
        copies_in_turn(small, large, 1)
    library, began, over = observer._library, observer.latest_sequence(), threading.Event()
    assert library is not None

    def run() -> None:
        while not over.is_set():
            copies_in_turn(small, large, 20_000)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until = time.monotonic() + 4
        while time.monotonic() < until:
            latest = observer.latest_sequence()
            for _ in range(50):
                rows, _ = library.read(began, latest + 10**6)  # back to the row that the thread is about to replace
                assert (rows["sequence"] == rows["first"]).all()
            assert (rows["count"] == 2).all()
            assert (rows["places"][:, 0]["nbytes"] == rows["places"][:, 1]["nbytes"]).all()
            for each in observer.launches_between(max(began, latest - 5), latest):
                assert tuple(pointer.view.hull for pointer in each.launch.pointers) in hulls
        assert observer.latest_sequence() > began + 3 * ROWS, "precondition"
    finally:
        over.set()
        thread.join()


def test_stops_and_starts_while_threads_run_operators(observer: OperatorObserver) -> None:
    over = threading.Event()
    counts = [0, 0]

    def run(at: int) -> None:
        x = torch.zeros(3)
        while not over.is_set():
            x.add_(1)  # calls others: some begin before the stop and end after it
            counts[at] += 1

    threads = [threading.Thread(target=run, args=(at,)) for at in range(2)]
    for thread in threads:
        thread.start()
    try:
        stops = 0
        while stops < 200 or min(counts) < 1000:
            observer.stop()
            observer.start()
            stops += 1
            time.sleep(0.0001)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    observer.stop()
    before = observer.latest_sequence()
    x = torch.zeros(3)
    x.fill_(1)
    assert observer.latest_sequence() == before
    observer.start()
    x.fill_(1)
    assert [each.launch.name for each in observer.since(before)] == ["aten.fill_.Scalar"]


def test_what_was_noted_stays_readable_after_a_stop(observer: OperatorObserver) -> None:
    before = observer.latest_sequence()
    torch.zeros(3).fill_(2)
    observer.stop()
    assert [each.launch.name for each in observer.since(before)][-1] == "aten.fill_.Scalar"


def test_the_latest_sequence_costs_next_to_nothing(observer: OperatorObserver) -> None:
    best = 1.0
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(10_000):
            observer.latest_sequence()
        best = min(best, (time.perf_counter() - began) / 10_000)
    assert best < 1e-6, "a tenth of that on a quiet machine"
