"""Signatures of payloads: what is accepted, and that every change is found."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskmesh.errors import BadSignature
from taskmesh.messages.signing import LENGTH, MAGIC, Signer, is_signed, refuse
from taskmesh.shm.blob import Blob

KEY, FORMER, OTHER = b"k" * 32, b"f" * 32, b"o" * 32


@given(st.binary(max_size=200), st.binary(max_size=50))
def test_what_was_signed_comes_back(payload, context):
    signed = Signer([KEY]).sign(context, payload)

    assert is_signed(signed)
    assert Signer([KEY]).verified(context, signed) == payload


@given(st.binary(min_size=1, max_size=60), st.data())
def test_every_changed_bit_is_found(payload, data):
    signed = bytearray(Signer([KEY]).sign(b"context", payload))
    place = data.draw(st.integers(0, len(signed) * 8 - 1))
    signed[place // 8] ^= 1 << place % 8

    with pytest.raises(BadSignature):
        Signer([KEY]).verified(b"context", bytes(signed))


def test_another_context_or_key_is_refused():
    signed = Signer([KEY]).sign(b"task 1", b"payload")

    with pytest.raises(BadSignature, match="signature is wrong"):
        Signer([KEY]).verified(b"task 2", signed)
    with pytest.raises(BadSignature, match=r"another mesh\.secret"):
        Signer([OTHER]).verified(b"task 1", signed)


@pytest.mark.parametrize("payload", [b"", b"\x80\x05N.", MAGIC, MAGIC + bytes(31)])
def test_what_is_not_signed_is_refused_with_the_cure(payload):
    with pytest.raises(BadSignature, match=r"copy the file mesh\.secret"):
        Signer([KEY]).verified(b"", payload)


def test_while_the_mesh_key_rotates_both_are_good():
    rotating = Signer([KEY, FORMER])

    assert rotating.verified(b"c", Signer([FORMER]).sign(b"c", b"x")) == b"x"
    assert Signer([KEY]).verified(b"c", rotating.sign(b"c", b"x")) == b"x"


def blob(*parts: bytes) -> Blob:
    return Blob.from_parts(parts, [2] * (len(parts) - 1))


def test_large_payloads_keep_their_parts_and_flags():
    original = blob(b"pickle", b"a" * 100_000, b"b" * 70_000)

    found = Signer([KEY]).verified(b"c", Signer([KEY]).sign(b"c", original))

    assert [bytes(part) for part in found.parts] == [bytes(part) for part in original.parts]
    assert [flag for _, _, flag in found.layout] == [flag for _, _, flag in original.layout]


def test_a_boundary_between_parts_that_was_moved_is_found():
    signed = Signer([KEY]).sign(b"c", blob(b"pickle", b"aaab", b"bbb"))
    moved = blob(signed.parts[0], b"aaa", b"bbbb")

    with pytest.raises(BadSignature):
        Signer([KEY]).verified(b"c", moved)
    assert len(signed.parts[0]) == LENGTH + 6


@pytest.mark.parametrize("moved", [1, 4, 7])
def test_the_boundary_between_context_and_payload_that_was_moved_is_found(moved):
    signed = Signer([KEY]).sign(b"task 1", b"payload")
    signature, payload = signed[:LENGTH], signed[LENGTH:]

    with pytest.raises(BadSignature):
        Signer([KEY]).verified(b"task 1" + payload[:moved], signature + payload[moved:])
    with pytest.raises(BadSignature):
        Signer([KEY]).verified(b"task 1"[:-moved], signature + b"task 1"[-moved:] + payload)


def test_the_boundary_between_context_and_parts_that_was_moved_is_found():
    inner = [b"evil", b"argument"]
    sizes = struct.pack(">3Q", 2, *map(len, inner))
    signed = Signer([KEY]).sign(b"task 1", blob(b"pickle", sizes + b"".join(inner)))
    before = struct.pack(">3Q", 2, 6, len(sizes) + 12) + b"pickle"

    with pytest.raises(BadSignature):
        Signer([KEY]).verified(b"task 1" + before, blob(signed.parts[0][:LENGTH] + inner[0], inner[1]))


def test_the_keys_are_in_no_text():
    assert "kkkk" not in repr(Signer([KEY]))


def test_what_runs_in_place_of_a_task_that_is_not_trusted_only_raises():
    with pytest.raises(BadSignature, match="was not run: changed"):
        refuse("changed")
