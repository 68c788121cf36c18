"""The synthetic workloads of the VTC paper (arXiv:2401.00588), Sec. 5.2, 5.4, App. B.

Rates are requests a minute, as its figures state them. What they leave open is from its artifact
(Ying1123/VTC-artifact, `fair_bench/`, commit 192c2e20): rates of Fig. 15, 16 and 19, where the
client with the growing rate of Fig. 9 begins (12 a minute), that ON phases come first.

Differs from the artifact: a Poisson client sends its expected number of requests, and clients are
drawn apart, where the artifact draws one process for all and tosses for the client of each request.
"""

from justitia_ray.sim.suites.client_requests import (
    Client,
    evenly,
    in_turn,
    increasing,
    on_off,
    poisson,
    suite,
)
from justitia_ray.sim.suites.options import Suite
from justitia_ray.units import Tokens

_TEN_MINUTES = 600.0


def _overload(first: float, second: float, tokens: Tokens, figures: str) -> Suite:
    return suite(
        f"two clients, {first:g} and {second:g} requests a minute of {tokens} + {tokens} tokens"
        f" ({figures})",
        [
            Client(evenly(first, _TEN_MINUTES), tokens, tokens),
            Client(evenly(second, _TEN_MINUTES), tokens, tokens),
        ],
        _TEN_MINUTES,
    )


VTC_SUITES: dict[str, Suite] = {
    "two-clients-overload": _overload(90, 180, 256, "VTC Fig. 3, 19, Table 5"),
    "two-clients-overload-256": _overload(180, 360, 256, "VTC Fig. 15: KV 35,000 or 65,000"),
    "two-clients-overload-512": _overload(90, 180, 512, "VTC Fig. 15: KV 35,000"),
    "two-clients-overload-768": _overload(60, 120, 768, "VTC Fig. 15: KV 35,000"),
    "three-clients": suite(
        "three clients, 15, 30 and 90 requests a minute; only the third exceeds its share (VTC"
        " Fig. 4)",
        [Client(evenly(rate, _TEN_MINUTES)) for rate in (15, 30, 90)],
        _TEN_MINUTES,
    ),
    "on-off-less": suite(
        "30 a minute in ON minutes, below its share, beside 120 a minute (VTC Fig. 5)",
        [Client(on_off(evenly(30, _TEN_MINUTES))), Client(evenly(120, _TEN_MINUTES))],
        _TEN_MINUTES,
    ),
    "on-off-overload": suite(
        "120 a minute in ON minutes, above its share, beside 180 a minute (VTC Fig. 6)",
        [Client(on_off(evenly(120, _TEN_MINUTES))), Client(evenly(180, _TEN_MINUTES))],
        _TEN_MINUTES,
    ),
    "poisson-short-long": suite(
        "480 short requests a minute (64 + 64) beside 90 long ones (256 + 256) (VTC Fig. 7)",
        [
            Client(poisson(480, _TEN_MINUTES), 64, 64),
            Client(poisson(90, _TEN_MINUTES), 256, 256),
        ],
        _TEN_MINUTES,
    ),
    "poisson-short-long-2": suite(
        "480 requests a minute of 64 + 512 tokens beside 90 of 512 + 64 (VTC Fig. 8)",
        [
            Client(poisson(480, _TEN_MINUTES), 64, 512),
            Client(poisson(90, _TEN_MINUTES), 512, 64),
        ],
        _TEN_MINUTES,
    ),
    "increasing": suite(
        "30 a minute beside a client that grows from 12 to 120 a minute (VTC Fig. 9)",
        [Client(evenly(30, _TEN_MINUTES)), Client(increasing(12, 120, _TEN_MINUTES))],
        _TEN_MINUTES,
    ),
    "distribution-shift": suite(
        "five minutes ON/OFF, five of overload, five of unequal rates (VTC Fig. 10)",
        [
            Client(
                in_turn(
                    on_off(evenly(30, 300)),
                    evenly(60, 600, since_s=300),
                    evenly(30, 900, since_s=600),
                )
            ),
            Client(
                in_turn(
                    evenly(120, 300), evenly(60, 600, since_s=300), evenly(90, 900, since_s=600)
                )
            ),
        ],
        900.0,
    ),
    "four-clients-weighted": suite(
        "four overloaded clients of weights 1, 2, 3, 4 (VTC Fig. 16)",
        [
            Client(evenly(rate, _TEN_MINUTES), weight=weight)
            for rate, weight in ((24, 1.0), (48, 2.0), (72, 3.0), (96, 4.0))
        ],
        _TEN_MINUTES,
    ),
    "eight-clients-overload": suite(
        "eight overloaded clients, three at 24 and five at 36 requests a minute (VTC Fig. 19,"
        " Table 6)",
        [Client(evenly(rate, _TEN_MINUTES)) for rate in (24,) * 3 + (36,) * 5],
        _TEN_MINUTES,
    ),
}
"""By name."""
