"""Agents that follow their plans, and SC, KBQAV and MRS on real answers."""

from collections import Counter
from itertools import cycle

import pytest

from justitia_ray.lab.workloads.factool_kbqa import EXTRACT, QUERY, VERIFY, is_true, list_items
from justitia_ray.lab.workloads.map_reduce_summary import MAP
from justitia_ray.lab.workloads.play import WORKLOADS
from justitia_ray.lab.workloads.self_consistency import final_number
from justitia_ray.sim.suites.load_plan import LengthPlan, Lengths
from justitia_ray.sim.suites.recorded import RecordedRun, RecordedStage
from tests.unit.lab.workloads.scripted import ScriptedModel, answers_in_turn, run_freely


def _plan_stages(**calls: int) -> Lengths:
    """Plan these numbers of inferences per stage: 100 words in, and 10 or more tokens out."""
    stages = [
        RecordedStage(stage, tuple((100, 10 + i) for i in range(count)))
        for stage, count in calls.items()
    ]
    return Lengths(steered=True, run=RecordedRun(None, tuple(stages)), limits={})


def _random_model() -> ScriptedModel:
    """Return a service of a random model: every other answer is empty."""
    answers = cycle(("", "\ufffd zz qq"))
    return ScriptedModel(lambda _: next(answers))


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
async def test_agent_follows_its_given_plan(name: str, calls: dict[str, int]) -> None:
    """Fan-outs and lengths are those planned, for any answers, even empty ones."""
    app = _random_model()

    result = await WORKLOADS[name](app, "Some text. Of two sentences.", _plan_stages(**calls))

    assert result.fan_outs == calls
    assert Counter(asked["max_tokens"] for asked in app.asked) == Counter(
        10 + i for count in calls.values() for i in range(count)
    )
    assert all(asked["ignore_eos"] is True for asked in app.asked)
    assert max(len(prompt.split()) for prompt in app.prompts) <= 100


@pytest.mark.parametrize("name", WORKLOADS)
async def test_drawn_plans_fit_their_agents(name: str) -> None:
    """Plan and agent use the same stage names."""
    plan = LengthPlan(gap_scale=0.0, length_scale=0.1)
    for number in range(20):
        lengths = plan.draw(name, "x", number)

        result = await WORKLOADS[name](_random_model(), "Some text.", lengths)

        assert result.fan_outs == {stage: lengths.fan_out(stage) for stage in lengths.stages}


async def test_self_consistency_votes_among_five_attempts() -> None:
    answers = ["Answer: 7", "so 2\nAnswer: 1,200", "I cannot say", "answer: $1200.0", "Answer: 8"]
    app = ScriptedModel(answers_in_turn(*answers))

    result = await run_freely("SC", app, "How many?")

    assert ("1200", {"sample": 5}) == (result.answer, result.fan_outs)
    assert {asked["temperature"] for asked in app.asked} == {0.7}
    assert all("ignore_eos" not in asked for asked in app.asked)


@pytest.mark.parametrize(
    ("attempt", "number"),
    [("Answer: -3.50", "-3.5"), ("Answer: 1\nAnswer: 2", "2"), ("the answer is 4", None)],
)
def test_last_number_in_a_text_is_the_answer(attempt: str, number: str | None) -> None:
    assert final_number(attempt) == number


async def test_kbqav_agent_verifies_each_claim_of_a_real_answer() -> None:
    def verify_claim(prompt: str) -> str:
        claim = prompt.partition("\nEvidence: ")[0]
        return "Verdict: true" if "Mars" in claim else "Verdict: FALSE"

    listed = "Here they are:\n- Mars is red.\n2. Venus is cold."
    app = ScriptedModel({EXTRACT: listed, QUERY: "a query", VERIFY: verify_claim})

    result = await run_freely("KBQAV", app, "[response]\nMars is red. Venus is cold.")

    assert result.answer == "1 of 2 claims hold"
    assert result.fan_outs == {"extract_claims": 1, "generate_queries": 2, "verify_claims": 2}


async def test_kbqav_agent_verifies_an_answer_without_a_list_as_one_claim() -> None:
    """An answer in another form must not make an empty application."""
    result = await run_freely("KBQAV", ScriptedModel("no list"), "text")

    assert result.answer == "0 of 1 claims hold"


def test_lists_with_any_bullet_are_parsed() -> None:
    """Models use other bullets than hyphens."""
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
def test_last_verdict_in_an_answer_counts(verdict: str, held: bool) -> None:
    """A model may discuss both verdicts before it decides."""
    assert is_true(verdict) is held


async def test_mrs_agent_summarises_all_parts_and_merges_until_the_summary_fits() -> None:
    words = [f"w{i}" * (1 + i % 9) for i in range(1000)]
    app = ScriptedModel(" ".join(["s"] * 40))

    result = await run_freely("MRS", app, " ".join(words), max_prompt_words=100)

    chunks = [p.rpartition("\n\n")[2].split() for p in app.prompts if p.startswith(MAP)]
    assert [word for chunk in chunks for word in chunk] == words
    assert max(len(prompt.split()) for prompt in app.prompts) <= 100
    stages = list(result.fan_outs)
    assert (stages[:2], stages[-1]) == (["generate_summary", "collapse_1"], "final_summary")


async def test_mrs_agent_merges_in_at_most_four_rounds() -> None:
    """Summaries that never get shorter must not keep an agent forever."""
    app = ScriptedModel(" ".join(["long"] * 300))

    result = await run_freely("MRS", app, " ".join(["w"] * 1000), max_prompt_words=100)

    assert [stage for stage in result.fan_outs if stage.startswith("collapse")] == [
        f"collapse_{i}" for i in range(1, 5)
    ]
