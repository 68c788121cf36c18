"""Rules of deployments: replicas that cannot start, updates without progress, proxies."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from justitia_ray.doctor.rule import Breach, Rule, Severity, Snapshot, breach
from justitia_ray.protocol.inspection import DeploymentFacts
from justitia_ray.units import Seconds

_UNPLACED_S: Seconds = 60.0
"""Longest normal wait of a replica for a node, in seconds; a cloud takes minutes to add nodes."""
_UNCHANGED_S: Seconds = 300.0
"""Shortest time without progress, in seconds, after which an update may be a finding."""
_LOADS = 3.0
"""Time without progress after which an update is a finding, as a multiple of a replica's loading
time.
"""


class _KnownCause(NamedTuple):
    """Known cause of a failed start, recognised by a pattern in the error message."""

    pattern: str
    remedy: str


_CAUSES = (
    _KnownCause(
        r"gated repo|restricted|401 Client Error|403 Client Error|GatedRepoError",
        "the hub refuses the model: accept its licence there, and give the replicas a token"
        " (HF_TOKEN; on Kubernetes the secret justitia-hub)",
    ),
    _KnownCause(
        r"low on memory|killed due to|worker_process_died|SIGKILL",
        "the process was killed, possibly for want of the machine's memory: raise the pod's limit"
        " (resources.limits.memory), or give the node fewer replicas",
    ),
    _KnownCause(
        r"OutOfMemory|out of memory|KV cache is needed|No available memory for the cache"
        r"|(?i:free memory on device)",
        "the engine does not fit the GPU's memory: lower max_model_len, take more GPUs an engine"
        " (tensor_parallel_size) or a smaller model; with other processes on the GPU lower"
        " gpu_memory_utilization",
    ),
    _KnownCause(
        r"not a valid model identifier|not a local folder|RepositoryNotFound|Repo id must"
        r"|does not appear to have a file|LocalEntryNotFound|couldn't connect|404 Client Error"
        r"|No such file|FileNotFound|Can't load",
        "the model, or a file that the options name, is not where the replica looks: see"
        " model.path, the volume of the models, and whether the node reaches the hub"
        " (HTTPS_PROXY, HF_HUB_OFFLINE)",
    ),
    _KnownCause(
        r"No CUDA GPUs|NVIDIA driver|CUDA driver|no CUDA-capable|Failed to infer device type",
        "the node offers Ray a GPU that CUDA does not see: see `nvidia-smi` in the pod, the driver"
        " and the device plugin",
    ),
)
_OTHER_REMEDY = (
    "mend the cause (`justitia check-config FILE` finds wrong options) and deploy again, or"
    " deploy the file of before"
)


def _failing_deployments(look: Snapshot) -> Iterator[Breach]:
    for name, reason in _failure_reasons(look).items():
        remedy = next((c.remedy for c in _CAUSES if re.search(c.pattern, reason)), _OTHER_REMEDY)
        yield breach(name, reason=reason, remedy=remedy)


def _failure_reasons(look: Snapshot) -> Mapping[str, str]:
    """Return the names of deployments that do not start, each with the reason.

    Serve's message shows a failure only until it reports that the next replica starts slowly.
    """
    serve = look.seen.serve
    if serve is None:
        return {}
    ended = {
        name: f"replicas that ended during their start: {facts.failed_starts}; the log of the last"
        f" is {facts.failed_log}"
        for name, facts in serve.deployments.items()
        if facts.failed_starts
    }
    return ended | serve.failing


def _replicas_without_node(look: Snapshot) -> Iterator[Breach]:
    for name, facts in _deployments_of(look).items():
        if facts.unplaced_s > _UNPLACED_S:
            nodes = (
                f"{facts.fitting_nodes} of the nodes offer that, and are taken"
                if facts.fitting_nodes
                else "no node offers that"
            )
            yield breach(name, facts=facts, nodes=nodes)


def _updates_without_progress(look: Snapshot) -> Iterator[Breach]:
    known = _failure_reasons(look)
    for name, facts in _deployments_of(look).items():
        explained = name in known or facts.unplaced_s > _UNPLACED_S
        stands = facts.status == "UPDATING" and facts.running < facts.target
        if stands and not explained and facts.unchanged_s > _patience_s(look):
            yield breach(name, facts=facts, minutes=facts.unchanged_s / 60)


def _patience_s(look: Snapshot) -> Seconds:
    """Return the seconds after which an update without a new replica is a finding."""
    scaling = None if look.leader is None else look.leader.scaling
    return max(_UNCHANGED_S, 0.0 if scaling is None else _LOADS * scaling.load_s)


def _deployments_of(look: Snapshot) -> Mapping[str, DeploymentFacts]:
    return {} if look.seen.serve is None else look.seen.serve.deployments


def _proxied_cluster(look: Snapshot) -> Iterator[Breach]:
    proxied = look.seen.ingress.proxied
    if proxied is not None:
        listed = ", ".join(proxied.addresses)
        yield breach(proxied.variable, addresses=listed)


ROLLOUT_RULES: tuple[Rule[[Snapshot]], ...] = (
    Rule(
        "deployment_that_does_not_start",
        Severity.WRONG,
        "Serve starts every process of the application.",
        _failing_deployments,
        "Serve cannot start {subject}: {reason}; an update stays half done, and what is missing is"
        " not replaced",
        "{remedy}; what runs goes on meanwhile",
    ),
    Rule(
        "replica_without_a_node",
        Severity.RISK,
        "Every replica finds a node within a minute.",
        _replicas_without_node,
        "{facts.unplaced} replicas of {subject} have waited for a node for {facts.unplaced_s:.0f}"
        " s: each requests {facts.needs}, and {nodes}",
        "see `ray status`, and on Kubernetes the pending pods (`kubectl describe pod`): add nodes,"
        " raise maxReplicas of the group, or lower num_replicas or ray_actor_options",
    ),
    Rule(
        "update_that_stands_still",
        Severity.RISK,
        "An update starts one replica after the other, each within its loading time.",
        _updates_without_progress,
        "the update of {subject} has brought no replica for {minutes:.0f} min: {facts.running} of"
        " {facts.target} run, {facts.starting} start (since {facts.starting_s:.0f} s),"
        " {facts.stopping} stop; capacity is reduced meanwhile",
        "see the log of the replica that starts (`serve status`, Ray's dashboard): if it only"
        " loads, wait; if it hangs, deploy the file of before. One that stops ends its calls first,"
        " for 600 s at most. With `max_surge_percent` new replicas start before old ones stop",
    ),
    Rule(
        "proxy_that_catches_the_cluster",
        Severity.RISK,
        "HTTP calls to the cluster's own nodes go to no proxy.",
        _proxied_cluster,
        "{subject} is set where the ingress runs, and NO_PROXY does not except {addresses}: calls"
        " of Ray's commands, of exporters and of agents there go to the proxy",
        "name the nodes' addresses and the cluster's domains (.svc, .cluster.local) in NO_PROXY of"
        " every pod; networks (10.0.0.0/8) do not count for Python's clients",
    ),
)
"""Rules about starts and updates of deployments."""
