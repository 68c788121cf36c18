"""The agents by application class."""

from justitia_ray.workloads import factool_kbqa, map_reduce_summary, self_consistency
from justitia_ray.workloads.steps import Workload

WORKLOADS: dict[str, Workload] = {
    "SC": self_consistency.run,
    "KBQAV": factool_kbqa.run,
    "MRS": map_reduce_summary.run,
}
"""Every agent that a load may hold, by the class it runs as."""
