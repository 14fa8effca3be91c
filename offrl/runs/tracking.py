"""Weights & Biases: off by default, and never a reason for a run to fail.

What goes where: the project is `wandb_project`, the group is the dataset, the tags are algorithm, protocol and source
of the data; a member's metrics are `member0/critic_loss` and so on, by the run's step.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from offrl.errors import UserError, nearest

MODES = ("off", "offline", "online")


def check_mode(mode: Any) -> None:
    """
    Raises:
        UserError: there is no such mode.
    """
    if mode not in MODES:
        raise UserError(f"wandb={mode}: not a choice; {nearest(str(mode), MODES)}")


class Tracker:
    """Sends metrics and the final tables and pictures to wandb; does nothing when off or when wandb fails."""

    def __init__(self, mode: str, project: str, run_dir: Path, config: dict[str, Any], info: dict[str, Any]):
        self.run: Any = None
        if mode == "off":
            return
        dataset, algorithm = info["dataset"]["name"], info["algorithm"]["name"]
        try:
            import wandb

            self.run = wandb.init(
                mode="offline" if mode == "offline" else "online",
                project=project,
                group=dataset,
                name=f"{algorithm} {dataset}",
                id=run_dir.name,
                resume="allow",
                tags=[algorithm, info["protocol"]["name"], dataset.split(":")[0]],
                dir=run_dir,
                config=config,
                settings=wandb.Settings(silent=True, init_timeout=30),
            )
        except Exception as error:  # no network, no log-in, a full disk: the training goes on
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        print(f"warning: wandb is off for this run ({reason})", file=sys.stderr)
        self.run = None

    def log(self, step: int, values: dict[str, float]) -> None:
        if self.run is None:
            return
        try:
            self.run.log(values, step=step)
        except Exception as error:
            self._failed(error)

    def finish(
        self,
        table: Any = None,
        picture: Path | None = None,
        report: Callable[[Path], dict[str, Any]] | None = None,
    ) -> None:
        """Log the evaluation's table (a DataFrame) and picture, and the run's report: its scores, pictures and page.

        Args:
            report: writes the page to the path that it is given, and returns its `scores` and `pictures`.
        """
        if self.run is None:
            return
        try:
            import wandb

            if table is not None:
                self.run.log({"evaluation": wandb.Table(dataframe=table)})
                if report is not None:
                    self._log_report(report)
            if picture is not None and picture.exists():
                self.run.log({"summary": wandb.Image(str(picture))})
            self.run.finish()
        except Exception as error:
            self._failed(error)

    def _log_report(self, report: Callable[[Path], dict[str, Any]]) -> None:
        """Log what offrl.report makes of the run: the table of scores, each picture, and the page."""
        import pandas as pd
        import wandb

        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "report.html"
            try:
                found = report(page)
            except UserError as error:
                print(f"warning: no report in wandb ({error})", file=sys.stderr)
                return
            for row in found["scores"]:
                if row["estimate"] is not None:
                    self.run.summary[" ".join(filter(None, ["score", row["kind"], row["setting"]]))] = row["estimate"]
            pictures = [Path(file) for file in found["pictures"] if file.endswith(".png")]
            self.run.log(  # while the files are there: wandb reads them only now
                {
                    "scores": wandb.Table(dataframe=pd.DataFrame(found["scores"])),
                    "report": wandb.Html(page.read_text(), inject=False),
                    **{f"report/{file.stem}": wandb.Image(str(file)) for file in pictures},
                }
            )
