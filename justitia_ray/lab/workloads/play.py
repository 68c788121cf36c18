"""Run a load of agents against a live service."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from justitia_ray.client import JustitiaClient
from justitia_ray.client.load import LoadClock, LoadProgress, play_load
from justitia_ray.lab.workloads import (
    code_feedback,
    factool_code,
    factool_kbqa,
    factool_math,
    map_reduce_summary,
    merge_documents,
    plan_execute,
    react_fever,
    react_household,
    self_consistency,
)
from justitia_ray.lab.workloads.steps import Workload
from justitia_ray.sim.suites.load_plan import CallMade, PlannedApplication
from justitia_ray.units import ApplicationId, Seconds, Tokens

WORKLOADS: dict[str, Workload] = {
    "SC": self_consistency.run,
    "KBQAV": factool_kbqa.run,
    "MRS": map_reduce_summary.run,
    "PE": plan_execute.run,
    "CC": factool_code.run,
    "EV": factool_math.run,
    "FV": react_fever.run,
    "ALFWI": react_household.run,
    "DM": merge_documents.run,
    "CG": code_feedback.run,
}
"""Agent of each application class."""


@dataclass(frozen=True, slots=True)
class ApplicationRecord:
    """Record of one application of a load; times are seconds from the start of the load."""

    application_id: ApplicationId | None
    """Id given by the service; None if the application was never opened."""
    application_class: str
    tenant: str
    arrived_at_s: Seconds
    """Planned arrival time; if the application is opened later, the delay counts as waiting."""
    finished_at_s: Seconds
    jct_s: Seconds
    """Completion time, `finished_at_s - arrived_at_s`."""
    outcome: Literal["completed", "failed"]
    inferences: int
    """Number of inferences with an answer."""
    output_tokens: Tokens
    """Output tokens of the inferences with an answer."""
    error: str | None
    """Cause of a failure; None if the application completed."""
    calls: tuple[CallMade, ...] = ()
    """Inferences with the service's token counts; empty if the application failed."""


async def play(
    applications: Sequence[PlannedApplication],
    client: JustitiaClient,
    *,
    on_progress: Callable[[LoadProgress], None] = lambda _: None,
) -> list[ApplicationRecord]:
    """Run all agents of a load at their arrival times, and return a record of each.

    A failed application is recorded as failed and stops no other.
    """

    async def run_agent(planned: PlannedApplication, load_clock: LoadClock) -> ApplicationRecord:
        app, error = None, None
        calls: tuple[CallMade, ...] = ()
        try:
            app = client.application(
                planned.application_class, input=planned.text, tenant=planned.tenant
            )
            async with app:
                run = WORKLOADS[planned.application_class]
                calls = (await run(app, planned.text, planned.lengths)).calls
                finished_at_s = load_clock.now_s()
        except Exception as failure:
            # An agent's error ends only its own application.
            error, finished_at_s = f"{type(failure).__name__}: {failure}", load_clock.now_s()
        return ApplicationRecord(
            application_id=app.application_id if app and app.was_opened else None,
            application_class=planned.application_class,
            tenant=planned.tenant,
            arrived_at_s=planned.arrived_at_s,
            finished_at_s=finished_at_s,
            jct_s=finished_at_s - planned.arrived_at_s,
            outcome="completed" if error is None else "failed",
            inferences=app.inferences if app else 0,
            output_tokens=app.output_tokens if app else 0,
            error=error,
            calls=calls,
        )

    return await play_load(
        applications,
        run_agent,
        arrived_at_s=lambda planned: planned.arrived_at_s,
        has_failed=lambda record: record.error is not None,
        on_progress=on_progress,
    )
