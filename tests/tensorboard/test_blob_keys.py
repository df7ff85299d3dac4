"""Keys of blobs can be read by whoever signed them, and not made up."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aboard.tensorboard.provider import BadKey, BlobKey, Signer

SIGNER = Signer(b"secret")
KEY = BlobKey("board", "räum é/lauf #1", "images/a?b&c=d", 7, 2)
names = st.text(st.characters(codec="utf-8"))


@given(names, names, names, st.integers(-(2**63), 2**63 - 1), st.integers(0, 1000))
def test_what_is_signed_can_be_read_and_may_stand_in_a_url(board, run, tag, step, place):
    key = BlobKey(board, run, tag, step, place)
    text = SIGNER.sign(key)
    assert SIGNER.read(text) == key
    assert set(text) <= set(string.ascii_letters + string.digits + "-_")


def test_a_run_of_undecodable_bytes_has_a_key():
    key = KEY._replace(run="caf\udce9")
    assert SIGNER.read(SIGNER.sign(key)) == key


def test_every_change_is_noticed():
    text = SIGNER.sign(KEY)
    for place in range(len(text)):
        with pytest.raises(BadKey):
            SIGNER.read(text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :])
        with pytest.raises(BadKey):
            SIGNER.read(text[:place])


@pytest.mark.parametrize("added", ["=", "!", " ", "A", "é", "\n", "%00"])
def test_nothing_may_be_added(added):
    text = SIGNER.sign(KEY)
    for changed in (text + added, added + text, text[:5] + added + text[5:]):
        with pytest.raises(BadKey):
            SIGNER.read(changed)


@given(st.text())
def test_nothing_made_up_is_a_key(text):
    with pytest.raises(BadKey):
        SIGNER.read(text)


def test_keys_of_another_process_are_refused():
    with pytest.raises(BadKey):
        Signer().read(Signer().sign(KEY))
