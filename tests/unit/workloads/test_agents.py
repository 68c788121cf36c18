"""The agents as their plans steer them, and SC, KBQAV and MRS on real answers."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from justitia_ray.client import Completion, Messages
from justitia_ray.workloads import WORKLOADS, LengthPlan, Lengths, Result
from justitia_ray.workloads.factool_kbqa import EXTRACT, QUERY, VERIFY, find, is_true, list_items
from justitia_ray.workloads.lengths import PlannedCall, PlannedStage
from justitia_ray.workloads.map_reduce_summary import COLLAPSE, FINAL, MAP
from justitia_ray.workloads.self_consistency import final_number, vote

STAGE_OF = {
    EXTRACT: "extract_claims",
    QUERY: "generate_queries",
    VERIFY: "verify_claims",
    MAP: "generate_summary",
    COLLAPSE: "collapse",
    FINAL: "final_summary",
}


class FakeApp:
    """Answers what a test says, and keeps what it was asked."""

    def __init__(self, answer: Callable[[str, int], str]) -> None:
        self.prompts: list[str] = []
        self.asked: list[dict[str, Any]] = []
        self._answer = answer

    async def chat(
        self, messages: Messages, *, max_tokens: int | None = None, **fields: Any
    ) -> Completion:
        """Answer at once."""
        assert isinstance(messages, str)
        self.prompts.append(messages)
        self.asked.append({"max_tokens": max_tokens, **fields})
        text = self._answer(messages, len(self.prompts) - 1)
        return Completion(text, (text,), 1, 1, "stop", {})

    def stages(self) -> Counter[str]:
        """Return how often each instruction was given."""
        return Counter(STAGE_OF[prompt.rpartition("\n\n")[0]] for prompt in self.prompts)


def _steered(**calls: int) -> Lengths:
    """Plan so many inferences a stage: 100 words in; 10 tokens out, one more for each."""
    stages = {
        stage: PlannedStage(tuple(PlannedCall(100, 10 + i) for i in range(count)), 0.0)
        for stage, count in calls.items()
    }
    return Lengths(steered=True, stages=stages, limits={})


async def _run(name: str, app: FakeApp, text: str, lengths: Lengths) -> Result:
    return await WORKLOADS[name](app, text, lengths)


def _nonsense(prompt: str, number: int) -> str:
    return "\ufffd zz qq" if number % 2 else ""


PLANS = [
    ("SC", {"sample": 5}),
    ("KBQAV", {"extract_claims": 1, "generate_queries": 4, "verify_claims": 4}),
    ("KBQAV", {"extract_claims": 1, "generate_queries": 1, "verify_claims": 1}),
    ("MRS", {"generate_summary": 21, "final_summary": 1}),
    ("MRS", {"generate_summary": 21, "collapse_1": 4, "collapse_2": 2, "final_summary": 1}),
    ("MRS", {"generate_summary": 2, "collapse_1": 5, "final_summary": 1}),
    ("CC", {"generate_testcases": 1, "generate_solutions": 3}),
    ("EV", {"extract_calculations": 1, "generate_snippets": 9}),
    ("FV", {"thought_1": 1, "thought_2": 1, "thought_3": 1}),
    ("ALFWI", {f"turn_{i}": 1 for i in range(1, 16)}),
    ("CG", {"code_generation_1": 1, "code_generation_2": 1}),
    (
        "DM",
        {"generate_1": 2, "score_1": 40, "aggregate": 2, "score_2": 40, "generate_2": 1}
        | {"score_3": 20},
    ),
]


@pytest.mark.parametrize(("name", "calls"), PLANS)
async def test_a_steered_agent_keeps_to_its_plan(name: str, calls: dict[str, int]) -> None:
    """Whatever a random model says, nothing included, fan-outs and lengths are those planned."""
    app = FakeApp(_nonsense)

    result = await _run(name, app, "Some text. Of two sentences.", _steered(**calls))

    assert result.fan_outs == calls
    assert Counter(asked["max_tokens"] for asked in app.asked) == Counter(
        10 + i for count in calls.values() for i in range(count)
    )
    assert all(asked["ignore_eos"] is True for asked in app.asked)
    assert max(len(prompt.split()) for prompt in app.prompts) <= 100


@pytest.mark.parametrize("name", WORKLOADS)
async def test_drawn_plans_fit_their_agents(name: str) -> None:
    """The plan and the agent agree on the names of stages, over many draws."""
    plan = LengthPlan(gap_scale=0.0, length_scale=0.1)
    for number in range(20):
        lengths = plan.draw(name, "x", number)

        result = await _run(name, FakeApp(_nonsense), "Some text.", lengths)

        assert result.fan_outs == {stage: lengths.fan_out(stage) for stage in lengths.stages}


async def test_sc_votes_among_five_attempts() -> None:
    """Two of the attempts agree, in different forms; one gives no number."""
    answers = ["Answer: 7", "so 2\nAnswer: 1,200", "I cannot say", "answer: $1200.0", "Answer: 8"]
    app = FakeApp(lambda _, number: answers[number])
    lengths = LengthPlan(steered=False).draw("SC", "x", 0)

    result = await _run("SC", app, "How many?", lengths)

    assert result == Result("1200", {"sample": 5})
    assert {asked["temperature"] for asked in app.asked} == {0.7}
    assert all("ignore_eos" not in asked for asked in app.asked)


def test_votes_are_deterministic() -> None:
    """The first reached among equals, and nothing when nobody has a number."""
    assert vote(["Answer: 2", "Answer: 1", "none"]) == "2"
    assert vote(["none"]) == ""


@pytest.mark.parametrize(
    ("attempt", "number"),
    [("Answer: -3.50", "-3.5"), ("Answer: 1\nAnswer: 2", "2"), ("the answer is 4", None)],
)
def test_the_last_stated_answer_counts(attempt: str, number: str | None) -> None:
    """Steps on the way hold numbers too; only the agreed form is an answer."""
    assert final_number(attempt) == number


async def test_kbqav_verifies_each_claim_of_a_real_answer() -> None:
    """Claims decide the fan-out, and each prompt is about its own claim."""

    def answer(prompt: str, _: int) -> str:
        if prompt.startswith(EXTRACT):
            return "Here they are:\n- Mars is red.\n2. Venus is cold."
        if prompt.startswith(VERIFY):
            claim = prompt.partition("\nEvidence: ")[0]
            return "Verdict: true" if "Mars" in claim else "Verdict: FALSE"
        return "a query"

    app = FakeApp(answer)
    lengths = LengthPlan(steered=False, gap_scale=0.0).draw("KBQAV", "x", 0)

    result = await _run("KBQAV", app, "[response]\nMars is red. Venus is cold.", lengths)

    assert result.answer == "1 of 2 claims hold"
    assert app.stages() == {"extract_claims": 1, "generate_queries": 2, "verify_claims": 2}


async def test_kbqav_bounds_the_claims_of_a_model_that_rambles() -> None:
    """13 is the most that was measured."""
    app = FakeApp(lambda *_: "\n".join(f"- claim {i}" for i in range(99)))
    lengths = LengthPlan(steered=False, gap_scale=0.0).draw("KBQAV", "x", 0)

    assert (await _run("KBQAV", app, "text", lengths)).fan_outs["verify_claims"] == 13


async def test_kbqav_without_a_list_verifies_the_whole() -> None:
    """An answer in another form must not make an empty application."""
    app = FakeApp(lambda *_: "no list")
    lengths = LengthPlan(steered=False, gap_scale=0.0).draw("KBQAV", "x", 0)

    assert (await _run("KBQAV", app, "text", lengths)).answer == "0 of 1 claims hold"


def test_lists_are_read_in_any_mark() -> None:
    """Models do not keep to hyphens."""
    assert list_items("Sure:\n- a\n * b\n3) c\n4. d\n-\nend") == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("verdict", "held"),
    [
        ("It fits.\nVerdict: true", True),
        ("Verdict: **True**.", True),
        ("Verdict: true? no.\nVerdict: false", False),
        ("true", True),
        ("It is true", False),
    ],
)
def test_the_last_verdict_counts(verdict: str, held: bool) -> None:
    """A model may weigh both before it decides."""
    assert is_true(verdict) is held


def test_a_search_ranks_by_shared_words() -> None:
    """The stand-in for the web still gives different claims different evidence."""
    assert find("capital of france", "Cats purr. Paris is the capital of France.").startswith(
        "Paris is"
    )


async def test_mrs_covers_a_document_and_collapses_until_it_fits() -> None:
    """On a real model sizes decide: 1,000 words, 100 a prompt, summaries of 40 words each."""
    words = [f"w{i}" * (1 + i % 9) for i in range(1000)]
    app = FakeApp(lambda *_: " ".join(["s"] * 40))
    lengths = LengthPlan(steered=False, max_prompt_words=100).draw("MRS", "x", 0)

    result = await _run("MRS", app, " ".join(words), lengths)

    chunks = [p.rpartition("\n\n")[2].split() for p in app.prompts if p.startswith(MAP)]
    assert [word for chunk in chunks for word in chunk] == words
    assert max(len(prompt.split()) for prompt in app.prompts) <= 100
    stages = list(result.fan_outs)
    assert (stages[:2], stages[-1]) == (["generate_summary", "collapse_1"], "final_summary")


async def test_mrs_collapses_no_more_than_four_rounds() -> None:
    """Summaries that never get shorter must not keep an agent for ever."""
    app = FakeApp(lambda *_: " ".join(["long"] * 300))
    lengths = LengthPlan(steered=False, max_prompt_words=100).draw("MRS", "x", 0)

    result = await _run("MRS", app, " ".join(["w"] * 1000), lengths)

    assert [stage for stage in result.fan_outs if stage.startswith("collapse")] == [
        f"collapse_{i}" for i in range(1, 5)
    ]


async def test_a_short_document_needs_no_collapse() -> None:
    """Two summaries that fit one prompt go straight into the final one."""
    app = FakeApp(lambda *_: "short")
    lengths = LengthPlan(steered=False, max_prompt_words=100).draw("MRS", "x", 0)

    result = await _run("MRS", app, " ".join(["w"] * 150), lengths)

    assert result == Result("short", {"generate_summary": 2, "final_summary": 1})
