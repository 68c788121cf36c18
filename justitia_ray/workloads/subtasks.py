"""What plan-and-execute applications (PE) were measured to do.

Source: as `stages`: 129 recorded runs.
"""

from dataclasses import dataclass

from justitia_ray.workloads.stages import Spread, Stage, exactly

MODEL, CHOOSE_MODEL, LLM_TASK = "model", "choose_model", "llm_task"
"""Kinds of subtasks: a model that is no LLM runs; an inference chooses that model first; an
inference is the subtask."""


@dataclass(frozen=True, slots=True)
class PlanStages:
    """Plan-and-execute: a plan, a chain of subtasks, a response."""

    planning: Stage
    subtasks: Spread
    choose_model_share: float
    """Of all subtasks: an inference chooses a model, then that model runs."""
    llm_task_share: float
    """Of all subtasks: an inference is the subtask. The rest only runs a model that is no LLM."""
    choose_model: Stage
    llm_task: Stage
    exec_s: Spread
    """Seconds that those models take, of a whole run."""
    response: Stage


PLAN = PlanStages(
    Stage("task_planning", exactly(1), Spread(1870, 1847, 1899, 2147), Spread(117, 70, 161, 274)),
    Spread(3, 2, 4, 7),
    0.57 / 2.9,
    0.64 / 2.9,
    Stage(CHOOSE_MODEL, exactly(1), Spread(451, 429, 473, 501), Spread(87, 75, 106, 130)),
    Stage(LLM_TASK, exactly(1), Spread(174, 146, 202, 900), Spread(22, 11, 190, 1015)),
    Spread(17.3, 3.2, 39.6, 58.8),
    Stage("response", exactly(1), Spread(711, 474, 1041, 1859), Spread(497, 338, 783, 1670)),
)
"""PE. A run has 2.9 subtasks on average, 0.57 that choose a model and 0.64 that are an inference;
most plans are a chain, and made-up ones all are."""
