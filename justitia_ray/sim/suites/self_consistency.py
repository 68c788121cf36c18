"""Self-consistency: several samples of one prompt, then a vote that needs no inference.

No multi-sample run is published. What is: one greedy answer of each of three models to every
question of GSM8K (Tebmer/Rereading-LLM-Reasoning, commit 0dbad50b), at 3.3 characters a token, and
the sample code of Hermes (NephrenCake/Hermes, commit 3894339d): a template of about 600 characters,
at most 512 tokens. A sample is as long as one of the three answers to that very question.
"""

import random
from dataclasses import dataclass
from pathlib import Path

from justitia_ray.errors import ConfigError
from justitia_ray.units import Tokens
from justitia_ray.workloads.json_lines import Record, read_records
from justitia_ray.workloads.recorded import RecordedRun, RecordedStage

DEFAULT_SAMPLES = 40
"""As in the self-consistency paper (Wang et al., 2023). It makes the class a medium one, which the
Justitia paper says it is: 2.7 M token·iterations, between PE's 0.7 M and MRS' 5.5 M. The 5 of the
Hermes sample code make it as small as KBQAV."""

CHARS_PER_TOKEN = 3.3
TEMPLATE_CHARS = 600
MAX_OUTPUT_TOKENS: Tokens = 512


@dataclass(frozen=True, slots=True)
class Question:
    """One question and how long the recorded answers to it are."""

    item_id: str
    text: str
    answers: tuple[Tokens, ...]


def load_questions(data_dir: Path) -> list[Question]:
    """Return the questions in `apps/SC.jsonl`, at least one.

    Raises:
        ConfigError: If the file is missing, empty or wrong; file, line and field are named.
    """
    path = data_dir / "apps" / "SC.jsonl"
    questions = [_question(record) for record in read_records(path)]
    if not questions:
        raise ConfigError(f"{path}: must hold at least one question, is empty")
    return questions


def _question(record: Record) -> Question:
    meta = record.value("meta")
    chars = meta.get("recorded_cot_chars") if isinstance(meta, dict) else None
    if (
        not isinstance(chars, dict)
        or not chars
        or not all(type(length) is int and length >= 1 for length in chars.values())
    ):
        raise record.error("meta.recorded_cot_chars", "whole numbers >= 1 by model", chars)
    return Question(
        record.text("id"),
        record.text("input"),
        tuple(
            min(MAX_OUTPUT_TOKENS, max(1, round(chars[model] / CHARS_PER_TOKEN)))
            for model in sorted(chars)
        ),
    )


def sampled_run(question: Question, samples: int, rng: random.Random) -> RecordedRun:
    """Return a run of so many samples, each as long as a recorded answer drawn at random."""
    prompt_tokens = round((TEMPLATE_CHARS + len(question.text)) / CHARS_PER_TOKEN)
    calls = tuple((prompt_tokens, rng.choice(question.answers)) for _ in range(samples))
    return RecordedRun(question.item_id, (RecordedStage("sample", calls, 0.0),))
