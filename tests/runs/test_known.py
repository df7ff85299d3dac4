"""Runs as listings show them: whatever a record holds, it is JSON that every program reads."""

import json

import orjson
import pytest

from aboard.runs.known import KnownRun
from aboard.runs.manifest import Manifest

LONE = json.loads(r'"half \ud800 a \udfff character"')
WRITTEN_OUT = r"half \ud800 a \udfff character"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("né 😀 中", "né 😀 中"),
        (r"C:\users\udo", r"C:\users\udo"),
        (LONE, WRITTEN_OUT),
        (f'😀{LONE}\\"', f'😀{WRITTEN_OUT}\\"'),
    ],
)
def test_text_that_is_not_unicode_is_written_out(text, shown):
    record = json.dumps(
        {
            "name": "run1",
            "hparams": {text: [{"deep": text}]},
            "tags": {"key": text},
            "metrics": {text: 1.5},
        }
    )
    run = KnownRun.of_record("/root", "run1", Manifest.from_json(record.encode()))
    for known, found, expected in (
        (run.hparams_json, run.hparams, {shown: [{"deep": shown}]}),
        (run.tags_json, run.tags, {"key": shown}),
        (run.metrics_json, run.metrics, {shown: 1.5}),
    ):
        assert orjson.loads(known) == found == expected
        assert orjson.loads(orjson.dumps(orjson.Fragment(known))) == expected
