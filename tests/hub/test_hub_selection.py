"""What the selectors of a board become when runs are added and removed."""

import pytest
from hubs import log_run

from aboard.boards.errors import NotFound
from aboard.hub.config import Root
from aboard.hub.selection import Catalog, WrongSelection


@pytest.fixture
def catalog(index, root):
    log_run(root, "run2/first", [1.0], job="9")
    found = Catalog(index, [Root(str(root), "logs")], any_path=True)
    found.refresh(str(root))
    return found


def shown(catalog, selectors):
    members = catalog.board("b", "B", selectors).members
    return [member.name for member in members]


def test_runs_that_came_with_others_are_left_out_by_name(catalog):
    fewer = catalog.changed(["cifar10"], [], ["job:7"])
    assert fewer == ("cifar10", "not:cifar10/run1")
    assert shown(catalog, fewer) == ["cifar10/run2"]


def test_a_name_alone_means_a_run_of_the_board(catalog):
    fewer = catalog.changed(["cifar10"], [], ["run2"])
    assert shown(catalog, fewer) == ["cifar10/run1"]


def test_a_path_means_the_runs_of_the_board_below_it(catalog, root):
    fewer = catalog.changed(["cifar10"], [], [str(root / "cifar10/run1")])
    assert shown(catalog, fewer) == ["cifar10/run2"]


@pytest.mark.parametrize("again", ["cifar10/run1", "cifar10/run1-run2", "job:7", "cifar10"])
def test_what_is_added_again_is_shown_again(catalog, again):
    fewer = catalog.changed(["cifar10", "mnist"], [], ["cifar10/run1"])
    more = catalog.changed(fewer, [again], [])
    assert "cifar10/run1" in shown(catalog, more)


def test_nothing_is_left_out_of_what_was_removed_as_a_whole(catalog):
    fewer = catalog.changed(["cifar10", "mnist"], [], ["cifar10/run1"])
    without = catalog.changed(fewer, [], ["cifar10"])
    assert without == ("mnist",)
    back = catalog.changed(without, ["cifar10"], [])
    assert shown(catalog, back) == ["cifar10/run1", "cifar10/run2", "mnist/run1"]


def test_what_is_left_out_by_a_rule_stays_so(catalog):
    rule = catalog.changed(["cifar10"], ["not:state:failed"], [])
    assert catalog.changed(rule, ["mnist"], []) == ("cifar10", "not:state:failed", "mnist")
    assert catalog.changed(rule, [], ["not:state:failed"]) == ("cifar10",)
    assert catalog.check(rule) == catalog.check(["cifar10"])


def test_no_part_of_a_path_is_left_out(catalog, root):
    place = str(root / "cifar10")
    with pytest.raises(WrongSelection, match="cannot be left out of a path or URI"):
        catalog.check([place, "not:cifar10/run1"])
    with pytest.raises(NotFound, match="nothing that a selector of this board means"):
        catalog.changed([place], [], ["cifar10/run1"])
    assert catalog.changed([place, "mnist"], ["not:state:failed"], ["mnist"]) == (
        place,
        "not:state:failed",
    )


def test_a_board_of_exclusions_alone_shows_all_others(catalog):
    assert shown(catalog, ["not:cifar10"]) == ["mnist/run1", "run2/first"]
    assert catalog.changed(["cifar10"], [], ["cifar10/run1", "cifar10"]) == ()
