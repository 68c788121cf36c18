"""Applications as a simulator or a replay sees them: when they come, how long inferences are.

The form of the workload file (`workload_file`) in memory, and its rules.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from justitia_ray.cost import CostFunction, kv_token_time
from justitia_ray.errors import ConfigError
from justitia_ray.units import ApplicationId, InferenceId, KvTokenTime, Seconds, Tokens


@dataclass(frozen=True, slots=True)
class WorkloadInference:
    """One inference of an application."""

    inference_id: InferenceId
    prompt_tokens: Tokens
    output_tokens: Tokens
    after: tuple[InferenceId, ...] = ()
    """Inferences that must finish before it is submitted; none: it is submitted on arrival."""
    delay_s: Seconds = 0.0
    """Tool time between that and its submission."""


@dataclass(frozen=True, slots=True)
class WorkloadApplication:
    """One application; `inferences` hold at least one."""

    application_id: ApplicationId
    application_class: str
    arrived_at_s: Seconds
    inferences: tuple[WorkloadInference, ...]
    tenant: str = "default"
    weight: float = 1.0
    input: str = ""
    """What its user submitted, if the workload has texts; predictors read it."""

    def cost(self, h: CostFunction = kv_token_time) -> KvTokenTime:
        """Return the true cost: h(p, d) over all inferences."""
        return sum(h(i.prompt_tokens, i.output_tokens) for i in self.inferences)

    def check(self) -> None:
        """Raise ConfigError, naming field, value and what is allowed, if anything is wrong."""
        _check_number("arrived_at_s", self.arrived_at_s, least=0)
        _check_number("weight", self.weight, above=0)
        if not self.inferences:
            raise ConfigError("inferences must hold at least one inference, got none")
        known: set[InferenceId] = set()
        for number, inference in enumerate(self.inferences):
            field = f"inferences[{number}]"
            if inference.inference_id in known:
                raise ConfigError(
                    f"{field}.inference_id must be unique in its application, got "
                    f"{inference.inference_id!r} again"
                )
            known.add(inference.inference_id)
            for name in ("prompt_tokens", "output_tokens"):
                tokens = getattr(inference, name)
                if type(tokens) is not int or tokens < 1:
                    raise ConfigError(f"{field}.{name} must be a whole number >= 1, got {tokens!r}")
            _check_number(f"{field}.delay_s", inference.delay_s, least=0)
        for number, inference in enumerate(self.inferences):
            for name in inference.after:
                if name not in known:
                    raise ConfigError(
                        f"inferences[{number}].after must name inferences of its application, got "
                        f"{name!r}"
                    )
        _check_acyclic(self.inferences)


def check_sizes(applications: Sequence[WorkloadApplication], kv_tokens: Tokens) -> None:
    """Raise ConfigError if an inference could never run to its end on a replica of that size."""
    for application in applications:
        for inference in application.inferences:
            total = inference.prompt_tokens + inference.output_tokens
            if total > kv_tokens:
                raise ConfigError(
                    f"application {application.application_id!r}, inference "
                    f"{inference.inference_id!r}: prompt_tokens + output_tokens = {total} must be "
                    f"at most the KV memory of a replica, {kv_tokens} tokens"
                )


def _check_number(
    field: str, value: object, *, least: float = -math.inf, above: float = -math.inf
) -> None:
    allowed = f"a number >= {least:g}" if least > -math.inf else f"a number > {above:g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{field} must be {allowed}, got {value!r}")
    if not (least <= value < math.inf and value > above):
        raise ConfigError(f"{field} must be {allowed}, got {value!r}")


def _check_acyclic(inferences: Sequence[WorkloadInference]) -> None:
    """Kahn's algorithm: what cannot be ordered is in a cycle, or behind one."""
    open_predecessors = {i.inference_id: len(set(i.after)) for i in inferences}
    successors: dict[InferenceId, list[InferenceId]] = {name: [] for name in open_predecessors}
    for inference in inferences:
        for name in set(inference.after):
            successors[name].append(inference.inference_id)
    ready = [name for name, count in open_predecessors.items() if count == 0]
    while ready:
        name = ready.pop()
        del open_predecessors[name]
        for successor in successors[name]:
            open_predecessors[successor] -= 1
            if open_predecessors[successor] == 0:
                ready.append(successor)
    if open_predecessors:
        stuck = ", ".join(repr(name) for name in open_predecessors)
        raise ConfigError(
            f"inferences: `after` must have no cycle, but {stuck} wait for each other"
        )
