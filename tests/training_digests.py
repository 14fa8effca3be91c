"""Whether training still makes the same numbers, to the bit: every algorithm at protocol=smoke on a small random log.

    python tests/training_digests.py [NAME...]          compare with tests/golden/training_digests.json
    python tests/training_digests.py --write [NAME...]  make that file anew, where a change moves numbers on purpose

The numbers are those of one kind of processor and one set of library versions, which the file names; elsewhere there
is nothing to compare with.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import offrl.algorithm

STORED = Path(__file__).parent / "golden" / "training_digests.json"
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")
SHORTER = {
    "algo.dynamics_updates": 200,
    "algo.holdout_every": 100,
    "algo.cloning_updates": 200,
    "algo.adversary_updates": 100,
    "algo.gate_length": 5,
    "algo.gate_rollouts": 16,
}
"""Work whose published length is the same whatever the protocol, where an algorithm has it: phases of tens of thousands
of updates, rollouts that decide whether a policy is replaced."""


def machine() -> str:
    """What decides the rounding of the numbers: the processor, and the versions of what compiles and draws."""
    try:
        facts = Path("/proc/cpuinfo").read_text()
        processor = next(line.partition(":")[2].strip() for line in facts.splitlines() if line.startswith("model name"))
    except (OSError, StopIteration):
        processor = platform.processor()
    versions = [f"{package} {importlib.metadata.version(package)}" for package in PACKAGES]
    return ", ".join([processor, f"{os.cpu_count()} cores", *versions])


def write_log(file: Path) -> None:
    random, rows = np.random.default_rng(0), 1000
    np.savez(
        file,
        observations=random.normal(size=(rows, 5)),
        actions=random.uniform(-1, 1, (rows, 2)),
        rewards=random.normal(size=rows),
        terminals=np.arange(rows) % 50 == 49,
    )


def digest(algorithm: str) -> str:
    """Of the metrics and of every checkpoint that a run of two members leaves, trained in a process of its own."""
    flags = os.environ.get("XLA_FLAGS", "").split()
    environment = os.environ | {
        "XLA_FLAGS": " ".join(flag for flag in flags if "optimization_level" not in flag and "expensive" not in flag)
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_log(folder / "log.npz")
        options = offrl.algorithm.load(algorithm).options()
        shorter = [f"{name}={length}" for name, length in SHORTER.items() if name.removeprefix("algo.") in options]
        choices = f"algo={algorithm} dataset=file:log.npz env=null protocol=smoke seeds=2 run_dir=run"
        command = [sys.executable, "-m", "offrl.train", *choices.split(), *shorter]
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
        metrics = pd.read_csv(folder / "run" / "metrics.csv", dtype=str).drop(columns="seconds")
        lines = [metrics.to_csv(index=False)]
        for checkpoint in sorted((folder / "run" / "checkpoints").iterdir(), key=lambda path: int(path.name)):
            written = json.loads((checkpoint / "_CHECKPOINT_METADATA").read_text())
            lines.append(f"{checkpoint.name} {written['custom_metadata']['crc32']}")  # of its arrays
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def stored() -> dict[str, dict[str, str]]:
    """Algorithm -> digest, of every machine that they were made on."""
    return json.loads(STORED.read_text()) if STORED.exists() else {}


def main(arguments: list[str]) -> int:
    write = "--write" in arguments
    names = [argument for argument in arguments if argument != "--write"] or offrl.algorithm.names()
    different = 0
    for name in names:
        found, known = digest(name), stored()
        expected = known.get(machine(), {}).get(name)
        different += expected not in (None, found)
        print(f"{name:10} {found[:16]}  {'new' if expected is None else 'same' if expected == found else 'DIFFERENT'}")
        if write:
            known.setdefault(machine(), {})[name] = found
            STORED.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    return different


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
