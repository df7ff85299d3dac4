"""Ids and names of boards."""

import random

import pytest

from aboard.boards.model import ALPHABET, BadValue, check_name, new_id, new_name


def test_ids_have_no_letters_to_mistake():
    ids = {new_id() for _ in range(500)}
    assert len(ids) == 500
    assert all(len(one) == 12 and set(one) <= set(ALPHABET) for one in ids)
    assert not set("lo01") & set(ALPHABET)


def test_names_are_made_up_and_avoid_those_taken():
    rng = random.Random(3)
    names = {new_name(choose=rng.choice) for _ in range(200)}
    assert all(len(name.split("-")) == 3 and check_name(name) for name in names)
    again = random.Random(3)
    assert new_name(names, choose=again.choice) not in names


def test_one_who_has_every_name_gets_numbers():
    class Everything:
        def __contains__(self, name: str) -> bool:
            return len(name.split("-")) == 3

    assert new_name(Everything()).split("-")[3].isdigit()


@pytest.mark.parametrize("name", ["a", "A1", "my_board.v2", "x" * 64, "rarely-cute-otter"])
def test_a_name_that_can_be_typed_is_kept(name):
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "-a", "a-", "a b", "a/b", "ä", "a\n", "a\0b", "x" * 65, "..", "\ud800"]
)
def test_a_name_that_cannot_be_in_an_address_is_refused(name):
    with pytest.raises(BadValue, match="is not a valid board name"):
        check_name(name)
