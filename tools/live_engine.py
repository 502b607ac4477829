"""A real `sgl.Engine` over a small model with made-up weights: serves requests and prints one line of JSON, and one
after each batch, for runs that are cut short.

It knows nothing of shadowgraph. `tools/live_sglang.py` runs it, plain and under `shadowgraph wrap`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

FAULT = signal.SIGUSR2  # to the scheduler, which is a process that `multiprocessing` spawns
VOCABULARY = 1000
CONTEXT = 256
# What ran on one H100 with sglang 0.5.12.post1 and 0.5.13.
SMALL = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL |= {"num_key_value_heads": 2, "head_dim": 64, "vocab_size": VOCABULARY}
# About 1.5 billion parameters.
LARGE = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 20, "num_attention_heads": 32}
LARGE |= {"num_key_value_heads": 16, "head_dim": 64, "vocab_size": 32000}  # heads as the small one's: the same kernels
COMMON = {
    "model_type": "llama",
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def write_model(folder: Path, size: dict[str, int], context: int, **more: Any) -> Path:
    """A configuration without weights: the engine makes them up, the same each time."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = {**COMMON, **size, "max_position_embeddings": context, "architectures": ["LlamaForCausalLM"], **more}
    (folder / "config.json").write_text(json.dumps(whole, indent=1) + "\n")
    return folder


def engine_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """What the engine is started with."""
    size = LARGE if options.large else SMALL
    context = options.context
    found: dict[str, Any] = {
        "model_path": str(write_model(options.models / "target", size, context)),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "grammar_backend": "none",
        "sampling_backend": "pytorch",
        "disable_piecewise_cuda_graph": not options.piecewise,
        "cuda_graph_max_bs": options.batch,
        "max_running_requests": options.batch,
        "context_length": context,
        "mem_fraction_static": 0.2,
        "attention_backend": options.attention,
        "random_seed": 0,
        "tp_size": options.tp,
        "disable_custom_all_reduce": options.tp > 1,  # plain NCCL: no library maps memory that GPUs share
        "log_level": "warning",
        **({"max_total_tokens": options.kv_tokens} if options.kv_tokens else {}),
    }
    if options.eagle:
        draft = {**size, "num_hidden_layers": 1}
        architecture = ["LlamaForCausalLMEagle"]
        found |= {
            "speculative_algorithm": "EAGLE",
            "speculative_draft_model_path": str(
                write_model(options.models / "draft", draft, context, architectures=architecture)
            ),
            "speculative_num_steps": 3,
            "speculative_eagle_topk": 8,
            "speculative_num_draft_tokens": 8,
        }
    return found


def prompts_of(requests: int, longest: int, seed: int) -> list[list[int]]:
    """Prompts of mixed lengths; the first two are of 100 tokens, as long as the public report's."""
    rng = random.Random(seed)
    lengths = [100, 100, *(rng.randint(4, longest) for _ in range(requests))][:requests]
    return [[rng.randrange(3, VOCABULARY) for _ in range(length)] for length in lengths]


def batches_of(prompts: list[list[int]], most: int, seed: int) -> list[list[list[int]]]:
    """Prompts in batches of mixed sizes, the first one full."""
    rng = random.Random(seed)
    batches: list[list[list[int]]] = []
    while prompts:
        size = most if not batches else rng.randint(1, most)
        batches.append(prompts[:size])
        prompts = prompts[size:]
    return batches


def generated(engine: Any, batch: list[list[int]], tokens: int) -> tuple[list[list[int]], float]:
    """Greedy tokens of a batch, and the seconds that it took."""
    sampling = {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True}
    began = time.perf_counter()
    answers = engine.generate(input_ids=batch, sampling_params=sampling)
    return [list(answer["output_ids"]) for answer in answers], time.perf_counter() - began


def digest(outputs: list[list[int]]) -> str:
    """By which one sees whether two runs gave the same tokens."""
    return hashlib.sha256(json.dumps(outputs).encode()).hexdigest()[:16]


def say(word: str, **data: Any) -> None:
    """One line of JSON behind a word, at once: a run may be cut short."""
    print(f"{word} {json.dumps(data)}", flush=True)


def play_rounds(answered: Callable[[list[list[int]]], tuple[list[list[int]], float]], batch: int) -> None:
    """A full batch, the same each time, whenever a line comes in, until no more do.

    Parameters
    ----------
    answered
        Gives the tokens of a batch of prompts, and the seconds that it took.
    batch
        How many requests a full one has.
    """
    prompts = prompts_of(batch, 32, 5)
    for _ in sys.stdin:
        answers, seconds = answered(prompts)
        say("ROUND", rate=round(sum(map(len, answers)) / seconds, 1), outputs=digest(answers))


def play_until_ended(engine: Any, options: argparse.Namespace) -> None:
    """Batches of mixed sizes and lengths until SIGTERM: of lengths that the version under test survives."""
    rng, served, longest = random.Random(9), 0, min(100, options.context - options.tokens - 16)
    try:
        while True:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # again: sglang sets its own at the first request
            lengths = [rng.randint(4, longest) for _ in range(rng.randint(1, options.batch))]
            batch = [[rng.randrange(3, VOCABULARY) for _ in range(length)] for length in lengths]
            generated(engine, batch, rng.randint(1, options.tokens))
            served += len(batch)
            if served % 100 < len(batch):
                say("SERVED", requests=served)
    finally:
        engine.shutdown()


def play_quiet(engine: Any, options: argparse.Namespace) -> dict[str, float]:
    """Requests of 4 to 8 tokens, as quiet as a server's first hours; the seconds that they took."""
    if not options.quiet:
        return {}
    rng = random.Random(7)
    prompts = [[rng.randrange(3, VOCABULARY) for _ in range(rng.randint(4, 8))] for _ in range(options.quiet)]
    quarters: list[float] = []
    for quarter in range(4):
        began = time.perf_counter()
        part = prompts[quarter * len(prompts) // 4 : (quarter + 1) * len(prompts) // 4]
        for at in range(0, len(part), options.batch):
            generated(engine, part[at : at + options.batch], 8)
        quarters.append(round(time.perf_counter() - began, 2))
    say("QUIET", requests=len(prompts), quarters_s=quarters)
    return {"quiet_s": round(sum(quarters), 2)}


def signal_scheduler(number: int) -> None:
    """Send a signal to the process that replays the graphs."""
    import psutil

    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # a worker that has ended meanwhile
            if "scheduler" in " ".join(child.cmdline()) or "scheduler" in child.name():
                print(f"{signal.Signals(number).name} to {child.pid}", flush=True)
                os.kill(child.pid, number)


def write_nowhere(*_: object) -> None:
    """An illegal access, which ends the device's context."""
    import cupy

    kernel = cupy.RawKernel('extern "C" __global__ void write_nowhere() { *(volatile int*)8 = 1; }', "write_nowhere")
    kernel((1,), (1,), ())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, required=True, help="folder for the models' configurations")
    parser.add_argument("--attention", default="flashinfer", help="attention backend (default: %(default)s)")
    parser.add_argument("--eagle", action="store_true", help="speculate with EAGLE, topk 8")
    parser.add_argument("--large", action="store_true", help="about 1.5 billion parameters instead of a few million")
    parser.add_argument("--piecewise", action="store_true", help="prompts by piecewise graphs, as by default")
    parser.add_argument("--batch", type=int, default=2, help="most requests at once (default: %(default)s)")
    parser.add_argument("--context", type=int, default=CONTEXT)
    parser.add_argument("--kv-tokens", type=int, help="tokens that the cache holds (default: what the memory holds)")
    parser.add_argument("--requests", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of each (default: %(default)s)")
    parser.add_argument("--quiet", type=int, default=0, help="short requests first, then the full batch twice")
    parser.add_argument("--kill", action="store_true", help="end the scheduler with SIGKILL after the first batch")
    parser.add_argument("--fault", action="store_true", help="an illegal access in the scheduler after the first batch")
    parser.add_argument("--on", action="store_true", help="serve mixed batches until SIGTERM, and nothing else")
    parser.add_argument("--told", action="store_true", help="time a full batch for each line of input")
    parser.add_argument("--tp", type=int, default=1, help="GPUs to split the model over (default: %(default)s)")
    options = parser.parse_args()
    began = time.perf_counter()
    import sglang

    engine = sglang.Engine(**engine_arguments(options))
    up = time.perf_counter() - began
    if options.on:
        play_until_ended(engine, options)
    longest = min(100, options.context - options.tokens - 16)
    outputs: list[list[int]] = []
    times: list[float] = []
    quiet = play_quiet(engine, options)
    batches = batches_of(prompts_of(options.requests, longest, 3), options.batch, 4)
    for batch in [batches[0]] * 2 if options.quiet else batches:
        answers, seconds = generated(engine, batch, options.tokens)
        if options.kill or options.fault:
            signal_scheduler(signal.SIGKILL if options.kill else FAULT)
        outputs += answers
        times.append(seconds)
        say("PART", requests=len(outputs), outputs=digest(outputs))
    if options.told:
        say("UP", seconds=round(up, 1))
        play_rounds(lambda prompts: generated(engine, prompts, options.tokens), options.batch)
    said = {
        "sglang": sglang.__version__,
        "up_s": round(up, 1),
        **quiet,
        "first_batch_s": round(times[0], 2),
        "other_batches_s": round(sum(times[1:]), 2),
        "max_total_num_tokens": engine.get_server_info().get("max_total_num_tokens"),
        "requests": len(outputs),
        "tokens": sum(map(len, outputs)),
        "outputs": digest(outputs),
    }
    say("LIVE", **said)
    engine.shutdown()


if __name__ == "__mp_main__":
    signal.signal(FAULT, write_nowhere)
if __name__ == "__main__":
    main()
