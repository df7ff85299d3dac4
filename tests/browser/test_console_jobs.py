"""The console's pages of jobs and engines: members, logs, retries and trials, as users click."""

import sys

import pytest

from aboard.hub.config import JobSettings
from tests.browser.accessibility import serious_problems
from tests.browser.console_visits import panel
from tests.browser.page import eventually, words
from tests.hub.hubs import add_job, log_run, served

pytestmark = pytest.mark.engine("chromium")

HOSTILE = "<img src=x onerror=alert(1)>"
SCRIPT = "import sys; print('lr is', sys.argv[1], flush=True); sys.exit(sys.argv[1] == '0.1')"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("jobs") / "logs"
    log_run(root, "cifar10/run1", [1.0])
    add_job(root, "many", *["completed"] * 299, "failed", experiment=HOSTILE)
    return root


@pytest.fixture(scope="module")
def hub(root):
    with served(root.parent, [root], jobs=JobSettings(submit=True)) as found:
        yield found


def test_a_long_job_is_looked_through(visit):
    page = visit("/jobs")
    page.get_by_role("cell", name="many", exact=True).click()
    members = panel(page).get_by_label("Members of the job")
    eventually(page, lambda: members.locator("table").get_attribute("aria-rowcount") == "301")
    assert members.locator("tbody tr").count() < 100
    assert HOSTILE in words(page.locator("main"))
    panel(page).get_by_label("State of members").select_option("failed")
    eventually(page, lambda: "lr=30" in words(members))
    assert "state=failed" in page.url
    page.reload()
    eventually(page, lambda: "lr=30" in words(members))
    assert panel(page).get_by_role("button", name="Stop…").count() == 0


def test_a_job_is_followed_retried_and_deleted(visit, hub, tmp_path):
    with hub.client("anna") as client:
        request = {
            "command": [sys.executable, "-c", SCRIPT, "{lr}"],
            "workdir": str(tmp_path),
            "sweep": {"lr": [0.1, 0.01]},
            "experiment": "sweep",
        }
        answer = client.post("/api/v1/jobs", json=request)
        assert answer.status_code == 201, answer.text
        job = answer.json()["id"]
    page = visit("/jobs", "anna")
    page.get_by_role("cell", name=job, exact=True).click()
    about = panel(page)
    about.get_by_label("Members of the job").get_by_role("cell", name="2", exact=True).click()
    log = about.get_by_role("region", name="Output of member 2")
    eventually(page, lambda: "lr is 0.01" in log.inner_text())
    about.get_by_role("button", name="Retry 1 member").wait_for()
    about.get_by_role("button", name="Retry 1 member").click()
    with hub.client("anna") as client:
        eventually(page, lambda: client.get(f"/api/v1/jobs/{job}").json()["attempts"] == 2)
        eventually(page, lambda: client.get(f"/api/v1/jobs/{job}").json()["state"] == "failed")
    about.get_by_role("button", name="Delete…").click()
    asked = page.get_by_role("dialog")
    assert "Its 2 runs are kept" in asked.inner_text()
    asked.get_by_role("button", name="Delete").click()
    eventually(page, lambda: page.get_by_role("cell", name=job, exact=True).count() == 0)


def test_an_engine_is_tried(visit, hub):
    page = visit("/jobs?tab=engines")
    place = page.get_by_role("region", name="process", exact=True)
    eventually(page, lambda: "answers" in " ".join(words(place)))
    place.get_by_role("button", name="Try process").click()
    eventually(page, lambda: "status 401 without a token" in " ".join(words(place)))
    place.get_by_role("button", name="End the trial").click()
    eventually(page, lambda: "stopped" in words(place))
    assert serious_problems(page) == []


def test_a_viewer_sees_jobs_and_no_engines(visit):
    page = visit("/jobs?tab=engines", "vera")
    page.get_by_role("cell", name="many", exact=True).click()
    panel(page).get_by_role("link", name="Runs").wait_for()
    assert page.get_by_role("link", name="Engines").count() == 0
    for name in ("Stop…", "Delete…"):
        assert panel(page).get_by_role("button", name=name).count() == 0
    assert page.locator("img").count() == 0
    assert serious_problems(page) == []
