"""Framing and checksums, alone and of many pieces at once."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aboard.events import fallback, records
from aboard.events.records import _crc32c_python, crc32c, frame, mask, unframe
from tests.framing import unframed


def test_crc_of_the_standard_check_value():
    assert records.crc32c(b"123456789") == 0xE3069283
    assert _crc32c_python(b"123456789") == 0xE3069283
    assert _crc32c_python(b"") == records.crc32c(b"") == 0


@settings(max_examples=50)
@given(st.binary(max_size=300) | st.binary(min_size=4096, max_size=4200))
def test_all_implementations_agree(data):
    library = pytest.importorskip("google_crc32c", reason="google-crc32c is not installed")
    assert records.crc32c(data) == _crc32c_python(data) == library.value(data)


@pytest.fixture(params=["google-crc32c", "numpy"])
def one_by_one(request, monkeypatch):
    """Choose what computes the checksum of a long piece."""
    if request.param == "numpy":
        monkeypatch.setattr(fallback, "_library", None)
        monkeypatch.setattr(fallback, "_LONG", 2048)
    elif fallback._library is None:
        pytest.skip("google-crc32c is not installed")


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("length", [0, 1, 2, 3, 8, 2047, 2048, 2049, 5000, 100_003])
def test_many_records_are_verified_at_once(length):
    rng = random.Random(length)
    framed = [frame(rng.randbytes(length + more)) for more in (0, 5, 0, 1)]
    block, bounds = b"".join(framed), np.cumsum([0, *map(len, framed)])
    assert fallback.verify(block, bounds) == 4
    for place in (bounds[2], bounds[2] + 12 + length // 2, bounds[3] - 1):
        broken = bytearray(block)
        broken[place] ^= 4
        assert fallback.verify(bytes(broken), bounds) == 2


def test_headers_are_found_wherever_they_stand():
    rng = random.Random(7)
    garbage = rng.randbytes(70_000)
    block = garbage + frame(b"x") + rng.randbytes(13) + frame(b"yz")
    for start in (0, 69_999, len(garbage)):
        found = [at for at in fallback.headers(block, start, len(block)) if at >= len(garbage)]
        assert found == [len(garbage), len(garbage) + 17 + 13]
    assert list(fallback.headers(block, len(garbage) + 1, len(garbage) + 30)) == []


@pytest.mark.parametrize("sizes", [[0], [1, 0, 5], [4096, 3, 5000], [100_000]])
def test_a_checksum_can_be_computed_piece_by_piece(sizes):
    pieces = [random.Random(size).randbytes(size) for size in sizes]
    state = 0xFFFFFFFF
    for piece in pieces:
        state = fallback.running(state, piece)
    assert state ^ 0xFFFFFFFF == crc32c(b"".join(pieces))


@given(st.lists(st.binary(max_size=50), max_size=8))
def test_what_is_framed_is_read_back(payloads):
    data = b"".join(map(frame, payloads))
    assert [payload for _, payload in unframed(data)] == payloads


def test_unframe_says_what_is_wrong():
    good = frame(b"hello")
    assert unframe(good) == b"hello"
    for place, words in ((0, "length"), (9, "length"), (13, "data"), (-1, "data")):
        bad = bytearray(good)
        bad[place] ^= 1
        with pytest.raises(ValueError, match=f"checksum of the record's {words}"):
            unframe(bytes(bad))
    with pytest.raises(ValueError, match="shorter than its framing"):
        unframe(b"abc")
    with pytest.raises(ValueError, match="does not match its header"):
        unframe(good + b"x")


def test_a_mask_is_not_the_checksum():
    assert mask(0) == 0xA282EAD8
    assert np.uint32(mask(0xFFFFFFFF)) == 0xA282EAD7
