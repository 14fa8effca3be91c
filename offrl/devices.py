"""Setting jax up once per process, before its first computation."""

from __future__ import annotations

import os
from pathlib import Path


def cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cache_directory() -> Path:
    """Where offrl keeps what it can make again: $OFFRL_CACHE, or ~/.cache/offrl."""
    return Path(os.environ.get("OFFRL_CACHE") or Path.home() / ".cache" / "offrl")


def set_up() -> None:
    """One XLA device per CPU core, one thread per device, and compiled programs kept on disk.

    A product of two 256-wide matrices gains nothing from a second thread, while a second member on a second core does:
    members are spread over these devices (benchmarks/members.py measures it). Has no effect once jax has started.
    """
    if "xla_cpu_multi_thread_eigen" not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # XLA's notes on its own cache are not for our users
    import jax

    try:
        jax.config.update("jax_num_cpu_devices", cores())
    except RuntimeError:
        return  # the backend runs already, with the devices it has
    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_directory() / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
