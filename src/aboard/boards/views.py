"""Saved views: a table of runs as a user left it, under a name, private or for the team.

A view is the query of a page's address. Which views a role may share or delete is left to the
caller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aboard.boards.database import Database, from_row, table, to_row
from aboard.boards.errors import BadValue, NoSuchName
from aboard.boards.model import LONGEST_NAME, Visibility, check_text
from aboard.system import requires

with requires("sqlalchemy"):
    import sqlalchemy as sa

LONGEST_QUERY = 16_000
MOST_VIEWS = 500  # of one user


@dataclass(frozen=True, slots=True)
class View:
    owner: str
    name: str
    query: str
    visibility: Visibility
    changed: float


_view = table("saved_view", View, ("owner", "name"))


class Views:
    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    def seen_by(self, user: str) -> Sequence[View]:
        """Return a user's views and those for the team, by name."""
        shown = sa.or_(_view.c.owner == user, _view.c.visibility == str(Visibility.TEAM))
        query = sa.select(_view).where(shown).order_by(_view.c.name, _view.c.owner)
        with self._database.read() as connection:
            return [from_row(View, row) for row in connection.execute(query)]

    def save(self, owner: str, name: str, query: str, visibility: Visibility) -> View:
        """Save a view; one of the same owner and name is replaced."""
        name = check_text(name.strip(), "the name of a view", LONGEST_NAME)
        if not name:
            raise BadValue("a view needs a name.")
        check_text(query, "the query of a view", LONGEST_QUERY)
        view = View(owner, name, query, visibility, self._clock())
        mine = _view.c.owner == owner
        with self._database.write(owner=owner) as connection:
            connection.execute(sa.delete(_view).where(mine, _view.c.name == name))
            count = sa.select(sa.func.count()).select_from(_view).where(mine)
            if (connection.scalar(count) or 0) >= MOST_VIEWS:
                raise BadValue(f"a user has at most {MOST_VIEWS} views.", "Delete some.")
            connection.execute(sa.insert(_view).values(to_row(view)))
        return view

    def delete(self, owner: str, name: str, *, shared_only: bool = False) -> None:
        """Delete a view; with `shared_only`, one for the team and no other."""
        this = [_view.c.owner == owner, _view.c.name == name]
        if shared_only:
            this.append(_view.c.visibility == str(Visibility.TEAM))
        with self._database.write(owner=owner) as connection:
            done = connection.execute(sa.delete(_view).where(*this))
        if not done.rowcount:
            raise NoSuchName(f"there is no view {name[:80]!r}.", "See which: GET /api/v1/views")
