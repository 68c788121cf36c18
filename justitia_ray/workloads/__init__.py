"""The paper's applications as short agents on the client, and loads of them.

    SC      self_consistency     one question, several attempts, a vote
    KBQAV   factool_kbqa         claims of a response, each searched for and verified
    MRS     map_reduce_summary   summaries of chunks, collapsed into one

`load_plan` draws a load, `play` plays it against a service.
"""

from justitia_ray.workloads.inputs import Input, load_inputs
from justitia_ray.workloads.lengths import LengthPlan, Lengths
from justitia_ray.workloads.load_plan import DEFAULT_MIX, LoadPlan, PlannedApplication
from justitia_ray.workloads.play import ApplicationRecord, Progress, play
from justitia_ray.workloads.steps import Chats, Result, Workload
from justitia_ray.workloads.table import WORKLOADS

__all__ = [
    "DEFAULT_MIX",
    "WORKLOADS",
    "ApplicationRecord",
    "Chats",
    "Input",
    "LengthPlan",
    "Lengths",
    "LoadPlan",
    "PlannedApplication",
    "Progress",
    "Result",
    "Workload",
    "load_inputs",
    "play",
]
