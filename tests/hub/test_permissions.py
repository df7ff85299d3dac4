"""Permissions: every action for every role and every board, as a table."""

import pytest

from aboard.boards.accounts import Role, Share, User
from aboard.boards.model import BoardRecord, NoSuchName, Visibility
from aboard.hub.permissions import TABLE, Action, Forbidden, Guest, may, require, seen_by


def board(owner: str, visibility: str = "private", identity: str = "abc") -> BoardRecord:
    return BoardRecord(
        id=identity,
        name="otter",
        owner=owner,
        created=0.0,
        changed=0.0,
        visibility=Visibility(visibility),
    )


MINE, TEAMS, HERS = board("me"), board("she", "team"), board("she")

# What is allowed with one's own board, one shown to the team, and another user's.
ON_BOARDS = {
    "viewer": {
        "SEE": "own team",
        "SEE_LOGS": "own",
        "CHANGE": "",
        "STOP": "own",
        "RESTART": "",
        "DELETE": "own",
        "SHARE": "",
    },
    "member": {
        "SEE": "own team",
        "SEE_LOGS": "own team",
        "CHANGE": "own",
        "STOP": "own",
        "RESTART": "own",
        "DELETE": "own",
        "SHARE": "own",
    },
    "admin": dict.fromkeys(
        ("SEE", "SEE_LOGS", "CHANGE", "STOP", "RESTART", "DELETE", "SHARE"), "own team other"
    ),
}
WITHOUT = {
    "viewer": {"SEE_RUNS", "OWN_TOKENS"},
    "member": {"SEE_RUNS", "OWN_TOKENS", "CREATE", "CHANGE_RUNS", "SHARE_VIEWS"},
    "admin": {
        *("SEE_RUNS", "OWN_TOKENS", "CREATE", "CHANGE_RUNS", "SHARE_VIEWS"),
        *("MANAGE_USERS", "MANAGE_HUB", "SUBMIT", "DELETE_RUNS"),
    },
}
CASES = {"own": MINE, "team": TEAMS, "other": HERS}


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("action", Action)
def test_the_table(role, action):
    me = User("me", role, 0.0)
    if action.name not in ON_BOARDS["admin"]:
        assert may(me, action) == (action.name in WITHOUT[role])
        return
    for whose, one in CASES.items():
        assert may(me, action, one) == (whose in ON_BOARDS[role][action.name].split())


def test_every_action_has_a_rule():
    assert TABLE.keys() == set(Action)
    assert all(rules.keys() == set(Role) for rules in TABLE.values())


def test_what_a_user_may_not_see_is_not_found():
    me = User("me", Role.MEMBER, 0.0)
    for action in (Action.SEE, Action.STOP, Action.DELETE):
        with pytest.raises(NoSuchName, match="board 'abc' not found"):
            require(me, action, HERS)
    with pytest.raises(Forbidden, match=r"me \(member\) may not stop board abc \(otter\)\. Ask"):
        require(me, Action.STOP, TEAMS)
    with pytest.raises(Forbidden, match=r"me \(member\) may not manage users\. Ask an admin"):
        require(me, Action.MANAGE_USERS)
    require(me, Action.STOP, MINE)


def test_a_link_shows_one_board_and_nothing_else():
    guest = Guest(Share("s", "abc", "me", "", 0.0), User("me", Role.MEMBER, 0.0))
    assert may(guest, Action.SEE, MINE)
    assert not may(guest, Action.SEE, board("me", identity="other"))
    for action in Action:
        if action is not Action.SEE:
            about = MINE if action.name in ON_BOARDS["admin"] else None
            assert not may(guest, action, about)
            with pytest.raises(Forbidden, match="guests with a link may not"):
                require(guest, action, about)
    with pytest.raises(NoSuchName):
        require(guest, Action.STOP, board("me", identity="other"))


def test_a_link_shows_nothing_once_its_creator_may_not_share():
    for role, one in ((Role.VIEWER, MINE), (Role.MEMBER, HERS)):
        guest = Guest(Share("s", "abc", "me", "", 0.0), User("me", role, 0.0))
        assert not may(guest, Action.SEE, one)


def test_lists_contain_what_the_user_may_see():
    assert seen_by(User("me", Role.VIEWER, 0.0)) == "me"
    assert seen_by(User("me", Role.MEMBER, 0.0)) == "me"
    assert seen_by(User("me", Role.ADMIN, 0.0)) is None


def test_rules_about_boards_need_a_board_and_others_refuse_one():
    me = User("me", Role.ADMIN, 0.0)
    with pytest.raises(ValueError, match="needs a board"):
        may(me, Action.SEE)
    with pytest.raises(ValueError, match="is not about a board"):
        may(me, Action.CREATE, MINE)
