"""Where the contexts of applications lie, and what a start at another place costs.

A replica with a prefix cache computes only the prompt tokens that it does not have. It does so for
all that runs there: an inference that starts waits for the prompts that are being computed, and
delays each that runs by its own. The least sum of these delays decides, in prompt tokens. That is
LMetric's rule (arXiv 2603.15202: uncached tokens times requests) with each token counted for those
that wait for it, and with the idle contexts that the start displaces, which are computed again.
"""

from collections.abc import Iterable

from justitia_ray.core.entities import Application, Inference, KnownReplica, Lease
from justitia_ray.units import ReplicaId, Tokens


def take_context(replica: KnownReplica, inference: Inference, lease: Lease) -> None:
    """Let a lease use what lies on its replica of its application's context."""
    lease.uncomputed_tokens = missing_tokens(replica, inference)
    replica.uncomputed_tokens += lease.uncomputed_tokens
    lease.context = replica.contexts.take(inference.application_id)


def leave_context(replica: KnownReplica, inference: Inference, lease: Lease) -> None:
    """Leave what a lease had in its replica's cache, for the next of its application."""
    replica.uncomputed_tokens -= lease.uncomputed_tokens
    tokens = 0 if lease.context is None else lease.context.tokens
    if inference.output_tokens:
        own = inference.prompt_tokens // inference.copies
        tokens = own + inference.output_tokens // inference.choices
    if tokens:
        replica.contexts.put(inference.application_id, tokens, replica.idle_tokens)


def note_first_token(replica: KnownReplica, inference: Inference, lease: Lease) -> None:
    """Note that the prompt of a lease was computed, and whether its context was there."""
    replica.uncomputed_tokens -= lease.uncomputed_tokens
    lease.uncomputed_tokens = 0
    context, found = lease.context, inference.found_tokens
    if context is not None and found is not None:
        expected = min(context.tokens, inference.prompt_tokens // inference.copies)
        if found < expected / 2:
            replica.contexts.note_missing(context)


def recall_contexts(replica: KnownReplica, applications: Iterable[Application]) -> None:
    """Take the contexts of applications to lie where they ran last: after a restart, say.

    How long they are is not known: their prompts have been as long in the mean.
    """
    for application in applications:
        last = next(reversed(application.replicas), None)
        if last == replica.replica_id and application.inferences:
            tokens = application.prompt_tokens // application.inferences
            replica.contexts.put(application.application_id, tokens, replica.idle_tokens)


def missing_tokens(replica: KnownReplica, inference: Inference) -> Tokens:
    """Return the prompt tokens of an inference that a replica would have to compute; at least 1."""
    there = replica.contexts.tokens_of(inference.application_id)
    if inference.prefixes:
        there = max(there, replica.leases.shared_with(inference.prefixes))
    return max(1, inference.prompt_tokens // inference.copies - there)


def rank(
    replicas: list[KnownReplica], application: Application, inference: Inference
) -> list[KnownReplica]:
    """Sort replicas for an inference: the best first.

    By the delay that its prompt causes, where prompts are cached; then those that have served the
    application; then by free KV, by name. Where nothing of the application runs, its next prompt
    goes on from its last answer: the replica that finished that is first of those.
    """
    served = application.replicas
    last = None if application.in_flight else next(reversed(served), None)
    caching = any(replica.capacity.caches_prefixes for replica in replicas)

    def key(replica: KnownReplica) -> tuple[Tokens, bool, bool, Tokens, ReplicaId]:
        return (
            _delay(replica, inference) if caching else 0,
            replica.replica_id != last,
            replica.replica_id not in served,
            replica.context_tokens - replica.leasable_tokens,
            replica.replica_id,
        )

    replicas.sort(key=key)
    return replicas


def _delay(replica: KnownReplica, inference: Inference) -> Tokens:
    """Return the prompt tokens by which a start delays inferences here, in sum over them.

    What it displaces is computed again later, and counted as if that were now.
    """
    contexts, idle = replica.contexts, replica.idle_tokens
    contexts.shrink(idle)
    others = contexts.tokens - contexts.tokens_of(inference.application_id)
    wanted = inference.prompt_tokens + inference.expected_remaining()
    displaced = min(others, max(0, others + wanted - idle))
    missing = missing_tokens(replica, inference) + displaced
    return replica.uncomputed_tokens + missing * (replica.leases.sequences + 1)
