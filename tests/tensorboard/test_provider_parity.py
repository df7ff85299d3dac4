"""The provider answers every call as TensorBoard's own does: the same data, or the same error."""

import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
from tensorboard.context import RequestContext
from tensorboard.data.provider import RunTagFilter

from aboard.events import encode
from aboard.events.writer import EventWriter
from aboard.index import Index
from aboard.tensorboard.provider import BoardDataProvider
from tests.tensorboard.every_kind import RUNS
from tests.tensorboard.servers import one_board

LISTS = ("list_scalars", "list_tensors", "list_blob_sequences")
READS = ("read_scalars", "read_tensors", "read_blob_sequences")
PLUGINS = ("scalars", "images", "audio", "histograms", "text", "mesh", "graphs", "odd", "", None)
TAGS = ("loss", "wide", "odd numbers", "pictures", "weights", "note", "sound", "absent", "pair")

names = st.none() | st.lists(st.sampled_from([*RUNS, *TAGS]), max_size=3)
limits = st.sampled_from([None, -5, -1, 0, 1, 2, 3, 4, 5, 1000, True, 2.5, "3", np.int64(3), [1]])
queries = st.fixed_dictionaries(
    {"experiment_id": st.sampled_from(["board", "board", "board", None, 5])},
    optional={
        "plugin_name": st.sampled_from(PLUGINS),
        "run_tag_filter": st.none() | st.builds(RunTagFilter, runs=names, tags=names),
        "downsample": limits,
        "unknown": st.just(1),
    },
)


@pytest.fixture(scope="module")
def providers(every_kind, tmp_path_factory):
    """Our provider and TensorBoard's, over the same directory."""
    logs = tmp_path_factory.mktemp("odd") / "logs"
    shutil.copytree(every_kind, logs)
    with EventWriter(logs / "odd") as writer:
        writer.add([encode.tensor("pair", [1.0, 2.0], plugin="scalars", data_class="scalar")], 0)
        for step in range(3):
            writer.add([encode.tensor("grid", np.eye(2) * step, plugin="odd")], step)
    multiplexer = plugin_event_multiplexer.EventMultiplexer(tensor_size_guidance={"scalars": 0})
    multiplexer.AddRunsFromDirectory(str(logs))
    multiplexer.Reload()
    with Index(logs.parent / "index.db") as index:
        ours = BoardDataProvider(one_board(index, logs))
        yield ours, data_provider.MultiplexerDataProvider(multiplexer, str(logs))


def outcome(provider, verb, query):
    try:
        found = getattr(provider, verb)(RequestContext(), **query)
    except Exception as error:  # noqa: BLE001 - any can be an outcome
        return type(error)
    return {(run, tag): content(one) for run, tags in found.items() for tag, one in tags.items()}


def content(found):
    """Return what must be equal: which values are chosen of many is up to the provider."""
    if hasattr(found, "value"):
        return found.step, found.wall_time, repr(float(found.value))
    if not isinstance(found, list):
        return repr(found)
    if found and hasattr(found[-1], "values"):  # keys of blobs differ
        return len(found), found[-1].step, found[-1].wall_time, len(found[-1].values)
    return len(found), [content(one) for one in found[-1:]]


@settings(max_examples=300)
@given(verb=st.sampled_from(LISTS + READS), query=queries)
def test_any_call_has_the_same_outcome(providers, verb, query):
    if verb in LISTS:
        query.pop("downsample", None)
    ours, theirs = (outcome(provider, verb, query) for provider in providers)
    assert ours == theirs


@pytest.mark.parametrize("limit", [None, -1, 0, 2, 2.5, 1000])
@pytest.mark.parametrize("runs", [None, RUNS])  # one run has what is no scalar
@pytest.mark.parametrize("verb", READS)
def test_every_series_at_once(providers, verb, limit, runs):
    query = {"experiment_id": "board", "run_tag_filter": RunTagFilter(runs=runs)}
    for plugin in PLUGINS:
        query |= {"plugin_name": plugin, "downsample": limit}
        ours, theirs = (outcome(provider, verb, query) for provider in providers)
        assert ours == theirs


@pytest.mark.parametrize("verb", ["list_runs", "list_plugins", "experiment_metadata"])
@pytest.mark.parametrize("board", [None, 5, b"board"])
def test_the_id_of_an_experiment_is_a_text(providers, verb, board):
    for provider in providers:
        with pytest.raises(TypeError):
            getattr(provider, verb)(RequestContext(), experiment_id=board)


def test_the_last_value_of_every_scalar_but_those_that_are_none(providers):
    query = {"experiment_id": "board", "plugin_name": "scalars"}
    ours, theirs = providers
    assert outcome(theirs, "read_last_scalars", query) is ValueError  # for one odd tag
    query["run_tag_filter"] = RunTagFilter(runs=RUNS)
    last = outcome(theirs, "read_last_scalars", query)
    assert outcome(ours, "read_last_scalars", query) == last
    del query["run_tag_filter"]
    assert outcome(ours, "read_last_scalars", query) == last
