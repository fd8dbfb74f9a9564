"""How Triton kernels are started, and how operators of PyTorch are made of them. To the compiler an operator is one
node, whose insides it does not look at.

The two sections at the end only save time on the processor in eager mode, and each says what decides whether it stays.
"""

from __future__ import annotations

import os
from collections import namedtuple
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import _get_current_dispatch_mode

from contentrope.errors import BackendError

Grid = tuple[int, ...] | Callable[[dict[str, Any]], tuple[int, ...]]
"""Programs along each axis, or how many there are for tiles that have been chosen."""
MOST_ACROSS = 65535
"""Programs that a GPU starts along the second and the third axis of a grid."""


def is_interpreted() -> bool:
    """Whether Triton runs its kernels in Python, on any device: for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def programs(length: int, tile: int) -> int:
    """How many tiles cover a length.

    >>> programs(64, 64), programs(65, 64)
    (1, 2)
    """
    return -(-length // tile)


def power_of_two(least: int) -> int:
    """The first that is no smaller.

    >>> [power_of_two(n) for n in (1, 2, 3, 64, 65)]
    [1, 2, 4, 64, 128]
    """
    return 1 << (least - 1).bit_length()


def start(
    kernel: Any, grid: Grid, tensors: tuple[Tensor, ...], numbers: tuple[float, ...], /, **constants: Any
) -> None:
    """``kernel[grid](*tensors, *numbers, **constants)``, in the order of its parameters; it may be an autotuned one."""
    if not callable(grid) and max(grid[1:], default=0) > MOST_ACROSS:
        most = f"the GPU starts programs for at most {MOST_ACROSS} of them at once"
        raise BackendError(f"{max(grid[1:])} rows: {most}; give fewer at a time, or use backend='tiled'")
    if is_interpreted():
        launch(kernel, grid, tensors, numbers, constants)
    elif not tensors[0].is_cuda or tensors[0].get_device() == torch.cuda.current_device():
        launch_again(kernel, grid, tensors, numbers, constants)
    else:  # Triton starts kernels on the current GPU
        with torch.cuda.device(tensors[0].get_device()):
            launch_again(kernel, grid, tensors, numbers, constants)


def launch(
    kernel: Any, grid: Grid, tensors: tuple[Tensor, ...], numbers: tuple[float, ...], constants: dict[str, Any]
) -> Any:
    """The compiled kernel, started by Triton."""
    return kernel[grid](*tensors, *numbers, **constants)


class Operator:
    """``allocate`` makes the results, ``fill`` starts the kernels that write them, and may return others that lie as
    those do. Both take all arguments as one tuple with names, ``fill`` after the results. ``schema`` names arguments
    and results, as PyTorch writes it; ``known`` is the form for the compiler, which takes shapes from ``allocate``."""

    def __init__(self, schema: str, allocate: Callable[[Any], Any], fill: Callable[[Any, Any], Any]) -> None:
        def run(*arguments: Any) -> Any:
            given = named(*arguments)
            results = allocate(given)
            filled = fill(results, given)
            return results if filled is None else filled

        self.run = run
        name = schema.partition("(")[0]
        signature = schema.removeprefix(name)
        self.known: Any = torch.library.custom_op(f"contentrope::{name}", run, mutates_args=(), schema=signature)
        self.known.register_fake(lambda *arguments: allocate(named(*arguments)))
        parsed = self.known._opoverload._schema
        self.arguments = {argument.name: "Tensor" in str(argument.type) for argument in parsed.arguments}
        """By name, whether it is a tensor."""
        self.results = [result.name for result in parsed.returns]
        named = namedtuple("named", self.arguments)  # type: ignore[misc]


Keep = Callable[[Any, tuple[Any, ...], Any], None]
"""Of a context, the inputs and the output: what the backward pass needs of them is put into the context."""
Differentiate = Callable[..., tuple[Any, ...]]
"""Of the backward operator, a context and the gradients of the output: those of the inputs."""


class Differentiable:
    """An operator with its backward pass, an operator too, to be called as a function.

    Names connect them, unless ``keep`` and ``differentiate`` do. The backward operator takes arguments and results of
    the forward one, which are kept for it; ``<result>_grad``; and ``needs_<argument>``, whether its gradient is asked
    for. Its results are ``<argument>_grad``.
    """

    def __init__(
        self,
        forward: Operator,
        backward: Operator,
        keep: Keep | None = None,
        differentiate: Differentiate | None = None,
    ) -> None:
        if keep is None or differentiate is None:
            names = ByName(forward, backward)
            keep, differentiate = names.keep, names.differentiate
        self.known = forward.known
        self.known.register_autograd(partial(differentiate, backward.known), setup_context=keep)
        self.call = unless_watched(_recorded(forward, backward, keep, differentiate), self.known)

    def __call__(self, *inputs: Any) -> Any:
        return self.call(*inputs)


class ByName:
    """Which value becomes which argument of a backward operator, by their places."""

    def __init__(self, forward: Operator, backward: Operator) -> None:
        values = [*forward.arguments, *forward.results]
        kept = [name for name in backward.arguments if name in values]
        self.tensors = [values.index(name) for name in kept if backward.arguments[name]]
        self.numbers = [values.index(name) for name in kept if not backward.arguments[name]]
        grads = [f"{name}_grad" for name in forward.results]
        self.all_grads = set(grads) <= backward.arguments.keys()
        """If not, nobody differentiates the other results, which are for the backward pass."""
        needs = [f"needs_{name}" for name in forward.arguments]
        given = [*(values[place] for place in (*self.tensors, *self.numbers)), *grads, *needs]
        self.arguments = [given.index(name) for name in backward.arguments]
        found = {name.removesuffix("_grad"): place for place, name in enumerate(backward.results)}
        self.results = [found.get(name) for name in forward.arguments]

    def keep(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        values = (*inputs, *_as_tuple(output))
        ctx.set_materialize_grads(self.all_grads)
        ctx.save_for_backward(*[values[place] for place in self.tensors])
        ctx.numbers = [values[place] for place in self.numbers]

    def differentiate(self, backward: Callable[..., Any], ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        needs = ctx.needs_input_grad[: len(self.results)]
        given = (*ctx.saved_tensors, *ctx.numbers, *grads, *needs)
        found = _as_tuple(backward(*[given[place] for place in self.arguments]))
        places = zip(self.results, needs, strict=True)
        return tuple([None if place is None or not asked else found[place] for place, asked in places])


def _as_tuple(output: Any) -> tuple[Any, ...]:
    return output if isinstance(output, tuple) else (output,)


# What kernels ask of the tensors they are given.


def as_bytes(flags: Tensor) -> Tensor:
    """Flags as kernels read them: the same memory, but to the compiler, that of PyTorch 2.11 having no such view. It
    computes them together with what they come of."""
    return flags.to(torch.int8) if torch.compiler.is_compiling() else flags.view(torch.int8)


def last_contiguous(x: Tensor) -> Tensor:
    """Kernels take any strides of rows, tokens and heads, but read a head's dimensions side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


def strides_of(*tensors: Tensor) -> tuple[int, ...]:
    """Of their first three dimensions, one tensor after the other."""
    return tuple([stride for tensor in tensors for stride in tensor.stride()[:3]])


def broadcast_strides(cos: Tensor, sin: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Cosines and sines, of which one row or one head may be broadcast to all, and their strides: zero there."""
    if any(given not in (1, asked) for given, asked in zip(cos.shape, shape, strict=True)):
        raise ValueError(f"cosines of shape {tuple(cos.shape)} cannot be broadcast to {shape}")
    cos, sin = cos.contiguous(), sin.contiguous()
    return cos, sin, tuple([0 if size == 1 else step for size, step in zip(cos.shape[:3], cos.stride(), strict=False)])


# On trial: a second route for autograd, as the way through PyTorch's dispatcher takes longer than many a kernel.
#
# To be measured on a GPU: an eager training step (``TrainConfig(acceleration="none")``) of a small model, with
# ``self.call = self.known`` in ``Differentiable``. If it takes less than 3% longer, this section goes.


def unless_watched(direct: Callable[..., Any], known: Callable[..., Any]) -> Callable[..., Any]:
    """The direct route, but the one that is known where somebody looks at operators, or gives tensors without numbers:
    a compiler, a mode, a kind of tensor."""

    def call(first: Tensor, *rest: Any) -> Any:
        is_watched = (
            torch.compiler.is_compiling()
            or type(first) not in (Tensor, nn.Parameter)
            or _get_current_dispatch_mode() is not None
        )
        return (known if is_watched else direct)(first, *rest)

    return call


def _recorded(forward: Operator, backward: Operator, keep: Keep, differentiate: Differentiate) -> Callable[..., Any]:
    class Recorded(Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            output = forward.run(*inputs)
            keep(ctx, inputs, output)
            return output

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
            return differentiate(backward.run, ctx, *grads)

    return Recorded.apply


# On trial: a cache of launches.
#
# Triton looks at every argument of every call, in Python, to find the tiles and the compiled kernel that fit. For small
# models that can take longer than the kernel. What was found is kept here by what it depends on: dtypes, alignment and
# whereabouts of tensors, the values of all numbers and constants, the device.
#
# To be measured on a GPU: an eager training step (``TrainConfig(acceleration="none")``) of a small model, with
# ``launch`` in place of ``launch_again``. If it takes less than 3% longer, this section goes.

ALIGNMENT = 16
"""Bytes; Triton compiles other kernels for tensors that do not begin at a multiple."""
MOST_FOUND = 4096
"""Kernels with their arguments that are kept; texts of ever new lengths would fill the memory."""


class Found(NamedTuple):
    compiled: Any
    constants: tuple[Any, ...]
    """In the order of the kernel's parameters, behind those that are given."""
    tile: dict[str, Any]


_found: dict[Hashable, Found] = {}


def _remember(found: Found, *keys: Hashable) -> None:
    if len(_found) + len(keys) > MOST_FOUND:
        _found.clear()
    _found.update(dict.fromkeys(keys, found))


def _kind(number: float) -> Hashable:
    """What Triton compiles other kernels for."""
    if isinstance(number, float):
        return float
    return number == 1, number % ALIGNMENT == 0, abs(number) >= 2**31


def launch_again(
    kernel: Any, grid: Grid, tensors: tuple[Tensor, ...], numbers: tuple[float, ...], constants: dict[str, Any]
) -> None:
    """Start the compiled kernel that was found for such arguments before, or let Triton look for it."""
    pointers = [x.data_ptr() for x in tensors]
    kinds = tuple([(x.dtype, x.is_cuda, at % ALIGNMENT == 0) for x, at in zip(tensors, pointers, strict=True)])
    key = id(kernel), tensors[0].get_device(), kinds, numbers, tuple(constants.items())
    found = _found.get(key)
    if found is None:
        # Other numbers of the same kind are read by the same kernel: a cache that grows by a column is not a new one.
        alike = *key[:3], tuple([_kind(number) for number in numbers]), key[4]
        found = _found.get(alike)
        if found is not None:
            _remember(found, key)
    if found is None:
        compiled = launch(kernel, grid, tensors, numbers, constants)
        chosen = getattr(kernel, "best_config", None)
        tile = {} if chosen is None else dict(chosen.kwargs)
        values = {**constants, **tile}
        names = kernel.arg_names[len(tensors) + len(numbers) :]
        _remember(Found(compiled, tuple([values[name] for name in names]), tile), key, alike)
        return
    size = grid(found.tile) if callable(grid) else grid
    # Given tensors, Triton would ask the driver of each of them whether the GPU can reach it.
    found.compiled[(*size, 1, 1)[:3]](*pointers, *numbers, *found.constants)
