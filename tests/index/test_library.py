"""The library of runs: one contract, whatever its roots are, and what holds for files alone."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from aboard.events.writer import EventWriter
from aboard.index import Source
from aboard.index.library import Library, Member, Root
from aboard.runs import manifest
from aboard.runs.manifest import Manifest, State
from aboard.runs.question import Question
from aboard.runs.selectors import (
    AmbiguousRun,
    BadSelector,
    NothingMatches,
    NotSelected,
    OutsideRoots,
)
from aboard.storage import StorageError, open_storage


def add_run(root, label, **fields):
    """Write a run with a record, if there is anything in it, and one event file."""
    experiment, _, name = label.rpartition("/")
    storage = open_storage(str(root))
    storage.write(f"{label}/events.out.tfevents.1.host", b"")
    if fields:
        record = Manifest(name, experiment, heartbeat=time.time(), **fields)
        storage.write(f"{label}/run.json", record.to_json())


@pytest.fixture(params=["directory", "bucket"])
def root(request, tmp_path):
    place = str(tmp_path / "logs") if request.param == "directory" else f"memory://{tmp_path.name}"
    add_run(place, "cifar10/run1", job="7", hparams={"lr": 0.1})
    add_run(place, "cifar10/run2", job="8")
    add_run(place, "mnist/run1")
    add_run(place, "run2/first", job="9")
    return place


@pytest.fixture
def library(index, root):
    found = Library(index, [Root(root, "logs")])
    found.refresh(root)
    return found


def selected(library, *texts):
    return [member.name for member in library.members(library.parse(texts))]


def changed(library, texts, add=(), remove=()):
    parsed = library.changed(library.parse(texts), library.parse(add), library.parse(remove))
    return [one.text for one in parsed]


# Selecting.


def test_runs_are_found_in_their_natural_order(library, root):
    def labels(*texts):
        return [run.label for run in library.find(library.parse(texts))]

    assert labels() == ["cifar10/run1", "cifar10/run2", "mnist/run1", "run2/first"]
    assert labels("mnist", "cifar10/run2") == ["cifar10/run2", "mnist/run1"]
    assert labels("job:7", "mnist/1") == ["cifar10/run1", "mnist/run1"]
    if root.startswith("/"):
        assert labels("job:7", f"{root}/mnist") == ["cifar10/run1", "mnist/run1"]
        assert labels(f"{root}/cifar10", "mnist", "not:mnist") == ["cifar10/run1", "cifar10/run2"]


def test_a_selector_must_select_something(library):
    with pytest.raises(NothingMatches, match="The nearest is 'cifar10'") as raised:
        library.resolve(library.parse(["cifar11"]))
    assert raised.value.code == "nothing_matches"
    with pytest.raises(NothingMatches, match="'job:5' matches no run"):
        library.find(library.parse(["cifar10", "job:5"]))


def test_a_refresh_finds_new_runs(library, root):
    add_run(root, "imagenet/run1", job="10")
    with pytest.raises(NothingMatches):
        library.resolve(library.parse(["imagenet"]))
    assert selected(library, "imagenet") == []
    library.refresh(root)
    (member,) = library.resolve(library.parse(["imagenet"]))
    assert member == Member(Source(f"{root}/imagenet/run1"), "imagenet/run1")
    assert selected(library, "imagenet") == ["imagenet/run1"]


def test_a_job_may_have_no_runs_yet(library, root):
    selectors = library.parse(["job:sweep"])
    with pytest.raises(NothingMatches, match="'job:sweep' matches no run"):
        library.resolve(selectors)
    open_storage(root).write(".jobs/sweep/job.json", b"{}")
    assert library.resolve(selectors) == []
    assert library.roots_of("sweep") == [root]
    assert library.roots_of("../sweep") == []
    with pytest.raises(NothingMatches, match="'job:sweeq' matches no run"):
        library.resolve(library.parse(["job:sweeq"]))
    with pytest.raises(NothingMatches, match="'job:sweep' matches no run"):
        library.find(selectors)
    add_run(root, "cifar10/sweep-1", job="sweep")
    library.refresh(root)
    assert [one.name for one in library.members(selectors)] == ["cifar10/sweep-1"]


def test_what_selectors_select_follows_the_runs(library, root):
    parsed = library.parse(["cifar10", "nothing-yet"])
    assert [one.name for one in library.members(parsed)] == ["cifar10/run1", "cifar10/run2"]
    add_run(root, "nothing-yet/run1")
    open_storage(root).delete("cifar10/run1/run.json")
    open_storage(root).delete("cifar10/run1/events.out.tfevents.1.host")
    assert library.refresh(root).changed
    assert [one.name for one in library.members(parsed)] == ["cifar10/run2", "nothing-yet/run1"]


def test_a_name_of_several_runs_can_be_refused(library):
    parsed = library.parse(["run1"])
    assert len(library.find(parsed)) == 2
    with pytest.raises(AmbiguousRun, match="Write EXPERIMENT/RUN"):
        library.find(parsed, unambiguous=True)


def test_a_selector_that_cannot_be_parsed_is_refused(library):
    for text, message in [
        ("cifar10/run7-run3", "ends before it begins"),
        ("./logs", "does not know your working directory"),
        ("new=/data/logs", "does not know your working directory"),
        ("ftp://host/logs", "is not supported"),
        ("", "empty selector"),
    ]:
        with pytest.raises(BadSelector, match=message) as raised:
            library.parse([text])
        assert raised.value.code == "bad_selector"


def test_paths_of_this_process_may_be_relative_and_have_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parsed = Library.parse(["new=logs,old", "./a", "b/"], exists=lambda word: word == "logs,old")
    places = [(one.name, one.place) for one in parsed]
    assert places == [
        ("new", str(tmp_path / "logs,old")),
        ("", str(tmp_path / "a")),
        ("", str(tmp_path / "b")),
    ]


# Changing a selection.


def test_runs_that_came_with_others_are_left_out_by_name(library):
    fewer = changed(library, ["cifar10"], remove=["job:7"])
    assert fewer == ["cifar10", "not:cifar10/run1"]
    assert selected(library, *fewer) == ["cifar10/run2"]


def test_a_name_alone_selects_a_run_of_the_selection(library):
    fewer = changed(library, ["cifar10"], remove=["run2"])
    assert selected(library, *fewer) == ["cifar10/run1"]
    assert changed(library, ["cifar10"], remove=["2"]) == fewer


def test_a_path_selects_the_runs_of_the_selection_below_it(library, root):
    fewer = changed(library, ["cifar10"], remove=[f"{root}/cifar10/run1"])
    assert selected(library, *fewer) == ["cifar10/run2"]


@pytest.mark.parametrize("again", ["cifar10/run1", "cifar10/run1-run2", "job:7", "cifar10"])
def test_what_is_added_again_is_shown_again(library, again):
    fewer = changed(library, ["cifar10", "mnist"], remove=["cifar10/run1"])
    more = changed(library, fewer, add=[again])
    assert "cifar10/run1" in selected(library, *more)


def test_one_of_two_runs_with_the_same_name_is_not_left_out(library, root, tmp_path):
    add_run(tmp_path / "more", "cifar10/run1")
    library.refresh(library.add_root(str(tmp_path / "more")).uri)
    message = "'cifar10/run1' is below several roots"
    with pytest.raises(BadSelector, match=message):
        changed(library, ["cifar10"], remove=[str(tmp_path / "more" / "cifar10")])
    both = changed(library, ["cifar10"], remove=["cifar10/run1"])
    assert both == ["cifar10", "not:cifar10/run1"]


def test_nothing_is_left_out_of_what_was_removed_as_a_whole(library):
    fewer = changed(library, ["cifar10", "mnist"], remove=["cifar10/run1"])
    without = changed(library, fewer, remove=["cifar10"])
    assert without == ["mnist"]
    back = changed(library, without, add=["cifar10"])
    assert selected(library, *back) == ["cifar10/run1", "cifar10/run2", "mnist/run1"]


@pytest.mark.parametrize("named", ["cifar10/run1", "cifar10/1", "cifar10/run1-run2", "cifar10/*"])
def test_an_experiment_is_removed_with_what_names_its_runs(library, named):
    assert changed(library, [named, "mnist"], remove=["cifar10"]) == ["mnist"]
    assert changed(library, [named], remove=["cifar10"]) == []


def test_what_names_a_removed_run_is_removed(library):
    assert changed(library, ["cifar10/run1", "cifar10/2"], remove=["job:7"]) == ["cifar10/2"]
    also = changed(library, ["cifar10/1", "cifar10"], remove=["job:7"])
    assert also == ["cifar10", "not:cifar10/run1"]
    fewer = changed(library, ["cifar10/run*"], remove=["cifar10/run1", "cifar10/run2"])
    assert fewer == ["cifar10/run*", "not:cifar10/run1", "not:cifar10/run2"]


def test_what_is_left_out_by_a_rule_stays_so(library):
    rule = changed(library, ["cifar10"], add=["not:state:failed"])
    assert changed(library, rule, add=["mnist"]) == ["cifar10", "not:state:failed", "mnist"]
    assert changed(library, rule, remove=["not:state:failed"]) == ["cifar10"]
    assert selected(library, *rule) == selected(library, "cifar10")


def test_no_part_of_a_path_is_left_out(library, root):
    place = f"{root}/cifar10"
    with pytest.raises(BadSelector, match="cannot be excluded from a path or URI"):
        library.resolve(library.parse([place, "not:cifar10/run1"]))
    with pytest.raises(NotSelected, match="no selector of this board selects 'cifar10/run1'") as no:
        changed(library, [place], remove=["cifar10/run1"])
    assert no.value.code == "not_found"
    assert str(no.value).endswith(
        f" Its selectors are {place}. Part of a path or URI cannot be removed."
    )
    with pytest.raises(NotSelected, match=r"'mnist'\. Its selectors are cifar10/run1\.$"):
        changed(library, ["cifar10/run1"], remove=["cifar10/run1", "mnist"])
    after = changed(library, [place, "mnist"], add=["not:state:failed"], remove=["mnist"])
    assert after == [place, "not:state:failed"]


def test_a_selection_of_exclusions_alone_shows_all_others(library):
    assert selected(library, "not:cifar10") == ["mnist/run1", "run2/first"]
    assert changed(library, ["cifar10"], remove=["cifar10/run1", "cifar10"]) == []


# Roots.


def test_a_root_that_cannot_be_listed_says_why_and_heals(index, tmp_path):
    place = tmp_path / "later"
    library = Library(index, [str(place)])
    assert library.state(str(place)).at is None
    assert library.refresh(str(place)) is None
    state = library.state(str(place))
    assert isinstance(state.error, StorageError)
    assert state.at is not None
    assert "later" in state.problem
    add_run(place, "mnist/run1")
    assert library.refresh(str(place)).changed
    assert library.state(str(place)).problem == ""
    assert list(library.state(str(place)).marks) == ["mnist/run1"]


def test_a_record_that_cannot_be_parsed_is_a_problem_of_its_root(library, root):
    open_storage(root).write("mnist/run1/run.json", b"{")
    library.refresh(root)
    assert "run.json" in library.state(root).problem


def test_roots_can_be_added_while_others_are_in_use(index, library, root, tmp_path):
    assert "more/run1" not in selected(library, "*")
    add_run(tmp_path / "more", "more/run1")
    added = library.add_root(str(tmp_path / "more"))
    assert [one.uri for one in library.roots] == [root, added.uri]
    library.refresh(added.uri)
    assert "more/run1" in selected(library, "*")


def test_many_threads_share_a_library(library, root):
    errors = []

    def use():
        try:
            for _ in range(20):
                library.refresh(root)
                assert library.state(root).marks
                assert selected(library, "cifar10") == ["cifar10/run1", "cifar10/run2"]
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            errors.append(error)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    library.add_root(f"{root}/mnist")
    for thread in threads:
        thread.join()
    assert errors == []


def test_roots_are_read_while_a_thread_makes_the_table(index, tmp_path):
    begun, goes_on = threading.Event(), threading.Event()

    def clock():
        begun.set()
        assert goes_on.wait(30)
        return 0.0

    library = Library(index, [str(tmp_path)], clock=clock)
    with ThreadPoolExecutor(2) as threads:
        making = threads.submit(library.table)
        try:
            assert begun.wait(30)
            looking = threads.submit(lambda: (library.uris, library.roots))
            assert looking.result(5) == ([str(tmp_path)], (Root(str(tmp_path)),))
        finally:
            goes_on.set()
        making.result()


def test_roots_have_the_shortest_names_that_are_distinct(index):
    roots = ["/home/me/a/runs", "/home/me/b/runs", "s3://bucket/runs", "/data/logs", "/runs"]
    library = Library(index, [*map(Root, roots), Root("/c/named", "logs")])
    assert list(library.root_names().values()) == [
        *("a/runs", "b/runs", "bucket/runs", "data/logs", "/runs", "logs")
    ]


def test_only_what_lies_below_the_roots_is_shown(index, tmp_path):
    root, outside = tmp_path / "logs", tmp_path / "secrets"
    add_run(root, "mnist/run1")
    add_run(outside, "x/run1")
    (root / "way-out").symlink_to(outside)
    library = Library(index, [str(root)], any_path=False)
    library.refresh(str(root))
    assert [run.label for run in library.runs()] == ["mnist/run1"]
    for place in (outside, root / "way-out", root / ".." / "secrets", "s3://elsewhere/logs"):
        parsed = library.parse([str(place)])
        with pytest.raises(OutsideRoots, match="is not below a root"):
            library.resolve(parsed)
        assert library.members(parsed) == []
    with pytest.raises(NothingMatches, match="no such directory"):
        library.resolve(library.parse([f"{root}/nothing"]))
    assert library.resolve(library.parse([f"{root}/mnist"])) == [Member(Source(f"{root}/mnist"))]
    assert Library(index, [str(root)]).may_show(str(outside))


def test_the_environment_of_sources_is_that_of_their_roots(index):
    roots = [Root("s3://a/runs", "a", {"AWS_PROFILE": "one"}), Root("s3://b", "b", {"X": "1"})]
    library = Library(index, [*roots, Root("s3://c", "c", {"AWS_PROFILE": "two"})])
    inside = [Source("s3://a/runs/x"), Source("s3://b/y"), Source("s3://d/z")]
    assert library.environment(inside) == {"AWS_PROFILE": "one", "X": "1"}
    with pytest.raises(BadSelector, match="differ in AWS_PROFILE"):
        library.environment([*inside, Source("s3://c/x")])


# Records.


def test_the_nearest_record_above_a_directory_counts(index, tmp_path):
    root = tmp_path / "runs"
    add_run(root, "cifar10/run1", job="7")
    library = Library(index)
    for opened in ("", "cifar10", "cifar10/run1", "cifar10/run1/train"):
        source = Source(str(root / opened))
        (root / opened).mkdir(exist_ok=True)
        library.refresh_records(source)
        assert library.record_of(source, str(root / "cifar10/run1/train")).job == "7", opened
    assert library.record_of(Source(str(root)), str(root / "cifar10")) is None


def test_marks_change_with_a_record_and_only_then(index, tmp_path):
    add_run(tmp_path, "cifar10/run1", job="7")
    library, source = Library(index), Source(str(tmp_path / "cifar10" / "run1"))
    library.refresh_records(source)
    before = library.record_marks([source])
    with EventWriter(source.uri) as writer:
        writer.scalar("loss", 1.0, 0)
    library.refresh_records(source)
    assert library.record_marks([source]) == before
    manifest.update(open_storage(source.uri), lambda record: record.end("failed", 1))
    library.refresh_records(source)
    assert library.record_marks([source]) != before
    assert library.record_of(source, source.uri).recorded_state == "failed"


def test_records_below_a_root_are_read_with_the_root(index, tmp_path):
    add_run(tmp_path, "cifar10/run1", job="7")
    library = Library(index, [str(tmp_path)])
    source = Source(str(tmp_path / "cifar10" / "run1"))
    library.refresh_records(source)
    assert library.record_of(source, source.uri) is None
    library.refresh(str(tmp_path))
    assert library.record_of(source, source.uri).job == "7"
    assert index.known_runs([source.uri]) == []


def test_members_follow_a_record_that_this_process_wrote(library):
    chosen = library.parse(["cifar10/run2", "mnist"])
    assert {one.name for one in library.resolve(chosen)} == {"cifar10/run2", "mnist/run1"}
    assert len(library.members(chosen)) == 2
    library.index.put_record(library.uris[0], "cifar10/run2", Manifest("run2", "svhn"))
    assert [one.name for one in library.members(library.parse(["svhn"]))] == ["svhn/run2"]


def test_a_link_that_hangs_holds_no_other_root(index, tmp_path, monkeypatch):
    roots = [tmp_path / "one", tmp_path / "two"]
    for root in roots:
        root.mkdir()
    library = Library(index, map(str, roots))
    hangs, go_on = threading.Event(), threading.Event()

    def hang(self):
        hangs.set()
        go_on.wait(180)
        return shown(self)

    shown = Library._shown_rows
    monkeypatch.setattr(Library, "_shown_rows", hang)
    thread = threading.Thread(target=library.table)
    thread.start()
    try:
        assert hangs.wait(180)
        free = threading.Thread(target=library.state, args=(str(roots[1]),))
        free.start()
        free.join(60)
        assert not free.is_alive()
    finally:
        go_on.set()
        thread.join()


def test_pages_sorted_by_a_growing_duration_skip_no_run(index, tmp_path):
    for number in range(6):  # run5 ran the shortest so far; those of each pair started together
        add_run(
            tmp_path, f"a/run{number}", state=State.RUNNING, started=1000.0 + 10 * (number // 2)
        )
    now = time.time()
    library = Library(index, [str(tmp_path)], clock=lambda: now)
    library.refresh(str(tmp_path))
    question = Question.parse("duration > 5", ["-duration"])
    first = library.page(question, library.find(), limit=1)
    names = [run.name for run in first.runs]
    mark, pages = first.mark, 1
    while mark is not None and pages < 10:
        now += 7.0
        page = library.page(question, library.find(), mark, limit=1)
        names += [run.name for run in page.runs]
        mark, pages = page.mark, pages + 1
    assert names == [f"run{number}" for number in range(6)]
