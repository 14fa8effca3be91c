"""`python -m offrl.data`: the card as a table, as JSON and as a picture; mistakes in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_data_checks import log, save

from offrl.data.__main__ import main
from offrl.datasets.loading import load


def test_info_prints_the_card_and_draws_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    main(["info", save(tmp_path, log(rewards=np.ones(7))), "--env-id", "Pendulum-v1"])
    shown = capsys.readouterr().out
    fingerprint = load(f"file:{tmp_path / 'log.npz'}", env_id="Pendulum-v1", quiet=True).fingerprint
    for expected in (
        "2 episodes, 7 steps",
        "50.0% terminated, 50.0% truncated",
        fingerprint,
        "the reward is 1",
        "median",
    ):
        assert expected in shown
    picture = tmp_path / shown.strip().splitlines()[-1].removeprefix("picture: ")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_info_as_json_is_json_and_draws_only_where_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = save(tmp_path, log())
    main(["info", name, "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert (facts["episodes"], facts["steps"], facts["terminated_share"]) == (2, 7, 0.5)
    assert facts["returns"]["mean"] == pytest.approx(load(name, quiet=True).returns.mean())
    assert len(facts["observations"]["min"]) == 2
    assert not list(tmp_path.glob("*.png"))
    main(["info", name, "--json", "--out", "pictures/card.png"])
    assert (tmp_path / "pictures" / "card.png").exists()


def test_columns_can_be_named_on_the_command_line(tmp_path, capsys):
    arrays = log()
    arrays["pay"] = arrays.pop("rewards")
    main(["info", save(tmp_path, arrays), "--json", "--columns", "rewards=pay", "actions=actions"])
    assert json.loads(capsys.readouterr().out)["rewards"]["mean"] == pytest.approx(arrays["pay"].mean(), rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["info", "d4rl:hoper-medium-v2"], "did you mean hopper-medium-v2"),
        (["info", "missing.h5"], "is the path of a file"),
        (["info", "file:x.csv", "--columns", "observations"], "write KEY=COLUMN"),
        (["list", "nothinglikethis"], "no dataset name contains nothinglikethis"),
    ],
)
def test_mistakes_are_one_line_and_status_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_list_shows_names_of_every_source(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OFFRL_CACHE", str(tmp_path))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    (tmp_path / "d4rl").mkdir()
    (tmp_path / "d4rl" / "hopper-medium-v2.hdf5").touch()
    (tmp_path / "mine" / "hopper-v0" / "data").mkdir(parents=True)
    (tmp_path / "mine" / "hopper-v0" / "data" / "metadata.json").touch()
    main(["list", "hopper", "--json"])
    names = json.loads(capsys.readouterr().out)
    assert "builtin:hopper/medium-replay" in names
    assert "minari:mine/hopper-v0" in names
    assert "d4rl:hopper-medium-v2" in names
    assert all("hopper" in name for name in names)
    main(["list", "hopper-medium-v2"])
    assert "downloaded" in capsys.readouterr().out


def test_help_teaches_the_names():
    command = [sys.executable, "-m", "offrl.data", "info", "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for expected in ("builtin:", "minari:", "d4rl:", "file:", "MINARI_DATASETS_PATH", "OFFRL_CACHE", "examples:"):
        assert expected in text


def test_the_card_of_discrete_actions_and_images_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    images = np.random.default_rng(0).integers(0, 256, (7, 4, 6, 3), np.uint8)
    arrays = log(observations=images, next_observations=None, actions=np.array([0, 2, 1, 2, 0, 0, 1]))
    arrays |= {"cost": np.arange(7.0)}
    main(["info", save(tmp_path, arrays), "--columns", "costs=cost", "--out", "card.png"])
    shown = capsys.readouterr().out
    assert "observations images 4 x 6 x 3, actions 3 discrete" in shown
    assert " costs " in shown
    assert Path("card.png").stat().st_size > 10_000
