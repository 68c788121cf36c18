"""What the engines do, each for itself."""

from justitia_ray.observability.grafana import Panel, Query, Row, Threshold
from justitia_ray.observability.metrics import (
    HELD_LEASES,
    KV_UTILIZATION_RATIO,
    OUTPUT_TOKENS_TOTAL,
    OUTSTANDING_INFERENCES,
    PREEMPTIONS_TOTAL,
    PROMPT_TOKENS_TOTAL,
)
from justitia_ray.observability.promql import gauge, greatest, per_second

REPLICAS = Row(
    300,
    "Replicas",
    (
        Panel(
            301,
            "KV utilization by replica",
            "Share of its KV memory that a replica's sequences hold. With a queue, all are high;"
            " one that stays low then is not given work or does not take it.",
            (Query(greatest(KV_UTILIZATION_RATIO, "model", "replica"), "{{model}} {{replica}}"),),
            unit="percentunit",
            most=1,
            thresholds=(Threshold(0.98, "yellow"),),
        ),
        Panel(
            302,
            "Leases held by replica",
            "Leases that are armed or run on a replica.",
            (Query(gauge(HELD_LEASES, "model", "replica"), "{{model}} {{replica}}"),),
        ),
        Panel(
            303,
            "Preemptions by replica",
            "Sequences that an engine preempted each second because its KV memory was full. What"
            " they had computed is computed again: many of them waste the engine.",
            (Query(per_second(PREEMPTIONS_TOTAL, "model", "replica"), "{{model}} {{replica}}"),),
            unit="ops",
            thresholds=(Threshold(1, "yellow"),),
        ),
        Panel(
            304,
            "Output tokens by replica",
            "Output tokens each second, of the calls that ended then: long ones come in steps.",
            (Query(per_second(OUTPUT_TOKENS_TOTAL, "model", "replica"), "{{model}} {{replica}}"),),
            axis="tokens/s",
        ),
        Panel(
            305,
            "Prompt tokens by replica",
            "Prompt tokens each second, of the calls that ended then.",
            (Query(per_second(PROMPT_TOKENS_TOTAL, "model", "replica"), "{{model}} {{replica}}"),),
            axis="tokens/s",
        ),
        Panel(
            306,
            "Outstanding by ingress",
            "Inferences that an ingress has submitted and not answered. Callers' connections are"
            " about as many.",
            (Query(gauge(OUTSTANDING_INFERENCES, "model", "replica"), "{{model}} {{replica}}"),),
        ),
    ),
)
