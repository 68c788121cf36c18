"""Cost of starting an inference on a replica, given the contexts in the replicas' prefix caches.

A replica with a prefix cache computes only the prompt tokens that are not cached. These tokens
delay all sequences of the replica: an inference that starts waits for the prompts being computed,
and its own prompt delays each running sequence. Afterwards each iteration reads all contexts. The
replica with the least sum of these delays, in prompt tokens, is selected. This is LMetric's rule
(arXiv 2603.15202: uncached tokens times requests) with each token counted for the inferences that
wait for it, plus the idle contexts that the start displaces, which are computed again later.
"""

from collections.abc import Iterable

from justitia_ray.core.context_growth import ContextGrowth
from justitia_ray.core.contexts import Context
from justitia_ray.core.entities import Application, Inference, KnownReplica, Lease
from justitia_ray.core.prefill import NO_REUSE
from justitia_ray.units import ApplicationId, ReplicaId, Seconds, Tokens

_CONTEXT_READ_WEIGHT = 1e-4
"""Cost of reading one context token in an iteration, in prompt tokens. On the hardware the ratio is
1e-3: time to read the KV of a token, over time for two operations with each parameter. With half of
1e-3, sessions leave their contexts too often, and the mean completion time on the recorded sessions
with 0.9 times the memory is 6 % higher; with this value it is as with 0.
"""
_MOST_REUSE = 4
"""Upper bound of `Application.reuse`; `NO_REUSE` is its lower bound."""


def use_continued_context(
    replica: KnownReplica, application: Application, inference: Inference, lease: Lease
) -> None:
    """Let a lease use the context that it continues, before the replica has the lease."""
    lease.uncomputed_tokens = missing_tokens(replica, application, inference)
    replica.uncomputed_tokens += lease.uncomputed_tokens
    lease.context = replica.contexts.hold(application.application_id, _prompt_length(inference))
    if lease.context is not None:
        lease.begun_with = lease.context.tokens


def note_first_token(
    replica: KnownReplica, application: Application, inference: Inference, lease: Lease
) -> None:
    """Record that a lease's prompt was computed, and whether its context was in the cache."""
    replica.uncomputed_tokens -= lease.uncomputed_tokens
    lease.uncomputed_tokens = 0
    contexts, name, context = replica.contexts, application.application_id, lease.context
    found = inference.previously_cached_tokens(replica.capacity.block_size)
    if context is not None and found is not None:
        prompt = _prompt_length(inference)
        if found >= min(context.tokens, prompt) / 2:
            application.reuse = min(_MOST_REUSE, application.reuse + 1)
        elif (other := contexts.find_other_context(name, prompt, found, context)) is not None:
            application.reuse = min(_MOST_REUSE, application.reuse + 1)
            lease.context, lease.begun_with = contexts.hold_known_context(name, other), other.tokens
            contexts.release(name, context, None, replica.unleased_tokens)
        else:
            # An engine evicts contexts in order of use, so all contexts used earlier are gone too.
            if application.reuse > 0:
                contexts.forget_before(context)
            application.reuse = max(NO_REUSE, application.reuse - 1)
            contexts.forget(name, context)
            context.leases -= 1
            # A prompt that continues no context of the application starts a new context.
            lease.context = contexts.add(name, prompt)
            lease.begun_with = lease.context.tokens
    if lease.context is None:
        lease.context = contexts.begin(name, _prompt_length(inference))
        lease.begun_with = lease.context.tokens


def cache_left_context(
    replica: KnownReplica,
    inference: Inference,
    lease: Lease,
    now: Seconds,
    growth: ContextGrowth,
) -> None:
    """Leave the context of a removed lease in its replica's prefix cache."""
    replica.uncomputed_tokens -= lease.uncomputed_tokens
    if lease.context is None:
        return
    left = None
    if not lease.uncomputed_tokens:
        own = _prompt_length(inference)
        left = Context(own, own + inference.output_tokens // inference.choices)
        if 0 < lease.begun_with < own:
            growth.add(lease.begun_with, left.tokens)
    lease.context.idle_since = now
    room = replica.unleased_tokens
    name = inference.application_id
    replica.contexts.release(name, lease.context, left, room, lease.begun_with)


def end_contexts(replicas: Iterable[KnownReplica], application_id: ApplicationId) -> None:
    """Mark the contexts of an ended application, so that no prompt continues them. O(replicas).

    Stopped and requeued inferences leave contexts on replicas that have finished none.
    """
    for replica in replicas:
        replica.contexts.end(application_id)


def recall_contexts(replica: KnownReplica, applications: Iterable[Application]) -> None:
    """Assume, after a restart, that an application's context is on its last replica.

    Its length is unknown; the mean prompt length of the application is assumed.
    """
    for application in applications:
        last = next(reversed(application.replicas), None)
        if last == replica.replica_id and application.inferences:
            tokens = application.prompt_tokens // application.inferences
            replica.contexts.assume_context(
                application.application_id, tokens, replica.unleased_tokens
            )


def missing_tokens(replica: KnownReplica, application: Application, inference: Inference) -> Tokens:
    """Return the prompt tokens that a replica would have to compute, at least 1."""
    prompt, there = _prompt_length(inference), 0
    context = replica.contexts.continued_by(application.application_id, prompt)
    if context is not None and application.reuse > NO_REUSE:
        there = context.tokens
    if inference.prefixes:
        there = max(there, replica.leases.longest_shared_beginning(inference.prefixes))
    return max(1, prompt - there)


def rank(
    replicas: list[KnownReplica], application: Application, inference: Inference
) -> list[KnownReplica]:
    """Sort replicas by the delay that a start there would cause, the least delay first.

    The order is by the delay that the prompt causes, if prompts are cached; then replicas that have
    served the application; then by free KV, then by name. If no inference of the application runs,
    its next prompt continues its last answer: then the replica that produced that answer comes
    first of those that have served it.
    """
    served = application.replicas
    last = None if application.in_flight else next(reversed(served), None)
    caching = any(replica.capacity.caches_prefixes for replica in replicas)

    def key(replica: KnownReplica) -> tuple[float, bool, bool, Tokens, ReplicaId]:
        return (
            delay(replica, application, inference) if caching else 0,
            replica.replica_id != last,
            replica.replica_id not in served,
            replica.context_tokens - replica.leasable_tokens,
            replica.replica_id,
        )

    replicas.sort(key=key)
    return replicas


def delay(replica: KnownReplica, application: Application, inference: Inference) -> float:
    """Return the delay of all inferences on a replica by a start there, in prompt tokens.

    Contexts that the start evicts are computed again later, and counted as if computed now.
    """
    missing, contexts = missing_tokens(replica, application, inference), replica.contexts
    if contexts.live_tokens:
        wanted = replica.footprint_beside(inference).full_tokens
        continued = contexts.continued_by(application.application_id, _prompt_length(inference))
        missing += contexts.displaced(continued, wanted, replica.unleased_tokens)
    sequences, iterations = replica.leases.sequences, inference.expected_remaining()
    read = iterations * (replica.leases.context_tokens + sequences * _prompt_length(inference))
    return replica.uncomputed_tokens + missing * (sequences + 1) + _CONTEXT_READ_WEIGHT * read


def _prompt_length(inference: Inference) -> Tokens:
    return inference.prompt_tokens // inference.copies
