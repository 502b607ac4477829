"""What a dump costs: the program's stop against a plain copy of the same bytes, the file against a plain write.

python tools/bench_dump.py [--size 1G] [--rounds 5] [--dir DIR] [--cuda] [--json]

Ratios within one run, in the order A B B A after a warm-up of each, medians. The copy is of the same buffers, one by
one, into fresh memory on the host; with --cuda from the device into pinned memory that is there already. The write is
of the same bytes into the same directory, with fsync. Before each, earlier files are deleted and memory is touched,
untimed: on a virtual machine, memory that was not used for a while costs whoever touches it first.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import shadowgraph as sg
from shadowgraph.common.option_kinds import parse_bytes
from shadowgraph.dumps.collecting import Collected, collect
from shadowgraph.dumps.reader import read_dump
from shadowgraph.dumps.writer import write_dump

PIECES = 16
SPARE = 1 << 20  # of the dump's bound, for what is not contents


def abba(
    plain: Callable[[], object], ours: Callable[[], object], rounds: int, before: Callable[[], object]
) -> dict[str, float]:
    """Median seconds of both and their ratio; `before` is called before each and not timed."""
    for run in (plain, ours):
        before()
        run()
    times: dict[str, list[float]] = {"plain": [], "ours": []}
    for _ in range(rounds):
        for name in ("plain", "ours", "ours", "plain"):
            before()
            began = time.perf_counter()
            (plain if name == "plain" else ours)()
            times[name].append(time.perf_counter() - began)
    a, b = statistics.median(times["plain"]), statistics.median(times["ours"])
    return {"plain_s": round(a, 4), "ours_s": round(b, 4), "ratio": round(b / a, 3)}


def plain_copy(tensors: list[torch.Tensor], cuda: bool) -> Callable[[], object]:
    """The least that a program would do to have the bytes on the host."""
    if not cuda:
        return lambda: [tensor.numpy().tobytes() for tensor in tensors]
    pinned = [torch.empty_like(tensor, device="cpu", pin_memory=True) for tensor in tensors]

    def copy() -> None:
        for host, tensor in zip(pinned, tensors, strict=True):
            host.copy_(tensor, non_blocking=True)
        torch.cuda.synchronize()

    return copy


def plain_write(tensors: list[torch.Tensor], path: Path) -> Callable[[], object]:
    """The same bytes into a file, flushed to the disk."""
    data = [memoryview(tensor.cpu().numpy()) for tensor in tensors]

    def write() -> None:
        with open(path, "wb", buffering=0) as file:
            for part in data:
                while part:
                    part = part[file.write(part) :]
            os.fsync(file.fileno())

    return write


def measure(size: int, rounds: int, folder: Path, cuda: bool) -> dict[str, Any]:
    """Every ratio for one dump of `size` bytes of memory."""
    device = "cuda" if cuda else "cpu"
    limit = size + SPARE
    with sg.debug(backend="cuda" if cuda else "host", dump_whole=size, dump_limit=limit, far_guard=0) as debugger:
        with debugger.guard():
            tensors = [torch.full((size // PIECES,), i + 1, dtype=torch.uint8, device=device) for i in range(PIECES)]
        work = debugger._work

        def collected() -> Collected:
            return collect(work, debugger.facts, "benchmark", limit, redact=False)

        began = time.perf_counter()
        once = collected()
        first = time.perf_counter() - began
        path = folder / "dump.safetensors"
        with read_dump(write_dump(once, path, limit)) as dump:
            held = sum(row.nbytes for row in dump.manifest.payloads)
            left_out = len(dump.manifest.left_out)
        write_plainly = plain_write(tensors, folder / "plain")

        def cleared() -> None:
            for file in folder.iterdir():
                file.unlink()
            np.ones(3 * size, dtype=np.uint8)

        stop = abba(plain_copy(tensors, cuda), collected, rounds, cleared)
        write = abba(write_plainly, lambda: write_dump(once, path, limit), rounds, cleared)
        whole = abba(write_plainly, lambda: debugger.dump(path), rounds, cleared)
    return {
        "device": torch.cuda.get_device_name() if cuda else "host",
        "bytes": held,
        "left_out": left_out,
        "first_stop_s": round(first, 4),
        "stop": stop,
        "write": write,
        "dump": whole,
        "plain_write_gb_s": round(held / write["plain_s"] / 1e9, 2),
        "dump_write_gb_s": round(held / write["ours_s"] / 1e9, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=parse_bytes, default=1 << 30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, help="where to write (default: the temporary directory)")
    parser.add_argument("--cuda", action="store_true", help="buffers on the device")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        found = measure(args.size, args.rounds, Path(folder), args.cuda)
    if args.json:
        print(json.dumps(found, indent=1))
        return 0
    print(f"{found['bytes']:,} bytes on {found['device']}, first stop {found['first_stop_s']} s")
    for what in ("stop", "write", "dump"):
        print("{what:6} plain {plain_s:8.4f} s, ours {ours_s:8.4f} s, x {ratio}".format(what=what, **found[what]))
    print(f"plain write {found['plain_write_gb_s']} GB/s, dump {found['dump_write_gb_s']} GB/s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
