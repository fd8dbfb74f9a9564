"""Every causal language model of the installed transformers, tiny and random: can it be attached to?

python -m tests.hf.architectures [name ...]   # tells it
python -m tests.hf.architectures --write      # writes the table of docs/huggingface.md
"""

from __future__ import annotations

import argparse
import inspect
import logging
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as NAMES

import contentrope.hf as chf
from contentrope.errors import BackendError, InputError

SMALL: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "n_tokens"), 64),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size", "backbone_hidden_size",
                     "attention_hidden_size", "lru_width", "emb_dim"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "decoder_ffn_dim", "encoder_ffn_dim", "dim_ff", "d_ff",
                     "feed_forward_size", "intermediate_size_mlp", "shared_intermediate_size", "mlp_hidden_size",
                     "dense_intermediate_size", "decoder_intermediate_size", "expert_ffn_hidden_size"), 40),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size",
                     "ffn_hidden_size", "shared_ffn_hidden_size"), 16),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers", "encoder_layers",
                     "num_decoder_layers", "num_encoder_layers", "num_blocks"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads",
                     "encoder_attention_heads", "linear_num_value_heads", "mamba_n_heads", "mamba_num_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "linear_num_key_heads"), 2),
    **dict.fromkeys(("head_dim", "kv_channels", "attention_head_dim", "swa_head_dim"), 8),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "num_experts_per_token", "moe_topk"), 2),
    **dict.fromkeys(("n_shared_experts", "num_shared_experts", "n_group", "topk_group", "num_expert_group"), 1),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim"), 8),
    "v_head_dim": 8,
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 256),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "mamba_d_head", "mamba_head_dim"), 8),
    **dict.fromkeys(("mamba_d_state", "ssm_state_size", "state_size", "mamba_dt_rank"), 4),
    "sliding_window": 9,
    "use_mamba_kernels": False,
    **dict.fromkeys(("pad_token_id",), 0),
    **dict.fromkeys(("bos_token_id",), 1),
    **dict.fromkeys(("eos_token_id",), 2),
    "image_token_id": 60,
}  # fmt: skip
"""Whatever of this a configuration knows, by any of the names in use."""

READ_ONLY = {"falcon": ("head_dim",)}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
MAMBA = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_expand": 1, "mamba_chunk_size": 8}
LINEAR = {"layer_types": ["linear_attention", "full_attention"]}
SHARED = {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "hidden_size_per_layer_input": 8,
}
SPECIAL: dict[str, dict[str, Any]] = {
    "bamba": {**MAMBA, "attn_layer_indices": [1]},
    "blt": {"patcher_config": {"hidden_size": 32, "vocab_size": 64}, "encoder_hash_byte_group_vocab": 64},
    "cohere_compass_text": {"rope_parameters": dict.fromkeys(("sliding_attention", "full_attention"), ROPE)},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8.0}},
    "falcon_h1": MAMBA,
    "gemma3n_text": {
        **SHARED,
        "laurel_rank": 4,
        "intermediate_size": [40] * 4,
        "activation_sparsity_pattern": [0.0] * 4,
    },
    "gemma4_text": SHARED,
    "flint": {"layer_types": ["sliding_attention", "full_attention"]},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {**MAMBA, "layer_types": ["mamba", "attention"]},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "ministral3": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 8,
            "llama_4_scaling_beta": 0.5,
        }
    },
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "bailing_hybrid"), LINEAR),
    "zamba2": {"num_hidden_layers": 3, "layer_types": ["mamba", "hybrid", "hybrid"], "use_mem_rope": True},
    "mllama": {"text_config": {"num_hidden_layers": 3, "cross_attention_layers": [1]}},
    "reformer": {"is_decoder": True, "axial_pos_embds_dim": (16, 16), "axial_pos_shape": (16, 16)},
    "zamba": {"num_hidden_layers": 3, "layer_types": ["mamba", "hybrid", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
}
"""What else a tiny model of an architecture needs, or what makes it differ from a plain one."""


class Outcome(NamedTuple):
    kind: str
    """supported, refused, broke, or not tried."""
    why: str


def config_of(name: str) -> PreTrainedConfig:
    kind = type(AutoConfig.for_model(name))
    return kind(**small(kind, SPECIAL.get(name, {})))


def small(kind: type[PreTrainedConfig], special: dict[str, Any]) -> dict[str, Any]:
    known = {*inspect.signature(kind.__init__).parameters, *getattr(kind, "__annotations__", {}), *kind.attribute_map}
    sizes = {
        key: value for key, value in SMALL.items() if key in known and key not in READ_ONLY.get(kind.model_type, ())
    }
    if "kv_lora_rank" in known:  # latent attention: keys and values are made for every head
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    for key, part in kind.sub_configs.items():
        if part is AutoConfig:
            part = type(getattr(kind(), key, None))
        if key in known and issubclass(part, PreTrainedConfig):
            sizes[key] = {"model_type": part.model_type, **small(part, special.get(key, {}))}
    return {**sizes, **{key: value for key, value in special.items() if not isinstance(sizes.get(key), dict)}}


def tiny(name: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """With every weight at random, so that each of them matters."""
    with torch.device("meta"):
        size = AutoModelForCausalLM.from_config(config_of(name)).num_parameters()
    if size > 20_000_000:
        raise ValueError(f"{size} parameters are not tiny")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config_of(name), dtype=dtype)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim >= 2:
                weight.normal_(std=1.2 / weight.shape[-1] ** 0.5)
            else:
                weight.add_(0.1 * torch.randn_like(weight))
    return model.eval()


def outcome(name: str) -> Outcome:
    try:
        model = tiny(name)
    except Exception as error:
        return Outcome("not tried", f"no tiny model of it: {type(error).__name__}: {error}")
    try:
        chf.attach(model, units={3}, positions="local", max_length=8)
        use(model)
    except (InputError, BackendError) as error:
        return Outcome("refused", str(error))
    except Exception as error:
        return Outcome("broke", f"{type(error).__name__}: {error}")
    return Outcome("supported", "")


def use(model: PreTrainedModel) -> None:
    """Train a step, then generate; decode must agree with prefill."""
    ids = torch.randint(4, 60, (2, 30), generator=torch.Generator().manual_seed(0))
    ids[:, ::7] = 3
    with torch.no_grad():
        for weight in model.contentrope.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    model.train()
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    gradients = [p.grad for p in model.contentrope.by_turning.parameters()]
    assert all(g is not None and bool(g.any()) and bool(g.isfinite().all()) for g in gradients), (
        "addresses do not learn"
    )
    model.eval()
    written = model.generate(
        ids, max_new_tokens=12, min_new_tokens=12, do_sample=False, output_logits=True, return_dict_in_generate=True
    )
    with torch.no_grad():
        at_once = model(written.sequences, use_cache=False).logits[:, 29:-1]
    apart = float((torch.stack(written.logits, dim=1) - at_once).abs().max() / at_once.abs().max())
    assert apart < 1e-2, f"decode and prefill differ by {apart:.2g}"


DOCUMENT = Path(__file__).parents[2] / "docs" / "huggingface.md"
BEGIN, END = "<!-- architectures -->\n", "<!-- /architectures -->"
REASONS = {
    "does not call its attention through transformers' AttentionInterface": "attention of their own",
    "has no rotary embedding module": "no rotary embedding module",
    "rotates none of its keys": "no rotary positions",
    "reads more than text": "more than text",
    "reads in both directions": "both directions",
    "keeps more in its cache": "more in the cache than keys and values (recurrent, linear or indexed layers)",
    "after they were cached": "keys that are made or repeated behind the cache (latent attention and others)",
    "times for one text": "layers or attention gone through more than once",
    "self-attention in every layer": "layers without self-attention",
    "is no plain decoder": "several decoders in one",
    "in planes that are not known": "rotated in other planes, or normalised after it",
    "not by cosines and sines": "rotated otherwise than by cosines and sines handed to the layer",
    "asked for a few tokens": "cannot be called with a few tokens and a `DynamicCache`",
    "cannot be attached to": "found by the check",
}
"""Of a refusal, by a part of its sentence: a row of the table."""


def table(found: dict[str, Outcome]) -> str:
    rows: dict[str, list[str]] = {"**supported**": []}
    for name, (kind, why) in found.items():
        reason = next((row for part, row in REASONS.items() if part in why), why)
        row = {"supported": "**supported**", "refused": f"refused: {reason}"}.get(kind, kind)
        rows.setdefault(row, []).append(name)
    ordered = sorted(rows.items(), key=lambda item: (not item[0].startswith("**"), -len(item[1])))
    lines = [f"| {row} | {len(names)} | {', '.join(names)} |" for row, names in ordered]
    head = f"transformers {transformers.__version__}, {len(found)} architectures:\n\n| | | |\n| --- | --- | --- |\n"
    return BEGIN + head + "\n".join(lines) + "\n" + END


def write(found: dict[str, Outcome]) -> None:
    text = DOCUMENT.read_text()
    before, after = text[: text.index(BEGIN)], text[text.index(END) + len(END) :]
    DOCUMENT.write_text(before + table(found) + after)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    found = {}
    for name in args.names or NAMES:
        found[name] = outcome(name)
        print(f"{name:24} {found[name].kind:10} {' '.join(found[name].why.split())}"[:400], flush=True)
    if args.write:
        write(found)
    sys.exit(any(kind == "broke" for kind, _ in found.values()))


if __name__ == "__main__":
    logging.getLogger("transformers").setLevel(logging.CRITICAL)
    main()
