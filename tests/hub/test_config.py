"""The hub's settings are read, validated to the last key, and documented."""

import re
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from aboard import executors
from aboard.boards.model import Limits
from aboard.executors import EXECUTORS, executor_class
from aboard.executors.base import EngineSettings
from aboard.hub import config as hub_config
from aboard.hub.config import (
    BoardDefaults,
    Config,
    ConfigError,
    JobSettings,
    make_config,
    read_config,
    read_personal_config,
)
from aboard.index.library import Root


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class FarmSettings(EngineSettings):
    queue: str = ""
    most: int = 1
    key: Path | None = None


@pytest.fixture
def farm(monkeypatch):
    """Add an engine that is called `farm`."""
    known = {**EXECUTORS, "farm": "farm.FarmExecutor"}
    monkeypatch.setattr(executors, "EXECUTORS", known)
    monkeypatch.setattr(hub_config, "EXECUTORS", known)
    kind = SimpleNamespace(Settings=FarmSettings, needs_settings=False)
    module = SimpleNamespace(FarmExecutor=kind)
    monkeypatch.setitem(sys.modules, "aboard.executors.farm", module)


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "config.md"


def test_all_settings_are_read(tmp_path):
    path = tmp_path / "aboard.toml"
    path.write_text("""
        host = "0.0.0.0"
        port = 8080
        url = "https://boards.example.org/aboard/"
        certificate = "tls/cert.pem"
        certificate_key = "/etc/key.pem"
        trusted_proxies = ["10.0.0.0/8", "::1"]
        directory = "state"
        database = "postgresql://hub@db/aboard"
        any_path = true
        session = "12h"
        share = 0
        grace = 30
        roots = [
            "logs",
            { uri = "s3://bucket/runs/", name = "cloud", environment = { AWS_PROFILE = "vision" } },
        ]

        [limits]
        isolated = 2
        instant = "unlimited"
        memory = "4GiB"
        cpus = 4
        timeout = "7d"
        idle_timeout = "2h"

        [boards]
        on = "process"
        engine = "stock"
        visibility = "team"
        timeout = "1d"
        idle_timeout = "30m"
        poll = 2
        memory = "1GiB"
        cpus = 0.5

        [jobs]
        submit = true
    """)
    config = read_config(path)
    assert (config.prefix, config.port) == ("/aboard", 8080)
    assert config.certificate == tmp_path / "tls/cert.pem"
    assert config.certificate_key == Path("/etc/key.pem")
    assert [str(one) for one in config.trusted_proxies] == ["10.0.0.0/8", "::1/128"]
    assert config.database_address == "postgresql://hub@db/aboard"
    assert config.roots == (
        Root(str(tmp_path / "logs")),
        Root("s3://bucket/runs", "cloud", {"AWS_PROFILE": "vision"}),
    )
    assert config.limits == Limits(
        isolated=2, instant=None, memory=4 << 30, cpus=4, timeout=7 * 86400, idle_timeout=7200
    )
    assert config.boards == BoardDefaults(
        on="process",
        engine="stock",
        visibility="team",
        timeout=86400,
        idle_timeout=1800,
        memory=1 << 30,
        cpus=0.5,
        poll=2,
    )
    assert config.jobs == JobSettings(submit=True)
    assert (config.session, config.share, config.grace) == (43200, 0, 30)


def test_without_settings_a_hub_serves_this_machine_only(tmp_path):
    config = make_config({}, tmp_path, "here")
    assert (config.host, config.port, config.prefix) == ("localhost", None, "")
    assert config.database_address == str(config.directory / "hub.db")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hots": "x"}, "unknown setting 'hots'. Did you mean 'host'?"),
        ({"limits": {"isolate": 1}}, "limits: unknown setting 'isolate'"),
        ({"boards": {"colour": 1}}, "boards: unknown setting 'colour'"),
        ({"roots": [{"url": "x"}]}, "roots: unknown setting 'url'. Did you mean 'uri'?"),
        ({"roots": [{}]}, "roots.0.uri is missing"),
        (
            {"roots": [{"uri": "/a", "name": "x"}, {"uri": "/b", "name": "x"}]},
            "two roots are named 'x'",
        ),
        ({"roots": ["ftp://x"]}, "is not supported"),
        ({"port": 70000}, "port: 70000 should be less than or equal to 65535"),
        ({"port": True}, "port: True should be a valid integer"),
        ({"host": 1}, "host: 1 should be a valid string"),
        ({"url": "boards"}, "is not an address"),
        ({"trusted_proxies": ["proxy"]}, "trusted_proxies"),
        ({"session": "soon"}, "'soon' is not a duration"),
        ({"grace": -1}, "grace: -1 should be greater than or equal to 0"),
        ({"limits": {"memory": "big"}}, "limits.memory: 'big' is not a size"),
        ({"limits": {"cpus": "two"}}, "limits.cpus: 'two' should be a valid number"),
        ({"boards": {"cpus": -1}}, "boards.cpus: -1 should be greater than or equal to 0"),
        ({"boards": {"cpus": True}}, "boards.cpus: True should be a valid number"),
        ({"limits": {"isolated": -1}}, "limits.isolated: -1 should be greater than or equal to 0"),
        ({"boards": {"engine": "slow"}}, "boards.engine: 'slow' should be 'fast' or 'stock'"),
        ({"boards": {"template": "{nothing}"}}, "boards.template: "),
        ({"boards": {"poll": 0}}, "boards.poll: 0 should be greater than or equal to 0.5"),
        ({"certificate": "x"}, "must be set together"),
        ({"roots": "x"}, "roots: 'x' should be a valid list"),
        ({"limits": 3}, "limits: 3 should be a table"),
        ({"any_path": "yes"}, "any_path: 'yes' should be a valid boolean"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(tmp_path, values, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_config(values, tmp_path, "aboard.toml")


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        read_config(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("host =")
    with pytest.raises(ConfigError, match="invalid TOML"):
        read_config(tmp_path / "bad.toml")


def test_every_setting_is_documented():
    page = PAGE.read_text()
    documented = {}
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        name = section.splitlines()[0]
        documented[name] = set(re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE))
    assert documented["The hub"] == {one.name for one in fields(Config)} - {
        "roots",
        "limits",
        "boards",
        "executors",
        "jobs",
    }
    assert documented["`[[roots]]`"] == {one.name for one in fields(Root)}
    assert documented["`[limits]`"] == {one.name for one in fields(Limits)}
    assert documented["`[boards]`"] == {one.name for one in fields(BoardDefaults)}
    assert documented["`[jobs]`"] == {one.name for one in fields(JobSettings)}


def test_the_example_on_the_page_is_read(tmp_path):
    example = re.search(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    (tmp_path / "aboard.toml").write_text(example)
    assert len(read_config(tmp_path / "aboard.toml").roots) == 2


# Engines.


def test_a_profile_has_the_settings_of_its_engine_with_its_own_on_top(farm, tmp_path):
    path = tmp_path / "aboard.toml"
    path.write_text("""
        [executors.farm]
        queue = "small"
        key = "secrets/key"

        [executors.farm.profiles.long]
        queue = "long"

        [executors.farm.profiles.wide]
        most = 8
    """)
    config = read_config(path)
    key = tmp_path / "secrets" / "key"
    assert config.executors == {
        "farm": {
            "": FarmSettings(queue="small", key=key),
            "long": FarmSettings(queue="long", key=key),
            "wide": FarmSettings(queue="small", most=8, key=key),
        }
    }


def test_files_of_kubernetes_are_relative_to_the_settings(tmp_path):
    path = tmp_path / "aboard.toml"
    path.write_text('[executors.kubernetes]\nkubeconfig = "kube"\npod_template = "pod.yaml"\n')
    (tmp_path / "pod.yaml").write_text("spec: {priorityClassName: low}\n")
    settings = read_config(path).executors["kubernetes"][""]
    assert settings.kubeconfig == tmp_path / "kube"
    assert settings.template() == {"spec": {"priorityClassName": "low"}}


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (3, "executors: 3 should be a table"),
        ({"fram": {}}, "executors: unknown engine 'fram'. Did you mean 'farm'? Known:"),
        ({"farm": 3}, "executors.farm: 3 should be a table"),
        (
            {"farm": {"queu": "x"}},
            "executors.farm: unknown setting 'queu'. Did you mean 'queue'",
        ),
        ({"farm": {"most": "x"}}, "executors.farm: most: 'x' should be a valid integer"),
        ({"process": {"most": 1}}, "executors.process: unknown setting 'most'."),
        ({"farm": {"profile": {}}}, "executors.farm: unknown setting 'profile'. Did you"),
        ({"farm": {"profiles": 3}}, "executors.farm.profiles: 3 should be a table"),
        ({"farm": {"profiles": {"a": 3}}}, "executors.farm.profiles.a: 3 should be a table"),
        (
            {"farm": {"profiles": {"a:b": {}}}},
            "executors.farm.profiles.a:b: invalid name of a profile",
        ),
        (
            {"farm": {"profiles": {"a": {"most": []}}}},
            "executors.farm.profiles.a: most: [] should be a valid integer",
        ),
        (
            {"farm": {"profiles": {"a": {"mots": 1}}}},
            "executors.farm.profiles.a: unknown setting 'mots'. Did you mean 'most'?",
        ),
    ],
)
def test_a_setting_of_an_engine_that_cannot_be_used_is_named(farm, tmp_path, tables, message):
    with pytest.raises(ConfigError, match=re.escape(f"aboard.toml, {message}")):
        make_config({"executors": tables}, tmp_path, "aboard.toml")


def test_a_team_s_hub_offers_processes_and_the_engines_with_a_table(farm, tmp_path):
    alone = make_config({}, tmp_path, "x")
    assert list(alone.engines(personal=False)) == ["process"]
    named = make_config({"executors": {"farm": {"profiles": {"long": {}}}}}, tmp_path, "x")
    assert list(named.engines(personal=False)) == ["process", "farm"]
    assert list(named.engines(personal=False)["farm"]) == ["", "long"]


def test_a_personal_hub_offers_every_engine_that_needs_no_settings(farm, tmp_path):
    offered = make_config({}, tmp_path, "x").engines(personal=True)
    assert list(offered) == [one for one in (*EXECUTORS, "farm") if one != "vertex"]
    assert offered["farm"] == {"": FarmSettings()}
    configured = make_config({"executors": {"vertex": {"project": "p"}}}, tmp_path, "x")
    assert "vertex" in configured.engines(personal=True)
    assert "vertex" in configured.engines(personal=False)


def test_boards_run_by_default_on_an_engine_that_is_offered(farm, tmp_path):
    values = {"boards": {"on": "farm:lnog"}, "executors": {"farm": {"profiles": {"long": {}}}}}
    config = make_config(values, tmp_path, "x")
    with pytest.raises(ConfigError, match=r"unknown place 'farm:lnog'. Did you mean 'farm:long'"):
        config.engines(personal=False)
    elsewhere = make_config({"boards": {"on": "farm"}}, tmp_path, "x")
    assert elsewhere.engines(personal=True)
    with pytest.raises(ConfigError, match=r"boards.on: .*Known: instant, process"):
        elsewhere.engines(personal=False)


def test_a_personal_hub_reads_the_user_s_file(farm, tmp_path, monkeypatch):
    monkeypatch.delenv("ABOARD_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert read_personal_config() == Config()
    path = tmp_path / "aboard" / "aboard.toml"
    path.parent.mkdir()
    path.write_text('[executors.farm]\nqueue = "mine"\n')
    assert read_personal_config().executors["farm"][""].queue == "mine"
    path.write_text('host = "0.0.0.0"\n')
    with pytest.raises(ConfigError, match="a personal hub has no setting 'host'"):
        read_personal_config()
    other = tmp_path / "other.toml"
    monkeypatch.setenv("ABOARD_CONFIG", str(other))
    with pytest.raises(ConfigError, match="no such file"):
        read_personal_config()
    other.write_text('[boards]\non = "farm"\n')
    assert read_personal_config().boards.on == "farm"


@pytest.mark.parametrize("name", EXECUTORS)
def test_every_engine_has_settings_that_need_no_file(name):
    assert executor_class(name).Settings()
