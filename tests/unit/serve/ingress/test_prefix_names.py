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


def body_of(**fields: Any) -> InferenceBody:
    return InferenceBody({"model": "m", **fields}, ["p"])


def prompt_of(*tokens: int, cuts: tuple[int, ...] = ()) -> PromptCount:
    return PromptCount(len(tokens), ids=array("I", tokens), cuts=cuts)


def prefixes_of(
    count: PromptCount,
    names: PrefixNames | None = None,
    tenant: str = "acme/search",
    asked: InferenceBody | None = None,
) -> tuple[Prefix, ...]:
    packed = (names or names_of()).names(count, asked or body_of(), tenant)
    return read_prefixes(packed, count.tokens)


def test_named_prompt_prefixes_are_whole_blocks_without_the_last_token() -> None:
    """The engine always computes the last token of a prompt."""
    found = prefixes_of(prompt_of(*range(64), cuts=(3, 20, 35)))

    assert [16, 32, 48] == [prefix.tokens for prefix in found]
    assert [16, 32, 48, 64] == [
        prefix.tokens for prefix in prefixes_of(prompt_of(*range(65), cuts=(20, 35, 50)))
    ]


def test_prompts_with_a_common_beginning_share_a_prefix_name() -> None:
    one = prefixes_of(prompt_of(*range(40), 1, 2, 3, cuts=(40,)))
    other = prefixes_of(prompt_of(*range(40), 3, 2, 1, 0, 0, cuts=(40,)))

    assert one[:1] == other[:1]
    assert {32} == {prefix.tokens for prefix in (*one, *other)}
    assert prefixes_of(prompt_of(0, *range(1, 40), cuts=(40,))) == one
    assert prefixes_of(prompt_of(9, *range(1, 40), cuts=(40,))) != one


def test_prefix_names_of_all_prompts_cover_equal_round_lengths() -> None:
    """The prefix names of a completion cover 96 of 100 to 111 common blocks."""
    lengths = [
        {prefix.tokens // BLOCK for prefix in prefixes_of(prompt_of(*range(BLOCK * blocks + 1)))}
        for blocks in (100, 105, 111)
    ]

    assert {96, 80, 64} <= set.intersection(*lengths)
    assert {1} == {p.tokens // BLOCK for p in prefixes_of(prompt_of(*range(BLOCK + 1)))}
    assert () == prefixes_of(prompt_of(*range(BLOCK)))


@pytest.mark.parametrize(
    "other",
    [
        {"tenant": "acme/sales"},
        {"asked": body_of(cache_salt="s")},
        {"asked": body_of(add_special_tokens=False)},
        {"asked": InferenceBody({"model": "adapter"}, ["p"])},
        {"names": names_of(key=Key("k", b"t" * 32))},
    ],
)
def test_prefixes_in_separate_caches_have_different_names(other: dict[str, Any]) -> None:
    """The names depend on a secret, so they cannot be guessed."""
    count = prompt_of(*range(40), cuts=(20,))

    assert not set(prefixes_of(count)) & set(prefixes_of(count, **other))


def test_prompt_prefixes_are_shared_only_within_the_isolation_setting() -> None:
    count = prompt_of(*range(40), cuts=(20,))
    cases: tuple[tuple[Isolation, str, bool], ...] = (
        ("top", "acme/sales", True),
        ("top", "other", False),
        ("shared", "other", True),
    )
    for isolation, tenant, shares in cases:
        names = names_of(isolation)
        assert shares == (prefixes_of(count, names) == prefixes_of(count, names, tenant))


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt_logprobs": 0},
        {"echo": True, "logprobs": 1},
        {"echo": True, "messages": []},
    ],
)
def test_request_that_skips_the_cache_has_no_prefix_names(fields: dict[str, Any]) -> None:
    assert names_of().shares(body_of())
    assert names_of().shares(body_of(echo=True))
    assert not names_of().shares(body_of(**fields))
    assert not names_of().shares(replace(body_of(), pools=True))
    assert not names_of().shares(replace(body_of(), keeps=8))


def test_prompt_has_no_prefix_names_without_a_cache_or_ids() -> None:
    assert not names_of(block=0).shares(body_of())
    assert b"" == names_of(block=0).names(prompt_of(*range(40)), body_of(), "t")
    assert b"" == names_of().names(PromptCount(40, is_exact=False), body_of(), "t")
    assert b"" == PrefixNames("tenant", Keyring()).names(prompt_of(*range(40)), body_of(), "t")
