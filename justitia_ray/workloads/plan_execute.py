"""PE: plan and execute (HuggingGPT, arXiv:2303.17580).

A request is taken apart into subtasks that need each other's results. Those that language solves
are inferences; for the others a model is chosen and run. A last inference tells the user what came
of it.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from justitia_ray.client import fan_out
from justitia_ray.workloads.lengths import Lengths
from justitia_ray.workloads.model_catalogue import LANGUAGE_TASKS, MODELS, PLAN_EXAMPLES
from justitia_ray.workloads.steps import Chats, Result, Steps, Workload
from justitia_ray.workloads.subtasks import CHOOSE_MODEL, LLM_TASK, MODEL

PLAN = """\
Split the user's request into subtasks. Answer with a JSON list and nothing else, each element
{"task": one of the tasks below, "id": its number from 0, "dep": ids it needs or [-1], "args":
what it works on}."""

CHOOSE = """\
Choose the model that suits the subtask below best. Answer with JSON and nothing else: {"id": the
model, "reason": why, in one sentence}."""

SOLVE = "Carry out the subtask below and answer with its result alone."

RESPOND = """\
Answer the user's request below from the results of its subtasks. Say first what the user wants to
know, then how it was found and by which models; say plainly what could not be done."""

MAX_SUBTASKS = 7
"""The most that was measured of one request."""

RunModel = Callable[[str, str, str], Awaitable[str]]
"""Runs a model on what a subtask works on: (task, model, arguments) -> its result as text."""


@dataclass(frozen=True, slots=True)
class Subtask:
    """One step of a plan."""

    task: str
    needs: tuple[int, ...] = ()
    """Which subtasks must be done first, by index; all are before it."""
    arguments: str = ""
    exec_s: float = field(default=0.0, compare=False)

    @property
    def kind(self) -> str:
        """What it takes; see `subtasks`."""
        if self.task in LANGUAGE_TASKS:
            return LLM_TASK
        return CHOOSE_MODEL if len(MODELS.get(self.task, ())) > 1 else MODEL


async def no_models(task: str, model: str, arguments: str) -> str:
    """Say that there is no such model here: an agent has those that `workload` is given."""
    return f"{model} for {task} is not available here"


async def run(app: Chats, text: str, lengths: Lengths) -> Result:
    """Plan and execute a request where no models but the LLM are there; see `Workload`."""
    return await _Execution(Steps(app, lengths), text, lengths, no_models).run()


def workload(run_model: RunModel) -> Workload:
    """Return the agent with models that it can run."""

    async def run_with_models(app: Chats, text: str, lengths: Lengths) -> Result:
        return await _Execution(Steps(app, lengths), text, lengths, run_model).run()

    return run_with_models


class _Execution:
    def __init__(self, steps: Steps, text: str, lengths: Lengths, run_model: RunModel) -> None:
        self._steps = steps
        self._text = text
        self._lengths = lengths
        self._run_model = run_model

    async def run(self) -> Result:
        material = f"Request: {self._text}\nSubtasks:"
        answer = await self._steps.ask("task_planning", 0, PLAN, material, examples=PLAN_EXAMPLES)
        plan = _planned(self._lengths, self._text) if self._lengths.steered else read_plan(answer)
        results = await self._execute(plan)
        told = "\n".join(f"{s.task}: {result}" for s, result in zip(plan, results, strict=True))
        return self._steps.result(
            await self._steps.ask(
                "response", 0, RESPOND, f"Request: {self._text}\nResults:\n{told}"
            )
        )

    async def _execute(self, plan: Sequence[Subtask]) -> list[str]:
        """Carry out the subtasks, each as soon as those that it needs are done."""
        kinds = [subtask.kind for subtask in plan]
        numbers = [kinds[:index].count(kind) for index, kind in enumerate(kinds)]
        done: list[asyncio.Future[str]] = [asyncio.Future() for _ in plan]

        async def carry_out(index: int) -> str:
            needed = [await done[need] for need in plan[index].needs]
            result = await self._carry_out(plan[index], numbers[index], needed)
            done[index].set_result(result)
            return result

        return await fan_out(carry_out(index) for index in range(len(plan)))

    async def _carry_out(self, subtask: Subtask, number: int, needed: Sequence[str]) -> str:
        asked = f"Subtask: {subtask.task}\nArguments: {subtask.arguments}\n" + "\n".join(needed)
        if subtask.kind == LLM_TASK:
            return await self._steps.ask(LLM_TASK, number, SOLVE, asked)
        models = MODELS.get(subtask.task, ("a model",))
        model = models[0]
        if subtask.kind == CHOOSE_MODEL:
            choice = await self._steps.ask(
                CHOOSE_MODEL, number, CHOOSE, f"{asked}\nModels: {'; '.join(models)}"
            )
            model = next((name for name in models if name.split(":")[0] in choice), model)
        if self._lengths.steered:
            await asyncio.sleep(subtask.exec_s)
            return model
        return await self._run_model(subtask.task, model, asked)


def read_plan(answer: str) -> list[Subtask]:
    """Return the subtasks of an answer, none if it holds no list of them.

    Needs that name no earlier subtask are left out: an execution must come to an end.
    """
    try:
        listed = json.loads(answer[answer.index("[") : answer.rindex("]") + 1])
    except ValueError:
        return []
    named = [
        item for item in listed if isinstance(item, dict) and isinstance(item.get("task"), str)
    ]
    return [_subtask(item, named[:index]) for index, item in enumerate(named[:MAX_SUBTASKS])]


def _subtask(item: dict[str, Any], before: Sequence[dict[str, Any]]) -> Subtask:
    wanted = item.get("dep")
    wanted = wanted if isinstance(wanted, list) else []
    needs = tuple(i for i, earlier in enumerate(before) if earlier.get("id") in wanted)
    return Subtask(item["task"], needs, json.dumps(item.get("args", "")))


def _planned(lengths: Lengths, text: str) -> list[Subtask]:
    """Return subtasks of the planned kinds, each with a task that is of the kind."""
    tasks = {LLM_TASK: "summarization", CHOOSE_MODEL: "object-detection", MODEL: "text-to-image"}
    return [Subtask(tasks[s.kind], s.needs, text, s.exec_s) for s in lengths.subtasks]
