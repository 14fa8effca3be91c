# Calibration of a reduced dynamics ensemble (5 members of 2 x 200, 10,000 updates) on episodes that it has not seen:
# trains MOPO and reports; tables are in RUN/dynamics/report.csv. Run it again to go on after an interruption.
# RUNS is where the runs go, MINARI_DATASETS_PATH where the built-in data are.
set -e
export OMP_NUM_THREADS=1
for d in hopper/medium-expert halfcheetah/medium-replay; do
  run=${RUNS:-runs}/dynamics-$(echo "$d" | tr / -)
  python -m offrl.train algo=mopo dataset=builtin:$d env=from_dataset tuned=false run_dir="$run" \
    algo.ensemble_size=5 algo.elites=4 'algo.dynamics_hidden_dims=[200,200]' \
    'algo.dynamics_weight_decay=[2.5e-5,5e-5,1e-4]' algo.dynamics_updates=10000 algo.holdout_every=500 \
    algo.rollout_batch_size=5000 algo.rollouts_kept=2 \
    protocol.updates=3000 protocol.checkpoint_every=13000 protocol.log_every=1000 protocol.episodes=0
  python -m offrl.dynamics_report "$run"
  python -m offrl.penalty_study "$run" episodes=10
done
