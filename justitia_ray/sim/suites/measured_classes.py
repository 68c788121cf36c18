"""Measured statistics of the application classes: fan-outs, lengths and tool time.

Source: recorded runs published with Hermes (NephrenCake/Hermes, commit 3894339d): 256 of KBQAV, 164
of CC and CG, 129 of PE, 117 of MRS, 100 of EV and DM, 98 of FV, 95 of ALFWI. The sandbox run at the
end of the classes CC and EV delays no inference and is left out. For the class SC no run with
several samples is published: its lengths are single answers of gpt-3.5-turbo to the 1,319 GSM8K
test questions (Tebmer/Rereading-LLM-Reasoning), counted as 3.3 characters per token, and its prompt
and fan-out are those of the Hermes sample code.

Classes have fixed stages (`STAGES`), run in turns (`LOOPS`), or plan their own stages (`PLAN`).
"""

import math
import random
from dataclasses import dataclass
from statistics import NormalDist

_Z90 = NormalDist().inv_cdf(0.9)


@dataclass(frozen=True, slots=True)
class Spread:
    """Distribution of a measured quantity, by its percentiles."""

    median: float
    p10: float
    p90: float
    max: float

    def draw(self, rng: random.Random) -> float:
        """Draw a value from a log-normal on each side of the median, cut at the maximum.

        Two halves are used because lengths and counts are skewed to the right, and p90/median
        differs from median/p10.
        """
        return self.at(rng.gauss(0.0, 1.0))

    def at(self, z: float) -> float:
        """Return the quantile that belongs to the standard normal deviate `z`."""
        ratio = self.p90 / self.median if z > 0 else self.median / self.p10
        return min(self.max, self.median * math.pow(ratio, z / _Z90))


def exactly(value: float) -> Spread:
    return Spread(value, value, value, value)


@dataclass(frozen=True, slots=True)
class Stage:
    """Stage of an application class: inferences that run in parallel."""

    name: str
    fan_out: Spread | None
    """Number of inferences of the stage; None: as many as in the previous stage."""
    prompt_tokens: Spread
    output_tokens: Spread
    gap_s: Spread | None = None
    """Tool time before the stage, in seconds."""
    round_weights: tuple[int, ...] = ()
    """Weights of 0, 1, … repetitions of the stage, by how often they were recorded."""


STAGES: dict[str, tuple[Stage, ...]] = {
    "SC": (Stage("sample", exactly(5), Spread(235, 213, 273, 450), Spread(200, 127, 316, 813)),),
    "KBQAV": (
        Stage("extract_claims", exactly(1), Spread(621, 603, 648, 776), Spread(68, 26, 130, 328)),
        Stage(
            "generate_queries",
            Spread(3, 1, 6, 13),
            Spread(289, 285, 294, 303),
            Spread(17, 13, 23, 35),
        ),
        Stage(
            "verify_claims",
            None,
            Spread(482, 408, 647, 881),
            Spread(142, 101, 201, 300),
            gap_s=Spread(1.1, 0.9, 1.9, 4.9),
        ),
    ),
    "MRS": (
        Stage(
            "generate_summary",
            Spread(21, 10, 33, 44),
            Spread(470, 177, 572, 704),
            Spread(161, 96, 263, 1695),
        ),
        Stage(
            "collapse",
            Spread(2, 2, 4, 5),
            Spread(1713, 501, 1882, 1972),
            Spread(560, 328, 834, 1526),
            round_weights=(16, 85, 14, 2),
        ),
        Stage(
            "final_summary",
            exactly(1),
            Spread(1357, 889, 1983, 3372),
            Spread(648, 448, 1031, 1579),
        ),
    ),
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
            "aggregate", exactly(2), Spread(3419, 2634, 4312, 5164), Spread(964, 610, 1355, 2355)
        ),
        Stage("score_2", exactly(40), Spread(2664, 2130, 3103, 4734), Spread(437, 254, 670, 1118)),
        Stage(
            "generate_2", exactly(1), Spread(2511, 1964, 2953, 3383), Spread(931, 619, 1353, 1709)
        ),
        Stage("score_3", exactly(20), Spread(2664, 2128, 3116, 3529), Spread(446, 260, 661, 1000)),
    ),
}
"""Stages by application class, in order."""


@dataclass(frozen=True, slots=True)
class Loop:
    """Consecutive turns of an agent; each prompt repeats all earlier turns."""

    name: str
    """Base name of the turns, which are `NAME_1`, `NAME_2`, …"""
    turns: Spread
    first_prompt_tokens: Spread
    first_output_tokens: Spread
    later_output_tokens: Spread
    observation_tokens: Spread
    """Tokens of a tool's answer, which the next prompt adds after the turn's output."""
    gap_s: Spread
    """Tool time between turns, in seconds."""
    max_prompt_tokens: float = math.inf
    """Longest measured prompt of a turn."""


# The recordings label four fifths of the texts as first turn, later turn or observation.
LOOPS: dict[str, Loop] = {
    "FV": Loop(
        "thought",
        Spread(2, 2, 3, 4),
        Spread(1007, 1002, 1014, 1023),
        Spread(35, 31, 40, 48),
        Spread(35, 29, 46, 54),
        Spread(198, 74, 336, 822),
        Spread(1.9, 1.3, 3.3, 7.2),
        1880,
    ),
    "ALFWI": Loop(
        "turn",
        Spread(15, 10, 22, 43),
        Spread(1682, 1408, 1891, 1893),
        Spread(31, 24, 78, 92),
        Spread(5, 4, 27, 105),
        Spread(20, 13, 42, 132),
        Spread(0.17, 0.11, 0.21, 0.5),
        3023,
    ),
    "CG": Loop(
        "code_generation",
        Spread(1, 1, 2, 5),
        Spread(165, 106, 279, 463),
        Spread(148, 78, 352, 595),
        Spread(320, 241, 535, 545),
        Spread(573, 398, 973, 1053),
        Spread(12.3, 12.2, 12.4, 12.5),
        6035,
    ),
}
"""Statistics of application classes that run in turns."""


MODEL, CHOOSE_MODEL, LLM_TASK = "model", "choose_model", "llm_task"
"""Kinds of subtasks: a tool runs; an inference first chooses the tool; or the subtask is an
inference.
"""


@dataclass(frozen=True, slots=True)
class PlanStages:
    """Application that makes a plan, executes its subtasks in turn, and answers."""

    planning: Stage
    subtasks: Spread
    choose_model_share: float
    """Share of subtasks in which an inference chooses a model to run."""
    llm_task_share: float
    """Share of subtasks that are an inference; other subtasks run a model that is not an LLM."""
    choose_model: Stage
    llm_task: Stage
    exec_s: Spread
    """Seconds of the models that are not an LLM, in total over a run."""
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
"""Stages of the class PE, whose plans are chains of subtasks. A run has 2.9 subtasks on average, of
which 0.57 choose a model and 0.64 are an inference.
"""
