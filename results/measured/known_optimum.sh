#!/usr/bin/env bash
# Discrete actions, images and a Decision Transformer on problems whose optimum is known; the table is known_optimum.md.
#   bash results/measured/known_optimum.sh RUNS_DIR
# env=icu_sepsis needs pip install -e '.[sepsis]'. An interrupted run is continued.
set -euo pipefail
runs=${1:?usage: known_optimum.sh RUNS_DIR}

train() { # name of the run, options
  python -m offrl.train run_dir="$runs/$1" protocol.episodes=0 "${@:2}"
  python -m offrl.evaluate "$runs/$1" episodes=100
}

small=(seeds=3 'algo.hidden_dims=[64,64]' algo.batch_size=128)
updates=(protocol.updates=10000 protocol.checkpoint_every=5000 protocol.log_every=1000)
for env in cartpole icu_sepsis; do
  for algo in bc iql cql; do
    train $env-$algo algo=$algo env=$env dataset=medium-replay "${small[@]}" "${updates[@]}"
  done
done
train cartpole-cql-weights algo=cql env=cartpole dataset=medium-replay 'algo.weight=[0.05,0.5]' "${small[@]}" "${updates[@]}"

dt=(algo=dt env=pendulum algo.context=5 algo.layers=2 algo.width=64 algo.learning_rate=1e-3 algo.warmup=500
  algo.episode_length=200 algo.target=given 'algo.target_return=[-150,-600,-1200]'
  protocol.updates=5000 protocol.checkpoint_every=2500 protocol.log_every=500)
train pendulum-dt "${dt[@]}" dataset=medium-replay algo.return_scale=1000
train pendulum-dt-expert "${dt[@]}" dataset=medium-expert algo.return_scale=100

images=(algo=bc dataset=medium-expert algo.batch_size=32
  protocol.updates=10000 protocol.checkpoint_every=2000 protocol.log_every=500)
train pendulum_images-bc env=pendulum_images "${images[@]}"
train pendulum-bc env=pendulum data.steps=10000 "${images[@]}"
python -m offrl.evaluate "$runs/pendulum_images-bc" checkpoints=4000 episodes=100
for run in pendulum_images-bc pendulum-bc; do
  python -m offrl.select "$runs/$run" diagnostics=action_distance out="$runs/selection-$run"
done

python results/measured/icu_sepsis_exact.py "$runs"/icu_sepsis-*
