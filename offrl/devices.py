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
    flags = {
        "xla_cpu_multi_thread_eigen": "false",
        # a small loop, such as that of random bits, is compiled to one function: 2 % of an update of TD3+BC, 3 % of BC
        "xla_backend_extra_options": "xla_cpu_small_while_loop_byte_threshold=65536",
    }
    given = os.environ.get("XLA_FLAGS", "")
    added = [f"--{name}={value}" for name, value in flags.items() if name not in given]
    os.environ["XLA_FLAGS"] = " ".join([given, *added]).strip()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # XLA's notes on its own cache are not for our users
    import jax

    try:
        jax.config.update("jax_num_cpu_devices", cores())
    except RuntimeError:
        return  # the backend runs already, with the devices it has
    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_directory() / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
