"""TD3+BC in plain torch on minari:trpo/hopper/mixed-v0, read without offrl: is our low score there the data or a bug?

    python results/measured/independent_td3_bc.py MAIN_DATA.hdf5 UPDATES     (needs torch, h5py and gymnasium[mujoco])

Networks and losses are those of benchmarks/torch_updates.py. Prints the mean return of 20 episodes, deterministic,
after every 10,000 updates.
"""

import sys
from pathlib import Path

import gymnasium
import h5py
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import torch_updates

path, updates = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
columns: dict[str, list[np.ndarray]] = {name: [] for name in ("s", "a", "r", "next_s", "end")}
with h5py.File(path) as file:
    for episode in file.values():
        columns["s"].append(episode["observations"][:-1])
        columns["next_s"].append(episode["observations"][1:])
        columns["a"].append(episode["actions"][:])
        columns["r"].append(episode["rewards"][:])
        columns["end"].append(episode["terminations"][:])
data = {name: np.concatenate(parts) for name, parts in columns.items()}
mean, std = data["s"].mean(0), data["s"].std(0) + 1e-3
data["s"], data["next_s"] = (data["s"] - mean) / std, (data["next_s"] - mean) / std
tensors = {name: torch.tensor(np.asarray(array), dtype=torch.float32) for name, array in data.items()}


class Data:
    def batch(self) -> tuple[torch.Tensor, ...]:
        rows = torch.randint(len(tensors["r"]), (torch_updates.BATCH,))
        return tuple(tensors[name][rows] for name in ("s", "a", "r", "next_s", "end"))


made = []
make = torch_updates.mlp


def remembered(*sizes: int) -> torch.nn.Sequential:
    made.append(make(*sizes))
    return made[-1]


torch_updates.mlp = remembered
update = torch_updates.td3_bc(Data())  # type: ignore[arg-type]
actor = made[0]
environment = gymnasium.make("Hopper-v5")
for step in range(1, updates + 1):
    update()
    if step % 10_000 == 0:
        returns = []
        for seed in range(20):
            observation, _ = environment.reset(seed=seed)
            total, done = 0.0, False
            while not done:
                with torch.no_grad():
                    seen = torch.tensor((observation - mean) / std, dtype=torch.float32)
                    action = torch.tanh(actor(seen)).numpy()
                observation, reward, terminated, truncated, _ = environment.step(action)
                total, done = total + float(reward), terminated or truncated
            returns.append(total)
        print(step, f"{np.mean(returns):.0f} +- {np.std(returns):.0f}", flush=True)
