"""Completion bodies: forms of prompts, echoes as in evaluations, lengths."""

from typing import Any

from tests.conformance.corpus.words import CONTEXT, FILLING, LONG

_HI: dict[str, Any] = {"prompt": "hi", "max_tokens": 2}


def _hi_completion(**more: Any) -> dict[str, Any]:
    return _HI | more


COMPLETIONS: dict[str, dict[str, Any]] = {
    "plain": _hi_completion(),
    "streamed": _hi_completion(stream=True),
    "of no length": {"prompt": "hi"},
    "length null": _hi_completion(max_tokens=None),
    "two texts": _hi_completion(prompt=["a", "b"]),
    "ids": _hi_completion(prompt=[5, 6, 7]),
    "two lists of ids": _hi_completion(prompt=[[5, 6], [7]]),
    "ids as floats": _hi_completion(prompt=[5.0, 6.0]),
    "ids as texts in a list": _hi_completion(prompt=[["5", "6"]]),
    "negative ids": _hi_completion(prompt=[-1, 5]),
    "a text beside ids": _hi_completion(prompt=["a", [5]]),
    "a text beside an id": _hi_completion(prompt=["a", 5]),
    "no prompt": {"max_tokens": 2},
    "prompt null": _hi_completion(prompt=None),
    "prompt empty": _hi_completion(prompt=""),
    "prompt no text": _hi_completion(prompt=[]),
    "prompt an empty list of ids": _hi_completion(prompt=[[]]),
    "prompt an object": _hi_completion(prompt={"text": "a"}),
    "prompt a number": _hi_completion(prompt=7),
    "prompt bools": _hi_completion(prompt=[True, False]),
    "echo of no output": _hi_completion(echo=True, max_tokens=0, logprobs=1),
    "echo of no output, streamed": _hi_completion(echo=True, max_tokens=0, logprobs=1, stream=True),
    "echo of no output, many": _hi_completion(
        prompt=[[n, n + 1, n + 2] for n in range(5, 69)], echo=True, max_tokens=0, logprobs=1
    ),
    "echo as a text": _hi_completion(echo="true", max_tokens=0),
    "echo": _hi_completion(echo=True),
    "no output, no echo": _hi_completion(max_tokens=0),
    "max_tokens above what is left": _hi_completion(
        prompt=FILLING, max_tokens=CONTEXT - 12, stop=["a", "e", " "]
    ),
    "max_tokens of the context": _hi_completion(max_tokens=CONTEXT, stop=["a", "e", " "]),
    "max_tokens above the context": _hi_completion(max_tokens=CONTEXT + 1),
    "max_tokens a text": _hi_completion(max_tokens="2"),
    "max_tokens negative": _hi_completion(max_tokens=-5),
    "too long": _hi_completion(prompt=LONG),
    "too long in ids": _hi_completion(prompt=[5] * (CONTEXT + 1)),
    "as long as the context": _hi_completion(prompt=[5] * CONTEXT),
    "one shorter than the context": _hi_completion(prompt=[5] * (CONTEXT - 1)),
    "too long, cut to what fits": _hi_completion(prompt=LONG, truncate_prompt_tokens=-1),
    "too long, cut to a length": _hi_completion(prompt=LONG, truncate_prompt_tokens=100),
    "too long, cut on the left": _hi_completion(
        prompt=LONG, truncate_prompt_tokens=100, truncation_side="left"
    ),
    "too long in ids, cut": _hi_completion(prompt=[5] * (CONTEXT + 9), truncate_prompt_tokens=10),
    "cut to nothing": _hi_completion(truncate_prompt_tokens=0),
    "suffix": _hi_completion(suffix="end"),
    "suffix null": _hi_completion(suffix=None),
    "best_of": _hi_completion(best_of=2),
    "logprobs": _hi_completion(logprobs=2),
    "logprobs true": _hi_completion(logprobs=True),
    "logprobs a word": _hi_completion(logprobs="many"),
    "prompt_logprobs": _hi_completion(prompt_logprobs=1),
    "prompt_logprobs in a stream": _hi_completion(prompt_logprobs=1, stream=True),
    "n null": _hi_completion(n=None),
    "n 2": _hi_completion(n=2),
    "stop a list with null": _hi_completion(stop=[None]),
    "tier fast": _hi_completion(service_tier="fast"),
    "no special tokens": _hi_completion(add_special_tokens=False),
    "stream options without a stream": _hi_completion(stream_options={"include_usage": True}),
    "format json_object": _hi_completion(response_format={"type": "json_object"}),
    "stream options of no kind": _hi_completion(stream=True, stream_options=["usage"]),
    "embeddings as a prompt": {"prompt_embeds": "AAAA", "max_tokens": 2},
    "session": _hi_completion(session_id="s", request_id="r", user="u"),
    "tools of a completion": _hi_completion(tools=[], tool_choice="auto"),
}
