"""Does the scheduler decide quickly, does it hold office, and do its leases arrive."""

from justitia_ray.observability.grafana import Panel, Query, Row, Threshold
from justitia_ray.observability.metrics import (
    DECISION_SECONDS_TOTAL,
    DECISIONS_TOTAL,
    EPOCH,
    EPOCH_CHANGES_TOTAL,
    LEASES_TOTAL,
    STORE_REACHABLE,
)
from justitia_ray.observability.promql import greatest, least, per_second, rise
from justitia_ray.observability.rows.quantiles import quantiles

SCHEDULER = Row(
    400,
    "Scheduler",
    (
        Panel(
            401,
            "Decision time",
            "In what time the scheduler handles half and 99 % of its events: an arrival, a grant, a"
            " report, an end. Meant to stay below 100 µs.",
            quantiles(DECISIONS_TOTAL, "model", 0.5, 0.99),
            unit="s",
            thresholds=(Threshold(0.0001, "yellow"),),
        ),
        Panel(
            402,
            "Decisions",
            "Events that the scheduler handled each second.",
            (Query(per_second(DECISIONS_TOTAL, "model", where={"le": "+Inf"}), "{{model}}"),),
            unit="ops",
        ),
        Panel(
            403,
            "Time spent on decisions",
            "Share of one core that decisions take. The scheduler of a model is one process: near"
            " 100 % it is the bottleneck.",
            (Query(per_second(DECISION_SECONDS_TOTAL, "model"), "{{model}}"),),
            unit="percentunit",
            thresholds=(Threshold(0.5, "yellow"),),
        ),
        Panel(
            404,
            "Leases granted",
            "Leases each second: what the replicas are given.",
            (Query(per_second(LEASES_TOTAL, "model", where={"event": "granted"}), "{{model}}"),),
            unit="ops",
        ),
        Panel(
            405,
            "Leases that came to nothing",
            "Leases whose payload did not come in time (expired) and those that an ingress gave"
            " back (nacked), each second. Their inferences wait again, at the head of their"
            " application. A few belong to a replica that was lost; many are a fault of the"
            " network.",
            (
                Query(
                    per_second(LEASES_TOTAL, "model", where={"event": "expired"}),
                    "expired {{model}}",
                ),
                Query(
                    per_second(LEASES_TOTAL, "model", where={"event": "nacked"}), "nacked {{model}}"
                ),
            ),
            unit="ops",
        ),
        Panel(
            406,
            "Time in office",
            "For how long the scheduler of a model has been in office: its epoch is the instant in"
            " ms at which it took it. It falls to 0 when a scheduler is started again.",
            (Query(f"time() - {greatest(EPOCH, 'model')} / 1000", "{{model}}"),),
            unit="s",
        ),
        Panel(
            408,
            "Changes of office",
            "How often ingresses found another scheduler in office than the one they knew, in the"
            " window. They and the replicas tell it anew what they have.",
            (Query(rise(EPOCH_CHANGES_TOTAL, "model"), "{{model}}"),),
        ),
        Panel(
            407,
            "Store reachable",
            "1 while what the scheduler saves arrives in Redis, 0 while it does not.",
            (Query(least(STORE_REACHABLE), "least of all models"),),
            most=1,
        ),
    ),
)
