"""Hyperparameters and tags, given in any form, as a record holds them."""

import argparse
import json
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from aboard.runs.values import plain_tags, plain_values


def test_values_become_what_json_holds() -> None:
    class Kind:
        def __str__(self) -> str:
            return "adam"

    given_values = {
        "lr": np.float32(0.5), "n": np.int64(3), "ok": np.bool_(True), "none": None, "inf": 1e999,
        "kind": Kind(), "list": [1, 2], "optimizer": {"name": "sgd", "betas": {"a": 1}}, 3: "three",
    }  # fmt: skip
    plain = plain_values(given_values)
    assert plain == {
        "lr": 0.5, "n": 3, "ok": True, "none": None, "inf": "inf", "kind": "adam", "list": "[1, 2]",
        "optimizer.name": "sgd", "optimizer.betas.a": 1, "3": "three",
    }  # fmt: skip
    assert plain["ok"] is True
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


def test_tags_are_names_or_names_with_values() -> None:
    assert plain_tags(None) == {}
    assert plain_tags("good") == {"good": True}
    assert plain_tags(["good", "old"]) == {"good": True, "old": True}
    assert plain_tags({"size": 3, "who": "me"}) == {"size": 3, "who": "me"}


@pytest.mark.parametrize("value", [np.array([0.5]), torch.tensor(0.5), torch.tensor([[0.5]])])
def test_what_holds_one_number_is_that_number(value: Any) -> None:
    assert plain_values({"lr": value}) == {"lr": 0.5}


def test_what_holds_several_numbers_is_text() -> None:
    several = {"a": np.array([1, 2]), "b": torch.tensor([1, 2]), "c": torch.zeros(1, device="meta")}
    plain = plain_values(several)
    assert (plain["a"], plain["b"]) == ("[1 2]", "tensor([1, 2])")
    assert plain["c"].startswith("tensor(")


@dataclass
class Optimizer:
    lr: float = 0.1
    betas: dict[str, float] = field(default_factory=lambda: {"first": 0.9})


@pytest.mark.parametrize(
    "given",
    [
        argparse.Namespace(depth=3, optimizer=Optimizer()),
        SimpleNamespace(depth=3, optimizer=argparse.Namespace(lr=0.1, betas={"first": 0.9})),
        MappingProxyType({"depth": 3, "optimizer": Optimizer()}),
    ],
)
def test_everything_with_names_inside_is_taken(given: Any) -> None:
    expected = {"depth": 3, "optimizer.lr": 0.1, "optimizer.betas.first": 0.9}
    assert plain_values(given) == expected
    assert plain_values(Optimizer(0.5)) == {"lr": 0.5, "betas.first": 0.9}


@pytest.mark.parametrize("given", [[("lr", 1)], "lr=1", 3, Optimizer])
def test_what_has_no_names_is_refused(given: Any) -> None:
    with pytest.raises(
        TypeError, match=r"an argparse\.Namespace or an instance of a dataclass, not"
    ):
        plain_values(given)
