"""Long texts are tokenized in pieces: the count is exact and stops at the requested limit."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from justitia_ray.protocol.inference_body import Counting
from justitia_ray.serve.engines.prompt_pieces import Ids, PieceCounter

_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_WORDS = [
    "the",
    "a",
    "leases",
    "of",
    "tenant's",
    "scheduler",
    "42",
    "3.14",
    "foo_bar",
    "äöü",
    "漢字かな交じり文",
    "дом",
    "👩\u200d👩\u200d👧",
    "x=[1,2]",
    "-",
    "..",
    "¿qué?",
    "naïve",
]
_GAPS = (" ", " ", " ", "\n", "\n\n", "  ", "\t", "\r\n", ", ", ". ", "    ", "")
_PIECE = 2_500


def _random_text(draw: random.Random, characters: int) -> str:
    """Return a text of words, gaps and numbers, with an occasional long word."""
    parts: list[str] = []
    length = 0
    while length < characters:
        part = draw.choice(_WORDS) + draw.choice(_GAPS)
        if draw.random() < 0.001:
            part = draw.choice(("a", "ab", " ", "\n", "漢", "=")) * draw.randrange(2_000)
        parts.append(part)
        length += len(part)
    return "".join(parts)


def _trained_tokenizer(
    model: Any, trainer: Any, tokenizer_parts: Callable[[Tokenizer], None]
) -> Any:
    tokenizer = Tokenizer(model)
    tokenizer_parts(tokenizer)
    draw = random.Random(7)
    tokenizer.train_from_iterator((_random_text(draw, 2_000) for _ in range(40)), trainer)
    return tokenizer


def _gpt_2_tokenizer() -> Any:
    def add_parts(tokenizer: Tokenizer) -> None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return _trained_tokenizer(
        models.BPE(), trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet), add_parts
    )


def _llama_3_tokenizer() -> Any:
    def add_parts(tokenizer: Tokenizer) -> None:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_LLAMA_3), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=alphabet, special_tokens=["<|begin|>"]
    )
    tokenizer = _trained_tokenizer(models.BPE(), trainer, add_parts)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", 0)]
    )
    return tokenizer


def _bert_tokenizer() -> Any:
    def add_parts(tokenizer: Tokenizer) -> None:
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    special = ["[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(vocab_size=600, special_tokens=special)
    tokenizer = _trained_tokenizer(models.WordPiece(unk_token="[UNK]"), trainer, add_parts)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    return tokenizer


def _unigram_tokenizer() -> Any:
    def add_parts(tokenizer: Tokenizer) -> None:
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()

    trainer = trainers.UnigramTrainer(vocab_size=400, special_tokens=["<unk>"], unk_token="<unk>")
    return _trained_tokenizer(models.Unigram(), trainer, add_parts)


def _llama_2_tokenizer() -> Any:
    """Return a tokenizer like Llama 2's, which splits a text only by its vocabulary."""

    def add_parts(tokenizer: Tokenizer) -> None:
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        tokenizer.decoder = decoders.ByteFallback()

    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>"], max_token_length=8)
    tokenizer = _trained_tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True), trainer, add_parts)
    tokenizer.add_special_tokens([AddedToken("<s>", lstrip=True, rstrip=True)])
    return tokenizer


_KINDS = {
    "gpt-2": _gpt_2_tokenizer,
    "llama-3": _llama_3_tokenizer,
    "bert": _bert_tokenizer,
    "unigram": _unigram_tokenizer,
    "llama-2": _llama_2_tokenizer,
}


@pytest.fixture(scope="module", params=_KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=_KINDS[request.param]())


def _tokens_and_steps(counting: Counting) -> tuple[int, int]:
    steps = 1
    while True:
        try:
            next(counting)
        except StopIteration as end:
            return end.value, steps
        steps += 1


@pytest.mark.parametrize("seed", range(5))
def test_pieces_of_a_text_have_as_many_tokens_as_the_whole_text(tokenizer: Any, seed: int) -> None:
    draw = random.Random(seed)
    text = _random_text(draw, draw.randrange(6_000, 30_000))
    counter = PieceCounter(tokenizer, _PIECE)
    for special in (False, True):
        whole = len(tokenizer(text, add_special_tokens=special).input_ids)
        found, steps = _tokens_and_steps(counter.count(text, whole, special=special))

        assert whole == found
        assert steps > 2


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("characters", [2_000, 12_000])
def test_tokenizing_in_pieces_gives_equal_token_ids_and_cut_positions(
    tokenizer: Any, characters: int, seed: int
) -> None:
    """A cut is given as the number of tokens that end at or before its position."""
    draw = random.Random(seed)
    text = _random_text(draw, characters)
    whole = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    places = sorted(draw.sample(range(1, len(text)), 3))
    ids = Ids(places)
    _tokens_and_steps(PieceCounter(tokenizer, _PIECE).count(text, None, special=False, ids=ids))

    assert whole.input_ids == list(ids.tokens)
    ends = [end for _, end in whole.offset_mapping]
    assert [sum(end <= place for end in ends) for place in places] == ids.cuts


class _RecordingTokenizer:
    """Tokenizer that records the greatest length of the texts it encodes."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.longest = 0

    def __call__(self, text: str, **options: Any) -> Any:
        self.longest = max(self.longest, len(text))
        return self._tokenizer(text, **options)


@pytest.mark.parametrize("kind", ["gpt-2", "llama-3", "bert", "unigram"])
def test_long_text_is_tokenized_in_pieces_between_words(kind: str) -> None:
    noting = _RecordingTokenizer(PreTrainedTokenizerFast(tokenizer_object=_KINDS[kind]()))
    text = " ".join(random.Random(1).choices(_WORDS, k=6_000))
    _tokens_and_steps(PieceCounter(noting, _PIECE).count(text, None, special=False))

    assert noting.longest <= _PIECE + 256 < len(text)


@pytest.mark.parametrize("seed", range(3))
def test_counting_of_a_too_long_text_stops_beyond_the_limit(tokenizer: Any, seed: int) -> None:
    draw = random.Random(seed)
    text = _random_text(draw, 60_000)
    whole = len(tokenizer(text, add_special_tokens=False).input_ids)
    most = whole // 4
    found, steps = _tokens_and_steps(
        PieceCounter(tokenizer, _PIECE).count(text, most, special=True)
    )

    assert most < found <= whole
    assert steps <= 12  # out of 24 or more


@pytest.mark.parametrize("part", ["a", "ab", " ", "\n", "漢", "=", "0", "\u0301", "a\n", "\r"])
def test_token_count_of_a_monotonous_text_is_never_too_high(tokenizer: Any, part: str) -> None:
    """A monotonous text offers no reliable position at which to split it."""
    text = part * (20_000 // len(part))
    whole = len(tokenizer(text).input_ids)
    for most in (whole, whole - 1, 10, None):
        found, _ = _tokens_and_steps(
            PieceCounter(tokenizer, _PIECE).count(text, most, special=True)
        )

        assert found == whole or (most is not None and most < found <= whole)


def test_short_text_is_tokenized_in_one_step(tokenizer: Any) -> None:
    found = _tokens_and_steps(PieceCounter(tokenizer).count("a few words", 5, special=True))

    assert (len(tokenizer("a few words").input_ids), 1) == found


@pytest.mark.parametrize("characters", [10, 20_000])
def test_token_count_of_a_text_pair_includes_special_tokens(characters: int) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=_bert_tokenizer())
    first, second = (
        _random_text(random.Random(1), characters),
        _random_text(random.Random(2), 20_000),
    )
    whole = len(tokenizer(first, second).input_ids)

    counter = PieceCounter(tokenizer, _PIECE)
    assert whole == _tokens_and_steps(counter.count_pair(first, second, None))[0]
    assert 10 < _tokens_and_steps(counter.count_pair(first, second, 10))[0] <= whole
