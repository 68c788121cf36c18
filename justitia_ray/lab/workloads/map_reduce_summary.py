"""MRS: the summary of a long document by map and reduce (as LangChain's chain does it).

The document is cut into chunks that are summarised in parallel. While the summaries together are
too long for one prompt, groups of them are collapsed into shorter ones. A final call summarises the
summaries.
"""

from itertools import accumulate, pairwise

from justitia_ray.lab.workloads.steps import AgentResult, Chats, Steps, clip, fits, room
from justitia_ray.sim.suites.load_plan import Lengths

MAP = """\
Summarise the following part of a longer document. Keep names, numbers and decisions; leave out
greetings and repetitions. Write one paragraph."""

COLLAPSE = """\
The following are summaries of neighbouring parts of one document, in order. Merge them into one
shorter summary that keeps every name, number and decision that a later part builds on."""

FINAL = """\
The following are summaries of all parts of one document, in order. Write the summary of the whole
document: first what it is about in one sentence, then its main points in order."""

MAX_ROUNDS = 4
"""Maximum number of rounds in which summaries are summarised again, as in the recorded runs. The
final summary then reads as many summaries as fit.
"""


async def run(app: Chats, text: str, lengths: Lengths) -> AgentResult:
    """Agent that summarises a document."""
    steps = Steps(app, lengths)
    chunks = _planned_chunks(text, lengths) if lengths.steered else _cut_into_prompts(text, lengths)
    summaries = await steps.ask_each("generate_summary", MAP, chunks)
    number = 1
    while _has_another_round(number, summaries, lengths):
        groups = _group_summaries(f"collapse_{number}", summaries, lengths)
        summaries = await steps.ask_each(f"collapse_{number}", COLLAPSE, groups)
        number += 1
    return steps.result(await steps.ask("final_summary", 0, FINAL, _join_summaries(summaries)))


def _cut_into_prompts(text: str, lengths: Lengths) -> list[str]:
    """Cut a text into chunks that each fill a prompt."""
    chunks, size = [], _material_words("generate_summary", MAP, lengths)
    while text.strip():
        chunks.append(clip(text, size))
        text = text[len(chunks[-1]) :]
    return chunks


def _planned_chunks(text: str, lengths: Lengths) -> list[str]:
    """Cut a text into chunks of planned sizes; a short text is repeated."""
    words = text.split()
    sizes = [room(MAP, call.prompt_words) for call in lengths.stages["generate_summary"].calls]
    words *= -(-sum(sizes) // len(words))
    return [" ".join(words[start:end]) for start, end in pairwise(accumulate(sizes, initial=0))]


def _has_another_round(number: int, summaries: list[str], lengths: Lengths) -> bool:
    if lengths.steered:
        return f"collapse_{number}" in lengths.stages
    if number > MAX_ROUNDS:
        return False
    final_room = _material_words("final_summary", FINAL, lengths)
    return len(summaries) > 1 and not fits(_join_summaries(summaries), final_room)


def _group_summaries(stage: str, summaries: list[str], lengths: Lengths) -> list[str]:
    """Join neighbouring summaries into the planned groups, or into as few as fit into prompts."""
    if lengths.steered:
        count = lengths.fan_out(stage)
        bounds = [len(summaries) * part // count for part in range(count + 1)]
        groups = [summaries[start:end] for start, end in pairwise(bounds)]
        # Groups that would be empty repeat the last summary, to keep the planned number.
        return [_join_summaries(group or summaries[-1:]) for group in groups]
    groups = [[]]
    for summary in summaries:
        joined = _join_summaries([*groups[-1], summary])
        if groups[-1] and not fits(joined, _material_words(stage, COLLAPSE, lengths)):
            groups.append([])
        groups[-1].append(summary)
    return [_join_summaries(group) for group in groups]


def _join_summaries(summaries: list[str]) -> str:
    return "\n\n".join(summaries)


def _material_words(stage: str, instruction: str, lengths: Lengths) -> int:
    return room(instruction, lengths.call(stage, 0).prompt_words)
