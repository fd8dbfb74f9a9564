"""A Ray cluster: the one that RAY_ADDRESS names, or one on this machine that ends with the process.

Ray is imported where it is used, and told to report nothing to anybody unless the user has said otherwise.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from importlib.util import find_spec

from contentrope.errors import BackendError, InputError

ADDRESS = "RAY_ADDRESS"
OBJECT_STORE = 256 * 2**20
"""Bytes of shared memory on this machine: keys and values never go through it."""


def require_ray(command: str) -> None:
    if find_spec("ray") is None:
        raise BackendError(f"{command} needs ray: pip install contentrope[ray]")


def is_remote() -> bool:
    """Whether the user has named a cluster, which is not ours to end."""
    return bool(os.environ.get(ADDRESS))


@contextlib.contextmanager
def connected(cpus: float, gpus: float) -> Iterator[None]:
    """``cpus`` and ``gpus``: what will be asked for. A machine with fewer cores takes the work all the same; with fewer
    GPUs it is refused."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if ray.is_initialized():
        yield
        return
    logging.getLogger("ray").setLevel(logging.WARNING)
    try:
        if is_remote():
            ray.init(address=os.environ[ADDRESS], logging_level=logging.WARNING)
        else:
            ray.init(
                address="local",
                num_cpus=max(os.cpu_count() or 1, int(cpus + 0.999)),
                include_dashboard=False,
                object_store_memory=OBJECT_STORE,
                logging_level=logging.WARNING,
            )
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        where = f"{ADDRESS}={os.environ[ADDRESS]}" if is_remote() else "on this machine"
        raise BackendError(f"no Ray cluster can be had ({where}): {error}") from error
    try:
        there = ray.cluster_resources()
        if gpus > there.get("GPU", 0):
            raise InputError(f"{gpus:g} GPUs are asked for and the cluster has {there.get('GPU', 0):g}; ask for fewer")
        yield
    finally:
        ray.shutdown()
