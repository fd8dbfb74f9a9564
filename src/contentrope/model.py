"""A small pre-norm GELU decoder that takes its addressing scheme by name.

Shapes: batch, seq, dim, heads (queries), kv_heads, head_dim, vocab.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from contentrope import parallel, schemes
from contentrope.attention import BACKENDS, backend_name
from contentrope.cache import Cache, CacheShape, StreamState
from contentrope.checks import can_be_read
from contentrope.config import ModelConfig
from contentrope.errors import BackendError, InputError
from contentrope.frames import Chunk, Frame, Projected

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Transformer(nn.Module):
    """Token ids to logits.

    >>> config = ModelConfig(vocab_size=65, dim=128, layers=4, heads=4, scheme="content", terminators=(0,))
    >>> model = Transformer(config)
    >>> sum(p.numel() for p in model.parameters())
    818561
    >>> model(torch.randint(0, 65, (2, 10))).shape
    torch.Size([2, 10, 65])

    Continuing with a cache gives the same logits as reading all at once:

    >>> ids = torch.randint(0, 65, (2, 10))
    >>> cache = model.new_cache(batch_size=2)
    >>> parts = [model(ids[:, :7], cache=cache), model(ids[:, 7:], cache=cache)]
    >>> torch.allclose(torch.cat(parts, dim=1), model(ids), atol=1e-5)
    True
    """

    def __init__(self, config: ModelConfig, *, backend: str = "auto") -> None:
        super().__init__()
        if backend != "auto" and backend not in BACKENDS:
            raise InputError(f"unknown backend {backend!r}; choose auto, {', '.join(BACKENDS)}")
        if backend != "auto" and config.scheme not in schemes.KNOW_MEMORY:
            addressed = ", ".join(schemes.KNOW_MEMORY)
            raise InputError(f"scheme {config.scheme!r} reads by plain attention; backend= is for {addressed}")
        self.config = config
        self.backend = backend
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.dim)
        self.head = nn.Linear(config.dim, config.vocab_size)
        self.apply(_initialise)
        # After the common parts: with one seed, all schemes start from the same weights.
        self.scheme = schemes.make(config)
        self._identity = uuid.uuid4().hex

    def forward(
        self,
        ids: Int[Tensor, "batch seq"],
        *,
        valid: Bool[Tensor, "batch seq"] | None = None,
        ends: Bool[Tensor, "batch seq"] | None = None,
        memory: Bool[Tensor, "batch seq"] | None = None,
        cache: Cache | None = None,
        group: ProcessGroup | None = None,
    ) -> Float[Tensor, "batch seq vocab"]:
        """``valid`` is False at padding; ``ends`` are the caller's unit ends instead of the terminators; a unit
        whose first token is True in ``memory`` sees only itself. With a cache the tokens continue its rows, and no
        gradients are recorded. The processes of a ``group`` share texts: the tokens of each follow those of the one
        before it, and all must call, forward and backward. Gradients of weights are to be summed over them. Without a
        group, as ``torch.distributed.group.WORLD`` is None before ``init_process_group``, a process reads alone.
        """
        known = self._check(ids, valid, ends, memory)
        if group is not None:
            self._check_shared(cache)
            share = parallel.share_of(group, ids, {"valid": valid, "ends": ends, "memory": memory})
            return self._read(ids, valid, ends, memory, None, share=share)
        if cache is None:
            return self._read(ids, valid, ends, memory, None)
        cache.check(self._cache_shape(), ids)
        cache.reserve(cache.length + ids.shape[1])
        with torch.no_grad():
            return self._read(ids, valid, ends, memory, cache, known)

    def new_cache(self, batch_size: int, *, max_tokens: int | None = None) -> Cache:
        """An empty cache for this many rows. It grows by itself; ``max_tokens`` reserves the room at once."""
        if batch_size < 0 or (max_tokens is not None and max_tokens < 1):
            raise InputError(f"batch_size {batch_size} or max_tokens {max_tokens} is too small")
        state = self._initial_state(batch_size)
        return Cache(self._cache_shape(), state, capacity=max_tokens or 256, max_tokens=max_tokens)

    def _read(
        self,
        ids: Tensor,
        valid: Tensor | None,
        ends: Tensor | None,
        memory: Tensor | None,
        cache: Cache | None,
        known: list[int] | None = None,
        share: parallel.Share | None = None,
    ) -> Tensor:
        embedded = self.embedding(ids)
        if not ids.numel():
            return self.head(embedded)
        chunk = Chunk(
            config=self.config,
            ids=ids,
            embedded=embedded,
            embedding=self.embedding,
            valid=valid,
            ends=ends,
            memory=memory,
            cache=cache,
            state=cache.state if cache is not None else self._initial_state(len(ids)),
            backend=backend_name(self.backend, embedded, self.config.head_dim, cached=bool(cache or share)),
            share=share,
            known=known,
        )
        frame = cast(schemes.Scheme, self.scheme).frame(chunk)
        x = F.dropout(frame.embed(embedded), self.config.dropout, self.training)
        for layer, block in enumerate(self.blocks):
            x = block(x, frame, layer)
        logits = self.head(self.norm(x))
        # Last of all: a call that fails must not leave its tokens in the cache.
        frame.commit()
        return logits

    def _initial_state(self, batch_size: int) -> StreamState:
        device = self.embedding.weight.device
        zeros = torch.zeros(batch_size, dtype=torch.int64, device=device)
        draws = self.config.scheme in schemes.DRAW_AT_RANDOM
        seed = torch.randint(2**62, (batch_size,), device=device) if draws else zeros
        return StreamState(tokens=zeros, seed=seed)

    def _cache_shape(self) -> CacheShape:
        config = self.config
        return CacheShape(
            fingerprint=self._identity,
            layers=config.layers,
            kv_heads=config.key_heads,
            head_dim=config.head_dim,
            pairs=config.pair_count,
            pair_layout=config.rotary.pairs,
            dtype=self.embedding.weight.dtype,
        )

    def _check(self, ids: Tensor, valid: Tensor | None, ends: Tensor | None, memory: Tensor | None) -> list[int] | None:
        """The ids as numbers where there is one per row: those have been read back."""
        if ids.ndim != 2 or ids.dtype not in (torch.int64, torch.int32):
            raise InputError(f"ids must be integers of shape (batch, seq), got {ids.dtype} {tuple(ids.shape)}")
        for name, mask in (("valid", valid), ("ends", ends), ("memory", memory)):
            if mask is not None and (mask.shape != ids.shape or mask.dtype != torch.bool):
                raise InputError(
                    f"{name} must be bool {tuple(ids.shape)} like ids, got {mask.dtype} {tuple(mask.shape)}"
                )
        scheme = self.config.scheme
        if ends is not None and scheme not in schemes.READ_UNITS:
            raise InputError(f"scheme {scheme!r} does not read units; leave out ends=")
        if memory is not None and scheme not in schemes.KNOW_MEMORY:
            raise InputError(f"scheme {scheme!r} has no memory units; leave out memory=")
        return self._check_vocabulary(ids)

    def _check_shared(self, cache: Cache | None) -> None:
        """What reads whole texts, or draws something for every unit, cannot read a part of one."""
        options, shared = self.config.options, "processes that share a text"
        if cache is not None:
            raise InputError(f"{shared} keep no cache; leave out cache= or group=")
        if self.config.scheme not in schemes.SHARE_TEXTS:
            known = ", ".join(schemes.SHARE_TEXTS)
            raise InputError(f"{shared} have no scheme {self.config.scheme!r}; leave out group=, or choose {known}")
        if any(options.get("anchors", ())) or (self.training and options.get("noise", 0.0)):
            raise InputError(f"{shared} have no anchors and no noise, got {dict(options)}; leave them out, or group=")
        if self.backend not in ("auto", *parallel.BACKENDS):
            known = ", ".join(parallel.BACKENDS)
            raise BackendError(f"backend {self.backend!r} reads whole texts, {shared} parts; use auto or {known}")

    def _check_vocabulary(self, ids: Tensor) -> list[int] | None:
        # On a GPU an id out of range kills the process without a word; reading a few numbers back is cheaper.
        if not ids.numel() or not can_be_read(ids):
            return None
        known = None
        if ids.shape[1] == 1:  # decoding asks the device once
            known = ids[:, 0].tolist()
            low, high = min(known), max(known)
        else:
            low, high = torch.stack(torch.aminmax(ids)).tolist()
        if low < 0 or high >= self.config.vocab_size:
            wrong = low if low < 0 else high
            raise InputError(
                f"id {wrong} lies outside the vocabulary of {self.config.vocab_size} (0..{self.config.vocab_size - 1})"
            )
        return known


class Block(nn.Module):
    """Attention and a feed-forward layer, each after its own norm and added to the stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.attention_norm = nn.LayerNorm(config.dim)
        self.query_key_value = nn.Linear(config.dim, (config.heads + 2 * config.key_heads) * config.head_dim)
        self.attention_out = nn.Linear(config.dim, config.dim)
        self.feed_norm = nn.LayerNorm(config.dim)
        self.feed_up = nn.Linear(config.dim, 4 * config.dim)
        self.feed_down = nn.Linear(4 * config.dim, config.dim)

    def forward(self, x: Float[Tensor, "batch seq dim"], frame: Frame, layer: int) -> Float[Tensor, "batch seq dim"]:
        x = x + self._dropout(self._attend(self.attention_norm(x), frame, layer))
        return x + self._dropout(self.feed_down(F.gelu(self.feed_up(self.feed_norm(x)))))

    def _attend(self, x: Tensor, frame: Frame, layer: int) -> Tensor:
        config = self.config
        heads = (config.heads, config.key_heads, config.key_heads)
        together = self.query_key_value(x).unflatten(-1, (-1, config.head_dim))
        query, key, value = together.split(heads, dim=2)
        kept = self._dropout_of_positions(value)
        read = frame.attend(layer, x, Projected(query, key, kept, together if kept is value else None))
        return self.attention_out(read.flatten(2))

    def _dropout(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.config.dropout, self.training) if self.config.dropout else x

    def _dropout_of_positions(self, value: Float[Tensor, "batch seq kv_heads head_dim"]) -> Tensor:
        """Attention dropout with one draw for all queries: the value of a position is there for a head, or is zero."""
        if not (self.config.attention_dropout and self.training):
            return value
        return value * F.dropout(torch.ones_like(value[..., :1]), self.config.attention_dropout)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
