"""SC: self-consistency (Wang et al., arXiv:2203.11171), on grade-school mathematics.

The model answers one question several times in parallel at a temperature, and the most frequent
answer wins.
"""

import re
from collections import Counter

from justitia_ray.lab.workloads.steps import AgentResult, Chats, Steps
from justitia_ray.sim.suites.load_plan import Lengths

TEMPERATURE = 0.7
"""Sampling temperature of the paper, above 0 so that the answers differ before the vote."""

INSTRUCTION = """\
Work out the question below step by step. State each step in one short sentence and do its
arithmetic before the next one. End with a line of the form

Answer: 42

with the bare number in place of 42, without units, and write nothing after it."""

_ANSWER = re.compile(r"answer\s*:\s*\$?(-?\d[\d,]*(?:\.\d+)?)", re.IGNORECASE)


async def run(app: Chats, text: str, lengths: Lengths) -> AgentResult:
    """Agent that answers a question by a vote among several attempts.

    The number of attempts is planned even for a real model: it does not depend on the answers.
    """
    steps = Steps(app, lengths)
    questions = [f"Question: {text}"] * lengths.fan_out("sample")
    attempts = await steps.ask_each("sample", INSTRUCTION, questions, temperature=TEMPERATURE)
    return steps.result(vote(attempts))


def vote(attempts: list[str]) -> str:
    """Return the final number that most attempts have, or ""; with a tie, the first of them."""
    votes = Counter(number for attempt in attempts if (number := final_number(attempt)))
    return votes.most_common(1)[0][0] if votes else ""


def final_number(attempt: str) -> str | None:
    """Return the last number in an attempt, in plain form (`1,200.0` is `1200`)."""
    found = _ANSWER.findall(attempt)
    return f"{float(found[-1].replace(',', '')):.10g}" if found else None
