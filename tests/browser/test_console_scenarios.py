"""What users of other platforms click, done in the console from the first page to the last."""

import tempfile
import time
from pathlib import Path

import pytest

from aboard.boards.model import Limits
from tests.browser.console_visits import visits
from tests.browser.page import eventually, wait_for_words, words
from tests.engines.real_hub import PASSWORD, USER, team_hub
from tests.engines.real_hub import log_run as log_recorded_run
from tests.engines.rigs import Rig, toml_table
from tests.hub.hubs import log_run, served

pytestmark = pytest.mark.engine("chromium")


def test_select_trials_of_an_experiment_open_and_stop(tmp_path, new_visitor):
    """As on Determined: an experiment, some of its trials, TensorBoard of them, and its end."""
    root = tmp_path / "logs"
    for trial in range(1, 5):
        log_run(
            root,
            f"cifar10/trial{trial}",
            [trial / 2**step for step in range(4)],
            hparams={"lr": 0.1 / trial},
            user="max",
            state="completed",
        )
    log_run(root, "mnist/trial1", [1.0], user="max", state="completed")
    with served(tmp_path, [root]) as hub, visits(hub, new_visitor) as visit:
        page = visit("/runs?sort=run")
        facets = page.get_by_role("complementary", name="Facets")
        facets.get_by_role("combobox", name="Add a facet").select_option("experiment")
        facets.get_by_role("button", name="cifar10 4").click()
        eventually(page, lambda: "4 of 5 runs" in words(page.locator(".bar")))
        for trial in (1, 3):
            page.get_by_role("checkbox", name=f"Select cifar10/trial{trial}").click()
        page.get_by_role("button", name="Open board").click()
        page.wait_for_url("**/b/*/**")
        wait_for_words(page.locator("runs-data-table"), "cifar10/trial1", "cifar10/trial3")
        assert "cifar10/trial2" not in words(page.locator("runs-data-table"))

        page.goto(f"{hub.url}/boards")
        page.locator("tbody tr", has_text="trial1").click()
        panel = page.get_by_role("complementary")
        panel.get_by_role("button", name="Stop…").click()
        page.get_by_role("dialog").get_by_role("button", name="Stop").click()
        eventually(page, lambda: "stopped" in words(panel.locator("h2").first))
        with hub.client("max") as client:
            assert client.get("/api/v1/boards").json()["boards"] == []


def test_running_and_finished_runs_under_a_name_template(tmp_path, new_visitor):
    """As with XT: runs that go on and runs that ended on one board, named by a template."""
    root = tmp_path / "logs"
    log_run(
        root,
        "digits/run23",
        [1.0, 0.5],
        hparams={"lr": 0.01},
        user="max",
        state="completed",
        created=1.0,
    )
    log_run(
        root,
        "digits/run341",
        [2.0],
        hparams={"lr": 0.1},
        user="max",
        state="running",
        created=2.0,
        heartbeat=time.time(),
        heartbeat_secs=3600.0,  # never lost during the test
    )
    with served(tmp_path, [root]) as hub, visits(hub, new_visitor) as visit:
        page = visit("/runs?sort=run")
        eventually(page, lambda: page.locator("tbody a").count() == 2)
        states = page.locator("tbody td:nth-child(3)").all_inner_texts()
        assert [text.split()[1] for text in states] == ["completed", "running"]
        page.get_by_role("checkbox", name="Select all runs").click()
        page.get_by_role("button", name="Board…").click()
        names = page.get_by_role("textbox", name="Run names")
        names.fill("{experiment}_{run}_lr={hparams.lr}")
        names.press("Enter")
        page.wait_for_url("**/b/*/**")
        wait_for_words(
            page.locator("runs-data-table"), "digits_run23_lr=0.01", "digits_run341_lr=0.1"
        )


def test_pick_logs_and_resources_launch_open_delete(tmp_path, new_visitor, complaints):
    """As on PAI: one TensorBoard of one's own at a time, with the memory that one asks for."""
    root = tmp_path / "logs"
    for label in ("frog/run1", "frog/run2", "newt/run1"):
        log_run(root, label, [1.0, 0.5], user="max")
    with (
        served(tmp_path, [root], limits=Limits(isolated=1, memory=2 << 30)) as hub,
        visits(hub, new_visitor) as visit,
    ):
        page = visit("/boards")
        panel = page.get_by_role("complementary")

        def launch(experiment):
            page.get_by_role("button", name="New board").click()
            panel.get_by_role("button", name=f"+ {experiment}").click()
            panel.get_by_label("engine", exact=True).select_option("process")
            panel.get_by_label("memory", exact=True).fill("1GiB")
            panel.get_by_label("name", exact=True).fill(f"of-{experiment}")
            panel.get_by_role("button", name="Start").click()

        launch("frog")
        eventually(page, lambda: "running" in words(panel.locator("h2").first))
        assert "2 runs" in words(panel)
        panel.get_by_role("link", name="Open").click()
        page.wait_for_url("**/b/*/**")
        wait_for_words(page.locator("runs-data-table"), "frog/run1", "frog/run2")
        page.go_back()

        launch("newt")  # one more than the limit
        panel.get_by_text("may have 1 isolated boards").wait_for()
        complaints.expect("403")
        panel.get_by_role("button", name="Stop of-frog").click()
        eventually(page, lambda: panel.get_by_text("may have 1").count() == 0)
        panel.get_by_role("button", name="Start").click()
        eventually(page, lambda: "running" in words(panel.locator("h2").first))
        assert "1 run" in words(panel)

        panel.get_by_role("button", name="Delete…").click()
        asked = page.get_by_role("dialog")
        assert "will be stopped first" in asked.inner_text()
        asked.get_by_role("button", name="Delete").click()
        page.get_by_text("No live boards").wait_for()
        page.get_by_label("Show ended").check()
        eventually(page, lambda: "of-frog" in words(page.locator("tbody")))
        assert "of-newt" not in words(page.locator("tbody"))
        page.close()


@pytest.mark.engine("slurm")
def test_pick_a_directory_and_resources_and_launch_on_slurm(
    slurm_rig: Rig, new_visitor, complaints
):
    """As on LUMI: a directory, processors and memory, a wait in the queue, then the page."""
    with tempfile.TemporaryDirectory(prefix="engine-", dir=slurm_rig.place or "/tmp") as name:
        place = Path(name)
        place.chmod(0o755)
        log_recorded_run(place / "runs", "project/run1", [1.0, 0.5])
        settings = f'[[roots]]\nuri = "{place / "runs"}"\n{toml_table(slurm_rig)}'
        with team_hub(place / "hub", settings) as hub:
            page = new_visitor()
            page.goto(f"{hub.url}/boards")
            complaints.expect("401")
            page.get_by_label("Name").fill(USER)
            page.get_by_label("Password").fill(PASSWORD)
            page.get_by_role("button", name="Log in").click()
            page.get_by_role("button", name="New board").click()
            panel = page.get_by_role("complementary")
            panel.get_by_label("Select runs").fill(str(place / "runs" / "project"))
            panel.get_by_role("button", name="Add", exact=True).click()
            panel.get_by_label("engine", exact=True).select_option("slurm")
            panel.get_by_label("memory", exact=True).fill("1GiB")
            panel.get_by_label("processors").fill("1")
            panel.get_by_label("stops after").fill("30m")
            panel.get_by_role("button", name="Start").click()
            eventually(page, lambda: "running" in words(panel.locator("h2").first))
            assert "job" in " ".join(words(panel))
            panel.get_by_role("link", name="Open").click()
            page.wait_for_url("**/b/*/**")
            wait_for_words(page.locator("runs-data-table"), "run1")
            page.go_back()
            panel.get_by_role("button", name="Delete…").click()
            page.get_by_role("dialog").get_by_role("button", name="Delete").click()
            page.get_by_text("No live boards").wait_for()
            page.close()
