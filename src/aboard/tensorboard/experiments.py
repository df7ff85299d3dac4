"""One experiment of several: what the hparams plugin is told where runs declare their own.

An experiment declares hyperparameters and metrics. TensorBoard expects one in a log
directory and takes the first it finds; PyTorch writes one for every run, with the
hyperparameters of that run alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from aboard.events import protos

protos.keep_tensorflow_out()

from tensorboard.plugins.hparams import (  # noqa: E402
    api_pb2,
    error,
    metadata,
    plugin_data_pb2,
)

EXPERIMENT_TAG: str = metadata.EXPERIMENT_TAG


@lru_cache(maxsize=16)
def merged(contents: frozenset[bytes]) -> bytes | None:
    """Merge what several experiments declare, each given as its plugin's content.

    Returns:
        The content that declares all of it; None if no experiment can be understood.
    """
    experiments = [one for one in map(_parsed, sorted(contents)) if one is not None]
    if not experiments:
        return None
    whole = api_pb2.Experiment()
    whole.CopyFrom(min(experiments, key=lambda one: one.time_created_secs))
    del whole.hparam_infos[:], whole.metric_infos[:]
    hparams: dict[str, list[Any]] = {}
    metrics: dict[tuple[str, str], Any] = {}
    for experiment in experiments:
        for info in experiment.hparam_infos:
            hparams.setdefault(info.name, []).append(info)
        for info in experiment.metric_infos:
            metrics.setdefault((info.name.tag, info.name.group), info)
    whole.hparam_infos.extend(_hparam(hparams[name]) for name in sorted(hparams))
    whole.metric_infos.extend(metrics[name] for name in sorted(metrics))
    content: bytes = plugin_data_pb2.HParamsPluginData(
        version=metadata.PLUGIN_DATA_VERSION, experiment=whole
    ).SerializeToString()
    return content


def _parsed(content: bytes) -> Any:
    try:
        return metadata.parse_experiment_plugin_data(content)
    except (error.HParamsError, protos.load().NotAMessage):
        return None


def _hparam(infos: list[Any]) -> Any:
    """Merge what is said of one hyperparameter; whatever fits one of its values is kept."""
    whole = api_pb2.HParamInfo(
        name=infos[0].name,
        description=_first(info.description for info in infos),
        display_name=_first(info.display_name for info in infos),
        differs=any(info.differs for info in infos),
    )
    types = {info.type for info in infos}
    whole.type = types.pop() if len(types) == 1 else api_pb2.DATA_TYPE_STRING
    # Where one says nothing of it, any value may come: then there must be no domain.
    domains = {info.WhichOneof("domain") for info in infos if not types}
    if domains == {"domain_interval"}:
        whole.domain_interval.min_value = min(info.domain_interval.min_value for info in infos)
        whole.domain_interval.max_value = max(info.domain_interval.max_value for info in infos)
    if domains == {"domain_discrete"}:
        for info in infos:
            for value in info.domain_discrete.values:
                if value not in whole.domain_discrete.values:
                    whole.domain_discrete.values.append(value)
    return whole


def _first(words: Iterable[str]) -> str:
    return next((word for word in words if word), "")
