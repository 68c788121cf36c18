"""The papers' applications as short agents on the client, and loads of them.

    SC      self_consistency     one question, several attempts, a vote
    KBQAV   factool_kbqa         claims of a response, each searched for and verified
    MRS     map_reduce_summary   summaries of chunks, collapsed into one
    PE      plan_execute         a plan of subtasks that need each other, a response
    CC      factool_code         code run against solutions on calls chosen for it
    EV      factool_math         calculations, each checked by an expression
    FV      react_fever          thoughts and searches in turn, a verdict on a claim
    ALFWI   react_household      thoughts and commands in turn, in a household of text
    DM      merge_documents      merges, scored, aggregated, improved
    CG      code_feedback        code run and written again

`load_plan` draws a load, `nine_class_load` that of the papers' mix, `play` plays it against a
service, `dry_run` counts what it would ask. On a real model the answers decide what an agent does.
"""

from justitia_ray.workloads.inputs import Input, load_inputs
from justitia_ray.workloads.lengths import LengthPlan, Lengths
from justitia_ray.workloads.load_plan import DEFAULT_MIX, LoadPlan, PlannedApplication
from justitia_ray.workloads.nine_class_load import NineClassLoad, nine_class_plan
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
    "NineClassLoad",
    "PlannedApplication",
    "Progress",
    "Result",
    "Workload",
    "load_inputs",
    "nine_class_plan",
    "play",
]
