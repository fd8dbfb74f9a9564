"""Tiny random models of every architecture, and addresses that matter."""

from __future__ import annotations

import logging
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

import contentrope.hf as chf

VOCABULARY = 64
TERMINATOR = 3

logging.getLogger("transformers").setLevel(logging.ERROR)

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def rope(kind: str, **settings: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **settings}}


LONGER = {"factor": 4.0, "original_max_position_embeddings": 64}
SHORT = {"factor": 4.0, "original_max_position_embeddings": 8}
FACTORS = {"short_factor": [1.0, 1.2, 1.4, 1.6], "long_factor": [4.0, 4.0, 4.0, 4.0]}
WINDOW_AND_FULL = {"sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"]}
SHARED_KEYS = {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "sliding_window": 9,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCABULARY,
    "global_head_dim": 8,
}
HALF = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}
# One expert: among several, the rounding a token meets depends on who shares its expert, in an untouched model too.
EXPERTS = {"experts_implementation": "eager"}

ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, scaled": ("Llama", rope("llama3", low_freq_factor=1.0, high_freq_factor=4.0, **LONGER)),
    "llama, yarn": ("Llama", rope("yarn", **LONGER)),
    "llama, dynamic": ("Llama", rope("dynamic", factor=2.0)),
    "phi3, long": ("Phi3", {"original_max_position_embeddings": 64, **rope("longrope", **FACTORS)}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral, window": ("Mistral", {"sliding_window": 9}),
    "gemma2": ("Gemma2", {"sliding_window": 9, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0}),
    "gemma3": ("Gemma3Text", {"query_pre_attn_scalar": 8, **WINDOW_AND_FULL}),
    "phi": ("Phi", HALF),
    "phi3": ("Phi3", {}),
    "gpt_neox": ("GPTNeoX", HALF),
    "olmo2": ("Olmo2", {}),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 0], "no_rope_layer_interval": 2}),
    "cohere": ("Cohere", {}),
    "glm": ("Glm", HALF),
    "granite": ("Granite", {"attention_multiplier": 0.4}),
    "starcoder2": ("Starcoder2", {"sliding_window": None}),
    "gpt_oss": ("GptOss", {"sliding_window": 9, "num_local_experts": 1, "num_experts_per_tok": 1, **EXPERTS}),
    "ministral3": ("Ministral3", rope("yarn", llama_4_scaling_beta=0.5, **SHORT)),
    "stablelm": ("StableLm", HALF),
    "nemotron": ("Nemotron", HALF),
    "nanochat": ("NanoChat", {}),
    "helium": ("Helium", {}),
    "ernie": ("Ernie4_5", {}),
    "cohere2": ("Cohere2", WINDOW_AND_FULL),
    "gemma4, shared keys": ("Gemma4Text", SHARED_KEYS),
    "qwen3 moe": ("Qwen3Moe", {"num_experts": 1, "num_experts_per_tok": 1, "moe_intermediate_size": 16, **EXPERTS}),
}  # fmt: skip


# Older versions of transformers have not all of them.
ARCHITECTURES = {name: kind for name, kind in ARCHITECTURES.items() if hasattr(transformers, f"{kind[0]}Config")}

CHANGING_FREQUENCIES = tuple(name for name in ("llama, dynamic", "phi3, long") if name in ARCHITECTURES)
"""By the largest position: not with a near window."""
WINDOWED = [name for name in ARCHITECTURES if name not in CHANGING_FREQUENCIES]


def padded_dtype(name: str) -> torch.dtype:
    """Gemma2 casts the lowest float64 to float32: padding that sees nothing is NaN, in an untouched model too."""
    return torch.float32 if name == "gemma2" else torch.float64


def tiny(name: str, *, dtype: torch.dtype = torch.float64, seed: int = 0, **settings: Any) -> PreTrainedModel:
    """A model whose every weight matters, in evaluation mode."""
    family, own = ARCHITECTURES[name]
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **own, **settings})
    torch.manual_seed(seed)
    kind = {"Gemma3Text": "Gemma3", "Gemma4Text": "Gemma4"}.get(family, family)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).to(dtype)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim >= 2:
                weight.normal_(std=1.2 / weight.shape[-1] ** 0.5)
            else:
                weight.add_(0.1 * torch.randn_like(weight))
        model.get_input_embeddings().weight.normal_()
    return model.eval()


def attached(
    name: str,
    *,
    positions: str | float = "local",
    window: int = 0,
    competition: float = 0.0,
    lively: bool = True,
    **settings: Any,
) -> PreTrainedModel:
    model = tiny(name, **settings)
    # Checked where attaching is what is tested.
    given = {"units": {TERMINATOR}, "window": window, "competition": competition}
    chf.attach(model, **given, positions=positions, max_length=7, check=False)
    return enliven(model) if lively else model


def enliven(model: PreTrainedModel, seed: int = 1) -> PreTrainedModel:
    """Addresses as if trained."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.contentrope.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=generator, dtype=torch.float64).to(weight))
    return model


def random_ids(batch: int, seq: int, *, seed: int = 0, end_rate: float = 0.25) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, VOCABULARY, (batch, seq), generator=generator)
    ends = torch.rand(batch, seq, generator=generator) < end_rate
    return torch.where(ends, TERMINATOR, ids)


@torch.no_grad()
def logits(model: PreTrainedModel, ids: Tensor, **inputs: Any) -> Tensor:
    return model(ids, **inputs).logits
