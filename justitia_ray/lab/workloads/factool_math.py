"""EV: checking calculations (FacTool's mathematics).

The agent lists the calculations in a solution, writes for each a Python expression that is true if
the calculation is right, and evaluates all of them.
"""

import re

from justitia_ray.client import fan_out
from justitia_ray.lab.workloads.factool_kbqa import list_items
from justitia_ray.lab.workloads.sandbox import code_of, run_python
from justitia_ray.lab.workloads.steps import AgentResult, Chats, Steps
from justitia_ray.sim.suites.load_plan import Lengths

EXTRACT = """\
Below are a mathematical problem and somebody's solution. List every calculation that the solution
makes, one to a line, each line beginning with a hyphen, in the form: calculation = result."""

EXTRACT_EXAMPLES = (
    """\
Rules. Write each calculation with numbers and the signs + - * / ** ( ) only: no units, no currency,
no thousands separators, no names, no percent signs (write 20% as 0.2). Keep the result that the
solution states, even if it is wrong: the list is what will be checked. Leave out what is only
copied from the problem, what is rounded for the reader's sake, and the final sentence that repeats
a result. If one line of the solution makes several calculations, give each its own line. If a step
skips a calculation but states its result, write the calculation that it must have made. Write the
lines in the order of the solution, and nothing else.""",
    """\
[math problem]
A library has 14 shelves with 230 books each. It lends out a fifth of them and buys 75 new ones. How
many books are on the shelves?
[potential solution]
There are 14 * 230 = 3,220 books. It lends out 3220 / 5 = 644 of them, so 2,576 are left. With the
new ones there are 2576 + 75 = 2,651 books on the shelves.
[calculations]
- 14 * 230 = 3220
- 3220 / 5 = 644
- 3220 - 644 = 2576
- 2576 + 75 = 2651""",
    """\
[math problem]
A cyclist rides 18 km an hour for two and a half hours, rests, and rides 12 km more. Food costs her
$3.20 for every 10 km. What does she spend?
[potential solution]
She rides 18 x 2.5 = 45 km and then 12 km, which is 57 km. That is 57 / 10 = 5.7 times 10 km. She
spends 5.7 times $3.20 = $18.42.
[calculations]
- 18 * 2.5 = 45
- 45 + 12 = 57
- 57 / 10 = 5.7
- 5.7 * 3.20 = 18.42""",
    """\
[math problem]
A jacket costs $80. It is reduced by 15%, and members pay $5 less. What does a member pay?
[potential solution]
15% of 80 is 12, so it costs $68. A member pays 68 - 5 = $64.
[calculations]
- 0.15 * 80 = 12
- 80 - 12 = 68
- 68 - 5 = 64""",
)

SNIPPET = """\
Write one Python expression that is True if the calculation below holds and False otherwise. Write
nothing but the expression."""

SNIPPET_EXAMPLES = (
    """\
Use math.isclose with abs_tol=0.01 where the calculation divides or has decimals, and == where it
does not. The module math is imported already. Do not correct the calculation, and do not work it
out in your head: copy its left side and its right side as they are. Remove what is no arithmetic,
such as units, currency signs and thousands separators; write a percentage as a fraction of 100, a
times sign as *, and a power as **.""",
    """\
Calculation: 14 * 230 = 3220
Expression: 14 * 230 == 3220""",
    """\
Calculation: $1,000 / 3 = 333.33
Expression: math.isclose(1000 / 3, 333.33, abs_tol=0.01)""",
    """\
Calculation: 20% of 45 = 9
Expression: math.isclose(20 / 100 * 45, 9, abs_tol=0.01)""",
)

MAX_CALCULATIONS = 9
"""Maximum number of calculations of a solution in the recorded runs."""

_SOLUTION_LINE = re.compile(r"[^\n]*\d[^\n]*")


async def run(app: Chats, text: str, lengths: Lengths) -> AgentResult:
    """Agent that checks the calculations of a `[math problem]` with its `[potential solution]`."""
    steps = Steps(app, lengths)
    listed = await steps.ask("extract_calculations", 0, EXTRACT, text, examples=EXTRACT_EXAMPLES)
    calculations = list_items(listed)[:MAX_CALCULATIONS]
    if lengths.steered:
        lines = _SOLUTION_LINE.findall(text) or [text]
        count = lengths.fan_out("generate_snippets")
        calculations = [lines[index % len(lines)] for index in range(count)]
    snippets = await steps.ask_each(
        "generate_snippets",
        SNIPPET,
        [f"Calculation: {calculation}\nExpression:" for calculation in calculations],
        examples=SNIPPET_EXAMPLES,
    )
    if lengths.steered:
        return steps.result("not evaluated: planned")
    held = sum(await fan_out(holds(snippet) for snippet in snippets))
    return steps.result(f"{held} of {len(calculations)} calculations hold")


async def holds(snippet: str) -> bool:
    """Return whether an expression evaluates to True; False if it cannot be evaluated."""
    expression = code_of(snippet).strip().removeprefix("Expression:").strip()
    program = f"import math\nprint(eval({expression!r}) is True)"
    return (await run_python(program)).output == "True\n"
