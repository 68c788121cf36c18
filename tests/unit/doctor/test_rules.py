"""Every doctor rule finds its own failure in an otherwise healthy service, and nothing else."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from justitia_ray.doctor.front_rules import FRONT_RULES
from justitia_ray.doctor.report import find
from justitia_ray.doctor.rollout_rules import ROLLOUT_RULES
from justitia_ray.doctor.rule import Rule, Severity
from justitia_ray.doctor.scaling_rules import SCALING_RULES
from justitia_ray.doctor.service_rules import SERVICE_RULES
from justitia_ray.doctor.store_rules import PAIR_RULES, REDIS_RULES, STORE_RULES
from tests.unit.doctor.healthy import PatientService, look_after

Harm = Callable[[PatientService], Any]


def changed_inspection(*place: str, **fields: Any) -> Harm:
    """Return a failure in which fields of the inspection at these keys have other values."""

    def change_fields(patient: PatientService) -> None:
        said = patient.seen
        for key in place:
            said = said[key]
        said.update(fields)

    return change_fields


def combined(*harms: Harm) -> Harm:
    return lambda patient: [harm(patient) for harm in harms]


def changed_redis(application_id: str, **fields: Any) -> Harm:
    return lambda patient: (
        patient.redis["applications"].setdefault(application_id, {}).update(fields)
    )


def held_leases(lease_id: str) -> dict[str, Any]:
    """Return the leases of a replica that holds this lease beside its lease `3-1`."""
    return {
        "3-1": {"state": "running", "age_s": 7.9, "aborted": False},
        lease_id: {"state": "running", "age_s": 60.0, "aborted": False},
    }


def forgotten_replica(patient: PatientService) -> None:
    """Let the scheduler drop a replica and its leases while its process still runs."""
    del patient.scheduler["replicas"]["r2"], patient.seen["replicas"]["r2"]
    for lease_id in ("3-2", "3-3"):
        del patient.scheduler["leases"][lease_id]


def unresponsive_part(name: str) -> Harm:
    """Return a failure where a part of the service does not answer."""

    def silence_part(patient: PatientService) -> None:
        patient.seen["silent"][name] = "no answer within 3 s"
        patient.seen["replicas"].pop(name, None)
        if name in patient.seen:
            patient.seen[name] = None

    return silence_part


def changed_look(**fields: Any) -> Harm:
    """Return a failure that changes the state of the predictor or of Redis."""
    return lambda patient: patient.more.update(fields)


def unreadable_redis(**why: str) -> Harm:
    return combined(changed_look(**why), lambda patient: setattr(patient, "stored", None))


def empty_cluster(patient: PatientService) -> None:
    patient.seen |= {"replicas": {}, "serve": None}
    patient.scheduler.update(replicas={}, leases={})


def unused_replica(**fields: Any) -> Harm:
    """Return a failure in which replica `r1` runs nothing."""

    def remove_lease(patient: PatientService) -> None:
        del patient.scheduler["leases"]["3-1"]
        patient.scheduler["replicas"]["r1"] |= {"leases": 0} | fields
        patient.seen["replicas"]["r1"]["held"] = {}

    return remove_lease


def lost_ingress(patient: PatientService) -> None:
    """Remove an ingress from the scheduler's view while its inferences still name it."""
    patient.scheduler["ingresses"] = {"ingress-2": {"silent_s": 1.0}}
    patient.seen["ingress"] |= {"ingress_id": "ingress-2", "tickets": {}}
    for application in patient.scheduler["applications"].values():
        application["ingress_id"] = "ingress-2"


serves_itself = combined(
    changed_inspection("serve", front="serve"),
    changed_inspection(
        "ingress", "front", kind="serve", max_connections=None, wanted_descriptors=None
    ),
)
"""Whether Serve's own proxy answers although HAProxy could run."""


class ExpectedFinding(NamedTuple):
    """A failure and the finding that it must give."""

    subject: str
    harm: Harm
    said: str


CASES = {
    "scheduler_that_gives_no_answer": ExpectedFinding(
        "scheduler", unresponsive_part("scheduler"), "no answer within 3 s"
    ),
    "scheduler_out_of_office": ExpectedFinding(
        "scheduler",
        changed_inspection("scheduler", ready=False, degraded="Redis at unix: gone"),
        "Redis at unix: gone",
    ),
    "scheduler_that_breaks_its_rules": ExpectedFinding(
        "leases_agree",
        changed_inspection("scheduler", broken_rules=["leases_agree: 3-1: inference holds None"]),
        "inference holds None",
    ),
    "autoscaler_that_does_not_ask": ExpectedFinding(
        "autoscaler",
        changed_inspection("scheduler", "scaling", asked_s_ago=31.0),
        "asked 31 s ago at last",
    ),
    "replicas_that_leave_too_soon": ExpectedFinding(
        "downscale_delay_s",
        changed_inspection("scheduler", "scaling", load_s=200.0),
        "takes 200 s to load, and is drained when it has not been wanted for 120 s",
    ),
    "queue_that_asks_for_more_than_the_limit": ExpectedFinding(
        "max_replicas", changed_inspection("scheduler", "scaling", asked=7), "asks for 7 replicas"
    ),
    "scheduler_that_recovers": ExpectedFinding(
        "scheduler", changed_inspection("scheduler", recovering=True), "waits for its replicas"
    ),
    "ingress_of_another_epoch": ExpectedFinding(
        "ingress-1", changed_inspection("ingress", epoch=2), "follows epoch 2"
    ),
    "ingress_that_is_silent": ExpectedFinding(
        "ingress-1",
        changed_inspection("scheduler", "ingresses", "ingress-1", silent_s=26.0),
        "silent for 26.0 s",
    ),
    "ingress_the_scheduler_does_not_hear": ExpectedFinding(
        "ingresses", changed_inspection("serve", ingresses=2), "hears of 1"
    ),
    "serve_that_gives_no_answer": ExpectedFinding(
        "serve", unresponsive_part("serve"), "no answer within 3 s"
    ),
    "deployment_that_does_not_start": ExpectedFinding(
        "Replica",
        changed_inspection("serve", failing={"Replica": "ConfigError: vllm_args: no such file"}),
        "Serve cannot start Replica: ConfigError: vllm_args: no such file",
    ),
    "replica_without_a_node": ExpectedFinding(
        "Replica",
        changed_inspection(
            "serve", "deployments", "Replica", unplaced=1, unplaced_s=61.0, needs="GPU 1"
        ),
        "1 replicas of Replica have waited for a node for 61 s: each requests GPU 1, and no node"
        " offers that",
    ),
    "update_that_stands_still": ExpectedFinding(
        "Replica",
        changed_inspection("serve", "deployments", "Replica", unchanged_s=660.0),
        "the update of Replica has brought no replica for 11 min: 2 of 3 run, 1 start",
    ),
    "proxy_that_catches_the_cluster": ExpectedFinding(
        "HTTP_PROXY",
        changed_inspection(
            "ingress", proxied={"variable": "HTTP_PROXY", "addresses": ["10.0.0.1"]}
        ),
        "NO_PROXY does not except 10.0.0.1",
    ),
    "front_that_could_be_cheaper": ExpectedFinding("front", serves_itself, "Serve's own proxy"),
    "front_that_differs": ExpectedFinding(
        "kind", changed_inspection("serve", front="serve"), "runs the front serve"
    ),
    "tls_behind_haproxy": ExpectedFinding(
        "tls", changed_inspection("serve", tls=True), "HAProxy, the front, has no TLS"
    ),
    "front_without_open_files": ExpectedFinding(
        "descriptors",
        changed_inspection("ingress", "front", descriptors=19_000),
        "`ulimit -Hn` is 19,000",
    ),
    "front_that_splices": ExpectedFinding(
        "front",
        changed_inspection("ingress", "front", splices=True),
        "runs to its end after its caller has left",
    ),
    "front_with_too_few_connections": ExpectedFinding(
        "connections",
        changed_inspection("ingress", max_outstanding=7_701),
        "7,701 callers may wait",
    ),
    "tables_not_seen_whole": ExpectedFinding(
        "applications",
        changed_inspection("scheduler", left_out={"applications": 1_200}),
        "1,200 of the applications",
    ),
    "no_replica": ExpectedFinding("replicas", empty_cluster, "1 inferences wait"),
    "replica_that_is_silent": ExpectedFinding(
        "r1",
        changed_inspection("scheduler", "replicas", "r1", silent_s=2.1),
        "process 101 on node 10.0.0.1",
    ),
    "replica_that_gives_no_answer": ExpectedFinding(
        "r1", unresponsive_part("r1"), "no answer within 3 s"
    ),
    "replica_the_scheduler_does_not_hear": ExpectedFinding(
        "r2", forgotten_replica, "process 102 on node 10.0.0.1"
    ),
    "replica_of_another_epoch": ExpectedFinding(
        "r1", changed_inspection("replicas", "r1", epoch=4), "follows epoch 4"
    ),
    "replica_that_drains_for_long": ExpectedFinding(
        "r1",
        changed_inspection("scheduler", "replicas", "r1", draining_s=601.0),
        "no new lease for 601 s and holds 1",
    ),
    "stalled_replica": ExpectedFinding(
        "r1",
        changed_inspection("scheduler", "replicas", "r1", stalled_s=12.0),
        "process 101 on node 10.0.0.1) has been stalled for 12 s",
    ),
    "engine_in_trouble": ExpectedFinding(
        "r1", changed_inspection("replicas", "r1", engine="is dead"), "is dead"
    ),
    "kv_that_no_lease_explains": ExpectedFinding(
        "r1",
        changed_inspection("scheduler", "replicas", "r1", unexplained_kv_tokens=51),
        "51 tokens of KV memory (5%)",
    ),
    "mail_that_is_not_read": ExpectedFinding(
        "r1 7",
        changed_inspection("scheduler", "replicas", "r1", unread=3, next_unread=7),
        "has not read 3 messages",
    ),
    "lease_its_replica_does_not_hold": ExpectedFinding(
        "3-1", changed_inspection("replicas", "r1", held={}), "running on replica r1 since 8.0 s"
    ),
    "held_lease_the_scheduler_does_not_know": ExpectedFinding(
        "r1 2-9", changed_inspection("replicas", "r1", held=held_leases("2-9")), "holds lease 2-9"
    ),
    "lease_that_should_have_lapsed": ExpectedFinding(
        "3-1",
        changed_inspection("scheduler", "leases", "3-1", state="granted", age_s=6.5),
        "after 5 s (scheduler.lease_timeout_s)",
    ),
    "inference_the_scheduler_has_lost": ExpectedFinding(
        "q9", changed_inspection("ingress", "tickets", q9=True), "waits for a lease of inference q9"
    ),
    "inference_nobody_waits_for": ExpectedFinding(
        "q2",
        lambda patient: patient.seen["ingress"]["tickets"].pop("q2"),
        "inference q2 of application busy",
    ),
    "inference_of_a_lost_ingress": ExpectedFinding(
        "ingress-1", lost_ingress, "4 inferences are of ingress ingress-1"
    ),
    "queue_that_stands_still": ExpectedFinding(
        "r1 q4", unused_replica(free_for_first=True), "room for the first of them, q4"
    ),
    "tag_behind_the_clock": ExpectedFinding(
        "busy",
        changed_inspection("scheduler", "applications", "busy", clock=1_500.0),
        "F at 1,500 and V at 1,500",
    ),
    "application_that_should_have_ended": ExpectedFinding(
        "resting",
        changed_inspection("scheduler", "applications", "resting", idle_s=606.0),
        "idle for 606 s, and should have ended after 600 s (scheduler.application_idle_s)",
    ),
    "application_nobody_speaks_for": ExpectedFinding(
        "resting",
        changed_inspection("scheduler", "applications", "resting", ingress_id="ingress-0"),
        "ends by itself in 570 s",
    ),
    "predictor_that_gives_no_answer": ExpectedFinding(
        "predictor", changed_look(predictor_trouble="503: away"), "503: away"
    ),
    "predictor_that_does_not_learn": ExpectedFinding(
        "predictor", changed_look(predictor_learns=False), "does not learn"
    ),
    "store_in_trouble": ExpectedFinding(
        "store",
        changed_inspection(
            "scheduler", "store", trouble="Redis at host:1: refused", saved_s_ago=60.0
        ),
        "cannot save: Redis at host:1: refused",
    ),
    "save_that_is_late": ExpectedFinding(
        "store", changed_inspection("scheduler", "store", saved_s_ago=5.6), "5.6 s ago"
    ),
    "nothing_is_kept": ExpectedFinding(
        "store", changed_inspection("scheduler", "store", kind="none"), "durability is none"
    ),
    "embedded_redis_on_many_nodes": ExpectedFinding(
        "store",
        combined(
            changed_inspection("scheduler", "store", kind="embedded"),
            changed_inspection("serve", nodes=2),
        ),
        "2 nodes",
    ),
    "redis_that_cannot_be_reached": ExpectedFinding(
        "redis", unreadable_redis(redis_away="no route"), "no route"
    ),
    "redis_that_cannot_be_read": ExpectedFinding(
        "redis", unreadable_redis(redis_damage="schema: version 9"), "schema: version 9"
    ),
    "another_scheduler_in_office": ExpectedFinding(
        "epoch",
        lambda patient: patient.redis.update(
            epoch=4, leader={"epoch": 4, "host": "elsewhere", "process_id": 99, "since": 0}
        ),
        "epoch 4 is in office, held by process 99 on host elsewhere",
    ),
    "epoch_that_was_set_back": ExpectedFinding(
        "epoch", lambda patient: patient.redis.update(epoch=None), "Redis holds none"
    ),
    "virtual_time_ahead_in_redis": ExpectedFinding(
        "clock 1001.0",
        lambda patient: patient.redis.update(clock={"virtual_time": 1_001.0}),
        "V is 1,001 in Redis and 1,000 in the scheduler",
    ),
    "application_only_in_redis": ExpectedFinding(
        "ghost",
        changed_redis("ghost", state="open", finish=1.0),
        "application ghost, which the scheduler does not know",
    ),
    "application_missing_in_redis": ExpectedFinding(
        "busy",
        lambda patient: patient.redis["applications"].pop("busy"),
        "application busy is not in Redis",
    ),
    "tag_that_differs_in_redis": ExpectedFinding(
        "busy finish",
        changed_redis("busy", finish=1_499.0),
        "its tag F is 1499.0 in Redis and 1500.0 in the scheduler",
    ),
}
"""Failure and expected finding of each rule, by the rule's name."""


def test_doctor_finds_nothing_in_a_healthy_service() -> None:
    assert [] == find(look_after(), look_after())


RULES: dict[str, Rule[Any]] = {
    rule.name: rule
    for table in (
        *(SERVICE_RULES, ROLLOUT_RULES, SCALING_RULES, FRONT_RULES),
        *(STORE_RULES, REDIS_RULES, PAIR_RULES),
    )
    for rule in table
}


@pytest.mark.parametrize("rule", RULES)
def test_each_service_failure_is_found_by_exactly_one_rule(rule: str) -> None:
    """One failure gives one finding, which names its subject and a remedy.

    Each rule has a case, because a rule without one may never find anything.
    """
    subject, harm, said = CASES[rule]
    found = find(look_after(harm), look_after(harm))

    expected = (rule, subject, RULES[rule].severity)
    assert [expected] == [(f.rule, f.subject, f.severity) for f in found]
    assert said in found[0].what
    assert found[0].do


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(
            changed_inspection("scheduler", "replicas", "r1", silent_s=1.9), id="a late heartbeat"
        ),
        pytest.param(
            changed_inspection("replicas", "r1", epoch=0), id="a replica that has just started"
        ),
        pytest.param(
            changed_inspection("replicas", "r1", held={}, unconfirmed=["3-1"]),
            id="an end not yet confirmed",
        ),
        pytest.param(
            changed_inspection("scheduler", "leases", "3-3", age_s=5.9), id="a lease about to lapse"
        ),
        pytest.param(
            combined(
                changed_inspection("replicas", "r1", held=held_leases("2-9")),
                changed_inspection("scheduler", "replicas", "r1", unclaimed=["2-9"]),
            ),
            id="a lease of the last scheduler that an ingress may yet claim",
        ),
        pytest.param(
            changed_inspection("scheduler", "replicas", "r1", unexplained_kv_tokens=50),
            id="a gauge that moves between reports",
        ),
        pytest.param(
            unused_replica(unexplained_kv_tokens=2), id="an engine that keeps a block for itself"
        ),
        pytest.param(
            changed_inspection("scheduler", "replicas", "r1", draining_s=599.0),
            id="a long call is waited for",
        ),
        pytest.param(
            combined(
                unused_replica(free_for_first=True), changed_inspection("scheduler", first=None)
            ),
            id="what waits may not be granted yet",
        ),
        pytest.param(
            changed_inspection(
                "scheduler", "applications", "resting", idle_s=606.0, idle_limit_s=900.0
            ),
            id="an application that may be idle for longer than others",
        ),
        pytest.param(changed_redis("busy", attained=1.0), id="service not yet saved"),
        pytest.param(
            changed_inspection("serve", "deployments", "Replica", unplaced=1, unplaced_s=59.0),
            id="a replica that has just been created",
        ),
        pytest.param(
            combined(
                changed_inspection("serve", "deployments", "Replica", unchanged_s=660.0),
                changed_inspection("scheduler", "scaling", load_s=221.0, downscale_delay_s=600.0),
            ),
            id="an update of a model that loads for minutes",
        ),
        pytest.param(
            changed_inspection("serve", "deployments", "Replica", unchanged_s=9e5, running=3),
            id="a complete deployment",
        ),
        pytest.param(
            changed_inspection(
                "serve", "deployments", "Replica", unchanged_s=9e5, status="UPSCALING"
            ),
            id="autoscaling",
        ),
        pytest.param(
            changed_inspection("scheduler", "store", saved_s_ago=None), id="nothing saved yet"
        ),
        pytest.param(
            combined(
                changed_inspection("ingress", "tickets", q9=True),
                changed_inspection("scheduler", held_back=1),
            ),
            id="what waits until its application is stored",
        ),
    ],
)
def test_doctor_finds_nothing_in_unusual_but_normal_values(harm: Harm) -> None:
    left = [f for f in find(look_after(harm), look_after(harm)) if f.severity is not Severity.NOTE]

    assert [] == left


CAUSES = {
    "EngineError: vLLM could not start model '/m': torch.OutOfMemoryError: CUDA out of memory.": (
        "does not fit the GPU's memory"
    ),
    "ValueError: 1.5 GiB KV cache is needed, which is larger than": "lower max_model_len",
    "OSError: acme/modle is not a local folder and is not a valid model identifier": "model.path",
    "OSError: You are trying to access a gated repo.": "give the replicas a token",
    "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory": (
        "resources.limits.memory"
    ),
    "RuntimeError: No CUDA GPUs are available": "`nvidia-smi` in the pod",
    "ConfigError: vllm_args.max_model_len: is no number": "`justitia check-config FILE`",
}
"""Reasons of failed starts, and part of the advice for each."""


@pytest.mark.parametrize("reason", CAUSES)
def test_advice_for_a_failed_start_depends_on_its_cause(reason: str) -> None:
    look = look_after(changed_inspection("serve", failing={"Replica": reason}))
    (found,) = find(look, look)

    assert "deployment_that_does_not_start" == found.rule
    assert CAUSES[reason] in found.do


def test_failed_starts_of_a_replica_are_found_during_a_slow_start() -> None:
    """After 30 s Serve's message about the next replica replaces that about the failure."""
    failed = {"failed_starts": 2, "failed_log": "/serve/replica.log on node 10.0.0.1"}
    look = look_after(
        changed_inspection("serve", "deployments", "Replica", unchanged_s=660.0, **failed)
    )
    (found,) = find(look, look)

    assert ("deployment_that_does_not_start", Severity.WRONG) == (found.rule, found.severity)
    assert "replicas that ended during their start: 2" in found.what
    assert "/serve/replica.log on node 10.0.0.1" in found.what


def test_doctor_distinguishes_occupied_nodes_from_missing_nodes() -> None:
    facts = {"unplaced": 1, "unplaced_s": 61.0, "fitting_nodes": 2}
    look = look_after(changed_inspection("serve", "deployments", "Replica", **facts))
    (found,) = find(look, look)

    assert "2 of the nodes offer that, and are taken" in found.what


@pytest.mark.parametrize(
    ("harm", "rule", "said"),
    [
        (
            changed_inspection(
                "scheduler", "applications", "resting", idle_s=66.0, idle_limit_s=60.0
            ),
            "application_that_should_have_ended",
            "should have ended after 60 s (its own idle time)",
        ),
        (
            changed_inspection(
                "scheduler", "applications", "resting", ingress_id="ingress-0", idle_limit_s=60.0
            ),
            "application_nobody_speaks_for",
            "ends by itself in 30 s",
        ),
    ],
)
def test_doctor_judges_an_application_by_its_own_idle_limit(
    harm: Harm, rule: str, said: str
) -> None:
    """An application may set an idle limit, which replaces the configured one."""
    (found,) = find(look_after(harm), look_after(harm))

    assert rule == found.rule
    assert said in found.what


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(
            combined(serves_itself, changed_inspection("serve", tls=True)),
            id="Serve's own proxy has TLS",
        ),
        pytest.param(changed_inspection("serve", tls=None), id="an older service does not say"),
    ],
)
def test_ray_serve_proxy_with_tls_is_no_finding(harm: Harm) -> None:
    assert [] == find(look_after(harm), look_after(harm))


@pytest.mark.parametrize(
    ("rule", "harm"),
    [
        pytest.param(
            "kv_that_no_lease_explains",
            unused_replica(unexplained_kv_tokens=3),
            id="a leak of one call, long before it is 5 % of the memory",
        ),
        pytest.param(
            "replica_that_drains_for_long",
            unused_replica(draining_s=31.0),
            id="Serve ends one that leaves within seconds; one that it forgot serves nobody",
        ),
    ],
)
def test_doctor_has_stricter_limits_for_an_idle_replica(rule: str, harm: Harm) -> None:
    """A value that is normal for a busy replica is a failure of an idle one."""
    assert [rule] == [f.rule for f in find(look_after(harm), look_after(harm))]


@pytest.mark.parametrize(
    ("table", "harm"),
    [
        ("leases", changed_inspection("replicas", "r1", held=held_leases("2-9"))),
        ("inferences", changed_inspection("ingress", "tickets", q9=True)),
        ("applications", changed_redis("ghost", state="open")),
        ("ended", changed_redis("ghost", state="open")),
    ],
)
def test_missing_rows_of_a_truncated_table_are_no_finding(table: str, harm: Harm) -> None:
    """With 200,000 inferences the tables are truncated, and missing rows prove nothing."""
    looks = [
        look_after(harm, changed_inspection("scheduler", left_out={table: 1})) for _ in range(2)
    ]

    assert ["tables_not_seen_whole"] == [f.rule for f in find(*looks)]


def test_doctor_drops_a_finding_of_only_one_inspection() -> None:
    """A lease whose end is on its way appears in one of two inspections only.

    Under load some lease always is, so equal findings must concern the same lease.
    """
    lost, other = (
        changed_inspection("replicas", "r1", held={}),
        changed_inspection("replicas", "r2", held={}),
    )

    assert [] == find(look_after(lost), look_after())
    assert [] == find(look_after(), look_after(lost))
    assert [] == find(look_after(lost), look_after(other))


def test_doctor_lists_the_worst_finding_first() -> None:
    harms = (
        CASES["application_nobody_speaks_for"].harm,
        CASES["save_that_is_late"].harm,
        CASES["replica_that_is_silent"].harm,
    )
    found = find(look_after(*harms), look_after(*harms))

    assert ["wrong", "risk", "note"] == [f.severity for f in found]


def service_with_tags(finish: float, stored: float) -> "PatientService":
    """Return a service whose application `busy` has different tags in memory and in Redis."""
    patient = PatientService()
    patient.scheduler["applications"]["busy"]["finish"] = finish
    patient.redis["applications"]["busy"]["finish"] = stored
    return patient


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param((1_500.0, 1_400.0), (1_500.0, 1_500.0), id="saved meanwhile"),
        pytest.param((1_500.0, 1_400.0), (1_600.0, 1_500.0), id="moved again, saved once"),
        pytest.param((1_500.0, 1_400.0), (1_500.0, 1_600.0), id="moved after the second look"),
    ],
)
def test_tag_that_is_not_saved_yet_is_no_finding(
    before: tuple[float, float], after: tuple[float, float]
) -> None:
    """Saves lag by half a second, so a tag that has just moved always differs."""
    assert [] == find(
        service_with_tags(*before).take_look(),
        service_with_tags(*after).take_look(),
    )


def test_doctor_compares_no_counts_of_two_schedulers() -> None:
    """A scheduler that became leader between two inspections has new counts."""

    def change_leader(patient: PatientService) -> None:
        patient.scheduler["epoch"] = patient.redis["epoch"] = patient.seen["ingress"]["epoch"] = 4
        for replica in patient.seen["replicas"].values():
            replica["epoch"] = 4

    tampered = service_with_tags(1_500.0, 1_400.0)
    before = tampered.take_look()
    change_leader(tampered)

    assert [] == find(before, tampered.take_look())


def test_model_scaled_to_zero_is_healthy() -> None:
    def found_rules(harm: Harm) -> list[str]:
        return [f.rule for f in find(look_after(harm), look_after(harm))]

    at_zero = combined(
        empty_cluster, changed_inspection("scheduler", "scaling", wanted=0, minimum=0)
    )

    assert "no_replica" in found_rules(empty_cluster)
    assert "no_replica" not in found_rules(at_zero)


def test_external_autoscaler_without_queries_is_no_finding() -> None:
    reads = changed_inspection(
        "scheduler", "scaling", is_serves=False, asked_s_ago=None, downscale_delay_s=None
    )

    assert [] == find(look_after(reads), look_after(reads))
