"""Hyperparameters and results as the three records of a session that PyTorch's writer makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aboard.events import encode, pytorch
from aboard.events.encode import EncodedValue
from aboard.track.arrays import to_number


def session_records(
    hparams: Mapping[str, Any],
    metrics: Mapping[str, Any],
    domains: Mapping[str, Sequence[Any]] | None = None,
) -> list[EncodedValue]:
    """Return what describes the experiment, the session's start and its end.

    As PyTorch does it, truth values are numbers, and hyperparameters that are None are left out.

    Raises:
        TypeError: a value, or the values it may take, are neither numbers nor texts.
    """
    domains = domains or {}
    plain = {name: _plain(name, value) for name, value in hparams.items() if value is not None}
    for name, domain in domains.items():
        if name not in plain or not _may_be(plain[name], domain):
            raise TypeError(
                f"hparam_domain_discrete[{name!r}] should list what hparam_dict[{name!r}] may be"
            )
    infos = [
        pytorch.typed_hparam(
            name, type(value), [_plain(name, one) for one in domains.get(name, ())]
        )
        for name, value in plain.items()
    ]
    return [
        encode.hparams_experiment(infos, [encode.metric_info(tag) for tag in metrics]),
        encode.hparams_start(plain),
        encode.hparams_end(),
    ]


def _may_be(value: str | float, domain: Any) -> bool:
    kind = str if isinstance(value, str) else int | float
    return isinstance(domain, list | tuple) and all(isinstance(one, kind) for one in domain)


def _plain(name: str, value: Any) -> str | float:
    if isinstance(value, str):
        return value
    try:
        return to_number(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"the hyperparameter {name!r} should be a bool, int, float, str or a tensor of one "
            f"number: {error}"
        ) from error
