"""A live vLLM engine on a GPU, plain and under `shadowgraph wrap`, one step after another, each kept at once.

    python tools/live_vllm.py full --out DIR [--caches FILE] [--until SECONDS]

`tools/pack_gpu.py --server vllm` packs the vLLM that it needs; its head says how to unpack it. What DIR holds already,
of the same source, card and packages, is not run again, so a run that was cut short goes on where it stopped. What is
compiled on first use goes into DIR/caches.txz after the first step; give that file to `--caches` to begin with it.

Plans:
  full       100 requests of mixed prompts and outputs, full graphs: plain, wrapped, plain again; then a plain engine
             and a wrapped one take turns, for tokens a second
  decode     the same with full graphs of decode steps only
  piecewise  the same with full graphs of decode steps and compiled pieces, as is vLLM's default
  uncompiled the same with pieces that run as they are, which starts faster
  faults     wrapped, each time with another fault planted for one request: see `tools/live_vllm_engine.py`

A wrapped run is held to: the plain run's tokens, in each batch in which the two plain runs agree; no finding and no
note; every replay checked; nothing that vLLM's adapter does without. A planted fault is held to: a finding that names
the buffer, the planted line, and a batch with the request; and none about another buffer.

Exit codes: 0 as expected; 1 something else, a line each on standard error; 2 wrong use; 3 no CUDA device; 4 no vLLM;
5 as expected so far, and not everything was run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from live_abba import EndedError
from live_runs import PAIR, Evidence, Server, Step, add_options, begin, parsed, results, took_turns

CACHES = (Path(".cache", "vllm"), Path(".triton"))
SERVER = Server("live_vllm", "live_vllm_engine.py", "live_vllm", CACHES)
UNEXPECTED, NO_CUDA, NO_VLLM, LEFT = 1, 3, 4, 5
MODES = {
    "full": ("--mode", "full"),
    "decode": ("--mode", "decode"),
    "piecewise": ("--mode", "piecewise"),
    "uncompiled": ("--mode", "piecewise", "--backend", "eager"),
}
MIXED = ("--requests", "100", "--tokens", "64")
TIMED = ("--requests", "2", "--tokens", "256", "--context", "1024", "--told")
WARM = 8  # rounds until few steps are observed any more
REQUEST = "20"  # comes within the first 512 replays, which are all observed
PLANTED = ("--requests", "40", "--tokens", "64", "--request", REQUEST, "--plant")


class Expected(NamedTuple):
    """What a finding must say of a planted fault."""

    codes: tuple[str, ...]
    buffer: str  # end of its name


FAULTS = {
    "slots": Expected(("SG101",), "slot_mapping.gpu"),
    "metadata": Expected(("SG104", "SG108"), "scheduler_metadata"),
    "positions": Expected(("SG104", "SG108"), "runner.positions"),
}


def steps_of(plan: str) -> list[Step]:
    """What a plan runs one after another."""
    if plan == "faults":
        return [Step(fault, True, (*MODES["full"], *PLANTED, fault)) for fault in FAULTS]
    words = (*MODES[plan], *MIXED)
    return [Step("plain", False, words), Step("wrapped", True, words), Step("plain again", False, words)]


def turns_of(plan: str) -> list[Step]:
    """The two engines of a plan that take turns, if it has them."""
    return [Step(name, name == "wrapped", (*MODES[plan], *TIMED)) for name in PAIR] if plan in MODES else []


def lacking() -> tuple[int, str] | None:
    """What this machine has not, with the exit code for that; None where a run can begin."""
    import torch

    if not torch.cuda.is_available():
        return NO_CUDA, "there is no CUDA device here, and a live run needs one"
    if importlib.util.find_spec("vllm") is None:
        return NO_VLLM, "vLLM is not installed here; `tools/pack_gpu.py --server vllm` packs it"
    return None


def is_over(result: dict[str, Any]) -> bool:
    """Whether a step needs no other run: a planted fault may end the engine before it has served everything."""
    return result["said"] is not None or bool(result.get("planted") and result.get("findings"))


def batches_in(result: dict[str, Any]) -> list[str]:
    """Digests of the tokens of each batch that a step served."""
    found: list[str] = (result["said"] or result.get("until_then") or {}).get("batches", [])
    return found


def compared(steps: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """Tokens by batch: in how many the plain runs agree, and in which of these the wrapped run has others; None until
    all three were run."""
    if not {"plain", "wrapped", "plain again"} <= steps.keys():
        return None
    plain, wrapped, again = (batches_in(steps[name]) for name in ("plain", "wrapped", "plain again"))
    agreed = [at for at, (one, other) in enumerate(zip(plain, again, strict=False)) if one == other]
    differ = [at for at in agreed if wrapped[at : at + 1] != plain[at : at + 1]]
    return {"batches": len(plain), "plain_agrees": len(agreed), "wrapped_differs": differ}


def end_of(result: dict[str, Any]) -> str:
    """How a step ended: by itself, or by its limit."""
    code = result["code"]
    return code if isinstance(code, str) else f"ended with code {code}"


def failures_of(result: dict[str, Any]) -> list[str]:
    """What was not as expected of a run without a fault."""
    found = []
    if result["said"] is None:
        so_far = (result.get("until_then") or {}).get("requests", 0)
        found.append(f"{end_of(result)}, {so_far} requests served")
    elif result["code"] != 0:
        found.append(end_of(result))
    return found + (failures_of_report(result) if "findings" in result or "report" in result else [])


def failures_of_report(result: dict[str, Any]) -> list[str]:
    """What a wrapped run found, or was not watched in."""
    if "report" in result:
        return [f"has no report: {result['report']}"]
    found = [each["message"] for each in result["findings"]] + [f"note: {each}" for each in result["notes"]]
    made, checked = result["replays"]["made"], result["replays"]["checked"]
    if made == 0:
        found.append("no graph was replayed")
    if made != checked:
        found.append(f"{checked} of {made} replays were checked")
    return [*found, *result["told"], *(f"a fault of shadowgraph's own: {each}" for each in result["faults"])]


def unnamed(finding: dict[str, Any], planted: dict[str, Any]) -> list[str]:
    """What a finding about the buffer of a planted fault does not say."""
    batch = finding.get("batch") or {}
    lines = [finding["culprit"]["line"], *finding.get("lines", {}).values()]
    missing = [] if any(line and _within(line, planted) for line in lines) else ["the planted line"]
    ids = [each.split("-")[0] for each in batch.get("requests", ())]
    return missing + ([] if str(planted["request"]) in ids else [f"request {planted['request']}"])


def _within(line: str, planted: dict[str, Any]) -> bool:
    file, number = line.rsplit(":", 1)
    return Path(file).name == planted["file"] and int(number) in range(planted["first"], planted["last"] + 1)


def failures_of_fault(result: dict[str, Any], expected: Expected) -> list[str]:
    """What was not as expected of a run with a planted fault."""
    if "report" in result:
        return [f"has no report: {result['report']}"]
    if not result.get("planted"):
        return [f"{end_of(result)}, before the fault was planted"]
    named = [each for each in result["findings"] if str(each["buffer"]["name"]).endswith(expected.buffer)]
    found = [each["message"] for each in result["findings"] if each not in named]
    missing = [unnamed(each, result["planted"]) for each in named if each["code"] in expected.codes]
    if not missing:
        return [*found, f"no finding {' or '.join(expected.codes)} about {expected.buffer}"]
    if all(missing):
        found.append(f"the finding about {expected.buffer} does not name {' and '.join(missing[0])}")
    return found


def unexpected(plan: str, kept: dict[str, Any]) -> list[str]:
    """All that is not as expected in what is kept of a plan, a sentence each.

    Parameters
    ----------
    plan
        Its name.
    kept
        What its evidence holds: `steps`, `tokens` and `turns` as far as they were run.
    """
    found: list[str] = []
    for result in kept.get("steps", ()):
        name = result["step"]
        failures = failures_of_fault(result, FAULTS[name]) if plan == "faults" else failures_of(result)
        found += [f"{name}: {failure}" for failure in failures]
    for result in kept.get("turns", {}).get("steps", ()):
        found += [f"{result['step']}, in turns: {failure}" for failure in failures_of(result)]
    tokens = kept.get("tokens")
    if tokens and not tokens["plain_agrees"]:
        found.append("the plain runs agree in no batch, so that tokens say nothing")
    if tokens and tokens["wrapped_differs"]:
        found.append(f"wrapped: other tokens in batches {', '.join(map(str, tokens['wrapped_differs']))}")
    return found


def judged(plan: str, evidence: Evidence, ended: tuple[str, ...] = (), *, caches: bool = True) -> list[str]:
    """Keep what follows from the results so far: tokens compared, and all that is unexpected, which is returned.

    Parameters
    ----------
    plan, evidence, caches
        What was run, and whether to keep what was compiled, too: not while other steps compile.
    ended
        What no result says: engines that ended in the middle of their turns.
    """
    tokens = compared({each["step"]: each for each in evidence.steps})
    found = [*unexpected(plan, {**evidence.results, "tokens": tokens}), *ended]
    evidence.keep({"tokens": tokens, "unexpected": found}, caches)
    return found


def run(options: argparse.Namespace, evidence: Evidence) -> bool:
    """Run what is left of a plan as time allows, and keep it; whether everything was run."""
    began = time.perf_counter()
    over = {each["step"] for each in evidence.steps if is_over(each)}
    wanted = options.steps.split(",") if options.steps else None
    left = [step for step in steps_of(options.plan) if step.name not in over]
    now = [step for step in left if wanted is None or step.name in wanted]
    for result in results(SERVER, options, now):
        print(json.dumps(result), flush=True)
        evidence.keep_step(result, caches=not options.together)
        judged(options.plan, evidence, caches=not options.together)
    over |= {each["step"] for each in evidence.steps if is_over(each)}
    whole = all(step.name in over for step in left)
    turns = turns_of(options.plan)
    if not turns or "turns" in evidence.results or not options.blocks:
        return whole
    if wanted is not None and "turns" not in wanted:
        return False
    if time.perf_counter() - began > options.until:
        print("no time left for: turns; run this again")
        return False
    kept, speed = took_turns(SERVER, turns, options.out, options.wrap, options.limit, options.blocks, WARM)
    print(json.dumps(speed), flush=True)
    evidence.keep({"turns": {"steps": kept, "throughput": speed}})
    return whole


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", choices=(*MODES, "faults"))
    add_options(parser)
    options = parsed(parser, sys.argv[1:])
    missing = lacking()
    if missing is not None:
        print(f"live_vllm: {missing[1]}", file=sys.stderr)
        return missing[0]
    begin(options)
    evidence = Evidence(SERVER, options, *(["--together"] if options.together else []))
    whole = False
    ended: tuple[str, ...] = ()
    try:
        whole = run(options, evidence)
    except EndedError as error:
        ended = (f"turns: {error}",)
    found = judged(options.plan, evidence, ended)
    for sentence in found:
        print(f"live_vllm: {sentence}", file=sys.stderr)
    if found:
        return UNEXPECTED
    return 0 if whole else LEFT


if __name__ == "__main__":
    sys.exit(main())
