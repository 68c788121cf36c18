"""Every rule finds its own harm in a service that is healthy otherwise, and nothing else."""

from collections.abc import Callable
from typing import Any

import pytest

from justitia_ray.doctor.finding import Severity
from justitia_ray.doctor.rules import PAIR_CHECKS, REDIS_CHECKS, SERVICE_CHECKS, find

from .healthy import Patient, seen_after

Harm = Callable[[Patient], Any]


def scheduler_says(**fields: Any) -> Harm:
    """The scheduler says something else of itself."""
    return lambda patient: patient.scheduler.update(fields)


def replica_says(name: str, **fields: Any) -> Harm:
    """A replica says something else of itself."""
    return lambda patient: patient.seen["replicas"][name].update(fields)


def scheduler_says_of(table: str, name: str, **fields: Any) -> Harm:
    """The scheduler says something else of one thing."""
    return lambda patient: patient.scheduler[table][name].update(fields)


def store_says(**fields: Any) -> Harm:
    """The scheduler says something else of its store."""
    return lambda patient: patient.scheduler["store"].update(fields)


def redis_holds(application_id: str, **fields: Any) -> Harm:
    """Somebody has written to Redis."""
    return lambda patient: (
        patient.redis["applications"].setdefault(application_id, {}).update(fields)
    )


def held(lease_id: str, *, aborted: bool = False) -> dict[str, Any]:
    """Return the leases of a replica that holds this one too, beside its `3-1`."""
    return {
        "3-1": {"state": "running", "age_s": 7.9, "aborted": False},
        lease_id: {"state": "running", "age_s": 60.0, "aborted": aborted},
    }


def forgotten_replica(patient: Patient) -> None:
    """The scheduler has given up a replica, with its leases; its process is still there."""
    del patient.scheduler["replicas"]["r2"], patient.seen["replicas"]["r2"]
    for lease_id in ("3-2", "3-3"):
        del patient.scheduler["leases"][lease_id]


def not_answering(name: str) -> Harm:
    """A part gives no answer."""

    def harm(patient: Patient) -> None:
        patient.seen["silent"][name] = "no answer within 3 s"
        patient.seen["replicas"].pop(name, None)
        if name in patient.seen:
            patient.seen[name] = None

    return harm


def redis_unread(**why: str) -> Harm:
    """What Redis holds is not known."""

    def harm(patient: Patient) -> None:
        patient.stored = None
        for name, reason in why.items():
            setattr(patient, name, reason)

    return harm


def empty_cluster(patient: Patient) -> None:
    """No replica is left."""
    patient.seen |= {"replicas": {}, "serve": None}
    patient.scheduler.update(replicas={}, leases={})


def unused_replica(**fields: Any) -> Harm:
    """Replica `r1` runs nothing."""

    def harm(patient: Patient) -> None:
        del patient.scheduler["leases"]["3-1"]
        patient.scheduler["replicas"]["r1"] |= {"leases": 0, "named": []} | fields
        patient.seen["replicas"]["r1"]["held"] = {}

    return harm


def lost_ingress(patient: Patient) -> None:
    """The scheduler knows another ingress than the one that its inferences are of."""
    patient.scheduler["ingresses"] = {"ingress-2": {"silent_s": 1.0}}
    patient.seen["ingress"] |= {"ingress_id": "ingress-2", "tickets": {}}
    for application in patient.scheduler["applications"].values():
        application["ingress_id"] = "ingress-2"


CASES: list[tuple[str, str, Severity, Harm, str]] = [
    (
        "scheduler_that_gives_no_answer",
        "scheduler",
        Severity.WRONG,
        not_answering("scheduler"),
        "no answer within 3 s",
    ),
    (
        "scheduler_out_of_office",
        "scheduler",
        Severity.WRONG,
        scheduler_says(ready=False, degraded="Redis at unix: gone"),
        "Redis at unix: gone",
    ),
    (
        "scheduler_that_breaks_its_rules",
        "leases_agree",
        Severity.WRONG,
        scheduler_says(broken_rules=["leases_agree: 3-1: inference holds None"]),
        "inference holds None",
    ),
    (
        "scheduler_that_recovers",
        "scheduler",
        Severity.NOTE,
        scheduler_says(recovering=True),
        "waits for its replicas",
    ),
    (
        "ingress_of_another_epoch",
        "ingress-1",
        Severity.WRONG,
        lambda patient: patient.seen["ingress"].update(epoch=2),
        "follows epoch 2",
    ),
    (
        "ingress_that_is_silent",
        "ingress-1",
        Severity.RISK,
        scheduler_says_of("ingresses", "ingress-1", silent_s=26.0),
        "silent for 26.0 s",
    ),
    (
        "ingress_the_scheduler_does_not_hear",
        "ingresses",
        Severity.WRONG,
        lambda patient: patient.seen["serve"].update(ingresses=2),
        "hears of 1",
    ),
    (
        "serve_that_gives_no_answer",
        "serve",
        Severity.RISK,
        not_answering("serve"),
        "no answer within 3 s",
    ),
    (
        "tables_not_seen_whole",
        "applications",
        Severity.NOTE,
        scheduler_says(left_out={"applications": 1_200}),
        "1,200 of the applications",
    ),
    ("no_replica", "replicas", Severity.WRONG, empty_cluster, "1 inferences wait"),
    (
        "replica_that_is_silent",
        "r1",
        Severity.WRONG,
        scheduler_says_of("replicas", "r1", silent_s=2.1),
        "process 101 on node 10.0.0.1",
    ),
    (
        "replica_that_gives_no_answer",
        "r1",
        Severity.WRONG,
        not_answering("r1"),
        "no answer within 3 s",
    ),
    (
        "replica_the_scheduler_does_not_hear",
        "r2",
        Severity.WRONG,
        forgotten_replica,
        "process 102 on node 10.0.0.1",
    ),
    (
        "replica_of_another_epoch",
        "r1",
        Severity.WRONG,
        replica_says("r1", epoch=4),
        "follows epoch 4",
    ),
    (
        "replica_that_drains_for_long",
        "r1",
        Severity.RISK,
        scheduler_says_of("replicas", "r1", draining_s=601.0),
        "no new lease for 601 s and holds 1",
    ),
    ("engine_in_trouble", "r1", Severity.WRONG, replica_says("r1", engine="is dead"), "is dead"),
    (
        "kv_that_no_lease_explains",
        "r1",
        Severity.WRONG,
        scheduler_says_of("replicas", "r1", unexplained_kv_tokens=51),
        "51 tokens of KV memory (5%)",
    ),
    (
        "mail_that_is_not_read",
        "r1 7",
        Severity.WRONG,
        scheduler_says_of("replicas", "r1", unread=3, next_unread=7),
        "has not read 3 messages",
    ),
    (
        "lease_its_replica_does_not_hold",
        "3-1",
        Severity.WRONG,
        replica_says("r1", held={}),
        "running on replica r1 since 8.0 s",
    ),
    (
        "held_lease_the_scheduler_does_not_know",
        "r1 2-9",
        Severity.WRONG,
        replica_says("r1", held=held("2-9")),
        "holds lease 2-9",
    ),
    (
        "lease_that_should_have_lapsed",
        "3-1",
        Severity.WRONG,
        scheduler_says_of("leases", "3-1", state="granted", age_s=6.5),
        "after 5 s (scheduler.lease_timeout_s)",
    ),
    (
        "inference_the_scheduler_has_lost",
        "q9",
        Severity.WRONG,
        lambda patient: patient.seen["ingress"]["tickets"].update(q9=True),
        "waits for a lease of inference q9",
    ),
    (
        "inference_nobody_waits_for",
        "q2",
        Severity.WRONG,
        lambda patient: patient.seen["ingress"]["tickets"].pop("q2"),
        "inference q2 of application busy",
    ),
    (
        "inference_of_a_lost_ingress",
        "ingress-1",
        Severity.WRONG,
        lost_ingress,
        "4 inferences are of ingress ingress-1",
    ),
    (
        "queue_that_stands_still",
        "r1 q4",
        Severity.WRONG,
        unused_replica(free_for_first=True),
        "room for the first of them, q4",
    ),
    (
        "tag_behind_the_clock",
        "busy",
        Severity.WRONG,
        scheduler_says_of("applications", "busy", clock=1_500.0),
        "F at 1,500 and V at 1,500",
    ),
    (
        "application_that_should_have_ended",
        "resting",
        Severity.WRONG,
        scheduler_says_of("applications", "resting", idle_s=606.0),
        "idle for 606 s",
    ),
    (
        "application_nobody_speaks_for",
        "resting",
        Severity.NOTE,
        scheduler_says_of("applications", "resting", ingress_id="ingress-0"),
        "ends by itself in 570 s",
    ),
    (
        "predictor_that_gives_no_answer",
        "predictor",
        Severity.RISK,
        lambda patient: setattr(patient, "predictor_trouble", "503: away"),
        "503: away",
    ),
    (
        "predictor_that_does_not_learn",
        "predictor",
        Severity.RISK,
        lambda patient: setattr(patient, "predictor_learns", False),
        "does not learn",
    ),
    (
        "store_in_trouble",
        "store",
        Severity.RISK,
        store_says(trouble="Redis at host:1: refused", saved_s_ago=60.0),
        "cannot save: Redis at host:1: refused",
    ),
    ("save_that_is_late", "store", Severity.RISK, store_says(saved_s_ago=5.6), "5.6 s ago"),
    ("nothing_is_kept", "store", Severity.NOTE, store_says(kind="none"), "durability is none"),
    (
        "embedded_redis_on_many_nodes",
        "store",
        Severity.RISK,
        lambda patient: (
            store_says(kind="embedded")(patient),
            patient.seen["serve"].update(nodes=2),
        ),
        "2 nodes",
    ),
    (
        "redis_that_cannot_be_reached",
        "redis",
        Severity.RISK,
        redis_unread(redis_away="no route"),
        "no route",
    ),
    (
        "redis_that_cannot_be_read",
        "redis",
        Severity.WRONG,
        redis_unread(redis_damage="schema: version 9"),
        "schema: version 9",
    ),
    (
        "another_scheduler_in_office",
        "epoch",
        Severity.WRONG,
        lambda patient: patient.redis.update(
            epoch=4, office={"epoch": 4, "host": "elsewhere", "process_id": 99, "since": 0}
        ),
        "epoch 4 is in office, held by process 99 on host elsewhere",
    ),
    (
        "epoch_that_was_set_back",
        "epoch",
        Severity.WRONG,
        lambda patient: patient.redis.update(epoch=None),
        "Redis holds none",
    ),
    (
        "virtual_time_ahead_in_redis",
        "clock 1001.0",
        Severity.WRONG,
        lambda patient: patient.redis.update(clock={"virtual_time": 1_001.0}),
        "V is 1,001 in Redis and 1,000 in the scheduler",
    ),
    (
        "application_only_in_redis",
        "ghost",
        Severity.WRONG,
        redis_holds("ghost", state="open", finish=1.0),
        "application ghost, which the scheduler does not know",
    ),
    (
        "application_missing_in_redis",
        "busy",
        Severity.WRONG,
        lambda patient: patient.redis["applications"].pop("busy"),
        "application busy is not in Redis",
    ),
    (
        "tag_that_differs_in_redis",
        "busy finish",
        Severity.WRONG,
        redis_holds("busy", finish=1_499.0),
        "its tag F is 1499.0 in Redis and 1500.0 in the scheduler",
    ),
]


def test_healthy_service_has_no_finding() -> None:
    """A false alarm is what teaches operators to look away."""
    assert [] == find(seen_after(), seen_after())


@pytest.mark.parametrize(
    ("rule", "subject", "severity", "harm", "said"), CASES, ids=[case[0] for case in CASES]
)
def test_rule_finds_its_harm_and_no_other_does(
    rule: str, subject: str, severity: Severity, harm: Harm, said: str
) -> None:
    """One thing broken gives one finding, which names the thing and says what to do."""
    found = find(seen_after(harm), seen_after(harm))

    assert [(rule, subject, severity)] == [(f.rule, f.subject, f.severity) for f in found]
    assert said in found[0].what
    assert found[0].do


def test_every_rule_has_a_case() -> None:
    """A rule that no test has seen to find something may find nothing."""
    rules = [check.__name__ for check in (*SERVICE_CHECKS, *REDIS_CHECKS, *PAIR_CHECKS)]

    assert sorted(rules) == sorted(case[0] for case in CASES)


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(scheduler_says_of("replicas", "r1", silent_s=1.9), id="a late heartbeat"),
        pytest.param(replica_says("r1", epoch=0), id="a replica that has just started"),
        pytest.param(
            replica_says("r1", held={}, unconfirmed=["3-1"]), id="an end not yet confirmed"
        ),
        pytest.param(scheduler_says_of("leases", "3-3", age_s=5.9), id="a lease about to lapse"),
        pytest.param(
            lambda patient: (
                replica_says("r1", held=held("2-9"))(patient),
                scheduler_says_of("replicas", "r1", unclaimed=["2-9"])(patient),
            ),
            id="a lease of the last scheduler that an ingress may yet claim",
        ),
        pytest.param(
            scheduler_says_of("replicas", "r1", unexplained_kv_tokens=50),
            id="a gauge that moves between reports",
        ),
        pytest.param(
            unused_replica(unexplained_kv_tokens=2), id="an engine that keeps a block for itself"
        ),
        pytest.param(
            scheduler_says_of("replicas", "r1", draining_s=599.0), id="a long call is waited for"
        ),
        pytest.param(
            lambda patient: (
                unused_replica(free_for_first=True)(patient),
                patient.scheduler.update(first=None),
            ),
            id="what waits may not be granted yet",
        ),
        pytest.param(redis_holds("busy", attained=1.0), id="service not yet saved"),
        pytest.param(store_says(saved_s_ago=None), id="nothing saved yet"),
        pytest.param(
            lambda patient: (
                patient.seen["ingress"]["tickets"].update(q9=True),
                patient.scheduler.update(held_back=1),
            ),
            id="what waits until its application is stored",
        ),
    ],
)
def test_what_is_usual_is_not_found(harm: Harm) -> None:
    """The limits leave room for what every healthy service does."""
    left = [f for f in find(seen_after(harm), seen_after(harm)) if f.severity is not Severity.NOTE]

    assert [] == left


def test_unused_replica_uses_no_kv() -> None:
    """A leak of one call is seen where nothing runs, long before it is 5 % of the memory."""
    harm = unused_replica(unexplained_kv_tokens=3)
    found = find(seen_after(harm), seen_after(harm))

    assert ["kv_that_no_lease_explains"] == [f.rule for f in found]


def test_unused_replica_that_drains_is_found_sooner() -> None:
    """Serve ends one that leaves within seconds; one that it forgot serves nobody."""
    harm = unused_replica(draining_s=31.0)
    found = find(seen_after(harm), seen_after(harm))

    assert ["replica_that_drains_for_long"] == [f.rule for f in found]


@pytest.mark.parametrize(
    ("table", "harm"),
    [
        ("leases", replica_says("r1", held=held("2-9"))),
        ("inferences", lambda patient: patient.seen["ingress"]["tickets"].update(q9=True)),
        ("applications", redis_holds("ghost", state="open")),
        ("ended", redis_holds("ghost", state="open")),
    ],
)
def test_what_may_be_left_out_of_a_table_is_not_called_unknown(table: str, harm: Harm) -> None:
    """With 200,000 inferences the tables are cut: nothing can be said of what is not in them."""
    looks = [seen_after(harm, scheduler_says(left_out={table: 1})) for _ in range(2)]

    assert ["tables_not_seen_whole"] == [f.rule for f in find(*looks)]
