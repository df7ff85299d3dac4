"""A board on each engine, of a run that is being written, as users open it through a hub."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from aboard import EventWriter
from aboard.runs.manifest import Manifest
from tests.browser.page import reload_until, wait_for_words
from tests.engines.real_hub import PASSWORD, USER, team_hub
from tests.engines.rigs import Rig, toml_table
from tests.scenarios.person import Person, chart, sees, shown

pytestmark = pytest.mark.engine("chromium")

LINUS = "another horse battery"


@pytest.fixture
def place(rig: Rig) -> Iterator[Path]:
    """Give a directory that boards on the engine can read, whichever user they have there."""
    with tempfile.TemporaryDirectory(prefix="engine-", dir=rig.place or "/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_live_board_is_shown_to_a_second_user_and_refused_to_a_third(
    rig, place, tmp_path, new_visitor, complaints
):
    run = place / "runs" / "cifar10" / "run1"
    run.mkdir(parents=True)
    (run / "run.json").write_bytes(Manifest("run1", "cifar10").to_json())
    settings = f'[[roots]]\nuri = "{place / "runs"}"\n{toml_table(rig.reading(place))}'
    with (
        EventWriter(run, flush_secs=0.1) as training,
        team_hub(place / "hub", settings) as hub,
    ):
        training.scalar("loss", 1.0, 0)
        training.flush()
        ada, linus = Person(tmp_path / "ada"), Person(tmp_path / "linus")
        ada.does(f"aboard login {hub.url} --user {USER}", PASSWORD)
        ada.does("aboard user add linus --password-stdin", LINUS)
        linus.does(f"aboard login {hub.url} --user linus", LINUS)
        board = ada.starts(f"cifar10 --on {rig.name} --memory 1GiB --name live")
        try:
            with ExitStack() as opened:  # a page that stays would ask a board that has ended
                share = json.loads(ada.does("aboard share live --json").out)
                page = opened.enter_context(closing(new_visitor()))
                page.goto(share["url"])
                wait_for_words(page.locator("runs-data-table"), "cifar10/run1")
                curve = chart(page, "loss")
                sees(curve, {"cifar10/run1": (0, 1.0)})
                training.scalar("loss", 0.5, 1)
                training.flush()
                reload_until(page, lambda: shown(curve) == {"cifar10/run1": (1, 0.5)})

                other = opened.enter_context(closing(new_visitor()))
                other.goto(f"{hub.url}/login")
                complaints.expect("401")
                other.get_by_label("Name").fill("linus")
                other.get_by_label("Password").fill(LINUS)
                other.get_by_role("button", name="Log in").click()
                other.wait_for_url(f"{hub.url}/")
                assert other.goto(board.url).status == 404
                complaints.expect("404")
                assert linus.types("aboard describe live").code == 1
        finally:
            ada.does("aboard delete live")
