"""KBQAV: checking the facts of a response (FacTool's knowledge-based question answering).

The agent splits the response into claims, writes search queries for each claim, searches, and
compares each claim with the results.
"""

import re

from justitia_ray.lab.workloads.steps import AgentResult, Chats, Steps
from justitia_ray.sim.suites.load_plan import Lengths

EXTRACT = """\
Below are a question and somebody's response to it. List the facts that the response states, one to
a line, each line beginning with a hyphen. Every line must be understandable alone: put names where
the response has pronouns. Leave out opinions, and write nothing but the list."""

QUERY = """\
Write two queries for a web search engine, one to a line, that would find evidence for or against
the claim below. Write nothing else."""

VERIFY = """\
Hold the claim below against the evidence that follows it. Say in a few sentences which parts of the
evidence bear on the claim and whether they agree with it. Then end with one line, either
"Verdict: true" or "Verdict: false"."""

MAX_CLAIMS = 13
"""Maximum number of claims of a response in the recorded runs; further claims are dropped."""

_LIST_MARK = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


async def run(app: Chats, text: str, lengths: Lengths) -> AgentResult:
    """Agent that checks the facts in a question and its response."""
    steps = Steps(app, lengths)
    listed = await steps.ask("extract_claims", 0, EXTRACT, text)
    claims = list_items(listed)[:MAX_CLAIMS] or [text]
    if lengths.steered:
        sentences = _SENTENCE_END.split(text.strip())
        planned = lengths.fan_out("generate_queries")
        claims = [sentences[index % len(sentences)] for index in range(planned)]

    told = [f"Claim: {claim}" for claim in claims]
    queries = await steps.ask_each("generate_queries", QUERY, told)
    await steps.use_tool("verify_claims")
    found = [
        f"{claim}\nEvidence: {rank_sentences(query, text)}"
        for claim, query in zip(told, queries, strict=True)
    ]
    verdicts = await steps.ask_each("verify_claims", VERIFY, found)
    held = sum(is_true(verdict) for verdict in verdicts)
    return steps.result(f"{held} of {len(claims)} claims hold")


def list_items(answer: str) -> list[str]:
    """Return the items of a list without their hyphens, bullets or numbers."""
    lines = (line for line in answer.splitlines() if _LIST_MARK.match(line))
    return [item for line in lines if (item := _LIST_MARK.sub("", line).strip())]


def is_true(verdict: str) -> bool:
    """Return whether a verification ends with the verdict "true"."""
    return verdict.lower().rpartition("verdict:")[2].strip(' ."*\n').startswith("true")


def rank_sentences(queries: str, text: str) -> str:
    """Return the sentences of a text, sorted by the number of words shared with the queries.

    It replaces the web search, so that no application depends on a network; the tool time before
    the stage replaces the duration of the search.
    """
    wanted = set(queries.lower().split())
    sentences = _SENTENCE_END.split(text)
    return " ".join(sorted(sentences, key=lambda s: -len(wanted & set(s.lower().split()))))
