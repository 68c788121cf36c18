"""Every script in `deployments/examples/` runs against the service with fake engines."""

import asyncio
import runpy
from pathlib import Path

import httpx
import pytest

from tests.eventually import eventually
from tests.harness.service import MODEL, Service

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

EXAMPLES = Path(__file__).parents[2] / "deployments" / "examples"
SCRIPTS = sorted(path.stem for path in (EXAMPLES / "openai_client").glob("*.py"))
CLASSES = {
    "self_consistency": ("SC", 5),
    "factool_kbqa": ("KBQAV", 3),
    "map_reduce_summary": ("MRS", 5),
    "plan_execute": ("PE", 4),
    "factool_code": ("CC", 4),
    "factool_math": ("EV", 2),
    "react_fever": ("FV", 4),
    "react_household": ("ALFWI", 10),
    "merge_documents": ("DM", 13),
    "code_feedback": ("CG", 3),
}
"""Application class of each example script, and its number of inferences where answers are
meaningless.
"""
MAX_TOKENS = 8


@pytest.mark.parametrize("script", SCRIPTS)
async def test_calls_of_the_openai_example_script_are_one_application(
    script: str, service: Service, http: httpx.AsyncClient
) -> None:
    application_class, inferences = CLASSES[script]
    before = await service.until_idle()
    samples = await sample_count(http, application_class)
    module = runpy.run_path(str(EXAMPLES / "openai_client" / f"{script}.py"))

    answer = await module["main"](f"{service.url}/v1", MODEL, MAX_TOKENS)

    after = await service.until_idle()
    assert answer
    assert inferences == after["grants"] - before["grants"]

    async def predictor_has_the_sample() -> bool:
        return samples + 1 == await sample_count(http, application_class)

    await eventually(predictor_has_the_sample, f"one more {application_class} is known", 60.0)


async def sample_count(http: httpx.AsyncClient, application_class: str) -> int:
    """Return the number of the predictor's samples of a class."""
    classes = (await http.get("/v1/predictor")).json()["classes"]
    return int(classes.get(application_class, {"samples": 0})["samples"])


@pytest.mark.parametrize(
    ("script", "inferences"),
    [
        # Tasks on any node belong to one application by its id.
        ("one_application", 5),
        # Four questions get three votes each, through handles that the tasks found by name.
        ("application_a_task", 12),
    ],
)
async def test_calls_from_ray_tasks_are_served(
    script: str, inferences: int, service: Service
) -> None:
    """The tasks share an application or have one each; all applications are closed at the end."""
    before = await service.until_idle()
    module = runpy.run_path(str(EXAMPLES / "ray_tasks" / f"{script}.py"))

    answered = await asyncio.to_thread(module["main"], service.name, MODEL, MAX_TOKENS)

    after = await service.until_idle()
    assert answered
    assert inferences == after["grants"] - before["grants"]
