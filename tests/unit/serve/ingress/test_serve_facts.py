"""Facts about deployments, from details as Serve's controller of Ray 2.60 reports them."""

from typing import Any

import pytest

from justitia_ray.serve.ingress.serve_facts import deployment_facts, failure

NOW = 10_000.0
NODES = [
    {"Alive": True, "Resources": {"GPU": 1.0, "engine": 1.0}},
    {"Alive": True, "Resources": {"CPU": 8.0}},
    {"Alive": False, "Resources": {"GPU": 8.0, "engine": 1.0}},
]


def serve_replica(
    state: str, age_s: float, node: str | None = "10.0.0.1", **more: Any
) -> dict[str, Any]:
    return {"state": state, "start_time_s": NOW - age_s, "node_ip": node} | more


def serve_deployment(*replicas: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "status": "UPDATING",
        "message": "",
        "target_num_replicas": 2,
        "required_resources": {"CPU": 0.0, "GPU": 1.0, "engine": 1.0},
        "replicas": list(replicas),
    } | fields


def test_stuck_deployment_shows_the_time_since_its_last_change() -> None:
    """An old replica runs, a new one has been starting for minutes, a third one stops."""
    details = serve_deployment(
        serve_replica("RUNNING", 9_000.0),
        serve_replica("STARTING", 640.0),
        serve_replica("STOPPING", 9_000.0),
    )
    facts = deployment_facts(details, NODES, deployed_at=NOW - 660.0, now=NOW)

    assert ("UPDATING", 2, 1, 1, 1) == (
        *(facts.status, facts.target, facts.running),
        *(facts.starting, facts.stopping),
    )
    assert (660.0, 640.0, 0) == (facts.unchanged_s, facts.starting_s, facts.unplaced)


def test_started_replica_counts_as_progress() -> None:
    details = serve_deployment(serve_replica("RUNNING", 9_000.0), serve_replica("RUNNING", 20.0))

    assert 20.0 == deployment_facts(details, NODES, NOW - 660.0, NOW).unchanged_s


def test_unplaced_replica_is_shown_with_the_number_of_suitable_nodes() -> None:
    details = serve_deployment(
        serve_replica("STARTING", 90.0, None), serve_replica("STARTING", 70.0, None)
    )
    facts = deployment_facts(details, NODES, NOW - 660.0, NOW)

    assert (2, 90.0, "GPU 1, engine 1", 1) == (
        *(facts.unplaced, facts.unplaced_s),
        *(facts.needs, facts.fitting_nodes),
    )


def test_replica_that_ends_during_a_deployment_is_a_failed_start() -> None:
    """Replicas of the earlier configuration that an update stops do not count."""
    dead = [
        serve_replica("STOPPED", 9_000.0, log_file_path="/serve/old.log"),
        serve_replica("STOPPED", 400.0, log_file_path="/serve/new.log"),
    ]
    details = serve_deployment(serve_replica("STARTING", 40.0), recent_dead_replicas=dead)
    facts = deployment_facts(details, NODES, NOW - 660.0, NOW)

    assert (1, "serve/new.log in Ray's log directory on node 10.0.0.1") == (
        facts.failed_starts,
        facts.failed_log,
    )


@pytest.mark.parametrize("status", ["HEALTHY", "UPSCALING", "DOWNSCALING"])
def test_replica_that_ends_after_a_finished_deployment_is_no_failed_start(status: str) -> None:
    dead = [serve_replica("STOPPED", 400.0, log_file_path="/serve/new.log")]
    details = serve_deployment(status=status, recent_dead_replicas=dead)

    assert 0 == deployment_facts(details, NODES, NOW - 660.0, NOW).failed_starts


RETRYING = (
    "A replica failed to start with exception. Retrying 2 more time(s). Error:\n"
    "ray::ServeReplica:justitia:Replica.initialize_and_get_metadata() (pid=7, ip=10.0.0.1)\n"
    '  File "/justitia_ray/serve/engines/vllm_engine.py", line 137, in start\n'
    "justitia_ray.errors.EngineError: vLLM could not start model '/m': ValueError: too long\n"
)
SLOW = (
    "Deployment 'Replica' in application 'justitia' has 1 replicas that have taken more than 30s to"
    " initialize.\nThis may be caused by a slow __init__ or reconfigure method."
)


@pytest.mark.parametrize(
    ("status", "message", "reason"),
    [
        (
            "UPDATING",
            RETRYING,
            "justitia_ray.errors.EngineError: vLLM could not start model '/m': ValueError: too"
            " long",
        ),
        ("UPDATING", SLOW, None),
        ("UPDATING", "", None),
        ("UPSCALING", "Upscaling from 1 to 2 replicas.", None),
        ("HEALTHY", "", None),
        ("DEPLOY_FAILED", "", "its log says why"),
        ("UNHEALTHY", "A replica's health check failed.", "A replica's health check failed."),
    ],
)
def test_reported_reason_is_the_last_line_of_serves_message(
    status: str, message: str, reason: str | None
) -> None:
    assert reason == failure(serve_deployment(status=status, message=message))
