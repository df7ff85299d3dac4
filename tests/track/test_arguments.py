"""Hyperparameters read off a command line."""

import math

import pytest

from aboard.track.arguments import hparams_of, plain_value


@pytest.mark.parametrize(
    ("command", "hparams"),
    [
        ("train.py --lr=0.1 --depth 3", {"lr": 0.1, "depth": 3}),
        ("python train.py --lr 1e-3 --name x", {"lr": 0.001, "name": "x"}),
        ("python -u train.py --amp --no-bias --no_x", {"amp": True, "bias": False, "x": False}),
        ("python -m pkg.train --lr -0.5", {"lr": -0.5}),
        ("python -c pass --lr 1", {"lr": 1}),
        ("torchrun --nproc-per-node 4 train.py --batch-size=32", {"batch_size": 32}),
        ("train.py model.depth=4 +new=x ++y=true", {"model.depth": 4, "new": "x", "y": True}),
        ("train.py --a=1 --a=2", {"a": 2}),
        ("train.py --a= --b", {"a": "", "b": True}),
        ("train.py data/ -v 3 -- --not ours", {"v": 3}),
        ("train.py --token abc --hf-token=x api_key=3 --lr 1", {"lr": 1}),
        ("train.py --wandb-key=x --pat x --connection-string=A=b --lr 1", {"lr": 1}),
        ("train.py --data https://h/x?sv=1&sig=abc", {"data": "https://h/x?sv=1&sig=***"}),
        ("train", {}),
    ],
)
def test_options_are_hyperparameters(command: str, hparams: dict[str, object]) -> None:
    assert hparams_of(command.split()) == hparams


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("-3", -3), ("0.5", 0.5), ("1e5", 1e5), ("True", True), ("false", False),
        ("x", "x"), ("", ""), ("1_000", "1_000"), ("9" * 20, float("9" * 20)), ("inf", math.inf),
    ],
)  # fmt: skip
def test_values_are_what_a_user_means(text: str, value: object) -> None:
    assert plain_value(text) == value
    assert type(plain_value(text)) is type(value)
