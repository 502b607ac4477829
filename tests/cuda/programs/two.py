"""Two spawned children, each with a context and a bug of its own."""

from __future__ import annotations

import multiprocessing

from prepare import main

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    children = [spawn.Process(target=main, args=(extra,)) for extra in (1, 2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    print([child.exitcode for child in children])
