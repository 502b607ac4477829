"""How long the verbs take on a large dump: python tools/bench_verbs.py [--buffers 100000] [--nodes 10000] [--json]

A made-up dump of a ledger of buffers between guards, a fifth of them named, some by two owners, and one graph of many
nodes. Each verb runs in a process of its own, start of the interpreter and imports included; medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TRITON_INTERPRET", "1")
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

import shadowgraph as sg  # noqa: E402
from shadowgraph.dumps.reader import read_dump  # noqa: E402
from shadowgraph.model.buffers import Buffer, Ledger, Role  # noqa: E402
from shadowgraph.model.device_nodes import DeviceNode, NodeKind, Word  # noqa: E402
from shadowgraph.model.owners import Owner  # noqa: E402
from shadowgraph.model.stacks import Frame  # noqa: E402
from shadowgraph.model.views import TensorView  # noqa: E402

STEP = 8192
TABLE = "server.table[0]"
NAMED = 5  # one in so many buffers has an owner, and one in ten of these another one


def view(start: int, count: int) -> TensorView:
    return TensorView(start, start, 4 * count, (count,), (1,), "int32", 4, "cpu")


def filled(ledger: Ledger, base: int, count: int) -> list[Owner]:
    """Enter buffers between guards; returns who owns some of them."""
    stacks = [tuple(Frame(f"/srv/app/{i}.py", n, "make") for n in range(12)) for i in range(50)]
    owners = []
    for i in range(count):
        start, shape = base + STEP * i, (1000 + i % 7,)
        own = (ledger.next_serial(), start, 4 * shape[0], Role.FOREIGN, "int32", shape, 4, stacks[i % 50])
        ledger.add(Buffer(*own, head_guard=512, tail_guard=1024))
        if i % NAMED == 0:
            owners.append(Owner(f"server.layers[{i}].kv_indices", view(start, shape[0])))
        if i % (10 * NAMED) == 0:
            owners.append(Owner(f"server.first[{i}]", view(start, 9)))
    return owners


def kernels(base: int, count: int, buffers: int) -> tuple[DeviceNode, ...]:
    """A chain of nodes, each with four words that point into buffers."""
    return tuple(
        DeviceNode(
            *(i, NodeKind.KERNEL, f"void kernel_{i % 20}<{'int, ' * 40}int>(int*)", (i, 1, 1), (128, 1, 1)),
            words=tuple(Word(k, 8 * k, "", base + STEP * ((i * 4 + k) % buffers)) for k in range(4)),
            launch=0,
            after=(i - 1,) if i else (),
        )
        for i in range(count)
    )


def large_dump(path: Path, buffers: int, nodes: int) -> Path:
    """A dump of a real overflow among many made-up buffers and nodes."""
    from shadowgraph.demos.kernels import fill

    memory = torch.zeros(buffers * STEP, dtype=torch.uint8)  # what the made-up buffers lie in
    with sg.debug() as debugger:
        with debugger.guard():
            table = torch.zeros(64, dtype=torch.int32)
        debugger.name("server.table", [table])
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            doubled = table * 2
        fill[(1,)](table, 0, 66, 1, BLOCK=256)
        graph.replay()
        context = debugger._work.context
        owners = filled(context.ledger, memory.data_ptr(), buffers)
        made = kernels(memory.data_ptr(), nodes, buffers)
        debugger.graphs[0].build_device_later(lambda: made)
        living = context.names.living
        context.names.living = lambda fresh=False: [*living(fresh), *owners]  # type: ignore[method-assign]
        written = debugger.dump(path, check=False, limit=256 << 20)
        del doubled, memory
    return written


def timed(words: list[str], rounds: int) -> float:
    """Median seconds of a command."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "shadowgraph", *words], cwd=ROOT, capture_output=True, text=True)
        times.append(time.perf_counter() - began)
        if done.returncode:
            raise SystemExit(f"{' '.join(words)}: {done.stderr}")
    return round(statistics.median(times), 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--buffers", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = large_dump(Path(folder) / "large.dump", args.buffers, args.nodes)
        began = time.perf_counter()
        with read_dump(path) as dump:
            opened = time.perf_counter() - began
            assert len(dump.manifest.buffers) > args.buffers
            assert len(dump.manifest.graphs[0].device or ()) == args.nodes
        name, where = "server.layers[500].kv_indices", str(path)
        verbs = {
            "report": ["report", where],
            "report --html": ["report", where, "--html", str(page := Path(folder) / "report.html")],
            "nodes": ["nodes", where],
            "hexdump": ["hexdump", TABLE, where],
            "aliases": ["aliases", where],
            "aliases of one": ["aliases", name, where],
            "timeline": ["timeline", TABLE, where],
            "map": ["map", where],
            "map of one": ["map", where, "--buffer", name],
            "map --json": ["map", where, "--json"],
            "map -o png": ["map", where, "-o", str(Path(folder) / "map.png")],
            "map --memory-viz": ["map", where, "--memory-viz", str(Path(folder) / "map.pickle")],
            "diff": ["diff", where, where],
        }
        for kind in ("aliases", "writes", "bytes", "rows"):
            verbs[f"map {kind} -o png"] = ["map", where, "--kind", kind, "-o", str(Path(folder) / f"{kind}.png")]
        found = {"bytes": path.stat().st_size, "open_s": round(opened, 2)}
        found |= {f"{verb}_s": timed(words, args.rounds) for verb, words in verbs.items()}
        found["page_bytes"] = page.stat().st_size
    print(json.dumps(found, indent=1) if args.json else "\n".join(f"{k:18} {v:>12,}" for k, v in found.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
