"""Rules for the manifests beyond their schemas: one function per rule, one line per violation."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from justitia_ray.serve.front import WRAPPER, wanted_descriptors
from tests.unit.k8s.kustomization import Manifest, walk_values
from tests.unit.k8s.manifests import (
    PodTemplate,
    manifests_of_kind,
    pod_templates,
    ray_cluster,
    ray_service,
    selector_matches,
    serve_application,
    serve_deployment,
    worker_container,
    worker_group,
    worker_pod_spec,
)

GRACEFUL_SHUTDOWN_S = 600
"""Seconds that Serve gives an ingress or replica to end its calls (justitia_ray/serve/app.py)."""

ENGINE_LOADS_S = 240
"""Seconds until the whole application was ready on two busy cores (k8s/README.md)."""

KUBERAY_DESCRIPTORS = 65_536
"""Open files of a Ray process: KubeRay's operator runs `ray start` with this `ulimit -n`."""

NO_HOOK: dict[str, Any] = {"preStop": {"exec": {"command": []}}}

_SECRET_NAME = re.compile(r"(password|token|secret|key)$", re.IGNORECASE)
_RESOURCE_NUMBER = re.compile(r"^\s*(cpu|memory|storage|nvidia\.com/gpu): (?!\{\{)\S+")


def images_are_pinned(found: list[Manifest]) -> Iterator[str]:
    """An image whose tag may move is a different image tomorrow."""
    for template in pod_templates(found):
        image = template.container["image"]
        _, colon, tag = image.rpartition(":")
        if not colon or "/" in tag or tag == "latest" or not re.search(r"\d+\.\d+\.\d+", tag):
            yield f"{template.name}: {image}"


def no_secret_in_plain_text(found: list[Manifest]) -> Iterator[str]:
    """Manifests are stored in a repository and its history."""
    for manifest in found:
        if manifest["kind"] == "Secret":
            yield f"a Secret {manifest['metadata']['name']}"
    for template in pod_templates(found):
        for variable in template.container.get("env", []):
            if _SECRET_NAME.search(variable["name"]) and "value" in variable:
                yield f"{template.name}: {variable['name']}"
    options = ray_cluster(found)["gcsFaultToleranceOptions"]
    if "valueFrom" not in options["redisPassword"]:
        yield "gcsFaultToleranceOptions.redisPassword"


def pods_are_confined(found: list[Manifest]) -> Iterator[str]:
    """An attacker in an engine must not reach anything else."""
    for template in pod_templates(found):
        outer, inner = template.spec["securityContext"], template.container["securityContext"]
        held = {
            "runAsNonRoot": outer.get("runAsNonRoot") is True and outer.get("runAsUser", 0) > 0,
            "seccompProfile": outer.get("seccompProfile") == {"type": "RuntimeDefault"},
            "allowPrivilegeEscalation": inner.get("allowPrivilegeEscalation") is False,
            "readOnlyRootFilesystem": inner.get("readOnlyRootFilesystem") is True,
            "capabilities": inner.get("capabilities") == {"drop": ["ALL"]},
        }
        yield from (f"{template.name}: {name}" for name, holds in held.items() if not holds)


def only_the_autoscaler_has_an_api_token(found: list[Manifest]) -> Iterator[str]:
    """Only the autoscaler, which runs beside the head, calls the Kubernetes API."""
    scales = ray_cluster(found)["enableInTreeAutoscaling"]
    accounts = {m["metadata"]["name"] for m in manifests_of_kind(found, "ServiceAccount")}
    for template in pod_templates(found):
        wanted = scales and template.name == "head"
        if template.spec["automountServiceAccountToken"] is not wanted:
            yield f"{template.name}: automountServiceAccountToken"
        if template.spec["serviceAccountName"] not in accounts:
            yield f"{template.name}: serviceAccountName"


def limits_fit_requests(found: list[Manifest]) -> Iterator[str]:
    """Every request and limit is set, and memory and GPUs are not overcommitted."""
    for template in pod_templates(found):
        resources = template.container["resources"]
        requests, limits = resources["requests"], resources["limits"]
        if set(requests) != set(limits) or not {"cpu", "memory"} <= set(requests):
            yield f"{template.name}: {sorted(requests)} and {sorted(limits)}"
        for name in set(limits) - {"cpu"}:
            if requests.get(name) != limits[name]:
                yield f"{template.name}: {name} {requests.get(name)} and {limits[name]}"


def head_runs_no_actors(found: list[Manifest]) -> Iterator[str]:
    """Replicas and schedulers continue while the head is down, because none runs there."""
    head = ray_cluster(found)["headGroupSpec"]
    if head["rayStartParams"].get("num-cpus") != "0":
        yield "head: num-cpus"


def actors_run_on_their_worker_group(found: list[Manifest]) -> Iterator[str]:
    """A scheduler on the pod of an engine would end with it.

    An engine elsewhere starves its neighbours.
    """
    engines, cpu = worker_group(found, "engines"), worker_group(found, "cpu")
    options = serve_deployment(found, "Replica")["ray_actor_options"]
    if engines["rayStartParams"].get("num-cpus") != "0":
        yield "engines: num-cpus"
    if options.get("num_cpus") != 0 or options.get("resources") != {"engine": 1}:
        yield f"Replica: {options}"
    if '\\"engine\\": 1' not in engines["rayStartParams"].get("resources", ""):
        yield "engines: resources"
    if "resources" in cpu["rayStartParams"] or "num-cpus" in cpu["rayStartParams"]:
        yield "cpu: rayStartParams"
    gpus = worker_container(found, "engines")["resources"]["limits"].get("nvidia.com/gpu", 0)
    if gpus != options.get("num_gpus", 0):
        yield f"engines: {gpus} GPUs, Replica: {options.get('num_gpus', 0)}"


def replicas_fit_pods(found: list[Manifest]) -> Iterator[str]:
    """A replica that fits no pod would keep the application from becoming ready."""
    ingress, cpu = serve_deployment(found, "Ingress"), worker_group(found, "cpu")
    if ingress["max_replicas_per_node"] != 1 or ingress["num_replicas"] != cpu["replicas"]:
        yield f"{ingress['num_replicas']} ingresses, {cpu['replicas']} cpu pods"
    engines, replicas = (
        worker_group(found, "engines"),
        serve_deployment(found, "Replica")["num_replicas"],
    )
    if engines["replicas"] != replicas:
        yield f"{replicas} engines, {engines['replicas']} pods of engines"
    for name, workers in (("cpu", cpu), ("engines", engines)):
        if not 1 <= workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]:
            yield f"{name}: replicas"
    cores = float(worker_container(found, "cpu")["resources"]["limits"]["cpu"])
    options = [serve_deployment(found, n)["ray_actor_options"] for n in ("Ingress", "Predictor")]
    if sum(o["num_cpus"] for o in options) + 0.1 > cores:  # including the scheduler
        yield f"cpu: {cores} CPUs"


def pods_outlive_open_streams(found: list[Manifest]) -> Iterator[str]:
    """A pod must live longer than Serve waits for open streams."""
    for name in ("cpu", "engines"):
        grace_s = worker_pod_spec(found, name)["terminationGracePeriodSeconds"]
        if grace_s <= max(_drain_deadline_s(found, name), GRACEFUL_SHUTDOWN_S):
            yield f"{name}: terminationGracePeriodSeconds"
    if ray_service(found)["spec"]["rayClusterDeletionDelaySeconds"] <= GRACEFUL_SHUTDOWN_S:
        yield "rayClusterDeletionDelaySeconds"


def replacements_load_first(found: list[Manifest]) -> Iterator[str]:
    """A drained replica must stay until its replacement has loaded."""
    for name in ("cpu", "engines"):
        deadline_s = _drain_deadline_s(found, name)
        if deadline_s <= GRACEFUL_SHUTDOWN_S + ENGINE_LOADS_S:
            yield f"{name}: leave-node {deadline_s}"


def engines_are_ready_when_loaded(found: list[Manifest]) -> Iterator[str]:
    """A disruption budget counts ready pods, so a pod that loads its engine must not be ready."""
    engine = worker_container(found, "engines")
    ports = {port["name"]: str(port["containerPort"]) for port in engine["ports"]}
    probe = engine["readinessProbe"]
    asked = probe.get("exec", {}).get("command")
    if asked != ["engine-ready", ports.get("serve"), ports.get("metrics")]:
        yield f"engines: readinessProbe {probe}"
    if not serve_application(found)["args"].get("metrics", {}).get("enabled", True):
        yield "engines: engine-ready reads a metric, and metrics.enabled is false"


def one_cluster_runs_at_a_time(found: list[Manifest]) -> Iterator[str]:
    """Two clusters with one `args.name` on one Redis would supersede each other's scheduler."""
    if ray_service(found)["spec"].get("upgradeStrategy") != {"type": "None"}:
        yield "upgradeStrategy"


def probes_use_existing_ports(found: list[Manifest]) -> Iterator[str]:
    """A probe of a wrong port fails forever and restarts healthy pods."""
    for template in pod_templates(found):
        ports = {port["name"] for port in template.container["ports"]}
        for name in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe = template.container.get(name)
            if probe is None:
                yield f"{template.name}: no {name}"
                continue
            asked = (probe.get("httpGet") or probe.get("tcpSocket") or {}).get("port")
            if asked is not None and asked not in ports:
                yield f"{template.name}: {name} {asked}"


def budgets_select_pods(found: list[Manifest]) -> Iterator[str]:
    """A disruption budget that selects no pod protects nothing, without an error."""
    for budget in manifests_of_kind(found, "PodDisruptionBudget"):
        name, spec = budget["metadata"]["name"], budget["spec"]
        selected = _selected_pods(found, spec["selector"])
        if not selected:
            yield f"{name}: selects no pod"
        # Percentages would need a `scale` resource, which the controller of Ray's pods lacks.
        if not isinstance(spec.get("minAvailable"), int) or "maxUnavailable" in spec:
            yield f"{name}: not a number of pods"
        pods = sum(worker_group(found, t.name)["replicas"] for t in selected)
        if selected and spec.get("minAvailable", 0) >= pods:
            yield f"{name}: blocks every drain of {pods} pods"


def network_policies_use_existing_ports(found: list[Manifest]) -> Iterator[str]:
    """A network policy for an unused port permits nothing."""
    for policy in manifests_of_kind(found, "NetworkPolicy"):
        name, selected = (
            policy["metadata"]["name"],
            _selected_pods(found, policy["spec"]["podSelector"]),
        )
        if not selected:
            yield f"{name}: selects no pod"
        for rule in policy["spec"].get("ingress", []):
            for port in rule.get("ports", []):
                yield from (
                    f"{name}: {template.name} has no port {port['port']}"
                    for template in selected
                    if port["port"] not in {p["name"] for p in template.container["ports"]}
                )
            for peer in rule["from"]:
                if "namespaceSelector" not in peer and not _selected_pods(
                    found, peer["podSelector"]
                ):
                    yield f"{name}: lets nobody in"


def services_find_pods(found: list[Manifest]) -> Iterator[str]:
    """A service that selects no pod answers no request."""
    for service in manifests_of_kind(found, "Service"):
        selected = _selected_pods(found, {"matchLabels": service["spec"]["selector"]})
        ports = {p["name"] for t in selected for p in t.container["ports"]}
        wanted = {port["targetPort"] for port in service["spec"]["ports"]}
        if not wanted <= ports:
            yield f"{service['metadata']['name']}: {sorted(wanted)}"


def redis_is_configured(found: list[Manifest]) -> Iterator[str]:
    """GCS and scheduler use different Redis databases and a password from a secret."""
    names = {m["metadata"]["name"] for m in manifests_of_kind(found, "Service")}
    cluster = ray_cluster(found)
    address = cluster["gcsFaultToleranceOptions"]["redisAddress"]
    config = serve_application(found)["args"]["store"]
    if address.partition(":")[0] not in names or config["redis_url"] != f"redis://{address}/1":
        yield f"{address} and {config['redis_url']}"
    for template in pod_templates(found):
        if template.component != "redis" and config["redis_password_env"] not in {
            variable["name"] for variable in template.container["env"]
        }:
            yield f"{template.name}: no {config['redis_password_env']}"


def front_accepts_every_caller(found: list[Manifest]) -> Iterator[str]:
    """HAProxy does not start with too many connections, and callers hang with too few."""
    section = serve_application(found)["args"].get("ingress", {})
    callers = section.get("max_outstanding", 0) * serve_deployment(found, "Ingress")["num_replicas"]
    for template in pod_templates(found):
        if template.component == "redis":
            continue
        chosen = {v["name"]: v.get("value", "") for v in template.container["env"]}
        connections = int(chosen.get("RAY_SERVE_HAPROXY_MAXCONN", 0))
        enabled = chosen.get("RAY_SERVE_ENABLE_HA_PROXY") == "1"
        fits = wanted_descriptors(connections) <= KUBERAY_DESCRIPTORS
        if not (enabled and fits and 0 < callers < connections):
            yield f"{template.name}: {connections} connections for {callers} callers"


def front_does_not_splice(found: list[Manifest]) -> Iterator[str]:
    """With splicing, a unary call whose caller left would run to its end."""
    installed = f"/opt/justitia/lib/python3.11/site-packages/justitia_ray/serve/{WRAPPER.name}"
    for template in pod_templates(found):
        chosen = {v["name"]: v.get("value", "") for v in template.container.get("env", [])}
        if "RAY_SERVE_ENABLE_HA_PROXY" in chosen:
            binary = chosen.get("RAY_SERVE_HAPROXY_BINARY_PATH")
            if binary != installed:
                yield f"{template.name}: {binary}"


def secrets_are_documented(found: list[Manifest], text: str) -> Iterator[str]:
    """The installer creates the secrets, so each must be named in the README."""
    for path, value in walk_values(found):
        if path.endswith("secretKeyRef"):
            command = f"kubectl -n justitia create secret generic {value['name']}"
            if command not in text or f"{value['key']}=" not in text:
                yield f"{value['name']}, {value['key']}"
        if path.endswith(".secret") and f"create secret generic {value['secretName']}" not in text:
            yield value["secretName"]


def resource_numbers_have_comments(file: Path) -> Iterator[str]:
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if _RESOURCE_NUMBER.match(line) and "#" not in line:
            yield f"{file.name}:{number}: {line.strip()}"


def _selected_pods(found: list[Manifest], selector: dict[str, Any]) -> list[PodTemplate]:
    return [t for t in pod_templates(found) if selector_matches(selector, t.labels)]


def _drain_deadline_s(found: list[Manifest], name: str) -> int:
    """Return the seconds in which Ray may move the work of a group's pod; 0: no wait."""
    command = worker_container(found, name).get("lifecycle", NO_HOOK)["preStop"]["exec"]["command"]
    return int(command[1]) if command[:1] == ["leave-node"] else 0


Rule = Callable[[list[Manifest]], Iterator[str]]
RULES: tuple[Rule, ...] = (
    images_are_pinned,
    no_secret_in_plain_text,
    pods_are_confined,
    only_the_autoscaler_has_an_api_token,
    limits_fit_requests,
    head_runs_no_actors,
    actors_run_on_their_worker_group,
    replicas_fit_pods,
    pods_outlive_open_streams,
    replacements_load_first,
    engines_are_ready_when_loaded,
    one_cluster_runs_at_a_time,
    probes_use_existing_ports,
    budgets_select_pods,
    network_policies_use_existing_ports,
    services_find_pods,
    redis_is_configured,
    front_accepts_every_caller,
    front_does_not_splice,
)
