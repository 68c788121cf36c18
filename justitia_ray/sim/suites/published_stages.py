"""What the classes without a live agent were measured to do; `workloads.stages` has the others.

Source: recorded runs published with Hermes (NephrenCake/Hermes, commit 3894339d): 164 of CC and CG,
100 of EV and DM, 98 of FV, 95 of ALFWI, 129 of PE. The sandbox that CC and EV end with keeps no
inference waiting and is left out.
"""

from dataclasses import dataclass

from justitia_ray.workloads.stages import Spread, Stage, exactly

STAGES: dict[str, tuple[Stage, ...]] = {
    "CC": (
        Stage(
            "generate_testcases", exactly(1), Spread(345, 305, 436, 606), Spread(67, 47, 103, 256)
        ),
        Stage(
            "generate_solutions", exactly(3), Spread(309, 272, 398, 574), Spread(184, 111, 271, 682)
        ),
    ),
    "EV": (
        Stage(
            "extract_calculations",
            exactly(1),
            Spread(829, 757, 937, 1121),
            Spread(81, 52, 152, 315),
        ),
        Stage(
            "generate_snippets",
            Spread(3, 2, 4, 9),
            Spread(268, 257, 277, 294),
            Spread(32, 21, 37, 47),
        ),
    ),
    "DM": (
        Stage(
            "generate_1", exactly(2), Spread(1570, 1264, 1866, 2343), Spread(924, 591, 1373, 2355)
        ),
        Stage("score_1", exactly(40), Spread(2638, 2110, 3152, 4734), Spread(431, 254, 647, 1082)),
        Stage(
            "aggregate_1", exactly(2), Spread(3419, 2634, 4312, 5164), Spread(964, 610, 1355, 2355)
        ),
        Stage("score_2", exactly(40), Spread(2664, 2130, 3103, 4734), Spread(437, 254, 670, 1118)),
        Stage(
            "generate_2", exactly(1), Spread(2511, 1964, 2953, 3383), Spread(931, 619, 1353, 1709)
        ),
        Stage("score_3", exactly(20), Spread(2664, 2128, 3116, 3529), Spread(446, 260, 661, 1000)),
    ),
}
"""Stages by class, in order."""


@dataclass(frozen=True, slots=True)
class Loop:
    """An agent's turns, one after the other; each prompt repeats all that was said before."""

    turns: Spread
    first_prompt_tokens: Spread
    first_output_tokens: Spread
    later_output_tokens: Spread
    observation_tokens: Spread
    """What a tool's answer adds to the next prompt, beside the turn's own output."""
    gap_s: Spread
    """Tool time between turns, in seconds."""


# First turns, later ones and what came between were told apart in four fifths of those recordings.
LOOPS: dict[str, Loop] = {
    "FV": Loop(
        Spread(2, 2, 3, 4),
        Spread(1007, 1002, 1014, 1023),
        Spread(35, 31, 40, 48),
        Spread(35, 29, 46, 54),
        Spread(198, 74, 336, 822),
        Spread(1.9, 1.3, 3.3, 7.2),
    ),
    "ALFWI": Loop(
        Spread(15, 10, 22, 43),
        Spread(1682, 1408, 1891, 1893),
        Spread(31, 24, 78, 92),
        Spread(5, 4, 27, 105),
        Spread(20, 13, 42, 132),
        Spread(0.17, 0.11, 0.21, 0.5),
    ),
    "CG": Loop(
        Spread(1, 1, 2, 5),
        Spread(165, 106, 279, 463),
        Spread(148, 78, 352, 595),
        Spread(320, 241, 535, 545),
        Spread(573, 398, 973, 1053),
        Spread(12.3, 12.2, 12.4, 12.5),
    ),
}


@dataclass(frozen=True, slots=True)
class Plan:
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


PLAN = Plan(
    Stage("task_planning", exactly(1), Spread(1870, 1847, 1899, 2147), Spread(117, 70, 161, 274)),
    Spread(3, 2, 4, 7),
    0.57 / 2.9,
    0.64 / 2.9,
    Stage("choose_model", exactly(1), Spread(451, 429, 473, 501), Spread(87, 75, 106, 130)),
    Stage("llm_task", exactly(1), Spread(174, 146, 202, 900), Spread(22, 11, 190, 1015)),
    Spread(17.3, 3.2, 39.6, 58.8),
    Stage("response", exactly(1), Spread(711, 474, 1041, 1859), Spread(497, 338, 783, 1670)),
)
"""PE. A run has 2.9 subtasks on average, 0.57 that choose a model and 0.64 that are an inference;
most plans are a chain, and here all are."""
