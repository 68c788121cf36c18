"""Least counter first: VTC without the counter lift, a baseline of the VTC paper.

Source: OSDI 2024, Sec. 5.1.
"""

from typing import ClassVar

from justitia_ray.core.policies.vtc import VtcPolicy


class LcfPolicy(VtcPolicy):
    """Least counter first: VTC, but a client that was idle keeps its low counter.

    A client that was idle may later receive all service that it missed. Other clients have no
    guarantee, because the deficit of an idle client grows without limit (Fig. 10).
    """

    LIFTS: ClassVar[bool] = False
