"""The public function of addressed attention; its backends, each registered here; and how one is chosen.

``auto`` is a rule, not a fallback: CUDA tensors go to ``fused`` where it can read them (whole texts, no dropout, no
float64, heads of at most 256), all else to ``tiled``. A backend named explicitly is used or raises.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from contentrope.attention import flex, fused, reference, tiled
from contentrope.attention.pairs import Exponent, PairRule, Queries, States, unit_positions
from contentrope.config import PairLayout
from contentrope.errors import BackendError, InputError, quoted
from contentrope.rotary import Rotation, at_least_float32, position_rotations, rotate, rotation_of
from contentrope.units import Units
from contentrope.units.table import can_be_read

WIDEST = 2**30
"""Tokens of a near window, at most."""
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, kw_only=True)
class Backend:
    """What a backend needs and what it can read; called, it reads, or refuses and says what to use."""

    name: str
    attend: Callable[..., Tensor]
    package: str | None = None
    """Without which it cannot be imported."""
    runs_on: Callable[[torch.device], bool] | None = None
    """None: every device."""
    float64: bool = True
    dropout: bool = True
    cached: bool = True
    """Keys of columns before the queries."""
    largest_head: int | None = None
    negative_scale: bool = True

    def __call__(
        self, states: States, rule: PairRule, *, competition: Exponent = 0.0, dropout: float = 0.0, scale: float
    ) -> Queries:
        query = states.query
        self.require(query, query.shape[-1], dropout=dropout, cached=rule.offset > 0, scale=scale)
        return self.attend(states, rule, competition=competition, dropout=dropout, scale=scale)

    def require(self, states: Tensor, head_dim: int, **call: Any) -> None:
        """Raise where it cannot read such a call, see :meth:`refusal`."""
        if refusal := self.refusal(states, head_dim, **call):
            raise BackendError(f"backend {self.name!r} {refusal}")

    def refusal(
        self,
        states: Tensor,
        head_dim: int,
        *,
        dropout: float = 0.0,
        cached: bool = False,
        scale: float = 1.0,
    ) -> str | None:
        """Why it cannot read such a call; None: it can. Of ``states`` only device and dtype are asked."""
        if self.runs_on is not None and not self.runs_on(states.device):
            return f"needs CUDA tensors, got {states.device}; use backend='tiled'"
        if dropout and not self.dropout:
            return f"has no dropout (got {dropout}); use backend='tiled' or dropout=0"
        if states.dtype == torch.float64 and not self.float64:
            return "has no float64; use backend='reference' or 'tiled'"
        if cached and not self.cached:
            return "reads whole sequences, not cached ones; use backend='tiled'"
        if self.largest_head is not None and head_dim > self.largest_head:
            return f"has heads of at most {self.largest_head}, got {head_dim}; use backend='tiled'"
        if scale <= 0 and not self.negative_scale:
            return f"needs a positive scale, got {scale}; use backend='tiled'"
        return None

    def lacks_package(self) -> str | None:
        if self.package is None or importlib.util.find_spec(self.package):
            return None
        return f"needs the package {self.package!r}, which is not installed (pip install {self.package})"

    def lacks_gpu(self) -> str | None:
        if self.runs_on is None or torch.cuda.is_available() or self.runs_on(torch.device("cpu")):
            return None
        return "needs a GPU, and torch finds none here"


REGISTERED = {
    backend.name: backend
    for backend in (
        Backend(name="reference", attend=reference.attend),
        Backend(name="tiled", attend=tiled.attend),
        Backend(
            name="flex", attend=flex.attend, package="triton", runs_on=lambda device: device.type == "cuda",
            float64=False, dropout=False, cached=False,
        ),
        Backend(
            name="fused", attend=fused.attend, package="triton", runs_on=fused.runs_on,
            float64=False, dropout=False, cached=False, largest_head=256, negative_scale=False,
        ),
    )
}  # fmt: skip
BACKENDS = tuple(REGISTERED)


def addressed_attention(
    q: Float[Tensor, "batch heads seq head_dim"],
    k: Float[Tensor, "batch kv_heads seq head_dim"],
    v: Float[Tensor, "batch kv_heads seq head_dim"],
    units: Units,
    angles: Float[Tensor, "batch seq kv_heads pairs"],
    *,
    backend: str = "auto",
    competition: Exponent = 0.0,
    dropout: float = 0.0,
    pairs: PairLayout = "half",
    scale: float | None = None,
    window: int = 0,
    frequencies: Float[Tensor, "rows pairs"] | None = None,
) -> Float[Tensor, "batch heads seq head_dim"]:
    """Causal attention in which every completed unit is read at its address.

    ``q`` and ``k`` carry their local rotation already; ``angles`` holds the address of each token's unit, which
    is applied here where the causal rule allows it. ``competition`` is the exponent alpha by which
    the number of completed units counts against them: 0 as in the paper, 1 weighs the open unit against the
    average earlier one; one number or one per query head. Padding tokens read nothing and give zeros.

    ``window``: units that began at most so many tokens before the query's are read by plain RoPE, whose radians per
    position are ``frequencies``, of one row or one for every key/value head; only what lies further back is addressed.

    >>> import contentrope as cr
    >>> ids = torch.tensor([[5, 6, 0, 7, 8]])
    >>> units = cr.segment(ids, cr.Terminators({0}))
    >>> q, k, v = torch.randn(3, 1, 2, 5, 8)
    >>> cr.addressed_attention(q, k, v, units, torch.zeros(1, 5, 2, 4)).shape
    torch.Size([1, 2, 5, 8])
    """
    _check_shapes(q, k, v, units, angles, competition, dropout)
    check_window(window)
    attend = backend_function(backend, q, dropout=dropout, cached=False)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    rule = PairRule.among(units, window)
    wide = at_least_float32(q.dtype)
    address = rotation_of(angles.to(wide))

    def rotated(x: Tensor, rotation: Rotation) -> Tensor:
        return rotate(x.transpose(1, 2), rotation, pairs).transpose(1, 2)

    far_key = rotated(k, address)
    if not window:
        states = States(rotated(q, address.only_where(units.closes)), k, far_key, v)
    else:
        by_position = _frequencies(frequencies, angles).to(q.device)
        begins, beyond = unit_positions(units).clamp(min=0), torch.full((1, 1), window, device=q.device)
        from_local, to_far = (Rotation(*position_rotations(at, by_position, 1.0, wide)) for at in (begins, beyond))
        states = States(rotated(q, from_local), rotated(k, from_local), far_key, v, rotated(q, to_far))
    return attend(states, rule, competition=competition, dropout=dropout, scale=scale)


def check_window(window: int) -> None:
    if isinstance(window, bool) or not isinstance(window, int) or not 0 <= window <= WIDEST:
        raise InputError(f"window must be a whole number of tokens from 0 (none) to {WIDEST}, got {quoted(window)}")


def _frequencies(given: Tensor | None, angles: Tensor) -> Float[Tensor, "rows pairs"]:
    kv_heads, pairs = angles.shape[2:]
    if given is None or given.shape not in ((1, pairs), (kv_heads, pairs)):
        got = "none" if given is None else tuple(given.shape)
        raise InputError(f"a window needs frequencies=, (1 or kv_heads {kv_heads}, pairs {pairs}); got {got}")
    return given.detach().double()


def backend_function(name: str, query: Tensor, **call: Any) -> Backend:
    """The backend of that name, to be called as :class:`Backend` is; ``call`` as in :meth:`Backend.refusal`."""
    name = backend_name(name, query, query.shape[-1], **call)
    if name not in REGISTERED:
        raise BackendError(f"unknown backend {name!r}; choose auto, {', '.join(BACKENDS)}")
    backend = REGISTERED[name]
    # A compiler cannot follow the look for packages, and has them if it gets here.
    if not torch.compiler.is_compiling() and (lacking := backend.lacks_package()):
        raise BackendError(f"backend {name!r}: {lacking}; or pass backend='tiled'")
    return backend


def backend_name(name: str, states: Tensor, head_dim: int, **call: Any) -> str:
    """What ``auto`` stands for; any other name is left as it is. The rest as in :meth:`Backend.refusal`.

    >>> backend_name("auto", torch.zeros(1), head_dim=64), backend_name("flex", torch.zeros(1), head_dim=64)
    ('tiled', 'flex')
    """
    if name != "auto":
        return name
    if states.is_cuda and REGISTERED["fused"].refusal(states, head_dim, **call) is None:
        return "fused"
    return "tiled"


def backend_status() -> dict[str, str]:
    """Every backend with ``ready``, or what it lacks here: a package, or a GPU.

    >>> backend_status()["reference"]
    'ready'
    """
    return {name: backend.lacks_package() or backend.lacks_gpu() or "ready" for name, backend in REGISTERED.items()}


def _check_shapes(
    q: Tensor, k: Tensor, v: Tensor, units: Units, angles: Tensor, competition: float | Tensor, dropout: float
) -> None:
    if q.ndim != 4 or k.ndim != 4 or v.shape != k.shape:
        raise InputError(
            "q, k and v must be (batch, heads, seq, head_dim), k and v alike; "
            f"got {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
        )
    batch, heads, seq, head_dim = q.shape
    kv_heads = k.shape[1]
    if k.shape != (batch, kv_heads, seq, head_dim) or heads % max(kv_heads, 1):
        raise InputError(
            f"k {tuple(k.shape)} does not go with q {tuple(q.shape)}: "
            "batch, seq and head_dim must agree, heads be a multiple of kv_heads"
        )
    if not q.dtype == k.dtype == v.dtype or q.dtype not in FLOATS:
        raise InputError(f"q, k and v must share one float dtype, got {q.dtype}, {k.dtype}, {v.dtype}")
    places = [x.device for x in (q, k, v, angles, units.unit)]
    if len(set(places)) > 1:
        got = ", ".join(map(str, places))
        raise InputError(
            f"q, k, v, angles and units are on {got}: move them to one device; units by units.to(q.device)"
        )
    if tuple(units.unit.shape) != (batch, seq):
        raise InputError(f"units are {tuple(units.unit.shape)} but q has batch {batch} and seq {seq}")
    if angles.ndim != 4 or angles.shape[:3] != (batch, seq, kv_heads) or not 0 < 2 * angles.shape[3] <= head_dim:
        raise InputError(
            f"angles must be (batch {batch}, seq {seq}, kv_heads {kv_heads}, pairs <= {head_dim // 2}), "
            f"got {tuple(angles.shape)}"
        )
    if isinstance(competition, Tensor) and competition.shape not in ((), (heads,)):
        raise InputError(f"competition must be one number or {heads} (one per head), got {tuple(competition.shape)}")
    if not 0.0 <= dropout < 1.0:
        raise InputError(f"dropout must be in [0, 1), got {dropout}")
    refuse_non_finite("angles", angles)


def refuse_non_finite(what: str, x: Tensor) -> None:
    """NaN in one address would spread to every later token; say where it began instead."""
    if not can_be_read(x) or bool(torch.isfinite(x).all()):
        return
    row, token = (~torch.isfinite(x)).flatten(2).any(-1).nonzero()[0].tolist()
    raise InputError(f"{what} of row {row}, token {token} are not finite; check the embeddings and weights for NaN")
