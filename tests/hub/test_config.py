"""The hub's settings: read, checked to the last key, and documented."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from aboard.boards.limits import Limits
from aboard.hub.config import BoardDefaults, Config, ConfigError, Root, make_config, read_config

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
    """)
    config = read_config(path)
    assert (config.prefix, config.port) == ("/aboard", 8080)
    assert config.certificate == tmp_path / "tls/cert.pem"
    assert config.certificate_key == Path("/etc/key.pem")
    assert [str(one) for one in config.trusted_proxies] == ["10.0.0.0/8", "::1/128"]
    assert config.database_address == "postgresql://hub@db/aboard"
    assert config.roots == (
        Root(str(tmp_path / "logs"), "logs"),
        Root("s3://bucket/runs", "cloud", {"AWS_PROFILE": "vision"}),
    )
    assert config.limits == Limits(
        isolated=2, instant=None, memory=4 << 30, timeout=7 * 86400, idle_timeout=7200
    )
    assert config.boards == BoardDefaults(
        "process", "stock", "team", timeout=86400, idle_timeout=1800, memory=1 << 30, poll=2
    )
    assert (config.session, config.share, config.grace) == (43200, 0, 30)


def test_nothing_said_is_a_hub_for_this_machine(tmp_path):
    config = make_config({}, tmp_path, "here")
    assert (config.host, config.port, config.prefix) == ("localhost", None, "")
    assert config.database_address == str(config.directory / "hub.db")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hots": "x"}, "there is no setting 'hots'. Did you mean 'host'?"),
        ({"limits": {"isolate": 1}}, "limits: there is no setting 'isolate'"),
        ({"boards": {"colour": 1}}, "boards: there is no setting 'colour'"),
        ({"roots": [{"url": "x"}]}, "roots: there is no setting 'url'. Did you mean 'uri'?"),
        ({"roots": [{}]}, "a root needs a uri"),
        ({"roots": ["/a/x", "/b/x"]}, "two are called 'x'"),
        ({"roots": ["ftp://x"]}, "not a storage"),
        ({"port": 70000}, "port 70000 does not exist"),
        ({"port": True}, "True is not a whole number"),
        ({"host": 1}, "1 is not a text"),
        ({"url": "boards"}, "is not an address"),
        ({"trusted_proxies": ["proxy"]}, "trusted_proxies"),
        ({"session": "soon"}, "'soon' is not a duration"),
        ({"grace": -1}, "-1 is not a number"),
        ({"limits": {"memory": "big"}}, "limits.memory: 'big' is not a size"),
        ({"limits": {"isolated": -1}}, "less than none"),
        ({"boards": {"engine": "slow"}}, "boards.engine"),
        ({"boards": {"poll": 0}}, "boards.poll: 0 is less than 0.5 seconds"),
        ({"certificate": "x"}, "go together"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(tmp_path, values, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_config(values, tmp_path, "aboard.toml")


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        read_config(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("host =")
    with pytest.raises(ConfigError, match="not TOML"):
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
    }
    assert documented["`[[roots]]`"] == {one.name for one in fields(Root)}
    assert documented["`[limits]`"] == {one.name for one in fields(Limits)}
    assert documented["`[boards]`"] == {one.name for one in fields(BoardDefaults)}


def test_the_example_on_the_page_is_read(tmp_path):
    example = re.search(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    (tmp_path / "aboard.toml").write_text(example)
    assert len(read_config(tmp_path / "aboard.toml").roots) == 2
