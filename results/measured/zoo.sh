#!/usr/bin/env bash
# The measured table of BC, TD3+BC and IQL: two seeds, 50,000 updates, last checkpoint, 20 episodes.
#   bash results/measured/zoo.sh RUNS_DIR
# minari:trpo/hopper/mixed-v0 must lie in the local Minari store. An interrupted run is continued.
set -euo pipefail
runs=${1:?usage: zoo.sh RUNS_DIR}
for data in builtin:hopper/medium-replay minari:trpo/hopper/mixed-v0 builtin:hopper/medium-expert \
            builtin:halfcheetah/medium-replay builtin:hopper/medium; do
  for algo in iql td3_bc bc; do
    python -m offrl.train algo=$algo dataset=$data seeds=2 runs="$runs" \
      protocol.updates=50000 protocol.checkpoint_every=5000 protocol.log_every=2500 protocol.episodes=0
    run=$(ls -td "$runs"/*/$algo-* | head -1)
    python -m offrl.evaluate "$run" episodes=20
  done
done
python results/measured/zoo.py "$runs"/*/*
