"""A small pre-norm GELU decoder that takes its addressing scheme by name.

Shapes: batch, seq, dim, heads (queries), kv_heads, head_dim, vocab.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from contentrope import parallel, schemes
from contentrope.attention import BACKENDS, backend_name
from contentrope.cache import Cache, CacheShape, ModelState
from contentrope.config import ModelConfig
from contentrope.context import Chunk, Context, Projected
from contentrope.errors import BackendError, InputError
from contentrope.units.table import can_be_read, check_integers, check_masks

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

    Chunked prefill with a cache gives the same logits as one forward pass:

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
        if backend != "auto" and not schemes.kind(config.scheme).knows_memory_units:
            addressed = ", ".join(schemes.names(knows_memory_units=True))
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
        """Logits of every token.

        ``valid`` is False at padding; ``ends`` are the caller's unit ends instead of the terminators; a unit whose
        first token is True in ``memory`` sees only itself. With a cache the tokens continue its rows, and no
        gradients are recorded. Context parallelism: each rank of a ``group`` holds a contiguous slice of the texts,
        in order, and all must call, forward and backward. Gradients of weights are to be summed over them. Without a
        group, as ``torch.distributed.group.WORLD`` is None before ``init_process_group``, a process reads alone.
        """
        masks = {"valid": valid, "ends": ends, "memory": memory}
        self._check(ids, masks)
        host_ids = self._check_vocabulary(ids)
        if group is not None:
            self._check_shared(cache)
            return self._read(ids, masks, share=parallel.share_of(group, ids, masks))
        if cache is None:
            return self._read(ids, masks)
        cache.check(self._cache_shape(), ids)
        cache.reserve(cache.length + ids.shape[1])
        with torch.no_grad():
            return self._read(ids, masks, cache=cache, host_ids=host_ids)

    def new_cache(self, batch_size: int, *, max_tokens: int | None = None) -> Cache:
        """An empty cache for this many rows. It grows by itself; ``max_tokens`` reserves the room at once."""
        if batch_size < 0 or (max_tokens is not None and max_tokens < 1):
            raise InputError(f"batch_size {batch_size} or max_tokens {max_tokens} is too small")
        state = self._initial_state(batch_size)
        return Cache(self._cache_shape(), state, capacity=max_tokens or 256, max_tokens=max_tokens)

    def _read(
        self,
        ids: Tensor,
        masks: dict[str, Tensor | None],
        *,
        cache: Cache | None = None,
        host_ids: list[int] | None = None,
        share: parallel.Share | None = None,
    ) -> Float[Tensor, "batch seq vocab"]:
        embedded = self.embedding(ids)
        if not ids.numel():
            return self.head(embedded)
        chunk = Chunk(
            config=self.config,
            ids=ids,
            embedded=embedded,
            embedding=self.embedding,
            **masks,
            cache=cache,
            state=cache.state if cache is not None else self._initial_state(len(ids)),
            backend=backend_name(self.backend, embedded, self.config.head_dim, cached=bool(cache or share)),
            share=share,
            host_ids=host_ids,
        )
        context = self.scheme.context(chunk)
        x = F.dropout(context.embed(embedded), self.config.dropout, self.training)
        for layer, block in enumerate(self.blocks):
            x = block(x, context, layer)
        logits = self.head(self.norm(x))
        # Last of all: a call that fails must not leave its tokens in the cache.
        context.commit()
        return logits

    def _initial_state(self, batch_size: int) -> ModelState:
        device = self.embedding.weight.device
        zeros = torch.zeros(batch_size, dtype=torch.int64, device=device)
        seed = torch.randint(2**62, (batch_size,), device=device) if self.scheme.draws_at_random else zeros
        return ModelState(tokens=zeros, seed=seed)

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

    def _check(self, ids: Tensor, masks: dict[str, Tensor | None]) -> None:
        check_integers("ids", ids)
        check_masks(ids, **masks)
        if masks["ends"] is not None and not self.scheme.reads_units:
            raise InputError(f"scheme {self.config.scheme!r} does not read units; leave out ends=")
        if masks["memory"] is not None and not self.scheme.knows_memory_units:
            raise InputError(f"scheme {self.config.scheme!r} has no memory units; leave out memory=")

    def _check_shared(self, cache: Cache | None) -> None:
        """What reads whole texts, or draws something for every unit, cannot read a part of one."""
        shared = "processes that share a text"
        if cache is not None:
            raise InputError(f"{shared} keep no cache; leave out cache= or group=")
        if not self.scheme.shares_texts:
            able = ", ".join(schemes.names(shares_texts=True))
            raise InputError(f"{shared} have no scheme {self.config.scheme!r}; leave out group=, or choose {able}")
        if self.backend not in ("auto", *parallel.BACKENDS):
            able = ", ".join(parallel.BACKENDS)
            raise BackendError(f"backend {self.backend!r} reads whole texts, {shared} parts; use auto or {able}")

    def _check_vocabulary(self, ids: Tensor) -> list[int] | None:
        """A host copy of the ids where there is one per row, so that decoding syncs with the GPU once."""
        # On a GPU an id out of range kills the process without a word; reading a few numbers back is cheaper.
        if not ids.numel() or not can_be_read(ids):
            return None
        read = ids[:, 0] if ids.shape[1] == 1 else torch.stack(torch.aminmax(ids))
        numbers, size = read.tolist(), self.config.vocab_size
        low, high = min(numbers), max(numbers)
        if low < 0 or high >= size:
            raise InputError(f"id {low if low < 0 else high} lies outside the vocabulary of {size} (0..{size - 1})")
        return numbers if ids.shape[1] == 1 else None


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

    def forward(
        self, x: Float[Tensor, "batch seq dim"], context: Context, layer: int
    ) -> Float[Tensor, "batch seq dim"]:
        x = x + self._dropout(self._attend(self.attention_norm(x), context, layer))
        return x + self._dropout(self.feed_down(F.gelu(self.feed_up(self.feed_norm(x)))))

    def _attend(self, x: Tensor, context: Context, layer: int) -> Tensor:
        config = self.config
        heads = (config.heads, config.key_heads, config.key_heads)
        together = self.query_key_value(x).unflatten(-1, (-1, config.head_dim))
        query, key, value = together.split(heads, dim=2)
        kept = self._dropout_of_positions(value)
        read = context.attend(layer, x, Projected(query, key, kept, together if kept is value else None))
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
