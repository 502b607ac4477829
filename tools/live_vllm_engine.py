"""A real vLLM `LLM` over a small random Llama: serves requests in batches and prints one line of JSON in the end, and
one after each batch, for runs that are cut short.

It knows nothing of shadowgraph. `tools/live_vllm.py` runs it, plain and under `shadowgraph wrap`. Engine and worker are
in this process. On request a fault is planted for the steps that serve one request, whose number is its place among all
requests, from 0 on:

  slots      a copy of vLLM's slot mapping kernel whose padding ends one element late
  metadata   the attention backend's persistent schedule is replaced by a new tensor, which no graph reads, as vLLM's
             issues 33638 and 36492 had it
  positions  the same with the runner's positions
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from live_engine import SMALL, batches_of, digest, play_rounds, prompts_of, say, write_model

SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # on by default, and fails where flashinfer is not installed
    "VLLM_USE_DEEP_GEMM": "0",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
MODES: dict[str, dict[str, Any]] = {
    "full": {"mode": 0, "cudagraph_mode": "FULL"},
    "decode": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
    "piecewise": {"mode": 3, "cudagraph_mode": "FULL_AND_PIECEWISE"},
}
CONTEXT = 512
STEP = 2048  # most tokens of a step
PADDED = "mask=offsets < max_num_tokens,"  # of the kernel that maps tokens to slots, where it fills up to the end
LATE = "mask=offsets <= max_num_tokens,"
Plant = Callable[[Any, bool], None]  # given the runner, and whether the step serves the request


def write_weights(folder: Path, size: dict[str, int]) -> None:
    """Normal weights, the same each time: vLLM's made-up ones are so small that outputs hardly depend on attention."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(0)
    hidden, inner, vocabulary = (size[key] for key in ("hidden_size", "intermediate_size", "vocab_size"))
    queries, keys = (size[key] * size["head_dim"] for key in ("num_attention_heads", "num_key_value_heads"))
    matrices = {"self_attn.q_proj": (queries, hidden), "self_attn.k_proj": (keys, hidden)}
    matrices |= {"self_attn.v_proj": (keys, hidden), "self_attn.o_proj": (hidden, queries)}
    matrices |= {"mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner)}

    def normal(rows: int, columns: int) -> Any:
        return (torch.randn(rows, columns, generator=generator) / columns**0.5).bfloat16()

    ones = torch.ones(hidden, dtype=torch.bfloat16)
    weights = {"lm_head.weight": normal(vocabulary, hidden), "model.norm.weight": ones}
    weights["model.embed_tokens.weight"] = normal(vocabulary, hidden) * hidden**0.5
    for layer in range(size["num_hidden_layers"]):
        begin = f"model.layers.{layer}"
        weights |= {f"{begin}.{name}.weight": normal(*shape) for name, shape in matrices.items()}
        weights |= {f"{begin}.{name}.weight": ones for name in ("input_layernorm", "post_attention_layernorm")}
    whole = {name: each.clone() for name, each in weights.items()}  # the file's writer refuses memory that is shared
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})


def engine_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """What the engine is started with."""
    folder = write_model(options.models / "target", SMALL, options.context)
    write_weights(folder, SMALL)
    sizes = [1 << power for power in range(options.batch.bit_length() + 1) if 1 << power <= 2 * options.batch]
    compilation = {**MODES[options.mode], "cudagraph_capture_sizes": sizes}
    if options.backend:
        compilation["backend"] = options.backend
    return {
        "model": str(folder),
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "max_model_len": options.context,
        "max_num_seqs": options.batch,
        "max_num_batched_tokens": max(STEP, options.context),
        "enable_prefix_caching": False,
        "attention_backend": options.attention,
        "kv_cache_memory_bytes": options.kv_bytes,  # without it a few graphs are captured first, only to measure them
        "seed": 0,
        "compilation_config": compilation,
    }


def lengths_of(requests: int, most: int, seed: int) -> list[int]:
    """How many new tokens each request asks for: mixed, the first two as many as possible."""
    rng = random.Random(seed)
    return [most, most, *(rng.randint(max(1, most // 4), most) for _ in range(requests))][:requests]


def generated(engine: Any, batch: list[list[int]], lengths: list[int]) -> tuple[list[list[int]], float]:
    """Greedy tokens of a batch, and the seconds that it took."""
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": prompt} for prompt in batch]
    greedy = {"temperature": 0.0, "ignore_eos": True, "detokenize": False}
    sampling = [SamplingParams(max_tokens=length, **greedy) for length in lengths]
    began = time.perf_counter()
    answers = engine.generate(prompts, sampling, use_tqdm=False)
    return [list(answer.outputs[0].token_ids) for answer in answers], time.perf_counter() - began


def late_kernel(folder: Path) -> Any:
    """The slot mapping kernel out of a copy of vLLM's module in which the padding ends one element late."""
    from vllm.v1.worker import block_table

    text = inspect.getsource(block_table)
    if text.count(PADDED) != 1:
        raise SystemExit(f"live_vllm_engine: nothing is planted: {block_table.__file__} has no single line {PADDED!r}")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "planted_block_table.py"
    path.write_text(text.replace(PADDED, LATE))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    copied = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = copied
    spec.loader.exec_module(copied)
    return copied._compute_slot_mapping_kernel


def plant_slots(folder: Path) -> tuple[Plant, Any]:
    """Steps that serve the request map their tokens by the late kernel; and the method that launches it."""
    from vllm.v1.worker import block_table

    kernels = (block_table._compute_slot_mapping_kernel, late_kernel(folder))

    def choose(runner: Any, serves: bool) -> None:
        block_table._compute_slot_mapping_kernel = kernels[serves]

    return choose, block_table.BlockTable.compute_slot_mapping


def rebind(owner: Any, name: str) -> None:
    """Replace a persistent tensor by a new one of the same form."""
    import torch

    setattr(owner, name, torch.zeros_like(getattr(owner, name)))


def plant_rebinding(name: str, owner_of: Callable[[Any], Any]) -> tuple[Plant, Any]:
    """The first step that serves the request finds a new tensor under a name; and the function that binds it."""
    done: list[bool] = []

    def choose(runner: Any, serves: bool) -> None:
        if serves and not done:
            done.append(True)
            rebind(owner_of(runner), name)

    return choose, rebind


def scheduling_builder(runner: Any) -> Any:
    """The builder of attention metadata, which keeps the schedule that graphs read."""
    builder = runner.attn_groups[0][0].metadata_builders[0]
    if not hasattr(builder, "scheduler_metadata"):
        raise SystemExit(f"live_vllm_engine: nothing is planted: {type(builder).__name__} keeps no schedule")
    return builder


def plant(fault: str, request: int, folder: Path) -> None:
    """Plant a fault for the steps that serve a request, and say where."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    if fault == "slots":
        choose, where = plant_slots(folder)
    elif fault == "metadata":
        choose, where = plant_rebinding("scheduler_metadata", scheduling_builder)
    else:
        choose, where = plant_rebinding("positions", lambda runner: runner)
    update = GPUModelRunner._update_states

    def _update_states(self: Any, scheduler_output: Any) -> Any:
        # vLLM hangs a random part on the number of a request
        choose(self, any(each.split("-")[0] == str(request) for each in scheduler_output.num_scheduled_tokens))
        return update(self, scheduler_output)

    GPUModelRunner._update_states = _update_states
    lines, first = inspect.getsourcelines(where)
    file = Path(inspect.getfile(where)).name
    say("PLANTED", fault=fault, request=request, file=file, first=first, last=first + len(lines) - 1)


def captured() -> int | None:
    """How many graphs vLLM has captured by its own count; None where it keeps none."""
    counter: ModuleType | None = sys.modules.get("vllm.compilation.counter")
    return getattr(getattr(counter, "compilation_counter", None), "num_cudagraph_captured", None)


def prompts_for(options: argparse.Namespace) -> list[list[int]]:
    """The prompts of all requests: of lengths that leave room for new tokens."""
    return prompts_of(options.requests, min(100, options.context - options.tokens), 3)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder for the model and planted code")
    parser.add_argument("--mode", choices=MODES, default="full", help="which graphs (default: %(default)s)")
    parser.add_argument("--backend", help="that compiles pieces: inductor, vLLM's default, or eager: not compiled")
    parser.add_argument("--attention", default="FLASH_ATTN", help="attention backend (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=8, help="most requests at once (default: %(default)s)")
    parser.add_argument("--context", type=int, default=CONTEXT)
    parser.add_argument("--kv-bytes", type=int, default=1 << 30, help="of the KV cache (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=8, help="(default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=64, help="most new tokens of each (default: %(default)s)")
    parser.add_argument("--plant", choices=("slots", "metadata", "positions"), help="a fault, see above")
    parser.add_argument("--request", type=int, default=0, help="number of the request that it is for")
    parser.add_argument("--told", action="store_true", help="then time a full batch for each line of input")
    return parser


def main() -> None:
    options = parser().parse_args()
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    began = time.perf_counter()
    import vllm

    engine = vllm.LLM(**engine_arguments(options))
    up = time.perf_counter() - began
    if options.plant:
        plant(options.plant, options.request, options.models / "planted")
    lengths = lengths_of(options.requests, options.tokens, 6)
    outputs: list[list[int]] = []
    digests: list[str] = []
    times: list[float] = []
    for batch in batches_of(prompts_for(options), options.batch, 4):
        answers, seconds = generated(engine, batch, lengths[len(outputs) : len(outputs) + len(batch)])
        outputs += answers
        digests.append(digest(answers))
        times.append(seconds)
        say("PART", requests=len(outputs), batches=digests)
    if options.told:
        say("UP", seconds=round(up, 1))
        play_rounds(lambda batch: generated(engine, batch, [options.tokens] * len(batch)), options.batch)
    say(
        "LIVE",
        vllm=vllm.__version__,
        up_s=round(up, 1),
        graphs=captured(),
        first_batch_s=round(times[0], 2),
        other_batches_s=round(sum(times[1:]), 2),
        requests=len(outputs),
        tokens=sum(map(len, outputs)),
        outputs=digest(outputs),
        batches=digests,
    )


if __name__ == "__main__":
    main()
