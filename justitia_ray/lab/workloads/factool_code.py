"""CC: checking code (FacTool's code generation).

The agent writes test calls for a function and independent solutions of the same task, and runs all
of them on the calls. Where the function under test disagrees with most of the solutions, it is
wrong.
"""

import re
from collections import Counter

from justitia_ray.client import fan_out
from justitia_ray.lab.workloads.sandbox import code_of, run_python
from justitia_ray.lab.workloads.steps import AgentResult, Chats, Steps
from justitia_ray.sim.suites.load_plan import Lengths

TEST_CASES = """\
Write three calls of the Python function described below that would show whether an implementation
is right, one to a line. Write nothing but the calls."""

TEST_CASES_EXAMPLES = (
    """\
Choose arguments that a correct implementation answers at once: literals only, no imports, no
variables, no assertions and no expected results. One call should be an ordinary case, one an edge
case such as an empty or a one-element argument, and one a case that a hurried programmer gets
wrong. Keep each call on one line, and call nothing but the function that is asked for.""",
    """\
Function: longest
def longest(words: list[str]) -> str:
    \"\"\"Return the longest word, the first among equals, or nothing of none.\"\"\"
Calls:
longest(["a", "abc", "ab"])
longest([])
longest(["two", "one"])""",
    """\
Function: add_up
def add_up(numbers: list[int], times: int) -> int:
    \"\"\"Return the sum of the numbers, so many times.\"\"\"
Calls:
add_up([4, 5, 6], 2)
add_up([], 7)
add_up([-3, 3, 10], 0)""",
)

SOLVE = """\
Implement the Python function described below. Write the whole module, with its imports, and
nothing else: no explanation, no examples, no calls."""

SOLVE_EXAMPLES = (
    """\
Keep the name and the parameters exactly as they are given. Use the standard library only, read and
write no file, print nothing, and ask for no input. Follow the description to the letter, edge cases
included, even where another behaviour would seem more natural. Prefer plain code to fast code.""",
    """\
Function: longest
def longest(words: list[str]) -> str:
    \"\"\"Return the longest word, the first among equals, or nothing of none.\"\"\"
Module:
def longest(words: list[str]) -> str:
    return max(words, key=len, default="")""",
    """\
Function: add_up
def add_up(numbers: list[int], times: int) -> int:
    \"\"\"Return the sum of the numbers, so many times.\"\"\"
Module:
def add_up(numbers: list[int], times: int) -> int:
    return sum(numbers) * times""",
)

SOLUTIONS = 3
TEMPERATURE = 0.7
"""Sampling temperature of the solutions, above 0 so that they differ before the vote."""
MAX_CALLS = 3

_PART = re.compile(r"^\[(question|entry point|code)\]\n", re.MULTILINE)

_RUN_CALLS = """

for _call in {calls!r}:
    try:
        print("->", repr(eval(_call)))
    except Exception as _error:
        print("->", type(_error).__name__)
"""


async def run(app: Chats, text: str, lengths: Lengths) -> AgentResult:
    """Agent that checks code in a text with `[question]`, `[entry point]` and `[code]`."""
    steps = Steps(app, lengths)
    question, name, code = split_text(text)
    task = f"Function: {name}\n{question}"
    listed = await steps.ask(
        "generate_testcases", 0, TEST_CASES, f"{task}\nCalls:", examples=TEST_CASES_EXAMPLES
    )
    count = lengths.fan_out("generate_solutions") if lengths.steered else SOLUTIONS
    solutions = await steps.ask_each(
        "generate_solutions",
        SOLVE,
        [f"{task}\nModule:"] * count,
        examples=SOLVE_EXAMPLES,
        temperature=TEMPERATURE,
    )
    if lengths.steered:
        return steps.result("not executed: planned")
    calls = calls_of(listed, name)
    programs = [code, *(code_of(solution) for solution in solutions)]
    results = await fan_out(outputs(program, calls) for program in programs)
    return steps.result(verdict(calls, results[0], results[1:]))


def split_text(text: str) -> tuple[str, str, str]:
    found = dict(zip(*[iter(_PART.split(text)[1:])] * 2, strict=True))
    question, name, code = (
        found.get(part, default).strip()
        for part, default in (("question", text), ("entry point", "solution"), ("code", ""))
    )
    return question, name, code


def calls_of(listed: str, name: str) -> list[str]:
    """Return the calls of a function in an answer, one per line, at most three."""
    lines = (line.strip().strip("`") for line in listed.splitlines())
    return [line for line in lines if line.startswith(f"{name}(")][:MAX_CALLS]


async def outputs(program: str, calls: list[str]) -> list[str]:
    """Return the output of each call in a program; "" for calls that were not reached."""
    run = await run_python(program + _RUN_CALLS.format(calls=calls))
    said = [line[3:] for line in run.output.splitlines() if line.startswith("-> ")]
    return (said + [""] * len(calls))[: len(calls)]


def verdict(calls: list[str], own: list[str], others: list[list[str]]) -> str:
    """Return the number of calls on which the code agrees with most solutions."""
    agreed = 0
    for number, output in enumerate(own):
        votes = Counter(solution[number] for solution in others if solution[number])
        agreed += bool(votes) and votes.most_common(1)[0][0] == output
    return f"right on {agreed} of {len(calls)} calls"
