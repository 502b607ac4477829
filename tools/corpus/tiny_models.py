"""Models of transformers with random weights, made as small as their configurations allow."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch

from corpus.env import Skip, seed_all

MOST = 12_000_000  # parameters

# What configurations call a size, and what it is set to.
_SIZES = {
    """hidden_size d_model n_embd dim embed_dim hidden_dim model_dim embedding_size emb_dim d_embed projection_dim
    n_embed encoder_hidden_size decoder_hidden_size text_hidden_size classifier_proj_size attention_hidden_size
    lru_width embedding_dim backbone_hidden_size fc_dim output_hidden_size""": 32,
    """num_hidden_layers n_layer num_layers n_layers encoder_layers decoder_layers num_encoder_layers num_decoder_layers
    num_hidden_groups depth num_transformer_layers encoder_num_hidden_layers decoder_num_hidden_layers num_block""": 2,
    """num_attention_heads n_head num_heads n_heads encoder_attention_heads decoder_attention_heads
    num_encoder_attention_heads num_decoder_attention_heads encoder_num_attention_heads
    decoder_num_attention_heads""": 4,
    """num_key_value_heads num_kv_heads n_kv_heads decoder_num_key_value_heads encoder_num_key_value_heads""": 2,
    """head_dim d_kv attention_head_dim qk_nope_head_dim qk_rope_head_dim v_head_dim kv_channels global_head_dim d_head
    rotary_dim index_head_dim""": 8,
    """intermediate_size ffn_dim d_ff d_inner encoder_ffn_dim decoder_ffn_dim n_inner ffn_hidden_size block_ff_dim
    ff_dim dim_feedforward ffn_embed_dim""": 64,
    """vocab_size n_token encoder_vocab_size vocab_size_per_layer_input tgt_vocab_size src_vocab_size n_words""": 128,
    """max_position_embeddings n_positions n_ctx max_seq_len max_target_positions max_source_positions
    max_sequence_length seq_length max_2d_position_embeddings""": 64,
    "num_experts num_local_experts n_routed_experts moe_num_experts": 4,
    "num_experts_per_tok num_experts_per_token moe_topk moe_k": 2,
    """moe_intermediate_size shared_expert_intermediate_size expert_ffn_size shared_intermediate_size
    expert_hidden_size""": 32,
    "kv_lora_rank q_lora_rank": 16,
    "n_group topk_group first_k_dense_replace num_nextn_predict_layers n_shared_experts num_shared_experts": 1,
    "state_size mamba_d_state ssm_state_size": 8,
    "image_size": 32,
    "patch_size": 8,
    "hidden_size_per_layer_input laurel_rank altup_num_inputs": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id decoder_start_token_id": 2,
}
_SMALL = {name: size for names, size in _SIZES.items() for name in names.split()}
# Where these are None by default, they say that a model has no such part.
_STAY_NONE = {
    "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "kv_lora_rank", "q_lora_rank",
    "num_nextn_predict_layers", "n_inner", "lru_width",
}  # fmt: skip
_ESSENTIAL = {"vocab_size", "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size"}
_DEEPEST = 3  # configurations within configurations


@cache
def model_types() -> tuple[str, ...]:
    """All model types, none where transformers is missing."""
    try:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    except ImportError:
        return ()
    return tuple(sorted(CONFIG_MAPPING_NAMES))


def _small(cls: Any, depth: int = 0) -> dict[str, Any]:
    """Arguments that make a configuration tiny."""
    try:
        has = cls().to_dict()
    except Exception:
        has = dict.fromkeys(inspect.signature(cls.__init__).parameters)
    given = {name: size for name, size in _SMALL.items() if name in has and _is_size(name, has[name])}
    parts = getattr(cls, "sub_configs", None) or {} if depth < _DEEPEST else {}
    for name, part in parts.items():
        known = isinstance(part, type) and hasattr(part, "from_pretrained") and part.__name__ != "AutoConfig"
        if name in has and known:
            given[name] = {"model_type": getattr(part, "model_type", ""), **_small(part, depth + 1)}
    return given


def _is_size(name: str, default: Any) -> bool:
    if default is None:
        return name not in _STAY_NONE
    number = isinstance(default, (int, float)) and not isinstance(default, bool)
    return number or (name.endswith("token_id") and not isinstance(default, bool))


def config_of(name: str) -> Any:
    """A tiny configuration of a model type."""
    from transformers import CONFIG_MAPPING

    cls = CONFIG_MAPPING[name]
    last: Exception | None = None
    for wanted in (None, _ESSENTIAL):
        try:
            return cls(**{key: value for key, value in _small(cls).items() if wanted is None or key in wanted})
        except Exception as error:
            last = error
    raise Skip(f"config: {type(last).__name__}: {str(last)[:120]}")


def build(name: str, causal: bool, device: str) -> Any:
    """A tiny model of a type, of the first automatic class that knows it."""
    import transformers

    config = config_of(name)
    classes = [transformers.AutoModelForCausalLM]
    if not causal:
        classes += [transformers.AutoModelForMaskedLM, transformers.AutoModelForSeq2SeqLM, transformers.AutoModel]
    last = "no automatic class"
    for auto in classes:
        if type(config) not in auto._model_mapping.keys():  # noqa: SIM118 - its own `in` knows less
            continue
        try:
            if _size_on_paper(auto, config) > MOST:
                raise ValueError("too many parameters")
            seed_all(9)
            model = auto.from_config(config)
            if sum(p.numel() for p in model.parameters()) > MOST:
                raise ValueError("too many parameters")
            return model.to(device).eval()
        except Exception as error:
            last = f"{type(error).__name__}: {str(error)[:120]}"
    raise Skip(f"model: {last}")


def _size_on_paper(auto: Any, config: Any) -> int:
    """Parameters of a model, without their memory; 0 where it cannot be made so."""
    try:
        with torch.device("meta"):
            return sum(p.numel() for p in auto.from_config(config).parameters())
    except Exception:
        return 0
