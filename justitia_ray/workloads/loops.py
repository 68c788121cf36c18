"""What applications that go in turns were measured to do.

Source: as `stages`: 98 recorded runs of FV, 95 of ALFWI, 164 of CG.
"""

from dataclasses import dataclass

from justitia_ray.units import Tokens
from justitia_ray.workloads.stages import Spread


@dataclass(frozen=True, slots=True)
class Loop:
    """An agent's turns, one after the other; each prompt repeats all that was said before."""

    name: str
    """Of its turns: they are `NAME_1`, `NAME_2`, …"""
    turns: Spread
    first_prompt_tokens: Spread
    first_output_tokens: Spread
    later_output_tokens: Spread
    observation_tokens: Spread
    """What a tool's answer adds to the next prompt, beside the turn's own output."""
    gap_s: Spread
    """Tool time between turns, in seconds."""
    max_prompt_tokens: Tokens
    """The longest prompt of any turn."""


# First turns, later ones and what came between were told apart in four fifths of those recordings.
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
"""By application class."""
