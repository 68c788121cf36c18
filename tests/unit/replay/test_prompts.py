"""Prompts of token ids: exactly as long as asked for, and no two alike."""

from justitia_ray.replay.prompts import prompt_token_ids


def test_prompt_has_exactly_its_tokens() -> None:
    """The lengths of the workload are what is replayed; text would be tokenised to other ones."""
    assert [1, 7, 5000] == [len(prompt_token_ids("a", "0", count)) for count in (1, 7, 5000)]


def test_prompt_is_the_same_in_every_replay() -> None:
    """Two policies are compared on one load."""
    assert prompt_token_ids("a", "0", 100) == prompt_token_ids("a", "0", 100)


def test_prompts_do_not_begin_alike() -> None:
    """A cache of prefixes, which the workload says nothing of, must not save any of the work.

    vLLM shares blocks of 16 tokens.
    """
    begins = {
        tuple(prompt_token_ids(application, str(inference), 1000)[:16])
        for application in "abcde"
        for inference in range(100)
    }

    assert 500 == len(begins)


def test_token_ids_are_in_every_vocabulary() -> None:
    """An id that the model does not have is refused; the first few are special in most."""
    ids = prompt_token_ids("a", "0", 10_000)

    assert (10, 249) == (min(ids), max(ids))
