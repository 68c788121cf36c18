"""FV: verifying a claim by search (ReAct on FEVER, arXiv:2210.03629).

In each turn the model writes a thought and an action: search the passages, look up a word in the
passage found last, or finish with a verdict. The result of the action is appended to the prompt of
the next turn.
"""

import asyncio
import functools
import re
from collections.abc import Callable, Sequence

from justitia_ray.errors import ConfigError
from justitia_ray.lab.workloads.steps import AgentResult, Chats, Steps, Transcript, Workload
from justitia_ray.sim.suites.inputs import python_texts
from justitia_ray.sim.suites.load_plan import Lengths

_LEAST_SCORE = 1e-9
"""Minimum score of a search result; a passage without a word of the query has score 0."""


class PassageSearch:
    """Search in passages, ranked by BM25.

    Args:
        passages: The passages; a title at the start of each helps.

    Raises:
        ConfigError: If there are no passages, or bm25s is not installed.
    """

    def __init__(self, passages: Sequence[str]) -> None:
        try:
            import bm25s
        except ImportError as error:
            raise ConfigError(
                "searching passages needs bm25s: pip install 'justitia-ray[lab]'"
            ) from error
        if not passages:
            raise ConfigError("passages must hold at least one text, got none")
        self._tokenize = bm25s.tokenize
        self._passages = list(passages)
        self._index = bm25s.BM25()
        self._index.index(bm25s.tokenize(self._passages, show_progress=False), show_progress=False)

    async def best(self, query: str, count: int = 1) -> list[str]:
        """Return up to `count` passages with a word of the query, best first."""
        return await asyncio.to_thread(self._rank, query, count)

    def _rank(self, query: str, count: int) -> list[str]:
        found, scores = self._index.retrieve(
            self._tokenize([query], show_progress=False),
            k=min(count, len(self._passages)),
            show_progress=False,
        )
        return [
            self._passages[index]
            for index, score in zip(found[0], scores[0], strict=True)
            if score > _LEAST_SCORE
        ]


INSTRUCTION = """\
Find out whether passages that you can search support the claim at the end. Write one thought and
one action a turn: Search[words], Lookup[word] in what was found last, or Finish[verdict] with
SUPPORTS, REFUTES or NOT ENOUGH INFO."""

EXAMPLES = (
    """\
Claim: The Rhine rises in Germany.
Thought: I have to find where the Rhine begins. I search for the river.
Action: Search[Rhine river source]
Observation: The Rhine is one of the major rivers of Europe. It begins in the canton of Grisons in
the south-eastern Swiss Alps, forms part of the borders with Liechtenstein, Austria and France, and
then flows mostly northwards through Germany and the Netherlands to the North Sea. It is about 1,230
km long and carries more ships than any other river of western Europe.
Thought: The passage says that it begins in the Swiss Alps, so in Switzerland and not in Germany.
Action: Finish[REFUTES]""",
    """\
Claim: Marie Curie was given Nobel Prizes in two different sciences.
Thought: I have to know which prizes she was given, and for what.
Action: Search[Marie Curie Nobel Prize]
Observation: Marie Curie was a physicist and chemist who did pioneering research on radioactivity.
Born in Warsaw, she studied in Paris, where she and her husband discovered polonium and radium. She
was the first woman to be given a Nobel Prize, and the first person to be given two of them. She
directed the Radium Institute and, in the First World War, a service of mobile X-ray units.
Thought: There were two prizes. I have to see whether they were for different sciences.
Action: Lookup[prize]
Observation: She shared the 1903 Nobel Prize in Physics with her husband and Henri Becquerel, and
was given the 1911 Nobel Prize in Chemistry for the discovery of the two elements.
Thought: One was in physics and one in chemistry, which are different sciences.
Action: Finish[SUPPORTS]""",
    """\
Claim: The composer of the opera Rusalka kept more than thirty pigeons.
Thought: I have to find who composed Rusalka, and then what is known of his pigeons.
Action: Search[Rusalka opera composer]
Observation: Rusalka is an opera in three acts by Antonin Dvorak to a Czech libretto by the poet
Jaroslav Kvapil, first performed in Prague in 1901. It is one of the most successful Czech operas
and a regular part of the repertoire of opera houses. The best known of its arias is the Song to the
Moon from the first act.
Thought: The composer is Antonin Dvorak. Now I search for his pigeons.
Action: Search[Antonin Dvorak pigeons]
Observation: Antonin Dvorak was a Czech composer who often used rhythms of the folk music of Moravia
and his native Bohemia. Beside music he loved locomotives, whose numbers he noted at the station,
and the pigeons that he bred at his summer house in the village of Vysoka.
Thought: He bred pigeons, but the passage does not say how many. I look for a number.
Action: Lookup[thirty]
Observation: Nothing more was found.
Thought: That he kept pigeons is certain, their number is not to be found in the passages.
Action: Finish[NOT ENOUGH INFO]""",
)

VERDICTS = ("SUPPORTS", "REFUTES", "NOT ENOUGH INFO")
MAX_TURNS = 7
"""Maximum number of turns, as in the second set of recordings; the first set had four."""

_ACTION = re.compile(r"action\s*:\s*(search|lookup|finish)\s*\[([^\]]*)\]", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def workload(passages: Sequence[str]) -> Workload:
    """Return the agent that searches given passages.

    Raises:
        ConfigError: If there are no passages, or bm25s is not installed.
    """
    search = PassageSearch(passages)
    return _agent_on_loaded_passages(lambda: search)


def _agent_on_loaded_passages(find_search: Callable[[], PassageSearch]) -> Workload:
    async def verify(app: Chats, text: str, lengths: Lengths) -> AgentResult:
        steps = Steps(app, lengths)
        transcript = Transcript(INSTRUCTION, text, EXAMPLES)
        reader = _Reader(None if lengths.steered else await asyncio.to_thread(find_search))
        turns = lengths.rounds("thought") if lengths.steered else MAX_TURNS
        for number in range(1, turns + 1):
            answer = await steps.turn("thought", number, transcript, stop=("\nObservation:",))
            action = _ACTION.search(answer)
            if not lengths.steered and action and action[1].lower() == "finish":
                return steps.result(verdict_of(action[2]))
            if number < turns:
                kind, words = (action[1].lower(), action[2]) if action else ("", "")
                act = functools.partial(reader.act, kind, words)
                seen = await steps.run_tool(f"thought_{number + 1}", act)
                transcript.add(f"Observation: {seen}".strip())
        return steps.result("NOT ENOUGH INFO")

    return verify


class _Reader:
    def __init__(self, search: PassageSearch | None) -> None:
        self._search = search
        self._passage = ""

    async def act(self, kind: str, words: str) -> str:
        if kind == "search" and self._search is not None:
            found = await self._search.best(words)
            self._passage = found[0] if found else ""
            return self._passage or "Nothing was found."
        if kind == "lookup":
            sentences = _SENTENCE_END.split(self._passage)
            hits = [s for s in sentences if words.lower() in s.lower()]
            return " ".join(hits) if words.strip() and hits else "Nothing more was found."
        return "Write an action: Search[words], Lookup[word] or Finish[verdict]."


def verdict_of(said: str) -> str:
    """Return the verdict stated in a text; "NOT ENOUGH INFO" for any other text."""
    stated = " ".join(said.upper().split())
    return stated if stated in VERDICTS else "NOT ENOUGH INFO"


@functools.cache
def _search_of_python() -> PassageSearch:
    return PassageSearch(python_texts("KBQAV"))


run = _agent_on_loaded_passages(_search_of_python)
"""Agent that verifies a claim with the docstrings of the installed Python."""
