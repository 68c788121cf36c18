"""Rate of service of a model's replicas while they are busy: KV token-time and tokens per second.

Only measured rates convert service into time or iterations. With a cost of prefill, or with common
beginnings of prompts, replicas deliver more than their KV memory M in an iteration; where seats
limit them, less. The only assumption, until the first measurement, is `assumed_kv_per_iteration`.

The sums decay with busy time, by half in `HALF_LIFE_S`. They stay while no inference runs, so that
a quiet night does not lower the rate expected in the morning.
"""

from justitia_ray.units import KvTokenTime, Seconds, Tokens

HALF_LIFE_S: Seconds = 60.0
"""Half-life of a measurement in busy seconds, several times the length of an inference, so that one
report changes the rate little.
"""
USUAL_ITERATION_S: Seconds = 0.03
"""Assumed seconds per iteration before any measurement: a 7B model on an A10G GPU with a full
batch.
"""
SAMPLE_S: Seconds = 0.25
"""Minimum busy seconds between two samples: replicas send hundreds of reports per second."""
USUAL_USE = 0.7
"""Assumed fraction of the KV memory in use before any measurement."""


def assumed_kv_per_iteration(kv_tokens: float) -> KvTokenTime:
    """Return the service assumed for an iteration of replicas with this KV memory."""
    return max(1, kv_tokens) * USUAL_USE


class ServedRate:
    """Rate of service and length of an iteration, measured from growing totals. O(1) a sample."""

    def __init__(self) -> None:
        self._served: KvTokenTime = 0
        """Total service at the last sample."""
        self.busy_s: Seconds = 0
        """Total busy seconds at the last sample; the next sample is due `SAMPLE_S` later."""
        self._service: KvTokenTime = 0
        """Service in the decaying window, in which older samples weigh less."""
        self._decoded_service: KvTokenTime = 0
        self._waited_service: KvTokenTime = 0
        """Service in samples with waiting inferences, decaying with the time in `_waited_s`."""
        self._waited_s: Seconds = 0
        self._served_s: Seconds = 0
        self._held_token_s: float = 0
        self._sequence_s: float = 0
        self._made: float = 0
        self._decoded: KvTokenTime = 0
        """Total service without prefill at the last sample."""
        self._made_tokens: Tokens = 0
        """Total output tokens at the last sample."""
        self._iterations: float = 0
        self._iterating_s: Seconds = 0
        self._ended: tuple[int, Seconds] = 0, 0
        """Total iterations and times of ended leases at the last sample."""

    def record(
        self,
        served: KvTokenTime,
        busy_s: Seconds,
        held_tokens: Tokens,
        sequences: int,
        made_tokens: Tokens,
        ended: tuple[int, Seconds] = (0, 0),
        decoded: KvTokenTime = 0,
        *,
        waits: bool = False,
    ) -> None:
        """Record the totals of service and iterations, and the current use of memory and seats.

        Args:
            served: Service so far.
            busy_s: Time so far in which any inference ran.
            held_tokens: KV of all leases.
            sequences: Sequences of all leases, each of which uses a seat.
            made_tokens: Output tokens so far.
            ended: Iterations of all ended leases so far, and the time of these leases.
            decoded: Service so far without prefill.
            waits: Whether any inference waits.
        """
        lasted_s = busy_s - self.busy_s
        if lasted_s <= 0:
            return
        keep = 0.5 ** (lasted_s / HALF_LIFE_S)
        self._service = keep * self._service + (served - self._served)
        self._decoded_service = keep * self._decoded_service + (decoded - self._decoded)
        self._served_s = keep * self._served_s + lasted_s
        if waits:
            self._waited_service = keep * self._waited_service + (served - self._served)
            self._waited_s = keep * self._waited_s + lasted_s
        self._held_token_s = keep * self._held_token_s + held_tokens * lasted_s
        self._sequence_s = keep * self._sequence_s + sequences * lasted_s
        self._made = keep * self._made + (made_tokens - self._made_tokens)
        self._iterations = keep * self._iterations + (ended[0] - self._ended[0])
        self._iterating_s = keep * self._iterating_s + (ended[1] - self._ended[1])
        self._served, self.busy_s, self._made_tokens = served, busy_s, made_tokens
        self._ended, self._decoded = ended, decoded

    def kv_per_s(self, kv_tokens: Tokens) -> float:
        """Return the KV token-time served per second, above 0.

        Args:
            kv_tokens: KV memory of all replicas, from which a rate is estimated before any
                measurement.
        """
        if self._service > 0 and self._served_s > 0:
            return self._service / self._served_s
        return assumed_kv_per_iteration(kv_tokens) / USUAL_ITERATION_S

    def kv_per_iteration(self, kv_tokens: Tokens) -> KvTokenTime:
        """Return the KV token-time that all replicas serve an iteration while inferences wait.

        Args:
            kv_tokens: KV memory of all replicas, from which the service is estimated before any
                measurement.
        """
        if self._waited_service <= 0:
            return assumed_kv_per_iteration(kv_tokens)
        return self._waited_service / self._waited_s * self.iteration_s

    @property
    def decoded_per_iteration(self) -> KvTokenTime:
        """Return the service without prefill in the time of an iteration; 0 before any."""
        if self._served_s <= 0:
            return 0.0
        return self._decoded_service / self._served_s * self.iteration_s

    @property
    def iteration_s(self) -> Seconds:
        """Return the seconds of an iteration: the time of ended leases divided by their iterations.

        Until the first lease ends, the length is estimated from the numbers of sequences in the
        samples. These are too low under light load, because a lease may begin and end between two
        samples.
        """
        used_s, made = self._iterating_s, self._iterations
        if not made:
            used_s, made = self._sequence_s, self._made
        return used_s / made if made > 0 and used_s > 0 else USUAL_ITERATION_S

    @property
    def made_per_s(self) -> float:
        """Return the output tokens per second of all sequences; 0 before any measurement."""
        return self._made / self._served_s if self._served_s > 0 else 0.0

    @property
    def held_tokens(self) -> float:
        """Return the mean number of KV tokens in use; 0 before any measurement."""
        return self._held_token_s / self._served_s if self._served_s > 0 else 0.0

    @property
    def sequences(self) -> float:
        """Return the mean number of running sequences; 0 before any measurement."""
        return self._sequence_s / self._served_s if self._served_s > 0 else 0.0
