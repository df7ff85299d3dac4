from urllib.parse import unquote, urljoin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aboard.web.request import (
    is_clean_path,
    local_target,
    read_request,
    secured,
    session_cookie_name,
    split_key,
    withhold_secrets,
)
from tests.web.visitors import raw_scope

COOKIE = session_cookie_name(raw_scope("/"))
HOST = b"board.test:6006"
SAFE = {
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"SAMEORIGIN",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"referrer-policy": b"same-origin",
    b"cache-control": b"private",
}


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/b/board/",
        "/b/board/data/plugin/scalars/tags",
        "/b/a..b/...",
        "/b/100%25/x",
        "/b/été/%20",
        "/b//x",
    ],
)
def test_clean_paths(path: str) -> None:
    assert is_clean_path(path)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "*",
        "b/x",
        "http://elsewhere.test/",
        "//elsewhere.test/",
        "/%2felsewhere.test/",
        "/..",
        "/b/../c",
        "/b/%2e%2e/c",
        "/b/.%2E/c",
        "/b/%252e%252e/c",
        "/b/%25252e%25252e/c",
        "/b/x%2f..%2fc",
        "/b\\c",
        "/b%5c..%5cc",
        "/b%255cc",
        "/b/%00",
        "/b/\x00",
        "/b/%0d%0aSet-Cookie:x",
        "/b/\x7f",
    ],
)
def test_paths_that_could_mean_two_things(path: str) -> None:
    assert not is_clean_path(path)


@given(st.text(alphabet="/.%25ecEC\\ab0", max_size=20))
def test_a_clean_path_never_climbs_however_often_it_is_decoded(tail: str) -> None:
    path = f"/{tail}"
    if is_clean_path(path):
        for _ in range(5):
            assert ".." not in path.split("/")
            assert not path.startswith("//")
            path = unquote(path)


@pytest.mark.parametrize(
    ("query", "rest", "key"),
    [
        ("", "", None),
        ("key=abc", "", "abc"),
        ("a=1&key=abc&b=%20+x", "a=1&b=%20+x", "abc"),
        ("%6bey=abc", "", "abc"),
        ("k%65y=a%2Db&a", "a", "a-b"),
        ("key=one&key=two", "", "two"),
        ("key", "", ""),
        ("monkey=1&Key=2", "monkey=1&Key=2", None),
        ("a=key=b", "a=key=b", None),
    ],
)
def test_the_key_is_taken_out_of_a_query(query: str, rest: str, key: str | None) -> None:
    assert split_key(query) == (rest, key)


@pytest.mark.parametrize(
    "path", [b"/", b"/b", b"/b/x", b"/b/x/", b"/b/x%2Fy", b"/b/a:b", b"/b/%3Fx"]
)
def test_the_address_without_the_key_is_the_same_below_any_prefix(path: bytes) -> None:
    scope = raw_scope(unquote(path.decode()), raw_path=path, query_string=b"a=%2F/?&key=x")
    address = read_request(scope).own_address
    for prefix in ("http://board.test", "https://proxy.test/user/me/6006"):
        asked = f"{prefix}{path.decode()}?a=1&key=x"
        assert urljoin(asked, address) == f"{prefix}{path.decode()}?a=%2F/?"


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("/", "/"),
        ("/b/x/?a=1&key=k", "/b/x/?a=1"),
        ("/b/x y", "/b/x%20y"),
        ("/b/x?\r\nSet-Cookie: y", "/b/x?%0D%0ASet-Cookie:%20y"),
        ("", None),
        ("b/x", None),
        ("//elsewhere.test/", None),
        ("/\\elsewhere.test/", None),
        ("/%2Felsewhere.test/", None),
        ("/..//elsewhere.test/", None),
        ("https://elsewhere.test/", None),
        ("javascript:alert(1)", None),
    ],
)
def test_only_targets_on_this_server_are_followed(text: str, target: str | None) -> None:
    assert local_target(text) == target


@pytest.mark.parametrize(
    "name",
    [
        "Tensorboard-Experiment-Id",
        "tensorboard_experiment_id",
        "TENSORBOARD-EXPERIMENT_ID",
        "Authorization",
        "Proxy-Authorization",
        "Proxy",
        "Forwarded",
        "X-Forwarded-For",
        "X-Forwarded-Host",
        "x_forwarded_proto",
        "X-FORWARDED-PREFIX",
        "Content_Length",
    ],
)
def test_headers_that_something_inside_would_trust_are_withheld(name: str) -> None:
    scope = raw_scope("/", headers={name: "spoofed", "Accept": "*/*"})
    assert withhold_secrets(scope)["headers"] == [(b"Accept", b"*/*")]


def test_cookies_of_listeners_are_withheld_and_others_are_not() -> None:
    cookie = f"theme=dark; {COOKIE}=secret; aboard-7007-x=other;flavour=a=b"
    scope = withhold_secrets(raw_scope("/", headers={"cookie": cookie}))
    assert scope["headers"] == [(b"cookie", b"theme=dark; flavour=a=b")]
    alone = withhold_secrets(raw_scope("/", headers={"cookie": f"{COOKIE}=secret"}))
    assert alone["headers"] == []


def test_the_rest_of_a_query_reaches_the_application_as_it_was_written() -> None:
    scope = raw_scope("/", query_string=b"tag=a%2Fb&key=secret&run=x+y|\xc3\xa9")
    assert withhold_secrets(scope)["query_string"] == b"tag=a%2Fb&run=x+y|\xc3\xa9"


def test_cookies_that_others_planted_do_not_hide_ours() -> None:
    planted = "; ".join(f"{COOKIE}=planted{number}" for number in range(180))
    scope = raw_scope("/", headers={"cookie": f"{planted}; {COOKIE}=ours"})
    assert "ours" in read_request(scope).sessions


def test_there_is_an_end_to_cookies() -> None:
    scope = raw_scope("/", headers={"cookie": ";".join(f"{COOKIE}={n}" for n in range(10_000))})
    assert len(read_request(scope).sessions) <= 256


@pytest.mark.parametrize(
    ("headers", "elsewhere"),
    [
        ({}, False),
        ({"origin": "http://board.test:6006"}, False),
        ({"origin": "https://BOARD.test:6006"}, False),
        ({"origin": "http://board.test:7007"}, True),
        ({"origin": "http://elsewhere.test"}, True),
        ({"origin": "null"}, True),
        ({"sec-fetch-site": "same-origin"}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"sec-fetch-site": "same-site"}, True),
        ({"sec-fetch-site": "cross-site"}, True),
        ({"sec-fetch-site": "same-origin", "origin": "http://behind-a-proxy.test"}, False),
        ({"sec-fetch-site": "cross-site", "origin": "http://board.test:6006"}, True),
    ],
)
def test_what_browsers_say_about_where_a_request_comes_from(
    headers: dict[str, str], elsewhere: bool
) -> None:
    scope = raw_scope("/", headers={"host": "board.test:6006", **headers})
    assert read_request(scope).is_cross_origin is elsewhere


def test_an_origin_that_is_no_address_is_another() -> None:
    from aboard.web.request import _is_cross_origin

    assert _is_cross_origin([(b"origin", b"http://["), (b"host", b"localhost")])


def test_every_response_gets_them() -> None:
    assert dict(secured([], HOST)) == SAFE


def test_what_the_application_decided_is_kept_where_that_is_safe() -> None:
    policy = (b"content-security-policy", b"default-src 'self'")
    own = [policy, (b"Cache-Control", b"no-cache"), (b"Referrer-Policy", b"no-referrer")]
    headers = secured(own, HOST)
    assert policy in headers
    assert dict(headers)[b"cache-control"] == b"no-cache"
    assert dict(headers)[b"referrer-policy"] == b"no-referrer"
    assert len(headers) == len(dict(headers))


def test_what_the_application_may_not_decide_is_replaced() -> None:
    loose = [
        (b"X-Frame-Options", b"ALLOWALL"),
        (b"Cross-Origin-Resource-Policy", b"cross-origin"),
        (b"Access-Control-Allow-Origin", b"*"),
        (b"access-control-allow-credentials", b"true"),
        (b"Cache-Control", b"Public, max-age=60"),
    ]
    assert dict(secured(loose, HOST)) == SAFE | {b"cache-control": b"private, max-age=60"}


@pytest.mark.parametrize(
    ("location", "sent"),
    [
        (b"http://board.test:6006/b/x/?a=1", b"/b/x/?a=1"),
        (b"https://BOARD.test:6006/", b"/"),
        (b"http://board.test:6006", b"/"),
        (b"http://board.test:6006//elsewhere.test/", b"/elsewhere.test/"),
        (b"//board.test:6006/b", b"/b"),
        (b"/b/x", b"/b/x"),
        (b"../x", b"../x"),
        (b"https://docs.test/page", b"https://docs.test/page"),
    ],
)
def test_redirects_never_repeat_the_host_they_were_asked_for(location: bytes, sent: bytes) -> None:
    assert dict(secured([(b"location", location)], HOST))[b"location"] == sent
