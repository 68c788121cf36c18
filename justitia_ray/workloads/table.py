"""The agents by application class."""

from justitia_ray.workloads import (
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
from justitia_ray.workloads.steps import Workload

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
"""Every agent that a load may hold, by the class it runs as."""
