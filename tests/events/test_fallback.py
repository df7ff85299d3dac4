"""The two scanning cores, held against each other on random, damaged event files."""

import importlib
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[2] / "fuzz"


@pytest.mark.soak
def test_both_cores_agree_on_damaged_files(rounds, monkeypatch):
    pytest.importorskip("aboard.events._scanner", reason="the C core was not compiled")
    monkeypatch.syspath_prepend(FUZZ)
    differential = importlib.import_module("differential")
    for seed in rounds(2):
        assert differential.run_cases(seed, 0, 60) == []
