"""Hyperparameters that look secret are in no file of a run."""

import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from reading import read_stock
from training import environment, record

import aboard
from aboard.track import say
from aboard.track.hparams import to_keep

SECRET = "hf_" + "x" * 30


@pytest.fixture(autouse=True)
def _nothing_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(say, "_said", set())


def test_what_looks_secret_is_hidden_and_said_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = Namespace(lr=0.1, db={"password": "opensesame"}, hub=f"https://me:{SECRET}@host/x")
    with aboard.init("x", "a", tmp_path, hparams=given) as run:
        run.log_hparams({"api_key": SECRET, "note": f"with {SECRET}", "pin_token": 1234})
        run.log_metrics({"loss": 1})
        run.log_hparams({"api_key": SECRET, "note": f"with {SECRET}", "pin_token": 1234})
    said = capfd.readouterr().err.splitlines()
    assert said == [
        "aboard: hyperparameters that look secret are kept as ***: db.password, hub.",
        "aboard: hyperparameters that look secret are kept as ***: api_key, note, pin_token.",
    ]
    expected = {
        "lr": 0.1, "db.password": "***", "hub": "https://***@host/x", "api_key": "***",
        "note": "with ***", "pin_token": "***",
    }  # fmt: skip
    assert record(tmp_path / "x/a")["hparams"] == expected
    start = read_stock(tmp_path)["x/a", "_hparams_/session_start_info"].content
    assert set(start.session_start_info.hparams) == set(expected)
    for path in (tmp_path / "x/a").iterdir():
        content = path.read_bytes()
        assert not any(secret in content for secret in (b"opensesame", SECRET.encode(), b"1234"))


def test_what_aboard_run_is_given_is_hidden_too(tmp_path: Path) -> None:
    told = ["--hparam", f"api_key={SECRET}", "--hparam", "lr=0.1"]
    command = [sys.executable, "-m", "aboard", "run", "-q", "--root", ".", *told, "--", "true"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stderr == ("aboard: hyperparameters that look secret are kept as ***: api_key.\n")
    assert record(tmp_path / "default/run1")["hparams"] == {"api_key": "***", "lr": 0.1}


def test_what_only_sounds_secret_is_kept() -> None:
    harmless = {"use_auth_token": False, "token": None, "password": "", "max_tokens": 9}
    assert to_keep(harmless) == harmless
    assert to_keep(None) == {}


def test_the_tokens_of_a_vocabulary_are_no_secrets() -> None:
    tokens = {"tokenizer.pad_token": "<pad>", "eos-token": "</s>", "class_token": "mean"}
    assert to_keep(tokens) == tokens
