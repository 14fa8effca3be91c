#!/usr/bin/env bash
# Pools of our own: small networks, 20,000 updates, four checkpoints, two seeds, ten episodes of every policy; then every
# selector on them. The settings of every selector were fixed before any of these returns was looked at.
#   bash results/measured/selection/pools.sh RUNS_DIR DATASET...      such as builtin:hopper/medium-replay
set -euo pipefail
runs=${1:?usage: pools.sh RUNS_DIR DATASET...}; shift
for data in "$@"; do
  run() {
    python -m offrl.train dataset="$data" seeds=2 protocol.updates=20000 protocol.checkpoint_every=5000 \
      protocol.log_every=2500 protocol.episodes=10 'algo.hidden_dims=[128,128]' algo.batch_size=256 runs="$runs" "$@"
  }
  run algo=bc
  run algo=td3_bc 'algo.alpha=[1,2.5,10]'
  run algo=iql 'algo.expectile=[0.7,0.9]'
  run algo=rebrac
  run algo=awac
  slug=$(echo "$data" | tr ':/' '--')
  python -m offrl.select "$runs/$slug"/*-* out="$runs/$slug/selection"
done
python -m offrl.benchmark_selection "$runs"/*/selection --output "$runs/benchmark"
