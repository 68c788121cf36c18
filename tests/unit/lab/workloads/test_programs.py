"""CC, EV, CG, FV, DM and PE on real answers, whose content decides the next steps."""

import asyncio
import json

import pytest

from justitia_ray.lab.workloads import (
    code_feedback,
    factool_code,
    factool_math,
    merge_documents,
    plan_execute,
    react_fever,
)
from justitia_ray.lab.workloads.play import WORKLOADS
from justitia_ray.lab.workloads.sandbox import code_of
from justitia_ray.sim.suites.load_plan import LengthPlan
from justitia_ray.sim.suites.measured_classes import LOOPS
from justitia_ray.sim.suites.recorded import load_runs
from tests.unit.lab.workloads.scripted import ScriptedModel, answers_in_turn, run_freely
from tests.unit.sim.data_directory import REAL, needs_real_data

TASK = '''[question]
def double(x):
    """Return twice x."""
[entry point]
double
[code]
def double(x):
    return {code}'''

SOLUTIONS = ("def double(x):\n    return 2 * x", "```python\ndef double(x):\n    return x + x\n```")


@pytest.mark.parametrize(("code", "right"), [("x * 2", 3), ("x ** 2", 2)])
async def test_cc_agent_runs_the_code_against_solutions(code: str, right: int) -> None:
    app = ScriptedModel(
        {
            factool_code.TEST_CASES: "double(0)\n`double(2)`\nprint('no call')\ndouble(3)",
            factool_code.SOLVE: answers_in_turn(*SOLUTIONS, "def double(x):\n    return 17"),
        }
    )

    result = await run_freely("CC", app, TASK.format(code=code))

    assert f"right on {right} of 3 calls" == result.answer
    assert {"generate_testcases": 1, "generate_solutions": 3} == result.fan_outs
    assert [0.0, 0.7, 0.7, 0.7] == [asked["temperature"] for asked in app.asked]


async def test_coding_agent_survives_programs_that_do_not_run() -> None:
    """One program has a syntax error, another never ends."""
    app = ScriptedModel(
        {
            factool_code.TEST_CASES: "double(1)",
            factool_code.SOLVE: answers_in_turn(
                "no code", "raise SystemExit", "def double(x): return 1/0"
            ),
        }
    )

    result = await run_freely("CC", app, TASK.format(code="2 * x"))

    assert "right on 0 of 1 calls" == result.answer


async def test_ev_agent_evaluates_each_calculation() -> None:
    app = ScriptedModel(
        {
            factool_math.EXTRACT: "- 2 * 3 = 6\n- 7 / 2 = 3.5\n- 5 + 5 = 11\n- about = right",
            factool_math.SNIPPET: answers_in_turn(
                "2 * 3 == 6",
                "```python\nmath.isclose(7 / 2, 3.5, abs_tol=0.01)\n```",
                "Expression: 5 + 5 == 11",
                "about == right",
            ),
        }
    )

    result = await run_freely("EV", app, "[math problem]\n…\n[potential solution]\n…")

    assert "2 of 4 calculations hold" == result.answer
    assert {"extract_calculations": 1, "generate_snippets": 4} == result.fan_outs


START = '''def half(x):
    """Return half of x, rounded down.

    >>> half(5)
    2
    """
'''


async def test_cg_agent_repeats_with_the_error_until_the_code_is_right() -> None:
    app = ScriptedModel(
        {
            code_feedback.GENERATE: answers_in_turn(
                "```python\ndef half(x):\n    return x / 2\n```", "def half(x):\n    return x // 2"
            )
        }
    )

    result = await run_freely("CG", app, START)

    assert "passed at attempt 2" == result.answer
    assert {"code_generation_1": 1, "code_generation_2": 1} == result.fan_outs
    assert "2.5" in app.prompts[1]
    assert app.prompts[1].startswith(app.prompts[0])


@pytest.mark.slow
async def test_cg_agent_gives_up_after_five_attempts() -> None:
    app = ScriptedModel({code_feedback.GENERATE: "def half(x): return None"})

    result = await run_freely("CG", app, START)

    assert ("not passed in 5 attempts", 5) == (result.answer, len(result.fan_outs))


PASSAGES = [
    "Paramore: an American rock band from Franklin, Tennessee, formed in 2004. Its singer is Hayley"
    " Williams.",
    "Franklin: a city in Tennessee.",
    "Pigeons: birds that find their way home.",
]


@pytest.mark.slow
async def test_fv_agent_searches_looks_up_and_decides() -> None:
    turns = answers_in_turn(
        "Thought: who are they?\nAction: Search[Paramore band Tennessee]",
        "Thought: who sings?\nAction: lookup[singer]",
        "Thought: it is in Tennessee.\nAction: Finish[Refutes]",
    )
    app = ScriptedModel({react_fever.INSTRUCTION: turns})
    agent = react_fever.workload(PASSAGES)

    result = await run_freely("FV", app, "Claim: Paramore is not from Tennessee.", agent=agent)

    assert "REFUTES" == result.answer
    assert ["thought_1", "thought_2", "thought_3"] == list(result.fan_outs)
    assert app.prompts[1].endswith(f"Observation: {PASSAGES[0]}")
    assert app.prompts[2].endswith("Observation: Its singer is Hayley Williams.")
    assert all(["\nObservation:"] == asked["stop"] for asked in app.asked)
    assert app.prompts[1].startswith(app.prompts[0])


async def test_fv_agent_reports_a_failed_search_or_turn_to_the_model() -> None:
    """The model can try again after a failed search."""
    turns = answers_in_turn("Action: Search[xylophone]", "Action: Lookup[bird]", *["I wonder."] * 5)
    app = ScriptedModel({react_fever.INSTRUCTION: turns})

    result = await run_freely("FV", app, "Claim: x.", agent=react_fever.workload(PASSAGES))

    assert ("NOT ENOUGH INFO", 7) == (result.answer, len(app.prompts))
    assert app.prompts[1].endswith("Observation: Nothing was found.")
    assert app.prompts[2].endswith("Observation: Nothing more was found.")
    assert "Observation: Write an action" in app.prompts[3]


@pytest.mark.slow
async def test_fv_agent_has_passages_on_any_machine() -> None:
    """Without passages of a user's own, Python's documentation is searched."""
    turns = answers_in_turn(
        "Action: Search[Encode bytes Base64 alphabet]", "Action: Finish[SUPPORTS]"
    )
    app = ScriptedModel({react_fever.INSTRUCTION: turns})

    result = await run_freely("FV", app, "Claim: base64 encodes bytes.")

    assert "SUPPORTS" == result.answer
    assert "base64" in app.prompts[1].rpartition("Observation:")[2].lower()


def score_text(redundancy: float, retention: float) -> str:
    return f"It repeats a clause.\nRedundancy: {redundancy}\nRetention: {retention}"


async def test_dm_agent_continues_with_the_best_scores() -> None:
    def judge_merge(prompt: str) -> str:
        return score_text(9, 9) if "good" in prompt.rpartition("<Merged>")[2] else score_text(2, 9)

    app = ScriptedModel(
        {
            merge_documents.GENERATE: answers_in_turn("a poor merge", "a good merge"),
            merge_documents.SCORE: judge_merge,
            merge_documents.AGGREGATE: answers_in_turn("a good one", "another"),
            merge_documents.IMPROVE: "the improved one",
        }
    )

    result = await run_freely("DM", app, "<Doc1>\na\n</Doc1>\n\n<Doc2>\nb\n</Doc2>")

    assert "the improved one" == result.answer
    assert [2, 40, 2, 40, 1, 20] == list(result.fan_outs.values())
    [combine, _] = [p for p in app.prompts if p.startswith(merge_documents.AGGREGATE)]
    assert combine.index("a good merge") < combine.index("a poor merge")
    [improve] = [p for p in app.prompts if p.startswith(merge_documents.IMPROVE)]
    assert "<Merged>\na good one\n</Merged>" in improve
    assert "another" not in improve


PLAN = [
    {"task": "object-detection", "id": 0, "dep": [-1], "args": {"image": "a.jpg"}},
    {"task": "image-to-text", "id": 1, "dep": [-1], "args": {"image": "a.jpg"}},
    {"task": "summarization", "id": 2, "dep": [0, 1], "args": {"text": "<result-1>"}},
]


async def test_pe_agent_executes_its_plan_as_a_graph() -> None:
    both_run = asyncio.Barrier(2)
    chosen = []

    async def run_model(task: str, model: str, arguments: str) -> str:
        await both_run.wait()
        chosen.append(model.partition(":")[0])
        return f"result of {task}"

    app = ScriptedModel(
        {
            plan_execute.PLAN: f"Here you are: {json.dumps(PLAN)}",
            plan_execute.CHOOSE: '{"id": "detector-open", "reason": "it finds anything"}',
            plan_execute.SOLVE: "in short",
            plan_execute.RESPOND: "There is a cat.",
        }
    )
    agent = plan_execute.workload(run_model)

    async with asyncio.timeout(10):
        result = await run_freely("PE", app, "What is in a.jpg?", agent=agent)

    assert "There is a cat." == result.answer
    assert {"task_planning": 1, "choose_model": 1, "llm_task": 1, "response": 1} == result.fan_outs
    assert ["captioner", "detector-open"] == sorted(chosen)
    [solved] = [p for p in app.prompts if p.startswith(plan_execute.SOLVE)]
    assert "result of object-detection\nresult of image-to-text" in solved
    assert "summarization: in short" in app.prompts[-1]


async def test_pe_agent_reports_missing_models() -> None:
    """Without its models the agent must not invent results."""
    app = ScriptedModel(
        {
            plan_execute.PLAN: json.dumps(PLAN[1:2]),
            plan_execute.RESPOND: "I cannot see pictures.",
        }
    )

    await run_freely("PE", app, "What is in a.jpg?")

    assert "captioner" in app.prompts[-1]
    assert "is not available here" in app.prompts[-1]


@pytest.mark.parametrize(
    ("answer", "needs"),
    [
        ("no plan", []),
        ('[1, {}, {"task": 3}]', []),
        (
            json.dumps([{"task": "a", "id": 0, "dep": [1]}, {"task": "b", "id": 1, "dep": 0}]),
            [(), ()],
        ),
        (
            json.dumps([{"task": "a", "id": 7}, {"task": "b", "id": 8, "dep": [7, 8, -1]}]),
            [(), (0,)],
        ),
        (json.dumps([{"task": "a"}] * 20), [()] * 7),
    ],
)
def test_pe_agent_drops_cyclic_and_missing_dependencies_of_its_plan(
    answer: str, needs: list[tuple[int, ...]]
) -> None:
    """Subtasks may wait for each other, for themselves, or for missing ones."""
    assert needs == [subtask.needs for subtask in plan_execute.read_plan(answer)]


def test_code_is_found_with_and_without_fences() -> None:
    """Models omit fences, or forget to close them when they reach their token limit."""
    assert "x = 1" == code_of("Sure:\n```python\nx = 1\n```\nDone.")
    assert "x = 1" == code_of("```\nx = 1")
    assert "x = 1" == code_of("x = 1\n")


@needs_real_data
@pytest.mark.parametrize("name", [name for name in WORKLOADS if name != "SC"])
async def test_every_recorded_run_can_be_played(name: str) -> None:
    """Stages and fan-outs of the agents are those of each recorded run."""
    recorded = load_runs(REAL, name, played=True)
    lengths = LengthPlan(data_dir=REAL, gap_scale=0.0, length_scale=0.02)

    for number, run in enumerate(recorded):
        result = await WORKLOADS[name](
            ScriptedModel("zz"), "A text.", lengths.lengths_of_run(name, run)
        )
        sizes = [len(stage.calls) for stage in run.stages if not stage.subtasks]
        subtasks = sum(len(task.calls) for stage in run.stages for task in stage.subtasks)

        assert sum(sizes) + subtasks == sum(result.fan_outs.values()), number
        if name in LOOPS:
            assert [f"{LOOPS[name].name}_{i}" for i in range(1, len(sizes) + 1)] == list(
                result.fan_outs
            )
