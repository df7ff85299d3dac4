"""The fields of a run that a name template may use, as its record and its event files tell them.

The record says the most. Where there is none, the path gives the experiment, the run and the log
directory; the hparams plugin's metadata gives the hyperparameters; the last value of each scalar
is a metric. Nothing is read but what the index already holds.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache

from aboard.events import protos
from aboard.index import Source, Tag
from aboard.runs.known import KnownRun
from aboard.runs.naming import Template, fields_of_path

_SESSION_START = "_hparams_/session_start_info"

Tags = Mapping[str, Tag]
Hparams = dict[str, object]


def needs_records(template: Template | None) -> bool:
    """Say whether a template uses what paths and scalars do not tell."""
    told = {"experiment", "run", "logdir", "source", "metrics"}
    return template is not None and bool(_groups(template) - told)


def template_fields(
    template: Template,
    source: Source,
    directory: str,
    tags_of: Mapping[str, Tags],
    record: KnownRun | None = None,
) -> dict[str, object]:
    """Return the fields of a run that a template uses.

    Args:
        template: what the fields are for.
        source: where the run was found.
        directory: the run's directory.
        tags_of: the tags of every run of the source, by directory. A run without
            hyperparameters has those of the nearest run above it.
        record: what the run's record says, if there is one.
    """
    fields: dict[str, object] = dict(fields_of_path(source.uri, source.run_name(directory)))
    groups = _groups(template)
    if "hparams" in groups:
        fields["hparams"] = _hparams_at(directory, tags_of)
    if "metrics" in groups:
        fields["metrics"] = _metrics(tags_of.get(directory, {}).values())
    return fields if record is None else _with_record(fields, record, directory, groups)


def _groups(template: Template) -> set[str]:
    return {name.partition(".")[0] for name in template.fields}


def _with_record(
    fields: dict[str, object], record: KnownRun, directory: str, groups: set[str]
) -> dict[str, object]:
    """Let the record have the last word, save on metrics, of which event files know more."""
    said: dict[str, object] = {
        "experiment": record.experiment,
        "run": record.name,
        "logdir": directory[len(record.uri) + 1 :],
        "workspace": record.workspace,
        "job": record.job,
        "user": record.user,
        "host": record.host,
        "created": _moment(record.created),
    }
    fields = {name: value for name, value in (fields | said).items() if value}
    if "state" in groups:
        fields["state"] = record.state_at(time.time())
    for name, values in (("hparams", record.hparams), ("tags", record.tags)):
        if name in groups:
            held = fields.get(name)
            fields[name] = {**(held if isinstance(held, dict) else {}), **values}
    if "metrics" in groups:
        held = fields.get("metrics")
        fields["metrics"] = {**record.metrics, **(held if isinstance(held, dict) else {})}
    return fields


def _moment(wall_time: float) -> datetime | None:
    return datetime.fromtimestamp(wall_time).astimezone() if wall_time else None


def _hparams_at(directory: str, tags_of: Mapping[str, Tags]) -> Hparams:
    while directory:
        tag = tags_of.get(directory, {}).get(_SESSION_START)
        if tag is not None and tag.metadata is not None:
            return read_hparams(tag.metadata)
        directory = directory.rpartition("/")[0]
    return {}


def _metrics(tags: Iterable[Tag]) -> dict[str, object]:
    return {tag.name: tag.last_value for tag in tags if tag.is_scalar}


@lru_cache(maxsize=4096)
def read_hparams(metadata: bytes) -> Hparams:
    """Return the hyperparameters of a session, from the metadata of its first record."""
    protos.keep_tensorflow_out()
    from tensorboard.plugins.hparams import plugin_data_pb2

    tensorboard = protos.load()
    try:
        plugin_data = tensorboard.summary_pb2.SummaryMetadata.FromString(metadata).plugin_data
        data = plugin_data_pb2.HParamsPluginData.FromString(plugin_data.content)
    except tensorboard.NotAMessage:
        return {}
    return {
        name: getattr(value, value.WhichOneof("kind")) if value.WhichOneof("kind") else None
        for name, value in data.session_start_info.hparams.items()
    }
