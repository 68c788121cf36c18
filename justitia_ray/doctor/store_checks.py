"""The store: what the scheduler says of it, and what is in it.

The rules of one look compare what Redis held with what the scheduler knew a moment before. What
changed between is told apart by the second look, which finds it saved.
"""

from collections.abc import Iterator

from justitia_ray.doctor.finding import Fact, Severity
from justitia_ray.doctor.look import Look, OfficeLook
from justitia_ray.protocol.examination import ApplicationSeen
from justitia_ray.store.office import told_of
from justitia_ray.units import ApplicationId, Seconds

_SAVE_TAKES_S: Seconds = 5.0
"""As long may an answer of Redis take."""

_WRITE_ANEW = (
    "report it with --json; a change of the scheduler's settings writes everything anew (give the"
    " Ingress another user_config, then the old one)"
)


def store_in_trouble(look: Look) -> Iterator[Fact]:
    """The scheduler can save."""
    if look.store is not None and look.store.trouble is not None:
        yield Fact(
            Severity.RISK,
            "store",
            f"the scheduler cannot save: {look.store.trouble}",
            "it goes on in memory and saves everything when Redis is back; if it dies before, tags"
            " since its last save are lost: bring Redis back",
        )


def save_that_is_late(look: Look) -> Iterator[Fact]:
    """What changes is saved within the interval."""
    store = look.store
    if store is None or store.kind == "none" or store.trouble is not None:
        return
    limit_s = store.save_interval_s + _SAVE_TAKES_S
    if store.saved_s_ago is not None and store.saved_s_ago > limit_s:
        yield Fact(
            Severity.RISK,
            "store",
            f"the last save was {store.saved_s_ago:.1f} s ago; one is due every"
            f" {store.save_interval_s:g} s (store.save_interval_s)",
            "Redis answers too slowly or the scheduler is starved of CPU: see both; what changed"
            " since is lost if the scheduler dies",
        )


def nothing_is_kept(look: Look) -> Iterator[Fact]:
    """Without a store a restart of the scheduler forgets tags and charges."""
    if look.store is not None and look.store.kind == "none":
        yield Fact(
            Severity.NOTE,
            "store",
            "store.durability is none: tags, charges and what was learned end with the scheduler",
            "nothing, if that is meant; otherwise set store.durability to batched",
        )


def embedded_redis_on_many_nodes(look: Look) -> Iterator[Fact]:
    """The embedded Redis is for one node."""
    serve = look.seen.serve
    if look.store is None or look.store.kind != "embedded" or serve is None or serve.nodes < 2:
        return
    yield Fact(
        Severity.RISK,
        "store",
        f"the cluster has {serve.nodes} nodes and the store is the embedded Redis, which is a file"
        " on one of them: a scheduler that comes up on another starts from nothing",
        "run a Redis that all nodes reach and name it in store.redis_url",
    )


def redis_that_cannot_be_reached(look: Look) -> Iterator[Fact]:
    """Redis can be reached from here, too."""
    if look.redis_away is not None:
        yield Fact(
            Severity.RISK,
            "redis",
            f"Redis cannot be reached from here: {look.redis_away}",
            "if the scheduler has no trouble with its store, run this on the scheduler's node, with"
            " the password's variable set; what is in Redis was not checked",
        )


def redis_that_cannot_be_read(look: Look) -> Iterator[Fact]:
    """Redis holds what this version can read."""
    if look.redis_damage is not None:
        yield Fact(
            Severity.WRONG,
            "redis",
            f"a scheduler that starts now could not read its state: {look.redis_damage}",
            "the running one goes on; write everything anew before it ends (give the Ingress"
            " another user_config, then the old one), or restore that key from a backup",
        )


def another_scheduler_in_office(look: OfficeLook) -> Iterator[Fact]:
    """The scheduler that the service asks is the one that took office last."""
    if look.stored is None or look.stored.epoch is None:
        return
    if look.stored.epoch > look.office.epoch:
        yield Fact(
            Severity.WRONG,
            "epoch",
            f"the scheduler is of epoch {look.office.epoch}, and Redis says that epoch"
            f" {look.stored.epoch} is in office, {told_of(look.stored.office or {})}",
            "two deployments of the same name and model share this Redis: give one of them"
            " another name, or a Redis of its own",
        )


def epoch_that_was_set_back(look: OfficeLook) -> Iterator[Fact]:
    """Redis holds the epoch of the scheduler in office."""
    if look.stored is None or not look.office.store:
        return
    stored = look.stored.epoch or 0
    if stored < look.office.epoch and look.office.store.trouble is None:
        yield Fact(
            Severity.WRONG,
            "epoch",
            f"the scheduler is of epoch {look.office.epoch}, and Redis holds"
            f" {look.stored.epoch or 'none'}: it was emptied or set back, or this is another Redis",
            "see that --config names the store of this service, and that Redis keeps what it is"
            " given (appendonly, no eviction)",
        )


def virtual_time_ahead_in_redis(look: OfficeLook) -> Iterator[Fact]:
    """V in Redis is of a moment ago."""
    if look.stored is None or look.stored.clock is None:
        return
    stored, ours = look.stored.clock.get("virtual_time"), look.office.virtual_time
    if look.stored.epoch == look.office.epoch and isinstance(stored, int | float):
        ahead = stored - ours
        # What was served and saved between the two questions is told apart by the second look.
        if ahead > 0 and ahead > 1e-9 * ours:
            yield Fact(
                Severity.WRONG,
                f"clock {stored}",
                f"V is {stored:,.0f} in Redis and {ours:,.0f} in the scheduler",
                "somebody else writes to these keys: see who; " + _WRITE_ANEW,
            )


def application_only_in_redis(look: OfficeLook) -> Iterator[Fact]:
    """Redis holds no application that has ended."""
    office = look.office
    if look.stored is None or look.stored.epoch != office.epoch:
        return
    if "applications" in office.left_out or "ended" in office.left_out:
        return
    known = office.applications.keys() | set(office.ended)
    for application_id in look.stored.applications:
        if application_id not in known:
            yield Fact(
                Severity.WRONG,
                application_id,
                f"Redis holds application {application_id}, which the scheduler does not know: it"
                " would come back with the next scheduler",
                "it ends then after scheduler.application_idle_s without calls; to be rid of it"
                " now, remove that field of the hash `applications`; report it with --json",
            )


def application_missing_in_redis(look: OfficeLook) -> Iterator[Fact]:
    """Redis holds every live application."""
    if look.stored is None or look.stored.epoch != look.office.epoch:
        return
    for application_id in look.office.applications:
        if application_id not in look.stored.applications:
            yield Fact(
                Severity.WRONG,
                application_id,
                f"application {application_id} is not in Redis: it would lose its place if the"
                " scheduler died now",
                _WRITE_ANEW,
            )


def tag_that_differs_in_redis(first: Look, second: Look) -> Iterator[Fact]:
    """What an application was charged, and its tag, are in Redis as they are in the scheduler.

    Only of applications of which neither moved between the looks.
    """
    if first.stored is None or second.stored is None:
        return
    for application_id, after in second.applications.items():
        before = first.applications.get(application_id)
        was = first.stored.applications.get(application_id)
        stored = second.stored.applications.get(application_id)
        if before is None or stored is None or was is None:
            continue
        for name in ("finish", "charged"):
            value = getattr(after, name)
            steady = getattr(before, name) == value and was.get(name) == stored.get(name)
            if steady and name in stored and stored[name] != value:
                yield _differs(application_id, name, stored[name], after)


def _differs(
    application_id: ApplicationId, name: str, stored: object, seen: ApplicationSeen
) -> Fact:
    said = {"finish": "its tag F", "charged": "what it was charged"}[name]
    return Fact(
        Severity.WRONG,
        f"{application_id} {name}",
        f"of application {application_id}, {said} is {stored!r} in Redis and"
        f" {getattr(seen, name)!r} in the scheduler",
        "it would have another place after a restart: somebody else writes to these keys, or a"
        " save was lost; " + _WRITE_ANEW,
    )
