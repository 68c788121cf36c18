"""Facts about deployments, from the details reported by Ray Serve's controller."""

from collections.abc import Mapping, Sequence
from typing import Any

from justitia_ray.protocol.inspection import DeploymentFacts
from justitia_ray.units import Seconds

Details = Mapping[str, Any]
"""Description of one deployment, replica or node, with the fields of Ray's JSON."""

_REASON_CHARACTERS = 300
_STARTING = ("STARTING", "RECOVERING")


def failure(deployment: Details) -> str | None:
    """Return why a deployment does not start, as Ray Serve reports it; None without a failure.

    While Serve retries, or after it has stopped an update, only the message shows the failure.
    """
    message, status = str(deployment.get("message", "")), deployment.get("status")
    if status not in ("UNHEALTHY", "DEPLOY_FAILED") and "failed to start" not in message:
        return None
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[-1][:_REASON_CHARACTERS] if lines else "its log says why"


def deployment_facts(
    deployment: Details, nodes: Sequence[Details], deployed_at: float, now: float
) -> DeploymentFacts:
    """Return a deployment's replica counts, failures and longest start for an inspection.

    Args:
        deployment: Serve's details of the deployment.
        nodes: Ray's nodes, as `ray.nodes()` returns them.
        deployed_at: Time of the application's last deployment.
        now: Current time, by the same clock.
    """
    replicas = deployment["replicas"]
    starting = [replica for replica in replicas if replica["state"] in _STARTING]
    waiting = [replica for replica in starting if not replica.get("node_ip")]
    running = [replica for replica in replicas if replica["state"] == "RUNNING"]
    needs = {k: v for k, v in deployment.get("required_resources", {}).items() if v}
    # A replica that disappears before its start is complete has failed to start.
    failed = [
        replica
        for replica in deployment.get("recent_dead_replicas", [])
        if replica["start_time_s"] > deployed_at
    ]
    return DeploymentFacts(
        status=deployment["status"],
        target=deployment.get("target_num_replicas", 0),
        running=len(running),
        starting=len(starting),
        stopping=sum(replica["state"] == "STOPPING" for replica in replicas),
        starting_s=_longest_start(starting, now),
        unplaced=len(waiting),
        unplaced_s=_longest_start(waiting, now),
        unchanged_s=max(0.0, now - max([deployed_at, *(r["start_time_s"] for r in running)])),
        needs=", ".join(f"{name} {amount:g}" for name, amount in sorted(needs.items())),
        fitting_nodes=sum(
            bool(node["Alive"])
            and all(node["Resources"].get(name, 0) >= amount for name, amount in needs.items())
            for node in nodes
        ),
        failed_starts=len(failed) if deployment["status"] == "UPDATING" else 0,
        failed_log=_place_of_log(failed[-1]) if failed else None,
    )


def _longest_start(replicas: Sequence[Details], now: float) -> Seconds:
    """Return the time since the earliest start of the replicas; 0 without replicas."""
    begun = [replica["start_time_s"] for replica in replicas if replica["start_time_s"]]
    return max(0.0, now - min(begun)) if begun else 0.0


def _place_of_log(replica: Details) -> str:
    path = str(replica.get("log_file_path")).lstrip("/")
    return f"{path} in Ray's log directory on node {replica.get('node_ip')}"
