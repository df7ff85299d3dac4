"""The Open OnDemand app: its form, and a session of it as a job of a real Slurm."""

import html.parser
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest
import yaml

from tests.engines.requirements import cannot_set_up
from tests.hub.hubs import log_run
from tests.waiting import until

APP = Path(__file__).parents[2] / "deploy" / "ondemand"
RENDER = """
require "erb"
require "json"
require "ostruct"
values = JSON.parse(ARGV[0])
context = OpenStruct.new(values)
scope = binding
values.each { |name, value| scope.local_variable_set(name, value) }
print ERB.new($stdin.read, trim_mode: "-").result(scope)
"""
"""What the portal does with a template: in those of the job the form is `context`."""

JOB = """\
#!/bin/bash
# The batch script of a session, as the portal's template "basic" makes it.
cd {work} || exit 1
create_yml() {{
  (
    umask 077
    printf 'host: %s\\nport: %s\\npassword: %s\\n' "$host" "$port" "$password" >connection.yml
  )
}}
clean_up() {{
  [[ ${{SCRIPT_PID}} ]] && pkill -P "$SCRIPT_PID"
  pkill -P $$
  exit "${{1:-0}}"
}}
create_passwd() {{ tr -cd '[:alnum:]' </dev/urandom 2>/dev/null | head -c "${{1:-32}}"; }}
host=$(hostname)
source before.sh
./script.sh &
SCRIPT_PID=$!
source after.sh
create_yml
wait "$SCRIPT_PID" || clean_up 1
clean_up
"""


class _Form(html.parser.HTMLParser):
    """The form that opens the board."""

    def __init__(self, text):
        super().__init__()
        self.action, self.fields = "", {}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if tag == "form":
            assert found["method"] == "post"
            self.action = found["action"]
        if tag == "input":
            self.fields[found["name"]] = found["value"]


def render(template, **values):
    if shutil.which("ruby") is None:
        cannot_set_up("needs ruby (Debian: apt-get install ruby)")
    text = (APP / template).read_text()
    command = ["ruby", "-e", RENDER, json.dumps(values)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def defaults():
    """Return what the form has before the user changes it."""
    form = yaml.safe_load((APP / "form.yml").read_text())
    values = {}
    for name in form["form"]:
        about = form["attributes"].get(name, "")
        if isinstance(about, dict):
            options = about.get("options")
            about = options[0][1] if options else about.get("value", "")
        values[name] = about
    return values


def test_every_value_of_the_templates_is_in_the_form():
    manifest = yaml.safe_load((APP / "manifest.yml").read_text())
    assert (manifest["name"], manifest["role"]) == ("Aboard", "batch_connect")
    form = yaml.safe_load((APP / "form.yml").read_text())
    assert set(form["attributes"]) <= set(form["form"])
    for path in APP.rglob("*.erb"):
        used = set(re.findall(r"\bcontext\.(\w+)", path.read_text()))
        assert used <= set(form["form"]), path


def test_the_resources_of_the_form_become_those_of_the_job():
    script = yaml.safe_load(render("submit.yml.erb", cpus="2", memory="8"))
    assert script["batch_connect"]["template"] == "basic"
    native = script["script"]["native"]
    assert {"--cpus-per-task=2", "--mem=8G", "--gres=none"} <= set(native)


def test_what_a_user_enters_is_not_run_as_a_command(tmp_path):
    evil = f"/data/$(touch {tmp_path}/one)'; touch {tmp_path}/two; '"
    values = defaults() | {"logdir": evil, "more": f"`touch {tmp_path}/three`", "engine": "fast"}
    (tmp_path / "aboard").write_text('#!/bin/sh\nprintf "%s\\n" "$@" >&2\n')
    (tmp_path / "aboard").chmod(0o755)
    variables = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "ABOARD_ADDRESS_FILE": str(tmp_path / "address"),
    }
    done = subprocess.run(
        ["bash", "-c", render("template/script.sh.erb", **values)],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.splitlines()[:2] == ["view", evil]
    assert {path.name for path in tmp_path.iterdir()} == {"aboard", "address"}


class Session:
    """A session of the app: a directory with the rendered files, and its job."""

    def __init__(self, cluster, place, **values):
        self.cluster, self.place = cluster, place
        place.mkdir()
        values = defaults() | {"setup": f"PATH={Path(sys.executable).parent}:$PATH"} | values
        for name in ("before.sh", "script.sh", "after.sh"):
            file = place / name
            file.write_text(render(f"template/{name}.erb", **values))
            file.chmod(0o755)
        (place / "job.sh").write_text(JOB.format(work=place))
        native = yaml.safe_load(render("submit.yml.erb", cpus="1", memory="1"))["script"]["native"]
        options = [*native, f"--output={place}/output.log", f"--chdir={place}", "--parsable"]
        variables = {"PATH": "/usr/bin:/bin", "HOME": os.environ["HOME"]} | cluster.variables
        done = subprocess.run(
            ["/usr/bin/sbatch", *options, place / "job.sh"],
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        self.job = done.stdout.strip()

    def state(self):
        query = ("squeue", "--noheader", "--states=all", "--format=%T", f"--job={self.job}")
        return self.cluster.ask(*query).stdout.strip()

    def log(self):
        path = self.place / "output.log"
        return path.read_text() if path.exists() else ""

    def connection(self):
        until(lambda: (self.place / "connection.yml").exists() or self.state() == "FAILED")
        path = self.place / "connection.yml"
        assert path.exists(), self.log()
        assert path.stat().st_mode & 0o077 == 0
        return yaml.safe_load(path.read_text())


@pytest.mark.engine("slurm")
def test_a_session_opens_with_the_button_and_ends_with_the_job(slurm_cluster, tmp_path):
    logs = tmp_path / "my runs"
    log_run(logs, "exp/run1", [0.5], job="7")
    session = Session(slurm_cluster, tmp_path / "session", logdir=str(logs))
    connection = session.connection()
    form = _Form(render("view.html.erb", **connection))
    prefix = f"/rnode/{connection['host']}/{connection['port']}"
    assert form.action.startswith(f"{prefix}/")
    board = f"http://{connection['host']}:{connection['port']}"
    with httpx.Client(base_url=board) as browser:
        assert browser.get("/b/view/data/runs").status_code == 401
        answer = browser.post(form.action.removeprefix(prefix), data=form.fields)
        assert answer.status_code == 303
        # The portal cuts its prefix off, and the browser resolves the address against all of it.
        target = urljoin(f"https://portal{form.action}", answer.headers["location"])
        assert target == f"https://portal{prefix}/b/view/"
        assert browser.get("/b/view/").status_code == 200
        until(lambda: browser.get("/b/view/data/runs").json() == ["exp/run1"])
    shown = slurm_cluster.ask("scontrol", "write", "batch_script", session.job, "-").stdout
    assert connection["password"] not in shown + session.log()
    assert slurm_cluster.succeeds("scancel", session.job)
    until(lambda: session.state() == "CANCELLED")
    assert not list(Path("/tmp").glob("aboard-session-*"))


@pytest.mark.engine("slurm")
def test_a_session_that_cannot_start_says_why(slurm_cluster, tmp_path):
    missing = str(tmp_path / "missing")
    session = Session(slurm_cluster, tmp_path / "one", logdir=missing)
    until(lambda: session.state() == "FAILED")
    assert f"{missing}: " in session.log()
    assert "aboard: the board did not start; see the messages above" in session.log()
    bare = {"setup": "PATH=/usr/bin:/bin"}
    session = Session(slurm_cluster, tmp_path / "two", logdir=str(tmp_path), **bare)
    until(lambda: session.state() == "FAILED")
    assert "aboard: command not found on " in session.log()
