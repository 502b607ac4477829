"""What a replay costs with this tree and with another one, in turns on one GPU.

    python tools/bench_before_after.py OTHER --json FILE

OTHER is an older checkout with its own `tools/bench_cuda.py` (`git archive COMMIT shadowgraph tools/bench_cuda.py`).
Each runs its own `bench_cuda.py --replay-only`, in the order other, this, this, other, in processes of its own. Where
two runs of one tree differ by as much as those of two trees, the difference is noise.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpu_evidence import circumstances

HERE = Path(__file__).resolve().parent.parent


def figures(tree: Path, rounds: int) -> dict[str, Any]:
    """What a tree's benchmark prints."""
    paths = [str(tree), *filter(None, [os.environ.get("PYTHONPATH")])]
    kept = [path for path in os.pathsep.join(paths).split(os.pathsep) if Path(path).resolve() != HERE or tree == HERE]
    command = [sys.executable, str(tree / "tools" / "bench_cuda.py"), "--replay-only", "--rounds", str(rounds)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(kept)}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{tree}: the benchmark ended with {done.returncode}\n{done.stderr[-2000:]}")
    report: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("--commit", required=True, help="of the other tree")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    other = args.other.resolve()
    turns = (("other", other), ("this", HERE), ("this", HERE), ("other", other))
    runs = [(name, figures(tree, args.rounds)) for name, tree in turns]
    report = {**circumstances("bench_before_after"), "other_commit": args.commit}
    report |= {name: [found for which, found in runs if which == name] for name in ("other", "this")}
    args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
