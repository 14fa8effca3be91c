# The public sweeps under ../shared/data/sweeps, scored; run in the repository's root.
set -e
SWEEPS=${1:-../shared/data/sweeps}
python -m offrl.benchmark_selection --table "$SWEEPS/neorl_policies.csv" \
    --pool task --algorithm algorithm --setting config_id --seed-column seed --return online_return \
    --score fqe=fqe_0,fqe_1,fqe_2 --score fqe_lcb=lcb:fqe_0,fqe_1,fqe_2 --score importance_sampling=is_0,is_1,is_2 \
    --baseline fqe --output results/measured/selection/neorl
python -m offrl.benchmark_selection --table "$SWEEPS/eop_wandb_host.csv" \
    --pool env,policy_level,n_trajectories --algorithm alg --return epoch_40/online_vs0 \
    --score fqe=epoch_40/val_vs0_fqe --score initial_value=epoch_40/val_vs0_q \
    --score action_distance=epoch_40/val_loss --score td_error=epoch_40/val_tderror \
    --output results/measured/selection/eop
