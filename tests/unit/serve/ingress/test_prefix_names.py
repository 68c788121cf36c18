"""Names of prompt prefixes: equal exactly where the engine's prefix cache would share them."""

from array import array
from dataclasses import replace
from typing import Any

import pytest

from justitia_ray.core.prefixes import Prefix, read_prefixes
from justitia_ray.protocol.cache_scope import Isolation
from justitia_ray.protocol.inference_body import InferenceBody, PromptCount
from justitia_ray.serve.ingress.prefix_names import PrefixNames
from justitia_ray.serve.transport.handshake import Key, Keyring

BLOCK = 16
_KEY = Key("k", b"s" * 32)


def names_of(isolation: Isolation = "tenant", key: Key = _KEY, block: int = BLOCK) -> PrefixNames:
    keyring = Keyring()
    keyring.add(key)
    names = PrefixNames(isolation, keyring)
    names.block_size = block
    return names


def body(**fields: Any) -> InferenceBody:
    return InferenceBody({"model": "m", **fields}, ["p"])


def prompt(*tokens: int, cuts: tuple[int, ...] = ()) -> PromptCount:
    return PromptCount(len(tokens), ids=array("I", tokens), cuts=cuts)


def named(
    count: PromptCount,
    names: PrefixNames | None = None,
    tenant: str = "acme/search",
    asked: InferenceBody | None = None,
) -> tuple[Prefix, ...]:
    packed = (names or names_of()).names(count, asked or body(), tenant)
    return read_prefixes(packed, count.tokens)


def test_cuts_are_whole_blocks_and_the_last_token_is_never_shared() -> None:
    """The engine computes the last token of a prompt in any case."""
    found = named(prompt(*range(64), cuts=(3, 20, 35)))

    assert [16, 32, 48] == [prefix.tokens for prefix in found]
    assert [16, 32, 48, 64] == [
        prefix.tokens for prefix in named(prompt(*range(65), cuts=(20, 35, 50)))
    ]


def test_prompts_that_begin_alike_have_that_name_in_common() -> None:
    one = named(prompt(*range(40), 1, 2, 3, cuts=(40,)))
    other = named(prompt(*range(40), 3, 2, 1, 0, 0, cuts=(40,)))

    assert one[:1] == other[:1]
    assert {32} == {prefix.tokens for prefix in (*one, *other)}
    assert named(prompt(0, *range(1, 40), cuts=(40,))) == one
    assert named(prompt(9, *range(1, 40), cuts=(40,))) != one


def test_texts_of_other_lengths_are_named_at_the_same_round_lengths() -> None:
    """Completions do not mark common prefixes; 96 of 100 to 111 common blocks are found."""
    lengths = [
        {prefix.tokens // BLOCK for prefix in named(prompt(*range(BLOCK * blocks + 1)))}
        for blocks in (100, 105, 111)
    ]

    assert {96, 80, 64} <= set.intersection(*lengths)
    assert {1} == {p.tokens // BLOCK for p in named(prompt(*range(BLOCK + 1)))}
    assert () == named(prompt(*range(BLOCK)))


@pytest.mark.parametrize(
    "other",
    [
        {"tenant": "acme/sales"},
        {"asked": body(cache_salt="s")},
        {"asked": body(add_special_tokens=False)},
        {"asked": InferenceBody({"model": "adapter"}, ["p"])},
        {"names": names_of(key=Key("k", b"t" * 32))},
    ],
)
def test_prefixes_in_separate_caches_have_different_names(other: dict[str, Any]) -> None:
    """A different secret gives different names, so names cannot be guessed."""
    count = prompt(*range(40), cuts=(20,))

    assert not set(named(count)) & set(named(count, **other))


def test_callers_share_as_far_as_the_isolation_says() -> None:
    count = prompt(*range(40), cuts=(20,))
    cases: tuple[tuple[Isolation, str, bool], ...] = (
        ("top", "acme/sales", True),
        ("top", "other", False),
        ("shared", "other", True),
    )
    for isolation, tenant, shares in cases:
        names = names_of(isolation)
        assert shares == (named(count, names) == named(count, names, tenant))


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt_logprobs": 0},
        {"echo": True, "logprobs": 1},
        {"echo": True, "messages": []},
    ],
)
def test_request_that_reads_no_cache_shares_nothing(fields: dict[str, Any]) -> None:
    assert names_of().shares(body())
    assert names_of().shares(body(echo=True))
    assert not names_of().shares(body(**fields))
    assert not names_of().shares(replace(body(), pools=True))
    assert not names_of().shares(replace(body(), keeps=8))


def test_nothing_is_named_without_a_cache_or_ids() -> None:
    assert not names_of(block=0).shares(body())
    assert b"" == names_of(block=0).names(prompt(*range(40)), body(), "t")
    assert b"" == names_of().names(PromptCount(40, is_exact=False), body(), "t")
    assert b"" == PrefixNames("tenant", Keyring()).names(prompt(*range(40)), body(), "t")
