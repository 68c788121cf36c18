"""PE: plan and execute (HuggingGPT, arXiv:2303.17580).

The agent splits a request into subtasks that need each other's results. Language subtasks are
inferences; for other subtasks a model is chosen and run. A last inference reports the results to
the user.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from justitia_ray.client import fan_out
from justitia_ray.lab.workloads.steps import AgentResult, Chats, Steps, Workload
from justitia_ray.sim.suites.load_plan import Lengths
from justitia_ray.sim.suites.measured_classes import CHOOSE_MODEL, LLM_TASK, MODEL

LANGUAGE_TASKS = ("conversational", "summarization", "text-generation", "translation")
"""Tasks that the LLM carries out itself."""

MODELS: dict[str, tuple[str, ...]] = {
    "depth-estimation": (
        "depth-large: relative depth of photographs, slow, the most exact indoors",
        "depth-hybrid: relative depth of photographs, four times as fast, blurs thin objects",
        "depth-metric: depth in metres, trained on street scenes",
    ),
    "object-detection": (
        "detector-resnet: boxes and names of 80 everyday things, exact on large ones",
        "detector-tiny: boxes and names of 80 everyday things, fast, misses small ones",
        "detector-open: boxes of whatever a text names, slow",
    ),
    "image-classification": ("classifier-base: one of 1,000 names for a whole image",),
    "image-segmentation": ("segmenter-panoptic: outlines of things and of background",),
    "image-to-image": ("restorer: sharpens, colours and enlarges images",),
    "image-to-text": ("captioner: one sentence on what an image shows",),
    "text-to-image": ("painter: an image of 512 by 512 from a description",),
    "text-to-video": ("animator: two seconds of video from a description",),
    "visual-question-answering": ("image-reader: a short answer to a question about an image",),
    "document-question-answering": ("form-reader: a short answer to a question about a scan",),
    "depth-text-to-image": ("painter-depth: an image from a description and a depth map",),
    "automatic-speech-recognition": ("transcriber: the words of a recording",),
    "text-to-speech": ("speaker: a recording of a text, one voice",),
}
"""Models by task, each as `NAME: description`."""

_TASK_LIST = "Tasks:\n" + "\n".join(
    [
        *(
            f"{task}: {'; '.join(model.partition(': ')[2] for model in models)}"
            for task, models in MODELS.items()
        ),
        "conversational: an answer to a remark or question that needs no other task",
        "summarization: a text in fewer words",
        "text-generation: a new text from instructions, such as a letter, a story or a list",
        "translation: a text in another language; name the language in args",
    ]
)

_RULES = """\
Rules. Use as few subtasks as the request needs, and none that it does not ask for. A subtask that
works on what another one makes names it in dep and writes <result-ID> in args where that result
belongs; ids count from 0 in the order of the list, and dep names earlier ids only. Subtasks that do
not need each other must not name each other, so that they can run at the same time. Copy file names
and quoted texts from the request exactly as they are. If a request asks something about an image,
that is visual-question-answering; if it wants to know what an image shows, that is image-to-text;
if it wants to know where things are or how many, that is object-detection. Answer [] if none of the
tasks can help."""


def _example_with_plan(request: str, *subtasks: tuple[str, list[int], dict[str, str]]) -> str:
    plan = [
        {"task": task, "id": number, "dep": needs, "args": arguments}
        for number, (task, needs, arguments) in enumerate(subtasks)
    ]
    return f"Request: {request}\nSubtasks: {json.dumps(plan)}"


PLAN_EXAMPLES = (
    f"{_TASK_LIST}\n\n{_RULES}",
    _example_with_plan(
        "How many bicycles are in yard.jpg, and which of them is nearest? Tell me in Spanish.",
        ("object-detection", [-1], {"image": "yard.jpg"}),
        ("depth-estimation", [-1], {"image": "yard.jpg"}),
        (
            "translation",
            [0, 1],
            {"text": "bicycles: <result-0>, depths: <result-1>", "language": "Spanish"},
        ),
    ),
    _example_with_plan(
        "Draw a lighthouse in a storm, say in one sentence what the picture shows, and read that"
        " sentence out to me.",
        ("text-to-image", [-1], {"text": "a lighthouse in a storm"}),
        ("image-to-text", [0], {"image": "<result-0>"}),
        ("text-to-speech", [1], {"text": "<result-1>"}),
    ),
    _example_with_plan(
        "Here is the recording meeting.wav. I need its main points and a friendly letter to the"
        " team about them.",
        ("automatic-speech-recognition", [-1], {"audio": "meeting.wav"}),
        ("summarization", [0], {"text": "<result-0>"}),
        ("text-generation", [1], {"text": "a friendly letter to the team about <result-1>"}),
    ),
    _example_with_plan(
        "Sharpen old.png. Is the woman on the left wearing a hat? And make a video of a hat that"
        " flies away.",
        ("image-to-image", [-1], {"image": "old.png"}),
        (
            "visual-question-answering",
            [0],
            {"image": "<result-0>", "question": "Is the woman on the left wearing a hat?"},
        ),
        ("text-to-video", [-1], {"text": "a hat that flies away in the wind"}),
    ),
    _example_with_plan(
        "Explain in plain words what this says, then write a short poem about it: 'Photosynthesis"
        " converts light energy into chemical energy that is later released to fuel the organism.'",
        (
            "summarization",
            [-1],
            {
                "text": "Photosynthesis converts light energy into chemical energy that is later"
                " released to fuel the organism."
            },
        ),
        ("text-generation", [0], {"text": "a short poem about <result-0>"}),
    ),
)
"""Prompt text with the tasks, the rules, and example requests with their plans."""


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
"""Maximum number of subtasks of a request in the recorded runs."""

RunModel = Callable[[str, str, str], Awaitable[str]]
"""Function that runs a model for a subtask: (task, model, arguments) -> its result as text."""


@dataclass(frozen=True, slots=True)
class Subtask:
    """Step of a plan."""

    task: str
    needs: tuple[int, ...] = ()
    """Indices of the earlier subtasks whose results the subtask needs."""
    arguments: str = ""
    exec_s: float = field(default=0.0, compare=False)

    @property
    def kind(self) -> str:
        """Kind of the subtask: `model`, `choose_model` or `llm_task`."""
        if self.task in LANGUAGE_TASKS:
            return LLM_TASK
        return CHOOSE_MODEL if len(MODELS.get(self.task, ())) > 1 else MODEL


async def no_models(task: str, model: str, arguments: str) -> str:
    """Tell the agent that a model is not available."""
    return f"{model} for {task} is not available here"


def workload(run_model: RunModel) -> Workload:
    """Return the plan-and-execute agent, with a function that runs its models."""

    async def run_with_models(app: Chats, text: str, lengths: Lengths) -> AgentResult:
        return await _Execution(Steps(app, lengths), text, lengths, run_model).run()

    return run_with_models


run = workload(no_models)
"""Plan-and-execute agent with no other models than the LLM."""


@dataclass(frozen=True, slots=True)
class _Execution:
    steps: Steps
    text: str
    lengths: Lengths
    run_model: RunModel

    async def run(self) -> AgentResult:
        material = f"Request: {self.text}\nSubtasks:"
        answer = await self.steps.ask("task_planning", 0, PLAN, material, examples=PLAN_EXAMPLES)
        plan = (
            _planned_subtasks(self.lengths, self.text)
            if self.lengths.steered
            else read_plan(answer)
        )
        results = await self._run_subtasks(plan)
        told = "\n".join(f"{s.task}: {result}" for s, result in zip(plan, results, strict=True))
        found = f"Request: {self.text}\nResults:\n{told}"
        return self.steps.result(await self.steps.ask("response", 0, RESPOND, found))

    async def _run_subtasks(self, plan: Sequence[Subtask]) -> list[str]:
        """Carry out the subtasks, each when the subtasks that it needs are done."""
        kinds = [subtask.kind for subtask in plan]
        done: list[asyncio.Future[str]] = [asyncio.Future() for _ in plan]

        async def run_when_ready(index: int) -> str:
            needed = [await done[need] for need in plan[index].needs]
            number = kinds[:index].count(kinds[index])
            result = await self._run_subtask(plan[index], number, needed)
            done[index].set_result(result)
            return result

        return await fan_out(run_when_ready(index) for index in range(len(plan)))

    async def _run_subtask(self, subtask: Subtask, number: int, needed: Sequence[str]) -> str:
        asked = f"Subtask: {subtask.task}\nArguments: {subtask.arguments}\n" + "\n".join(needed)
        if subtask.kind == LLM_TASK:
            return await self.steps.ask(LLM_TASK, number, SOLVE, asked)
        models = MODELS.get(subtask.task, ("a model",))
        model = models[0]
        if subtask.kind == CHOOSE_MODEL:
            offered = f"{asked}\nModels: {'; '.join(models)}"
            choice = await self.steps.ask(CHOOSE_MODEL, number, CHOOSE, offered)
            model = next((name for name in models if name.split(":")[0] in choice), model)
        if self.lengths.steered:
            await asyncio.sleep(subtask.exec_s)
            return model
        return await self.run_model(subtask.task, model, asked)


def read_plan(answer: str) -> list[Subtask]:
    """Return the subtasks in an answer; an empty list without a list of subtasks.

    Needs that name no earlier subtask are dropped, so that every execution ends.
    """
    try:
        listed = json.loads(answer[answer.index("[") : answer.rindex("]") + 1])
    except ValueError:
        return []
    named = [
        item for item in listed if isinstance(item, dict) and isinstance(item.get("task"), str)
    ]
    plan = []
    for index, item in enumerate(named[:MAX_SUBTASKS]):
        wanted = item["dep"] if isinstance(item.get("dep"), list) else []
        needs = tuple(i for i, earlier in enumerate(named[:index]) if earlier.get("id") in wanted)
        plan.append(Subtask(item["task"], needs, json.dumps(item.get("args", ""))))
    return plan


def _planned_subtasks(lengths: Lengths, text: str) -> list[Subtask]:
    tasks = {LLM_TASK: "summarization", CHOOSE_MODEL: "object-detection", MODEL: "text-to-image"}
    return [Subtask(tasks[s.kind], s.needs, text, s.exec_s) for s in lengths.subtasks]
