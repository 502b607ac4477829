"""Clean CUDA-graph programs by the thousand: shadowgraph must be silent, and the results bit-identical.

    python tools/clean_programs.py run --out DIR                                   # host backend
    python tools/clean_programs.py run --out DIR --backend cuda --workers 13 --limit 400
    python tools/clean_programs.py run --out DIR --planted                         # a write past a buffer in each
    python tools/clean_programs.py summary DIR --json tools/evidence/clean_host.json --baseline OTHER.json
    python tools/clean_programs.py one ops/add/0/fwd [--planted]                   # in this process, in full
    python tools/clean_programs.py list --source ops

`run` writes DIR/clean.jsonl, or DIR/planted.jsonl, a JSON object a program, and goes on where it was cut short.
shadowgraph is that of PYTHONPATH where that is set (another checkout, for a baseline), else the one beside this file.

Statuses: `skipped` (with the reason: cannot be made, not capturable, fails without shadowgraph), `clean`, `crash` (the
program is broken, or a fault of shadowgraph's own), `false-alarm` (an error finding), `outputs differ`, `watched eager
work differs`, `host graph differs from eager`, `a dispatch mode changes bits`. Notes, and programs that take more than
20 times as long (`slow`), are counted apart.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from corpus.driver import Driver, Order, Result, environment, paths
from corpus.sources import SOURCES, all_ids

VARIANTS = {False: "guard,wrap,locate", True: "guard,wrap"}  # by whether a write is planted


def listed(args: argparse.Namespace) -> list[str]:
    """Ids, from a file or from a process of its own: a parent that has imported torch would be slow to start others."""
    if args.ids_file:
        return Path(args.ids_file).read_text().split()
    command = [sys.executable, __file__, "list", "--source", args.source, "--match", args.match]
    command += ["--sample", str(args.sample), "--backend", args.backend]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(args.backend))
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout.split()


def run(args: argparse.Namespace) -> int:
    """Run those programs that the folder has no results of."""
    from corpus.summing import circumstances

    out = Path(args.out)
    (out / "work").mkdir(parents=True, exist_ok=True)
    name = "planted" if args.planted else "clean"
    index, count = (int(word) for word in args.shard.split("/"))
    part = f"{name}.jsonl" if count == 1 else f"{name}-{index}-of-{count}.jsonl"
    ids = listed(args)[index::count]
    done = {json.loads(line)["id"] for line in (out / part).read_text().splitlines()} if (out / part).exists() else ()
    variants = tuple((args.variants or VARIANTS[args.planted]).split(","))
    order = Order(args.backend, variants, args.planted, args.workers, args.batch, args.limit, args.patience)
    about = {**circumstances(args.backend, sys.argv), "variants": variants, "asked": ids}
    (out / part.replace(".jsonl", ".about.json")).write_text(json.dumps(about))
    left = [pid for pid in ids if pid not in done]
    print(
        f"{len(left)} of {len(ids)} programs, {args.workers} workers, {args.backend}, {','.join(variants)}", flush=True
    )
    tally: Counter[str] = Counter()
    with open(out / part, "a", buffering=1) as sink:

        def keep(result: Result) -> None:
            sink.write(json.dumps(result) + "\n")
            tally[result["status"]] += 1
            if result["problems"]:
                print(f"  {result['status']:<16} {result['id']}  {','.join(result['problems'])}", flush=True)
            if sum(tally.values()) % 100 == 0:
                print(f"  {dict(tally)}", flush=True)

        Driver(order, out / "work", keep).run(left)
    print(json.dumps({"not run": len(left) - sum(tally.values()), **tally}))
    return 0


def summary(args: argparse.Namespace) -> int:
    """Show and keep the counts; 1 when a comparison fails."""
    from corpus.comparing import compared
    from corpus.summing import Runs

    runs = Runs(Path(args.folder))
    runs.show(sys.stdout, skipped=args.skipped)
    made = runs.summary()
    worse: list[str] = []
    if args.baseline:
        made["baseline"], worse = compared(made, json.loads(Path(args.baseline).read_text()))
        print(json.dumps(made["baseline"], indent=1))
        print("\n".join(f"worse than the baseline: {line}" for line in worse))
    if args.json:
        Path(args.json).write_text(json.dumps(made, indent=1) + "\n")
    return int(bool(worse))


def one(args: argparse.Namespace) -> int:
    """Run programs here, and print all there is."""
    os.environ.update(environment(args.backend))
    from corpus.worker import judged, prepare_process

    prepare_process(args.backend)
    variants = (args.variants or VARIANTS[args.planted]).split(",")
    worst = 0
    for pid in args.ids:
        result = judged(pid, args.backend, variants, args.planted, lambda stage: print(f"  {stage}", file=sys.stderr))
        reports = [answer.pop("report", "") for answer in result.get("variants", {}).values()]
        print(json.dumps(result, indent=1), *reports, sep="\n")
        worst = max(worst, bool(result["problems"]))
    return worst


def work(args: argparse.Namespace) -> int:
    """What children do."""
    from corpus.worker import main as run_order

    run_order(args.order)
    return 0


def show_ids(args: argparse.Namespace) -> int:
    """The ids, one a line."""
    print("\n".join(all_ids(args.source.split(","), args.match, args.sample)))
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = made.add_subparsers(dest="verb", required=True)
    how, which = argparse.ArgumentParser(add_help=False), argparse.ArgumentParser(add_help=False)
    how.add_argument("--backend", choices=("host", "cuda"), default="host")
    how.add_argument("--variants", default="", help="default: guard,wrap,locate; with --planted guard,wrap")
    how.add_argument("--planted", action="store_true", help="plant a write past the end of one buffer of each program")
    which.add_argument("--source", default=",".join(SOURCES))
    which.add_argument("--match", default="", help="a regular expression that ids must contain")
    which.add_argument("--sample", type=int, default=1, help="one in so many of each source, and all patterns")
    verb = _verb(verbs, "run", run, how, which)
    verb.add_argument("--out", required=True)
    verb.add_argument("--ids-file", default="")
    verb.add_argument("--shard", default="0/1")
    verb.add_argument("--workers", type=int, default=1)
    verb.add_argument("--batch", type=int, default=25, help="programs that one process runs")
    verb.add_argument("--limit", type=float, default=0, help="seconds, then stop; a further run goes on")
    verb.add_argument("--patience", type=float, default=60, help="seconds that one stage of a program may take")
    verb = _verb(verbs, "summary", summary)
    verb.add_argument("folder")
    verb.add_argument("--skipped", action="store_true", help="show why programs were skipped")
    verb.add_argument("--json", default="")
    verb.add_argument("--baseline", default="", help="another summary's JSON; exit 1 where this one is worse")
    _verb(verbs, "one", one, how).add_argument("ids", nargs="+")
    _verb(verbs, "work", work).add_argument("order")
    _verb(verbs, "list", show_ids, how, which)
    return made


def _verb(verbs: Any, name: str, does: Any, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = verbs.add_parser(name, parents=parents, help=does.__doc__.split("\n")[0])
    made.set_defaults(does=does)
    return made


def main() -> int:
    sys.path[:0] = paths()  # the shadowgraph that children import
    args = parser().parse_args()
    code: int = args.does(args)
    return code


if __name__ == "__main__":
    sys.exit(main())
