"""Shared by all tests: stores of their own, so that none touches the user's."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

# set before any test module is imported; the workers of pytest-xdist inherit it, and with it one compilation cache
if "OFFRL_TEST_STORE" not in os.environ:
    os.environ["OFFRL_TEST_STORE"] = tempfile.mkdtemp(prefix="offrl-tests-")
    atexit.register(shutil.rmtree, os.environ["OFFRL_TEST_STORE"], ignore_errors=True)
    # tests compile far more than they compute; level 0 would save a fifth more, but XLA then makes NaN of ReBRAC's
    # vmapped loop (not of the same vmapped updates one by one, which are those of level 1)
    quickly = "--xla_backend_optimization_level=1 --xla_llvm_disable_expensive_passes=true"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {quickly}".strip()
STORE = Path(os.environ["OFFRL_TEST_STORE"])
os.environ["OFFRL_CACHE"] = str(STORE / "cache")
os.environ["MINARI_DATASETS_PATH"] = str(STORE / "minari")
