"""CG: code generation with feedback.

The agent writes a function, runs the examples in its documentation, and puts errors into the next
prompt, until the examples pass.
"""

import ast

from justitia_ray.lab.workloads.sandbox import ProgramRun, code_of, run_python
from justitia_ray.lab.workloads.steps import AgentResult, Chats, Steps, Transcript
from justitia_ray.sim.suites.load_plan import Lengths

GENERATE = """\
Complete the Python module below. Write the whole module, with its imports, in one fenced block, and
nothing else."""

FEEDBACK = """\
[result]
{result}
Say in one sentence what was wrong, then write the whole module again."""

MAX_TURNS = 5
"""Maximum number of attempts in the recorded runs."""

_MAX_RESULT_CHARS = 1500
"""Number of characters kept of a failed program's output, from the end where the error is."""

_RUN_EXAMPLES = """

import doctest as _doctest
_test = _doctest.DocTestParser().get_doctest({examples!r}, globals(), "examples", None, 0)
_runner = _doctest.DocTestRunner(verbose=False, optionflags=_doctest.REPORT_ONLY_FIRST_FAILURE)
raise SystemExit(bool(_runner.run(_test).failed))
"""


async def run(app: Chats, text: str, lengths: Lengths) -> AgentResult:
    """Agent that completes a Python module until its examples pass."""
    steps = Steps(app, lengths)
    transcript = Transcript(GENERATE, text)
    turns = lengths.rounds("code_generation") if lengths.steered else MAX_TURNS
    for number in range(1, turns + 1):
        answer = await steps.turn("code_generation", number, transcript)
        if lengths.steered:
            if number < turns:
                await steps.use_tool(f"code_generation_{number + 1}")
                transcript.add(FEEDBACK.format(result=text))
            continue
        tried = await run_python(program_of(text, answer))
        if tried.outcome == "passed":
            return steps.result(f"passed at attempt {number}")
        transcript.add(FEEDBACK.format(result=failure_message(tried)))
    return steps.result(f"not passed in {turns} attempts")


def program_of(start: str, answer: str) -> str:
    """Return a program that runs the module's examples on the code of an answer.

    An answer that defines no function is taken as the rest of the module.
    """
    code = code_of(answer)
    functions = [
        node for node in ast.walk(_parse_or_none(code)) if isinstance(node, ast.FunctionDef)
    ]
    module = code if functions else start + code
    return module + _RUN_EXAMPLES.format(examples=documentation(start))


def documentation(start: str) -> str:
    """Return the docstrings of a module's functions, with their examples."""
    functions = (
        node for node in ast.walk(_parse_or_none(start)) if isinstance(node, ast.FunctionDef)
    )
    return "\n\n".join(ast.get_docstring(function) or "" for function in functions)


def _parse_or_none(code: str) -> ast.Module:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def failure_message(tried: ProgramRun) -> str:
    """Return the message that tells a model why its program failed."""
    said = (tried.output + tried.errors).strip()[-_MAX_RESULT_CHARS:]
    return f"{tried.outcome}\n{said}"
