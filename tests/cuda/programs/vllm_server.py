"""Serves token ids through a real vLLM engine with a small random Llama and CUDA graphs: mode, and a line to leave out.

``python vllm_server.py full|decode|pieces|measured [kept|outside|level1|level2]``: with ``kept`` the padded rows of
block tables keep old blocks, with ``outside`` one of a request's numbers is none, with the others the engine sleeps and
wakes up before it serves the same again: at level 2 with weights that are not loaded again.
"""

import inspect
import json
import os
import pathlib
import sys
import tempfile
import textwrap

SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_DEEP_GEMM": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
MODES = {
    "full": {"mode": 0, "cudagraph_mode": "FULL"},
    "decode": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
    "pieces": {"mode": 3, "backend": "eager", "cudagraph_mode": "FULL_AND_PIECEWISE"},
    "measured": {"mode": 0, "cudagraph_mode": "FULL"},
}
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1024,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LEVELS = {"level1": 1, "level2": 2}  # of a sleep
PADDING = "blk_table_tensor[num_reqs:num_reqs_padded].fill_(NULL_BLOCK_ID)"


def plant(bug: str) -> None:
    """Break one method of vLLM's runner or block table."""
    from vllm.v1.worker import block_table, gpu_model_runner

    if bug == "kept":
        cls = gpu_model_runner.GPUModelRunner
        text = textwrap.dedent(inspect.getsource(cls._build_attention_metadata))
        assert text.count(PADDING) == 1, "invalid: the line is not there"
        space = vars(gpu_model_runner)
        exec(compile(text.replace(PADDING, "pass"), "planted.py", "exec"), space)
        cls._build_attention_metadata = space["_build_attention_metadata"]
    elif bug == "outside":
        commit = block_table.BlockTable.commit_block_table

        def commit_block_table(self, num_reqs):
            commit(self, num_reqs)
            if num_reqs == 3:
                self.block_table.gpu[0, self.block_table.gpu.shape[1] - 1].fill_(1 << 20)  # that no request reaches

        block_table.BlockTable.commit_block_table = commit_block_table


def tokens_of(outputs: list) -> list:
    """Token ids by request."""
    return [list(output.outputs[0].token_ids) for output in outputs]


def main() -> int:
    mode, bug = sys.argv[1], (sys.argv[2:] or [""])[0]
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    from vllm import LLM, SamplingParams

    plant(bug)
    sizes = {"kv_cache_memory_bytes": 1 << 28} if mode != "measured" else {"gpu_memory_utilization": 0.2}
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(MODEL))
        engine = LLM(
            model=folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=256,
            max_num_seqs=4,
            max_num_batched_tokens=512,
            seed=0,
            enable_prefix_caching=False,
            enable_sleep_mode=bug in LEVELS,
            attention_backend=os.environ.get("ATTENTION", "TRITON_ATTN"),
            compilation_config={**MODES[mode], "cudagraph_capture_sizes": [1, 2, 4, 8]},
            **sizes,
        )
        prompts = [{"prompt_token_ids": [3 + (at * 7 + n) % 1000 for n in range(20 + 9 * at)]} for at in range(4)]
        # The first one ends first, so that steps of three are padded to four.
        sampling = [
            SamplingParams(temperature=0.0, max_tokens=8 + 16 * min(at, 1), ignore_eos=True, detokenize=False)
            for at in range(4)
        ]
        outputs = engine.generate(prompts, sampling, use_tqdm=False)
        print("served", sum(len(output.outputs[0].token_ids) for output in outputs), flush=True)
        if bug in LEVELS:
            engine.sleep(level=LEVELS[bug])
            engine.wake_up()
            again = engine.generate(prompts, sampling, use_tqdm=False)
            print("same again", tokens_of(again) == tokens_of(outputs), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
