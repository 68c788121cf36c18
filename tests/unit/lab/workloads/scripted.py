"""Service whose answers a test sets by the instruction of a prompt."""

from collections.abc import Callable, Mapping
from typing import Any

from justitia_ray.client import Completion, Messages
from justitia_ray.lab.workloads.play import WORKLOADS
from justitia_ray.lab.workloads.steps import AgentResult, Workload
from justitia_ray.sim.suites.load_plan import LengthPlan

Answer = str | Callable[[str], str]


class ScriptedModel:
    """Model that answers by the instruction at the start of a prompt; other prompts raise."""

    def __init__(self, answers: Mapping[str, Answer] | Answer) -> None:
        self.prompts: list[str] = []
        self.asked: list[dict[str, Any]] = []
        self._answers = answers if isinstance(answers, Mapping) else {"": answers}

    async def chat(
        self, messages: Messages, *, max_tokens: int | None = None, **fields: Any
    ) -> Completion:
        assert isinstance(messages, str)
        self.prompts.append(messages)
        self.asked.append({"max_tokens": max_tokens, **fields})
        [answer] = [a for start, a in self._answers.items() if messages.startswith(start)]
        text = answer if isinstance(answer, str) else answer(messages)
        return Completion(text, (text,), len(messages.split()), len(text.split()), "stop", {})


async def run_freely(
    name: str,
    app: ScriptedModel,
    text: str,
    max_prompt_words: int = 3000,
    agent: Workload | None = None,
) -> AgentResult:
    """Run an agent on real answers, without a plan."""
    plan = LengthPlan(steered=False, gap_scale=0.0, max_prompt_words=max_prompt_words)
    return await (agent or WORKLOADS[name])(app, text, plan.draw(name, "x", 0))


def answers_in_turn(*answers: str) -> Callable[[str], str]:
    """Return a callable that gives the answers in turn, for any request."""
    left = iter(answers)
    return lambda _: next(left)
