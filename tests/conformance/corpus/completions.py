"""Completion bodies: forms of prompts, echoes as in evaluations, lengths."""

from typing import Any

from tests.conformance.corpus.words import CONTEXT, FILLING, LONG

_HI: dict[str, Any] = {"prompt": "hi", "max_tokens": 2}


def _hi(**more: Any) -> dict[str, Any]:
    return _HI | more


COMPLETIONS: dict[str, dict[str, Any]] = {
    "plain": _hi(),
    "streamed": _hi(stream=True),
    "of no length": {"prompt": "hi"},
    "length null": _hi(max_tokens=None),
    "two texts": _hi(prompt=["a", "b"]),
    "ids": _hi(prompt=[5, 6, 7]),
    "two lists of ids": _hi(prompt=[[5, 6], [7]]),
    "ids as floats": _hi(prompt=[5.0, 6.0]),
    "ids as texts in a list": _hi(prompt=[["5", "6"]]),
    "negative ids": _hi(prompt=[-1, 5]),
    "a text beside ids": _hi(prompt=["a", [5]]),
    "a text beside an id": _hi(prompt=["a", 5]),
    "no prompt": {"max_tokens": 2},
    "prompt null": _hi(prompt=None),
    "prompt empty": _hi(prompt=""),
    "prompt no text": _hi(prompt=[]),
    "prompt an empty list of ids": _hi(prompt=[[]]),
    "prompt an object": _hi(prompt={"text": "a"}),
    "prompt a number": _hi(prompt=7),
    "prompt bools": _hi(prompt=[True, False]),
    "echo of no output": _hi(echo=True, max_tokens=0, logprobs=1),
    "echo of no output, streamed": _hi(echo=True, max_tokens=0, logprobs=1, stream=True),
    "echo of no output, many": _hi(
        prompt=[[n, n + 1, n + 2] for n in range(5, 69)], echo=True, max_tokens=0, logprobs=1
    ),
    "echo as a text": _hi(echo="true", max_tokens=0),
    "echo": _hi(echo=True),
    "no output, no echo": _hi(max_tokens=0),
    "max_tokens above what is left": _hi(
        prompt=FILLING, max_tokens=CONTEXT - 12, stop=["a", "e", " "]
    ),
    "max_tokens of the context": _hi(max_tokens=CONTEXT, stop=["a", "e", " "]),
    "max_tokens above the context": _hi(max_tokens=CONTEXT + 1),
    "max_tokens a text": _hi(max_tokens="2"),
    "max_tokens negative": _hi(max_tokens=-5),
    "too long": _hi(prompt=LONG),
    "too long in ids": _hi(prompt=[5] * (CONTEXT + 1)),
    "as long as the context": _hi(prompt=[5] * CONTEXT),
    "one shorter than the context": _hi(prompt=[5] * (CONTEXT - 1)),
    "too long, cut to what fits": _hi(prompt=LONG, truncate_prompt_tokens=-1),
    "too long, cut to a length": _hi(prompt=LONG, truncate_prompt_tokens=100),
    "too long, cut on the left": _hi(
        prompt=LONG, truncate_prompt_tokens=100, truncation_side="left"
    ),
    "too long in ids, cut": _hi(prompt=[5] * (CONTEXT + 9), truncate_prompt_tokens=10),
    "cut to nothing": _hi(truncate_prompt_tokens=0),
    "suffix": _hi(suffix="end"),
    "suffix null": _hi(suffix=None),
    "best_of": _hi(best_of=2),
    "logprobs": _hi(logprobs=2),
    "logprobs true": _hi(logprobs=True),
    "logprobs a word": _hi(logprobs="many"),
    "prompt_logprobs": _hi(prompt_logprobs=1),
    "prompt_logprobs in a stream": _hi(prompt_logprobs=1, stream=True),
    "n null": _hi(n=None),
    "n 2": _hi(n=2),
    "stop a list with null": _hi(stop=[None]),
    "tier fast": _hi(service_tier="fast"),
    "no special tokens": _hi(add_special_tokens=False),
    "stream options without a stream": _hi(stream_options={"include_usage": True}),
    "format json_object": _hi(response_format={"type": "json_object"}),
    "stream options of no kind": _hi(stream=True, stream_options=["usage"]),
    "embeddings as a prompt": {"prompt_embeds": "AAAA", "max_tokens": 2},
    "session": _hi(session_id="s", request_id="r", user="u"),
    "tools of a completion": _hi(tools=[], tool_choice="auto"),
}
