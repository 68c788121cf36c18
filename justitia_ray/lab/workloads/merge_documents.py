"""DM: merging documents (Graph of Thoughts, arXiv:2308.09687).

The agent writes several merged documents and scores each many times. The best are aggregated into
better documents, which are scored; the best of these is improved, and the improvement is scored.
"""

import re
import statistics
from collections.abc import Sequence

from justitia_ray.lab.workloads.steps import AgentResult, Chats, Steps
from justitia_ray.sim.suites.load_plan import Lengths

GENERATE = """\
Merge the documents below into one. Keep everything that any of them states, say nothing twice, and
write the merged document and nothing else."""

GENERATE_RULES = (
    """\
Keep names, amounts, dates and exceptions to the letter. Where documents contradict each other, keep
both.""",
)

SCORE = """\
Judge how well the merged document at the end merges the documents before it. Explain in a few
sentences what it says twice and what it leaves out, and end with two lines with a number from 0 to
10 each:
Redundancy: 10 if nothing is said twice, 0 if at least half of it is redundant
Retention: 10 if everything that any document states is kept, 0 if nothing is"""

SCORE_EXAMPLES = (
    """\
Take the documents one by one. For every clause, find the place of the merged document that states
it, in whatever words; a clause of which names, amounts, dates or exceptions are missing is only
half kept. A heading, a greeting or a line for a signature is no clause. Two clauses are redundant
if one of them could be struck out and nothing would be lost; a summary of what follows is redundant
too. Length by itself is neither good nor bad. Be as strict with a fluent text as with a clumsy one,
and judge only the text, not whether the documents are wise or lawful.""",
)

AGGREGATE = """\
Below are documents, and several attempts to merge them into one. Combine the attempts into one
merged document that is better than each: take from each what it alone keeps, say nothing twice, and
write the merged document and nothing else."""

AGGREGATE_RULES = (
    """\
Go through the documents, not through the attempts: what no attempt has kept must be in the merged
document too. Where attempts word one clause differently, take the wording that is nearest to the
document. Keep names, amounts, dates and exceptions to the letter.""",
)

IMPROVE = """\
Below are documents, and an attempt to merge them into one. Improve it: add what the documents state
and it leaves out, strike what it says twice, and write the improved document and nothing else."""

IMPROVE_RULES = (
    """\
Change nothing else: what is already complete and said once stays as it is worded.""",
)

MERGES = 2
SCORES = 20
"""Number of times that each merged document is scored; the original code uses three."""
TEMPERATURE = 1.0
"""Sampling temperature of the original code, above 0 so that drafts and scores differ."""

_MARK = re.compile(r"^\W*(redundancy|retention)\W+(\d+(?:\.\d+)?)", re.IGNORECASE | re.MULTILINE)


async def run(app: Chats, text: str, lengths: Lengths) -> AgentResult:
    """Agent that merges documents, each in `<DocN>` tags."""
    graph = _Graph(Steps(app, lengths), text, lengths)
    merges = await graph.think("generate_1", GENERATE, GENERATE_RULES, text, MERGES)
    ranked = await graph.rank("score_1", merges)
    attempts = f"{text}\n\n{_merges_in_tags(ranked)}"
    combined = await graph.think("aggregate", AGGREGATE, AGGREGATE_RULES, attempts, MERGES)
    [best, *_] = await graph.rank("score_2", combined)
    attempt = f"{text}\n\n{_merges_in_tags([best])}"
    improved = await graph.think("generate_2", IMPROVE, IMPROVE_RULES, attempt, 1)
    [last, *_] = await graph.rank("score_3", improved)
    return graph.steps.result(last)


class _Graph:
    """Graph of thoughts: generates, scores and selects merged documents."""

    def __init__(self, steps: Steps, documents: str, lengths: Lengths) -> None:
        self.steps = steps
        self._documents = documents
        self._lengths = lengths

    async def think(
        self, stage: str, instruction: str, rules: Sequence[str], material: str, count: int
    ) -> list[str]:
        """Return new drafts of a merged document, `count` or the planned number."""
        materials = [material] * self._planned_count(stage, count)
        return await self.steps.ask_each(
            stage, instruction, materials, examples=rules, temperature=TEMPERATURE
        )

    async def rank(self, stage: str, thoughts: Sequence[str]) -> list[str]:
        """Return the drafts by mean score, best first.

        Thoughts with equal scores keep their order.
        """
        count = self._planned_count(stage, SCORES * len(thoughts))
        judged = [index * len(thoughts) // count for index in range(count)]
        answers = await self.steps.ask_each(
            stage,
            SCORE,
            [f"{self._documents}\n\n{_merges_in_tags([thoughts[thought]])}" for thought in judged],
            examples=SCORE_EXAMPLES,
            temperature=TEMPERATURE,
        )
        scores: list[list[float]] = [[0.0] for _ in thoughts]
        for thought, answer in zip(judged, answers, strict=True):
            if (found := score(answer)) is not None:
                scores[thought].append(found)
        means = [statistics.fmean(of[1:] or of) for of in scores]
        order = sorted(range(len(thoughts)), key=lambda thought: -means[thought])
        return [thoughts[thought] for thought in order]

    def _planned_count(self, stage: str, count: int) -> int:
        return self._lengths.fan_out(stage) if self._lengths.steered else count


def score(answer: str) -> float | None:
    """Return the harmonic mean of the two marks in a judgement; None without both."""
    marks = {name.lower(): min(10.0, float(mark)) for name, mark in _MARK.findall(answer)}
    if len(marks) < 2:
        return None
    return statistics.harmonic_mean([marks["redundancy"], marks["retention"]])


def _merges_in_tags(merges: Sequence[str]) -> str:
    return "\n\n".join(f"<Merged>\n{merge}\n</Merged>" for merge in merges)
