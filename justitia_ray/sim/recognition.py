"""Recognition of applications in a simulated run: under which application each inference is served.

Calls without an application id are served as the service recognises them. Completion times are
those of the workload's applications; scheduler and cost predictions see the recognised
applications.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from justitia_ray.errors import ConfigError
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from justitia_ray.units import ApplicationId, InferenceId, Seconds

APPLICATION, CONVERSATION, INFERENCE = "application", "conversation", "inference"
WAYS = (APPLICATION, CONVERSATION, INFERENCE)
"""How a call's application is found: by the caller's id, by the text of the conversation, or not at
all.
"""
NAMELESS_CLASS = "default"
"""Class of applications that their callers do not name."""
IDLE_S: Seconds = 60.0
"""Seconds without a call after which an application ends that its caller does not close."""


def continued_call(
    later: WorkloadInference, by_id: Mapping[InferenceId, WorkloadInference]
) -> WorkloadInference | None:
    """Return the earlier call whose conversation a call continues; None without one.

    The later call must follow only this earlier call, and its prompt must be long enough to repeat
    the prompt and the output of the earlier call. A workload has lengths and no texts, so no more
    can be checked.

    Args:
        later: The later call.
        by_id: All inferences of its application.
    """
    if len(later.after) != 1:
        return None
    earlier = by_id[later.after[0]]
    said = earlier.prompt_tokens + earlier.output_tokens
    return earlier if later.prompt_tokens >= said else None


def first_calls_by_inference(application: WorkloadApplication) -> dict[InferenceId, InferenceId]:
    """Return the first call of each inference's conversation.

    Several calls that continue the same call are forks of one conversation.
    """
    by_id = {one.inference_id: one for one in application.inferences}
    found: dict[InferenceId, InferenceId] = {}
    for one in application.inferences:
        turns = [one]
        while turns[-1].inference_id not in found:
            earlier = continued_call(turns[-1], by_id)
            if earlier is None:
                break
            turns.append(earlier)
        last = turns[-1].inference_id
        first = found.get(last, last)
        found.update((turn.inference_id, first) for turn in reversed(turns))
    return found


@dataclass(slots=True)
class RecognitionCounts:
    """Number of calls, and of calls that were recognised as part of an earlier conversation."""

    calls: int = 0
    following: int = 0
    """Number of calls that wait for another call of their application."""
    recognised: int = 0


def count_recognised(applications: Iterable[WorkloadApplication]) -> dict[str, RecognitionCounts]:
    """Return the number of calls recognised by conversation, by class."""
    found: dict[str, RecognitionCounts] = {}
    for application in applications:
        of_class = found.setdefault(application.application_class, RecognitionCounts())
        of_class.calls += len(application.inferences)
        of_class.following += sum(bool(one.after) for one in application.inferences)
        firsts = first_calls_by_inference(application)
        of_class.recognised += len(firsts) - len(set(firsts.values()))
    return found


class Recognition:
    """Maps inferences of the workload to the applications under which they are served.

    Args:
        way: One of `WAYS`.

    Raises:
        ConfigError: If the way is another.
    """

    def __init__(self, way: str) -> None:
        if way not in WAYS:
            raise ConfigError(f"recognised must be one of {', '.join(WAYS)}, got {way!r}")
        self._way = way
        self.is_told = way == APPLICATION
        """Whether callers name the application of each call."""
        self.knows_the_last = way != CONVERSATION
        """Whether an application is closed after its last inference, and not after an idle time."""
        self._served: dict[tuple[ApplicationId, InferenceId], WorkloadApplication] = {}

    def expect(self, application: WorkloadApplication) -> None:
        """Register an application of the workload before it arrives."""
        if self.is_told:
            return
        parts: dict[InferenceId, list[WorkloadInference]] = {}
        by_id = {one.inference_id: one for one in application.inferences}
        firsts = (
            first_calls_by_inference(application)
            if self._way == CONVERSATION
            else {one: one for one in by_id}
        )
        for one, first in firsts.items():
            parts.setdefault(first, []).append(by_id[one])
        name = application.application_id
        for first, inferences in parts.items():
            served = WorkloadApplication(
                f"{name}/{first}",
                NAMELESS_CLASS,
                application.arrived_at_s,
                tuple(inferences),
                application.tenant,
                application.weight,
            )
            self._served.update(((name, one.inference_id), served) for one in inferences)

    def serving_application(
        self, application: WorkloadApplication, inference: WorkloadInference
    ) -> WorkloadApplication:
        """Return the application under which an inference is served."""
        return self._served.get((application.application_id, inference.inference_id), application)

    def serving_application_id(
        self, application_id: ApplicationId, inference_id: InferenceId
    ) -> ApplicationId:
        """Return the id of the application under which an inference is served."""
        served = self._served.get((application_id, inference_id))
        return application_id if served is None else served.application_id
