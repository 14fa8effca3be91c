"""Setting jax up once per process, before its first computation."""

from __future__ import annotations

import os
from pathlib import Path


def cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cache_directory() -> Path:
    """Where offrl keeps what it can make or download again: $OFFRL_CACHE, or ~/.cache/offrl."""
    return Path(os.environ.get("OFFRL_CACHE") or Path.home() / ".cache" / "offrl")


def set_up() -> None:
    """One XLA device per CPU core, one thread per device, and a cache of compiled programs on disk.

    Products of 256-wide matrices are no faster with a second thread, but a second core can train a second member, so
    members are spread over these devices (benchmarks/members.py measures it). Has no effect once jax has started.
    """
    flags = {
        "xla_cpu_multi_thread_eigen": "false",
        # compiles a small loop, such as that of random bits, to one function: saves 2 % of TD3+BC's update, 3 % of BC's
        "xla_backend_extra_options": "xla_cpu_small_while_loop_byte_threshold=65536",
    }
    given = os.environ.get("XLA_FLAGS", "")
    added = [f"--{name}={value}" for name, value in flags.items() if name not in given]
    os.environ["XLA_FLAGS"] = " ".join([given, *added]).strip()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # hide XLA's messages about its own cache
    import jax

    try:
        jax.config.update("jax_num_cpu_devices", cores())
    except RuntimeError:
        return  # the backend runs already, with the devices it has
    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_directory() / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
