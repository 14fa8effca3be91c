# Calibration of a reduced dynamics ensemble (5 members of 2 x 200, 10,000 updates) on episodes that it has not seen, and
# every penalty beside the model's true error: of the MOPO runs of the table `small`, which are made where they are missing.
# RUNS is where the runs go, MINARI_DATASETS_PATH where the built-in data are.
set -e
export OMP_NUM_THREADS=1
for d in hopper-medium-expert hopper-medium-replay halfcheetah-medium-replay; do
  python -m offrl.reproduce small "datasets=builtin:$(echo "$d" | sed 's#-#/#')" algorithms=mopo runs="${RUNS:-runs}"
  run=${RUNS:-runs}/reproduce/small-quick/builtin-$d/mopo-1seeds
  python -m offrl.dynamics_report "$run"
  python -m offrl.penalty_study "$run" episodes=5
done
