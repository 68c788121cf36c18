"""Least counter first: VTC without the lift, a baseline of its paper (OSDI 2024, Sec. 5.1)."""

from typing import ClassVar

from justitia_ray.core.policies.vtc import VtcPolicy


class LcfPolicy(VtcPolicy):
    """Smallest counter first; a client that starts to wait is not lifted.

    A client that was away comes back with all it missed. The others are guaranteed nothing: an idle
    client's deficit grows without limit (Fig. 10).
    """

    LIFTS: ClassVar[bool] = False
