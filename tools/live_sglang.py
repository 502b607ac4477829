"""A live sglang engine on a GPU, plain and under `shadowgraph wrap`, one step after another, each kept at once.

    python tools/live_sglang.py eagle --out DIR [--caches FILE] [--until SECONDS]

`tools/pack_gpu.py` packs the sglang that it needs; its head says how to unpack it. Steps that DIR holds already are
not run again, so a run that was cut short goes on where it stopped. What is compiled on first use goes into
DIR/caches.txz after the first step; give that file to `--caches` to begin with it.

Plans:
  eagle       flashinfer, EAGLE topk 8, two requests of 100 tokens, as many new ones as 0.5.12.post1 survives: plain,
              wrapped
  longer      the same with more new tokens, which that version does not survive
  triton      with the triton backend
  many        flashinfer and EAGLE with 200 requests of mixed lengths: plain twice, wrapped
  late        flashinfer and EAGLE: 400 short requests, then a batch longer than all before, twice: plain, wrapped, and
              wrapped with the scheduler killed after the first long batch, and with an illegal access there
  small       tokens a second at a fixed batch, tiny model: a plain engine and a wrapped one take turns
  large       the same with about 1.5 billion parameters
  speculative the same with the tiny model and EAGLE
  piecewise   the same with the tiny model and piecewise graphs, which sglang has on by default, for prompts
  two         eagle on two GPUs (TP=2), plain, wrapped
  soak        EAGLE with mixed batches for `--minutes`, wrapped: whether memory of any process grows (`soak_wrap.py`)
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from live_abba import EndedError
from live_runs import (
    PAIR,
    ROOT,
    Evidence,
    Server,
    Step,
    add_options,
    begin,
    latest,
    parsed,
    results,
    surroundings,
    took_turns,
)

CACHES = (Path(".cache", "flashinfer"), Path(".cache", "tvm-ffi"), Path(".triton"))
SERVER = Server("live_sglang", "live_engine.py", "live", CACHES)
EAGLE = ("--eagle", "--attention", "flashinfer")
FEW = ("--tokens", "24")
TRITON = ("--eagle", "--attention", "triton", "--kv-tokens", "32768")
MANY = (*EAGLE, "--requests", "200", "--tokens", "24", "--kv-tokens", "32768")
TIMED = ("--requests", "2", "--tokens", "448", "--context", "1024", "--batch", "8", "--kv-tokens", "32768", "--told")
# 400 short requests, then twice a batch that is longer than all before it.
LATE = (*EAGLE, "--quiet", "400", "--requests", "2", "--tokens", "8", "--kv-tokens", "32768")
# Texts that are short for the context, so that 0.5.12.post1 survives, and prompts are a good part of a round.
SHORT = ("--requests", "2", "--kv-tokens", "32768", "--told")
TURNS = {
    "small": TIMED,
    "large": (*TIMED, "--large"),
    "speculative": (*EAGLE, *SHORT, "--tokens", "24", "--context", "2048"),
    "piecewise": (*SHORT, "--tokens", "8", "--batch", "8", "--context", "1024", "--piecewise"),
}
WARM = {"small": 6, "large": 6, "speculative": 60, "piecewise": 130}  # rounds until few steps are observed any more
ON = (*EAGLE, "--on", "--tokens", "24", "--context", "2048", "--kv-tokens", "32768")


def steps_of(plan: str) -> list[Step]:
    """What a plan runs, in order."""
    return {
        "eagle": [Step("plain", False, (*EAGLE, *FEW)), Step("wrapped", True, (*EAGLE, *FEW))],
        "longer": [Step("plain", False, EAGLE), Step("wrapped", True, EAGLE)],
        "triton": [Step("plain", False, TRITON), Step("wrapped", True, TRITON)],
        "many": [Step("plain", False, MANY), Step("wrapped", True, MANY), Step("plain again", False, MANY)],
        "late": [
            Step("plain", False, LATE),
            Step("wrapped", True, LATE),
            Step("killed", True, (*LATE, "--kill")),
            Step("faulted", True, (*LATE, "--fault")),
        ],
        "two": [Step(name, name == "wrapped", (*EAGLE, *FEW, "--tp", "2")) for name in PAIR],
        **{turns: [Step(name, name == "wrapped", words) for name in PAIR] for turns, words in TURNS.items()},
    }[plan]


def soaked(out: Path, minutes: float) -> dict[str, Any]:
    """A wrapped engine that serves for so long: what its memory did, and the requests."""
    with surroundings() as (folder, environment):
        program = [sys.executable, str(ROOT / "tools" / "live_engine.py"), "--models", str(folder / "models"), *ON]
        words = [sys.executable, str(ROOT / "tools" / "soak_wrap.py"), "--minutes", str(minutes), "--json", "soak.json"]
        with (out / "soak.log").open("w") as log:
            subprocess.run([*words, "--", *program], cwd=folder, env=environment, stdout=log, stderr=log, check=False)
        found: dict[str, Any] = json.loads((folder / "soak.json").read_text())
    served = latest((out / "soak.log").read_text(errors="replace").splitlines(), "SERVED ")
    return {**found, "command": " ".join(["tools/live_engine.py", *ON]), **(served or {})}


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", choices=("eagle", "longer", "triton", "many", "late", *TURNS, "two", "soak"))
    add_options(parser)
    parser.add_argument("--minutes", type=float, default=8, help="of the soak (default: %(default)s)")
    return parsed(parser, sys.argv[1:])


def main() -> int:
    options = read_options()
    begin(options)
    evidence = Evidence(SERVER, options, *(["--together"] if options.together else []))
    if options.plan == "soak":
        evidence.keep(soaked(options.out, options.minutes), caches=False)
        return 0
    steps = steps_of(options.plan)
    if options.plan in TURNS:
        try:
            warm = WARM[options.plan]
            kept, speed = took_turns(SERVER, steps, options.out, options.wrap, options.limit, options.blocks, warm)
        except EndedError as error:
            print(f"live_sglang: {error}", file=sys.stderr)
            return 1
        evidence.keep({"steps": kept, "throughput": speed})
        print(json.dumps(speed))
        return 0 if all(each["code"] == 0 for each in kept) else 1
    over = {each["step"] for each in evidence.steps if each["said"]}
    wanted = options.steps.split(",") if options.steps else None
    left = [step for step in steps if step.name not in over and (wanted is None or step.name in wanted)]
    for result in results(SERVER, options, left):
        print(json.dumps(result), flush=True)
        evidence.keep_step(result, caches=not options.together)
    return 0 if all(each["said"] for each in evidence.steps) else 1


if __name__ == "__main__":
    sys.exit(main())
