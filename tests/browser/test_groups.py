"""What a user sees of groups of runs: their names, their curves and how many members they have."""

import pytest

from tests.browser.page import (
    colours,
    data_table,
    eventually,
    open_tab,
    reload_until,
    run_list,
    wait_for_words,
)
from tests.hub.hubs import create, log_run, served

pytestmark = pytest.mark.engine("chromium")

CURVES = {"lr=0.1 mean", "lr=0.1 +std", "lr=0.1 -std", "lr=0.5 mean"}


def test_a_board_with_groups_shows_them_and_follows(tmp_path, new_visitor):
    root = tmp_path / "logs"
    for number, (lr, start) in enumerate([(0.1, 4.0), (0.1, 6.0), (0.5, 1.0)]):
        values = [start + step for step in range(3)]
        log_run(root, f"seeds/run{number}", values, hparams={"lr": lr})
    with served(tmp_path, [root]) as hub, hub.client("max") as client:
        board = create(client, "seeds", group_by=["hparams.lr"])
        page = new_visitor()
        page.goto(client.post(f"/api/v1/boards/{board['id']}/link").json()["url"])
        eventually(page, lambda: set(run_list(page)) == CURVES)
        place = open_tab(page, "timeseries", "metrics-dashboard")
        tags = place.locator("metrics-tag-filter input")
        card = place.locator("metrics-filtered-view scalar-card")

        tags.fill("^loss$")
        wait_for_words(card, "loss", *CURVES)
        table = data_table(card)
        assert {run: float(table[run]["Value"]) for run in CURVES} == {
            "lr=0.1 mean": 7.0,
            "lr=0.1 +std": 8.4142,
            "lr=0.1 -std": 5.5858,
            "lr=0.5 mean": 3.0,
        }
        lines = run_list(page).values()
        eventually(
            page, lambda: all(colours(card.locator("line-chart"))[one] > 20 for one in lines)
        )

        log_run(root, "seeds/run7", [3.0, 4.0, 5.0], hparams={"lr": 0.5})
        reload_until(page, lambda: set(run_list(page)) == CURVES | {"lr=0.5 +std", "lr=0.5 -std"})
        eventually(page, lambda: float(data_table(card)["lr=0.5 mean"]["Value"]) == 4.0)

        tags.fill("^members/loss$")
        wait_for_words(card, "lr=0.1 mean")
        eventually(
            page,
            lambda: (
                {run: row["Value"] for run, row in data_table(card).items()}
                == {"lr=0.1 mean": "2", "lr=0.5 mean": "2"}
            ),
        )
        page.close()
