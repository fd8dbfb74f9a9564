"""What a decoder is called with, read for units: token ids, padding, and whether the cache goes with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from contentrope.checks import can_be_read, may_be_waited_for
from contentrope.errors import CacheError, InputError
from contentrope.hf.state import Columns


def ids_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    names = ("input_ids", "attention_mask", "position_ids", "past_key_values")
    kwargs = {**dict(zip(names, args, strict=False)), **kwargs}
    ids = kwargs.get("input_ids")
    if ids is None:
        raise InputError("units are read from token ids: pass input_ids, not inputs_embeds alone")
    if kwargs.get("output_attentions"):
        raise InputError("output_attentions=True: attention over units does not keep its weights")
    if kwargs.get("is_causal") is False:
        raise InputError("is_causal=False reads in both directions; addresses are for causal decoders")
    return ids, kwargs


def padding_of(mask: Any, ids: Tensor, offset: int) -> tuple[Tensor | None, bool]:
    """Which of the new tokens are no padding (None: all of them), and whether the mask says nothing else."""
    if isinstance(mask, Mapping):
        prepared = [m for name, m in mask.items() if m is not None and "full" in name]
        prepared = prepared or [m for m in mask.values() if m is not None]
        mask = prepared[0] if prepared else None
        if mask is None:
            return None, False
    if mask is None:
        return None, True
    end = offset + ids.shape[1]
    if mask.ndim == 2:
        if mask.shape[1] < end:
            raise InputError(f"attention_mask covers {mask.shape[1]} tokens, the call ends at {end}: pass all of them")
        valid = mask[:, offset:end].bool()
        # In training on a GPU asking would mean waiting: there a mask is taken to hide something.
        all_valid = may_be_waited_for(valid) and bool(valid.all())
        return (None if all_valid else valid), True
    # A mask over pairs: padding does not see itself.
    columns = torch.arange(offset, end, device=mask.device) - max(end - mask.shape[-1], 0)
    itself = mask[:, 0].gather(2, columns[None, :, None].expand(len(mask), -1, 1))[..., 0]
    valid = itself if itself.dtype == torch.bool else itself == 0
    return valid.expand(len(ids), -1), False


def check_cache(cache: Cache, before: Columns | None, ids: Tensor) -> None:
    """Refuse a cache whose keys and addresses are out of step."""
    if torch.compiler.is_compiling():
        return
    held, known = int(cache.get_seq_length()), 0 if before is None else before.count
    if held != known:
        raise CacheError(
            f"the cache holds {held} tokens, of which the addresses know {known}: it was filled without them, or a "
            "call did not finish; begin with a new cache"
        )
    if before is not None and before.batch != len(ids):
        raise CacheError(f"the cache has {before.batch} rows, input_ids {len(ids)}; begin with a new cache")


def refuse_packed(kwargs: Mapping[str, Any], cache: Cache | None) -> None:
    positions = kwargs.get("position_ids")
    if positions is None or kwargs.get("attention_mask") is not None or cache is not None:
        return
    if can_be_read(positions) and bool((positions.diff(dim=-1) != 1).any()):
        raise InputError(
            "position_ids start again: several documents in one row are not supported; give each a row, with padding"
        )


def checkpoints_reentrantly(decoder: nn.Module) -> bool:
    """Whether layers are computed again in a way that only knows of gradients through their first input."""
    if not (decoder.training and getattr(decoder, "gradient_checkpointing", False)):
        return False
    functions = (getattr(m, "_gradient_checkpointing_func", None) for m in decoder.modules())
    return any(getattr(f, "keywords", {}).get("use_reentrant", False) for f in functions)
