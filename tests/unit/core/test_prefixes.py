"""Prefixes that several leases of a replica share: a tree, and the shared part of each lease."""

import msgspec

from justitia_ray.core.events import InferenceSubmitted
from justitia_ray.core.prefixes import (
    LONGEST_PREFIX,
    Beginnings,
    Prefix,
    pack_prefixes,
    read_prefixes,
)

SYSTEM, CHAT, FORK = (Prefix(n, name.encode() * 7) for n, name in ((32, "s"), (64, "c"), (64, "f")))


def test_each_prefix_of_a_submission_takes_ten_bytes() -> None:
    """The names of the fields add at most 64 bytes to a message."""
    packed = pack_prefixes([SYSTEM, CHAT])
    four = pack_prefixes([Prefix(2**20 + n, b"d" * 7) for n in range(4)])
    submission = InferenceSubmitted("q", "a", "q", "i", 1, 1, 1, prefixes=four, copies=1_000)
    sent = msgspec.to_builtins(submission)
    before = {name: sent[name] for name in sent if name not in ("prefixes", "copies")}
    encode = msgspec.msgpack.encode

    assert 20 == len(packed)
    assert (SYSTEM, CHAT) == read_prefixes(packed, 64)
    assert len(encode(submission)) - len(encode(before)) <= 64


def test_invalid_prefixes_are_dropped() -> None:
    """Invalid prefixes are too long, out of order, cut or too many."""
    long = Prefix(LONGEST_PREFIX, b"l" * 7)
    four = [Prefix(n, b"a" * 7) for n in (1, 2, 3, 4)]

    assert (SYSTEM,) == read_prefixes(pack_prefixes([SYSTEM, CHAT]), 63)
    assert (CHAT, long) == read_prefixes(pack_prefixes([CHAT, FORK, long]), LONGEST_PREFIX)
    assert (SYSTEM,) == read_prefixes(pack_prefixes([SYSTEM, CHAT])[:-1], 100)
    assert tuple(four) == read_prefixes(pack_prefixes([*four, CHAT]), 100)
    assert () == read_prefixes(pack_prefixes([Prefix(0, b"z" * 7)]), 100)


def test_leases_share_their_longest_common_prefix() -> None:
    beginnings = Beginnings()

    assert [] == beginnings.join("1", (SYSTEM, CHAT))
    assert {"1", "2"} == set(beginnings.join("2", (SYSTEM, FORK)))
    assert {"1": 32, "2": 32} == beginnings.shared
    assert ["3", "1"] == beginnings.join("3", (SYSTEM, CHAT))
    assert {"1": 64, "2": 32, "3": 64} == beginnings.shared


def test_shared_prefix_stays_until_its_last_lease_ends() -> None:
    """The lease that created the prefix may end first."""
    beginnings = Beginnings()
    for name in ("1", "2", "3"):
        beginnings.join(name, (SYSTEM,))

    assert [] == beginnings.leave("1")
    assert [32] == [node.held_tokens for node in beginnings]
    assert ["3"] == beginnings.leave("2")
    assert [0] == [node.held_tokens for node in beginnings]  # the node of the last lease
    assert [] == beginnings.leave("3")
    assert 0 == len(beginnings)


def test_shorter_prefix_added_later_becomes_parent_of_the_longer_prefix() -> None:
    beginnings = Beginnings()
    beginnings.join("1", (CHAT,))
    beginnings.join("2", (CHAT,))
    beginnings.join("3", (SYSTEM, CHAT))

    assert [CHAT, SYSTEM] == [node.prefix for node in beginnings.path("1")]
    assert 64 == sum(node.held_tokens for node in beginnings)


def test_lease_that_missed_a_cached_prefix_has_a_separate_copy() -> None:
    beginnings = Beginnings()
    for name in ("1", "2", "3"):
        beginnings.join(name, (SYSTEM, CHAT))

    assert beginnings.note_found("1", 0)
    assert 64 == sum(node.held_tokens for node in beginnings)
    assert beginnings.note_found("2", 40)
    assert not beginnings.note_found("2", 0)
    assert beginnings.note_found("3", 63)
    assert {32: 32, 64: 3 * 32} == {n.prefix.tokens: n.held_tokens for n in beginnings}
    beginnings.leave("2")
    assert {32: 32, 64: 2 * 32} == {n.prefix.tokens: n.held_tokens for n in beginnings}


def test_prefixes_of_equal_length_with_different_digests_are_a_collision() -> None:
    beginnings = Beginnings()
    other = Prefix(32, b"o" * 7)
    beginnings.join("1", (SYSTEM, CHAT))
    beginnings.join("2", (other, CHAT))

    assert [CHAT, SYSTEM] == [node.prefix for node in beginnings.path("2")]
    assert 64 == sum(node.held_tokens for node in beginnings)
