"""Rules of the store: the scheduler's report on its store, and the content of Redis.

A rule with one snapshot compares the content of Redis with the state of the scheduler a moment
earlier. Changes in between do not count, because the second snapshot finds them saved.
"""

from collections.abc import Iterator

from justitia_ray.doctor.rule import (
    Breach,
    LeaderSnapshot,
    Rule,
    Severity,
    Snapshot,
    breach,
    breach_if,
    for_leader,
)
from justitia_ray.store.leader import describe_leader
from justitia_ray.units import Seconds

_SAVE_TAKES_S: Seconds = 5.0
"""Longest normal duration of a save, in seconds."""
_WRITE_ANEW = (
    "report it with --json; a change of the scheduler's settings writes everything anew (give the"
    " Ingress another user_config, then the old one)"
)
_TOLD = {"finish": "its tag F", "charged": "what it was charged"}


def _late_saves(look: Snapshot) -> Iterator[Breach]:
    store = look.store
    if store is None or store.kind == "none" or store.trouble is not None:
        return
    late_s = store.save_interval_s + _SAVE_TAKES_S
    if store.saved_s_ago is not None and store.saved_s_ago > late_s:
        yield breach("store", store=store)


def _many_nodes(look: Snapshot) -> Iterator[Breach]:
    store, serve = look.store, look.seen.serve
    if store is not None and store.kind == "embedded" and serve is not None and serve.nodes > 1:
        yield breach("store", nodes=serve.nodes)


def _later_leader(look: LeaderSnapshot) -> Iterator[Breach]:
    stored = look.stored
    if stored is not None and stored.epoch is not None and stored.epoch > look.leader.epoch:
        told = describe_leader(stored.leader or {})
        yield breach("epoch", leader=look.leader, stored=stored, told=told)


def _earlier_epoch(look: LeaderSnapshot) -> Iterator[Breach]:
    stored, store = look.stored, look.leader.store
    if stored is None or store is None or store.trouble is not None:
        return
    if (stored.epoch or 0) < look.leader.epoch:
        yield breach("epoch", leader=look.leader, held=stored.epoch or "none")


def _later_virtual_time(look: LeaderSnapshot) -> Iterator[Breach]:
    if look.stored is None or look.stored.clock is None or look.stored.epoch != look.leader.epoch:
        return
    stored, ours = look.stored.clock.get("virtual_time"), look.leader.virtual_time
    # The second snapshot shows whether service was only saved between the two requests.
    if isinstance(stored, int | float) and stored - ours > max(0.0, 1e-9 * ours):
        yield breach(f"clock {stored}", stored=stored, ours=ours)


def _unknown_applications(look: LeaderSnapshot) -> Iterator[Breach]:
    leader = look.leader
    if look.stored is None or look.stored.epoch != leader.epoch:
        return
    if "applications" in leader.left_out or "ended" in leader.left_out:
        return
    known = leader.applications.keys() | set(leader.ended)
    for application_id in look.stored.applications:
        if application_id not in known:
            yield breach(application_id)


def _unstored_applications(look: LeaderSnapshot) -> Iterator[Breach]:
    if look.stored is None or look.stored.epoch != look.leader.epoch:
        return
    for application_id in look.leader.applications:
        if application_id not in look.stored.applications:
            yield breach(application_id)


def _differing_tags(first: Snapshot, second: Snapshot) -> Iterator[Breach]:
    """Yield applications whose service differs between scheduler and Redis in both snapshots."""
    if first.stored is None or second.stored is None:
        return
    for application_id, after in second.applications.items():
        before = first.applications.get(application_id)
        was = first.stored.applications.get(application_id)
        stored = second.stored.applications.get(application_id)
        if before is None or stored is None or was is None:
            continue
        for name, told in _TOLD.items():
            value = getattr(after, name)
            steady = getattr(before, name) == value and was.get(name) == stored.get(name)
            if steady and name in stored and stored[name] != value:
                yield breach(
                    f"{application_id} {name}",
                    application_id=application_id,
                    told=told,
                    stored=stored[name],
                    value=value,
                )


STORE_RULES: tuple[Rule[[Snapshot]], ...] = (
    Rule(
        "store_in_trouble",
        Severity.RISK,
        "The scheduler can save.",
        lambda look: (
            breach("store", store=store)
            for store in [look.store]
            if store is not None and store.trouble is not None
        ),
        "the scheduler cannot save: {store.trouble}",
        "it goes on in memory and saves everything when Redis is back; if it dies before, tags"
        " since its last save are lost: bring Redis back",
    ),
    Rule(
        "save_that_is_late",
        Severity.RISK,
        "Changes are saved within the interval.",
        _late_saves,
        "the last save was {store.saved_s_ago:.1f} s ago; one is due every"
        " {store.save_interval_s:g} s (store.save_interval_s)",
        "Redis answers too slowly or the scheduler is starved of CPU: see both; what changed since"
        " is lost if the scheduler dies",
    ),
    Rule(
        "nothing_is_kept",
        Severity.NOTE,
        "A restart of the scheduler forgets no tags and charges.",
        lambda look: breach_if(look.store is not None and look.store.kind == "none", "store"),
        "store.durability is none: tags, charges and what was learned end with the scheduler",
        "nothing, if that is meant; otherwise set store.durability to batched",
    ),
    Rule(
        "embedded_redis_on_many_nodes",
        Severity.RISK,
        "The embedded Redis serves a cluster of one node.",
        _many_nodes,
        "the cluster has {nodes} nodes and the store is the embedded Redis, which is a file on one"
        " of them: a scheduler that comes up on another starts from nothing",
        "run a Redis that all nodes reach and name it in store.redis_url",
    ),
)
"""Rules about the scheduler's report on its store."""

REDIS_RULES: tuple[Rule[[Snapshot]], ...] = (
    Rule(
        "redis_that_cannot_be_reached",
        Severity.RISK,
        "Redis can be reached from here, too.",
        lambda look: breach_if(look.redis_away is not None, "redis", reason=look.redis_away),
        "Redis cannot be reached from here: {reason}",
        "if the scheduler has no trouble with its store, run this on the scheduler's node, with"
        " the password's variable set; what is in Redis was not checked",
    ),
    Rule(
        "redis_that_cannot_be_read",
        Severity.WRONG,
        "Redis holds what this version can read.",
        lambda look: breach_if(look.redis_damage is not None, "redis", reason=look.redis_damage),
        "a scheduler that starts now could not read its state: {reason}",
        "the running one goes on; write everything anew before it ends (give the Ingress another"
        " user_config, then the old one), or restore that key from a backup",
    ),
    Rule(
        "another_scheduler_in_office",
        Severity.WRONG,
        "The scheduler that the service asks is the one that became leader last.",
        for_leader(_later_leader),
        "the scheduler is of epoch {leader.epoch}, and Redis says that epoch {stored.epoch} is in"
        " office, {told}",
        "two deployments of the same name and model share this Redis: give one of them another"
        " name, or a Redis of its own",
    ),
    Rule(
        "epoch_that_was_set_back",
        Severity.WRONG,
        "Redis holds the leader's epoch.",
        for_leader(_earlier_epoch),
        "the scheduler is of epoch {leader.epoch}, and Redis holds {held}: it was emptied or set"
        " back, or this is another Redis",
        "see that --config names the store of this service, and that Redis keeps what it is given"
        " (appendonly, no eviction)",
    ),
    Rule(
        "virtual_time_ahead_in_redis",
        Severity.WRONG,
        "V in Redis is of a moment ago.",
        for_leader(_later_virtual_time),
        "V is {stored:,.0f} in Redis and {ours:,.0f} in the scheduler",
        f"somebody else writes to these keys: see who; {_WRITE_ANEW}",
    ),
    Rule(
        "application_only_in_redis",
        Severity.WRONG,
        "Redis holds no application that has ended.",
        for_leader(_unknown_applications),
        "Redis holds application {subject}, which the scheduler does not know: it would come back"
        " with the next scheduler",
        "it ends then after scheduler.application_idle_s without calls; to be rid of it now,"
        " remove that field of the hash `applications`; report it with --json",
    ),
    Rule(
        "application_missing_in_redis",
        Severity.WRONG,
        "Redis holds every live application.",
        for_leader(_unstored_applications),
        "application {subject} is not in Redis: it would lose its place if the scheduler died now",
        _WRITE_ANEW,
    ),
)
"""Rules about the content of Redis; they find nothing if Redis was not read."""

PAIR_RULES: tuple[Rule[[Snapshot, Snapshot]], ...] = (
    Rule(
        "tag_that_differs_in_redis",
        Severity.WRONG,
        "An application's charge and tag are in Redis as they are in the scheduler.",
        _differing_tags,
        "of application {application_id}, {told} is {stored!r} in Redis and {value!r} in the"
        " scheduler",
        "it would have another place after a restart: somebody else writes to these keys, or a"
        f" save was lost; {_WRITE_ANEW}",
    ),
)
"""Rules about the content of Redis that compare both snapshots."""
