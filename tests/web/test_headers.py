import pytest

from aboard.web.headers import secured

HOST = b"board.test:6006"
SAFE = {
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"SAMEORIGIN",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"referrer-policy": b"same-origin",
    b"cache-control": b"private",
}


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
