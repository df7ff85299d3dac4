"""Framing and checksums, alone and of many pieces at once."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aboard.events import crc, records
from aboard.events.records import _crc32c_python, frame, mask, read_records, unframe


def test_crc_of_the_standard_check_value():
    assert records.crc32c(b"123456789") == 0xE3069283
    assert _crc32c_python(b"123456789") == 0xE3069283
    assert _crc32c_python(b"") == records.crc32c(b"") == 0


@given(st.binary(max_size=300))
def test_both_implementations_agree(data):
    assert records.crc32c(data) == _crc32c_python(data)


@pytest.mark.parametrize("length", [0, 1, 2, 3, 8, 2047, 2048, 2049, 5000, 100_003])
def test_many_records_are_verified_at_once(length):
    rng = random.Random(length)
    framed = [frame(rng.randbytes(length + more)) for more in (0, 5, 0, 1)]
    block, bounds = b"".join(framed), np.cumsum([0, *map(len, framed)])
    assert crc.verify(block, bounds) == 4
    for place in (bounds[2], bounds[2] + 12 + length // 2, bounds[3] - 1):
        broken = bytearray(block)
        broken[place] ^= 4
        assert crc.verify(bytes(broken), bounds) == 2


def test_headers_are_found_wherever_they_stand():
    rng = random.Random(7)
    garbage = rng.randbytes(70_000)
    block = garbage + frame(b"x") + rng.randbytes(13) + frame(b"yz")
    found = [at for places in crc.headers(block, 0) for at in places if at >= len(garbage)]
    assert found == [len(garbage), len(garbage) + 17 + 13]


@given(st.lists(st.binary(max_size=50), max_size=8))
def test_what_is_framed_is_read_back(payloads):
    data = b"".join(map(frame, payloads))
    assert [payload for _, payload in read_records(data)] == payloads


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
    with pytest.raises(ValueError, match="not what its header says"):
        unframe(good + b"x")


def test_a_mask_is_not_the_checksum():
    assert mask(0) == 0xA282EAD8
    assert np.uint32(mask(0xFFFFFFFF)) == 0xA282EAD7
