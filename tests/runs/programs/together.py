"""Three threads that begin at the same time, each with a buffer, a graph and an overrun of its own."""

from __future__ import annotations

import threading

from overrun import Decode

barrier = threading.Barrier(3)
turn = threading.Lock()  # nobody sees who writes past an end, so that another thread's check may be the first after it
kept = []


def work() -> None:
    barrier.wait()
    decode = Decode()
    kept.append(decode)
    barrier.wait()
    with turn:
        decode.step(8)


threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("done")
