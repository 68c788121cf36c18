"""What a replica tells of its engine's memory and work."""

from justitia_ray.observability import metrics as m
from justitia_ray.observability.measures import Measures
from justitia_ray.units import Tokens


class ReplicaMetrics:
    """Looks at a replica before an export."""

    def __init__(self, measures: Measures, kv_tokens: Tokens) -> None:
        """Start to measure.

        Args:
            measures: Of a replica.
            kv_tokens: KV memory of its engine.
        """
        self._measures = measures
        self._kv_tokens = kv_tokens

    def look(
        self,
        *,
        free_kv_tokens: Tokens,
        held_leases: int,
        preemptions: int,
        prompt_tokens: Tokens,
        output_tokens: Tokens,
    ) -> None:
        """Set the gauges, and take over what the engine and the desk count since they began."""
        measures, capacity = self._measures, self._kv_tokens
        measures.gauge(m.KV_CAPACITY_TOKENS).value = capacity
        measures.gauge(m.KV_UTILIZATION_RATIO).value = 1 - free_kv_tokens / capacity
        measures.gauge(m.HELD_LEASES).value = held_leases
        measures.count(m.PREEMPTIONS_TOTAL).reach(preemptions)
        measures.count(m.PROMPT_TOKENS_TOTAL).reach(prompt_tokens)
        measures.count(m.OUTPUT_TOKENS_TOTAL).reach(output_tokens)
