"""The papers' mixed suite as a live load, cut to the context of a small model.

Nine classes in the mix of the Justitia paper (v1, Sec. V-A): 72 % small, 26 % medium, 2 % large.
Lengths are those of recorded runs, or made up from their statistics, all times one factor, so that
what is large against what stays as it was measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from justitia_ray.errors import ConfigError
from justitia_ray.units import Seconds, Tokens
from justitia_ray.workloads.lengths import LEAST_MAX_PROMPT_WORDS, LengthPlan
from justitia_ray.workloads.load_plan import LoadPlan, PlannedApplication

NINE_CLASS_MIX: Mapping[str, int] = {
    "CC": 22,
    "KBQAV": 22,
    "ALFWI": 22,
    "EV": 3,
    "FV": 3,
    "DM": 1,
    "MRS": 1,
    "PE": 13,
    "SC": 13,
}
"""Of a hundred applications, how many of each class; the suite `nine-class` has the same."""

WORDS_PER_TINY_TOKEN = 0.43
"""Words of our prompts to a token of the tiny model's 2,048-entry tokenizer; see `dry_run`."""

LONGEST_TOKENS: Tokens = 8_192
"""Above the longest recorded inference, prompt and output (DM: 7,519): a context of this size needs
no cutting."""

SC_SAMPLES = 40
"""As in the self-consistency paper; it makes the class the medium one that Justitia has it be."""

_TOKENS_PER_WORD_AT_MOST = 3.4
_MARGIN_TOKENS: Tokens = 64
"""For the chat template, and words that are longer still."""
_WARM_UP = {"CC": 3, "KBQAV": 3, "ALFWI": 2, "EV": 2, "FV": 2, "PE": 3, "SC": 2, "MRS": 1}
"""What the predictor learns its first means from. No DM: one has a hundred times the cost of a
small application, and a bench that waits for it measures nothing else."""


@dataclass(frozen=True, slots=True)
class NineClassLoad:
    """What is played, and before it what the predictor learns its first means from."""

    warm_up: list[PlannedApplication]
    applications: list[PlannedApplication]
    length_scale: float
    """The recorded lengths of prompts and outputs were multiplied by it."""
    gap_scale: float
    """And tool time by this."""


def nine_class_plan(
    data_dir: Path | None,
    seed: int,
    count: int,
    *,
    window_s: Seconds | None = None,
    arrivals: Sequence[Seconds] | None = None,
    context_tokens: Tokens = 2_048,
    length_scale: float | None = None,
    gap_scale: float | None = None,
    words_per_token: float = WORDS_PER_TINY_TOKEN,
    samples: int = SC_SAMPLES,
    most_fan_out: int | None = None,
    mix: Mapping[str, int] = NINE_CLASS_MIX,
    tenants: Sequence[str] = ("default",),
) -> NineClassLoad:
    """Draw the load; the same arguments draw the same.

    Classes, inputs, lengths, arrivals and tenants are drawn apart: a change to one leaves the
    others.

    Args:
        data_dir: Where recorded runs and inputs lie; None: they are made up.
        seed: Of all draws.
        count: How many applications. Of a hundred each class has exactly its share.
        window_s: In how long they arrive on average, as a Poisson process.
        arrivals: Their instants, in place of `window_s`; see `sim.suites.arrivals.arrival_times`
            for those of a recorded trace.
        context_tokens: Of the model; no prompt with its output is longer.
        length_scale: Factor on all lengths; None: what makes the longest recorded inference fit
            the context.
        gap_scale: Factor on tool time; None: the same as on lengths, which on the same engine
            leaves the share of tool time in an application's life about as it was.
        words_per_token: Of the prompts, under the model's tokenizer.
        samples: Of a vote of SC.
        most_fan_out: Calls that a stage makes side by side, at most; see `LengthPlan`.
        mix: How many of each class a deck holds.
        tenants: On whose behalf applications run; each is as likely.

    Raises:
        ConfigError: If a value is out of range, or inputs cannot be loaded.
    """
    if (window_s is None) == (arrivals is None):
        raise ConfigError("one of window_s and arrivals must be given, got both or neither")
    if window_s is not None and not 0 < window_s < float("inf"):
        raise ConfigError(f"window_s must be a number > 0, got {window_s}")
    scale = context_tokens / LONGEST_TOKENS if length_scale is None else length_scale
    gaps = scale if gap_scale is None else gap_scale
    max_output_tokens = context_tokens // 3
    max_prompt_words = int(
        (context_tokens - max_output_tokens - _MARGIN_TOKENS) / _TOKENS_PER_WORD_AT_MOST
    )
    if max_prompt_words < LEAST_MAX_PROMPT_WORDS:
        raise ConfigError(
            f"context_tokens must leave prompts {LEAST_MAX_PROMPT_WORDS} words, got"
            f" {context_tokens}, which leave {max_prompt_words}"
        )
    lengths = LengthPlan(
        seed=seed,
        length_scale=scale,
        gap_scale=gaps,
        max_prompt_words=max_prompt_words,
        max_output_tokens=max_output_tokens,
        words_per_token=words_per_token,
        samples=samples,
        most_fan_out=most_fan_out,
        data_dir=data_dir,
    )
    applications = LoadPlan(
        lengths,
        count=count,
        rate_per_s=1.0 if window_s is None else count / window_s,
        seed=seed,
        mix=mix,
        tenants=tenants,
        data_dir=data_dir,
        arrivals=arrivals,
        dealt=True,
    ).applications()
    warm_up = LoadPlan(
        lengths,
        count=sum(_WARM_UP.values()),
        rate_per_s=4.0,
        seed=seed + 1000,
        mix=_WARM_UP,
        data_dir=data_dir,
        dealt=True,
    ).applications()
    return NineClassLoad(warm_up, applications, scale, gaps)
