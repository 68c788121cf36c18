"""Rows of the dashboard on admission: reasons of waiting, refusals, and usage."""

from deployments.monitoring.panel_kinds import Query, curves
from deployments.monitoring.promql import (
    WINDOW,
    gauge,
    greatest,
    per_second,
    quantile,
)
from justitia_ray.observability import metrics as m


def _zero_if_off(metric: m.Metric) -> str:
    """Return PromQL for a gauge that only some replicas export; a missing value is 0."""
    return f"{gauge(metric, 'model')} or 0 * {gauge(m.KV_CAPACITY_TOKENS, 'model')}"


def _share_of_missed_returns() -> str:
    """Return PromQL for the share of inferences whose context had been evicted meanwhile."""
    missed = per_second(m.CONTEXT_RETURNS_TOTAL, window=WINDOW, where={"context": "missed"})
    return f"{missed} / clamp_min({per_second(m.CONTEXT_RETURNS_TOTAL, window=WINDOW)}, 1e-9)"


def _share_of_starts(fell: str) -> str:
    """Return PromQL for the share of starts that came early, late or within the prediction."""
    some = per_second(m.EXPECTED_STARTS_TOTAL, "horizon", window=WINDOW, where={"fell": fell})
    every = per_second(m.EXPECTED_STARTS_TOTAL, "horizon", window=WINDOW)
    # The panel stays empty while no inference starts.
    return f"{some} / ({every} > 0)"


OUTLOOKS = (
    curves(
        601,
        "Applications by outlook",
        "Live applications by the reason why they stand where they do. Many at turn is a queue;"
        " headroom is a first one that fits nowhere, context one that waits for the replica with"
        " its context, working_set one that does not fit beside the contexts of started"
        " applications, replica is that none takes work, quota a limit of a tenant, tool their"
        " callers, recovery and store a scheduler that has just begun or cannot save.",
        (Query(gauge(m.APPLICATIONS_BY_OUTLOOK, "outlook"), "{{outlook}}"),),
        stacked=True,
    ),
    curves(
        602,
        "Starts within p10 to p90",
        "Share of the starts that came between the p10 and the p90 that were told, by how far ahead"
        " they were expected. Meant to stay at 80 %.",
        (Query(_share_of_starts("within"), "{{horizon}}"),),
        unit="percentunit",
        highest=1,
    ),
    curves(
        603,
        "Starts later than p90",
        "Share of the starts that came later than the p90 that was told. Meant to stay at 10 %:"
        " more means that callers were promised too much.",
        (Query(_share_of_starts("late"), "{{horizon}}"),),
        unit="percentunit",
        highest=1,
        thresholds={0.2: "yellow"},
    ),
    curves(
        604,
        "Deadlines",
        "Inferences with a deadline, each second: they made it, missed it in the queue, or were"
        " refused at once because they could not make it. Many that are missed and few that are"
        " refused at once are outlooks that are too bright.",
        (Query(per_second(m.DEADLINES_TOTAL, "deadline"), "{{deadline}}"),),
        unit="ops",
    ),
    curves(
        605,
        "Applications by tier",
        "Live applications by the service tier that they asked for.",
        (Query(gauge(m.APPLICATIONS_BY_TIER, "tier"), "{{tier}}"),),
        stacked=True,
    ),
    curves(
        606,
        "Dropped calls and failed streams",
        "Calls that ingresses answered with an error once their admission had begun, each second,"
        " by the error's code and X-Justitia-Dropped-Reason: what callers see of refusals."
        " And streams that failed after their head, whose status was 200, by the class of the"
        " status that the error has before one.",
        (
            Query(
                per_second(m.DROPPED_CALLS_TOTAL, "code", "dropped_reason"),
                "{{dropped_reason}}: {{code}}",
            ),
            Query(per_second(m.FAILED_STREAMS_TOTAL, "failed_with"), "streams: {{failed_with}}"),
        ),
        unit="ops",
    ),
    curves(
        607,
        "Working set",
        "Applications that have started and keep their place, and those that wait for one. While"
        " some wait, the contexts of the started ones fill the memory.",
        (Query(gauge(m.WORKING_SET_APPLICATIONS, "working_set"), "{{working_set}}"),),
        stacked=True,
    ),
    curves(
        608,
        "Returns that missed their context",
        "Share of the applications that returned while their context counted as used memory, and"
        " found less than half of it in the cache. At 0 no memory is kept for nothing; an engine"
        " that was restarted causes a peak that one turn of each application ends.",
        (Query(_share_of_missed_returns(), "missed"),),
        unit="percentunit",
        highest=1,
        thresholds={0.2: "yellow", 0.5: "red"},
    ),
    curves(
        609,
        "Contexts between two inferences",
        "KV tokens of the idle contexts that count as used memory.",
        (Query(gauge(m.WORKING_SET_CONTEXT_TOKENS, "model"), "{{model}}"),),
        axis="tokens",
    ),
    curves(
        610,
        "KV tokens held and in host memory",
        "KV tokens of the contexts that engines evict last (engine.hold_contexts), KV tokens in"
        " host memory (engine.host_kv_gib), and how many fit there. 0 while they are off.",
        (
            Query(_zero_if_off(m.HELD_KV_TOKENS), "{{model}}: held"),
            Query(_zero_if_off(m.HOST_KV_TOKENS), "{{model}}: in host memory"),
            Query(_zero_if_off(m.HOST_KV_CAPACITY_TOKENS), "{{model}}: fit in host memory"),
        ),
        axis="tokens",
    ),
    curves(
        611,
        "Held contexts",
        "Contexts of applications between two inferences that engines evict last. 0 without"
        " engine.hold_contexts.",
        (Query(_zero_if_off(m.HELD_CONTEXTS), "{{model}}"),),
    ),
)

TENANTS = (
    curves(
        701,
        "Quota in use",
        "Use and claims of each described node, over the limit of its quota: at 100 % its"
        " applications are refused, wait behind all others, or would (shadow).",
        (
            Query(
                f"({greatest(m.QUOTA_USED, 'node', 'unit', 'per')}"
                f" + {greatest(m.QUOTA_RESERVED, 'node', 'unit', 'per')})"
                f" / ({greatest(m.QUOTA_LIMIT, 'node', 'unit', 'per')} > 0)",
                "{{node}} {{unit}} per {{per}}",
            ),
        ),
        unit="percentunit",
        thresholds={1: "red"},
    ),
    curves(
        702,
        "Reserved of quotas",
        "Part of each quota that live applications have claimed and not used. It comes back when"
        " they end: where it is most of a limit, predictions are far above the use.",
        (
            Query(
                f"{greatest(m.QUOTA_RESERVED, 'node', 'unit', 'per')}"
                f" / ({greatest(m.QUOTA_LIMIT, 'node', 'unit', 'per')} > 0)",
                "{{node}} {{unit}} per {{per}}",
            ),
        ),
        unit="percentunit",
    ),
    curves(
        703,
        "Quotas exceeded",
        "How often each quota has refused or deprioritised, or would have, since the accounts were"
        " started. A shadow quota that rises would refuse callers if it rejected.",
        (
            Query(
                greatest(m.QUOTA_EXCEEDED, "node", "unit", "per"), "{{node}} {{unit}} per {{per}}"
            ),
        ),
    ),
    curves(
        704,
        "Tokens by node",
        "Tokens each second of the inferences that ended then, by the lowest described node of"
        " their tenant: long ones come in steps.",
        (Query(per_second(m.NODE_TOKENS_TOTAL, "node", "direction"), "{{node}} {{direction}}"),),
        axis="tokens/s",
    ),
    curves(
        705,
        "Service by node",
        "KV token-time each second by the lowest described node of the tenant: what the KV quotas"
        " and the shares of the tree are about.",
        (Query(per_second(m.NODE_KV_TOKEN_TIME_TOTAL, "node"), "{{node}}"),),
        axis="token·iterations/s",
        stacked=True,
    ),
    curves(
        706,
        "Exchanges with the accounts",
        "Exchanges of the schedulers with the accounts, each second: none without quotas. What"
        " fails is repeated, and applications that are opened wait meanwhile.",
        (Query(per_second(m.ACCOUNTS_EXCHANGES_TOTAL, "exchange"), "{{exchange}}"),),
        unit="ops",
    ),
    curves(
        707,
        "Time of an exchange",
        "In what time half and 99 % of the exchanges with the accounts were answered, their save"
        " included. Each application that is opened under a quota waits for one.",
        (
            Query(quantile(0.5, m.ACCOUNTS_EXCHANGE_SECONDS), "p50"),
            Query(quantile(0.99, m.ACCOUNTS_EXCHANGE_SECONDS), "p99"),
        ),
        unit="s",
    ),
    curves(
        708,
        "Claims that wait",
        "Claims of applications and inferences that the accounts have not decided. They stay above"
        " 0 while the accounts are away, up to scheduler.quota_timeout_s.",
        (Query(gauge(m.WAITING_CLAIMS, "model"), "{{model}}"),),
    ),
)
