"""The manifests satisfy the rules of `rules.py`, and each rule detects a violation."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.k8s import rules
from tests.unit.k8s.kustomization import Manifest
from tests.unit.k8s.manifests import (
    K8S,
    NAMES,
    manifests_of_kind,
    ray_cluster,
    ray_service,
    render_manifests,
    replace_in_serve_config,
    worker_container,
    worker_group,
    worker_pod_spec,
)

README = (K8S / "README.md").read_text(encoding="utf-8")


def relabel_workers(found: list[Manifest]) -> None:
    """Give the pods of `cpu` and `engines` labels that no policy selects."""
    for name in ("cpu", "engines"):
        labels = worker_group(found, name)["template"]["metadata"]["labels"]
        labels |= {"app.kubernetes.io/component": "x", "app.kubernetes.io/part-of": "x"}


def set_variable(found: list[Manifest], name: str, value: str) -> None:
    for variable in worker_container(found, "cpu")["env"]:
        if variable["name"] == name:
            variable["value"] = value


Change = Callable[[list[Manifest]], object]
BREACHES: dict[rules.Rule, list[Change]] = {
    rules.images_are_pinned: [
        lambda m: worker_container(m, "cpu").update(image="justitia-ray"),
        lambda m: worker_container(m, "cpu").update(image="justitia-ray:latest"),
        lambda m: worker_container(m, "cpu").update(image="host:5000/justitia-ray"),
    ],
    rules.no_secret_in_plain_text: [
        lambda m: m.append({"kind": "Secret", "metadata": {"name": "x"}}),
        lambda m: worker_container(m, "cpu")["env"].append({"name": "HF_TOKEN", "value": "hf"}),
        lambda m: ray_cluster(m)["gcsFaultToleranceOptions"].update(redisPassword={"value": "x"}),
    ],
    rules.pods_are_confined: [
        lambda m: worker_pod_spec(m, "cpu")["securityContext"].update(runAsUser=0),
        lambda m: worker_container(m, "cpu")["securityContext"].pop("capabilities"),
    ],
    rules.only_the_autoscaler_has_an_api_token: [
        lambda m: worker_pod_spec(m, "cpu").update(automountServiceAccountToken=True),
        lambda m: worker_pod_spec(m, "cpu").update(serviceAccountName="x"),
    ],
    rules.limits_fit_requests: [
        lambda m: worker_container(m, "engines")["resources"]["requests"].update(memory="1Gi"),
        lambda m: worker_container(m, "engines")["resources"]["limits"].update(
            {"nvidia.com/gpu": 1}
        ),
    ],
    rules.head_runs_no_actors: [
        lambda m: ray_cluster(m)["headGroupSpec"]["rayStartParams"].pop("num-cpus")
    ],
    rules.actors_run_on_their_worker_group: [
        lambda m: worker_group(m, "engines")["rayStartParams"].pop("num-cpus"),
        lambda m: replace_in_serve_config(m, "num_cpus: 0, ", ""),
        lambda m: replace_in_serve_config(m, "{num_cpus: 0, ", "{num_gpus: 1, num_cpus: 0, "),
    ],
    rules.replicas_fit_pods: [
        lambda m: worker_group(m, "cpu").update(replicas=1),
        lambda m: worker_group(m, "engines").update(maxReplicas=1),
        lambda m: worker_container(m, "cpu")["resources"]["limits"].update(cpu="1"),
    ],
    rules.pods_outlive_open_streams: [
        lambda m: worker_pod_spec(m, "engines").update(terminationGracePeriodSeconds=900),
        lambda m: ray_service(m)["spec"].update(rayClusterDeletionDelaySeconds=600),
    ],
    rules.replacements_load_first: [
        lambda m: worker_container(m, "cpu").pop("lifecycle"),
        lambda m: worker_container(m, "engines")["lifecycle"]["preStop"]["exec"].update(
            command=["leave-node", "600"]
        ),
    ],
    rules.engines_are_ready_when_loaded: [
        lambda m: worker_container(m, "engines").update(
            readinessProbe=worker_container(m, "cpu")["readinessProbe"]
        ),
        lambda m: worker_container(m, "engines")["ports"][1].update(containerPort=8081),
        lambda m: replace_in_serve_config(
            m, "      store:", "      metrics: {enabled: false}\n      store:"
        ),
    ],
    rules.one_cluster_runs_at_a_time: [lambda m: ray_service(m)["spec"].pop("upgradeStrategy")],
    rules.probes_use_existing_ports: [
        lambda m: worker_container(m, "cpu")["readinessProbe"]["httpGet"].update(port="http"),
        lambda m: worker_container(m, "cpu").pop("livenessProbe"),
    ],
    rules.budgets_select_pods: [
        lambda m: manifests_of_kind(m, "PodDisruptionBudget")[0]["spec"]["selector"][
            "matchLabels"
        ].update(x="y"),
        lambda m: manifests_of_kind(m, "PodDisruptionBudget")[0]["spec"].update(minAvailable=2),
        lambda m: manifests_of_kind(m, "PodDisruptionBudget")[0]["spec"].update(maxUnavailable=1),
    ],
    rules.network_policies_use_existing_ports: [
        lambda m: worker_container(m, "engines")["ports"].pop(0),
        relabel_workers,
    ],
    rules.services_find_pods: [
        lambda m: manifests_of_kind(m, "Service")[0]["spec"]["selector"].update(x="y")
    ],
    rules.redis_is_configured: [
        lambda m: replace_in_serve_config(m, "6379/1", "6379/0"),
        lambda m: worker_container(m, "cpu")["env"].pop(0),
    ],
    rules.front_accepts_every_caller: [
        lambda m: replace_in_serve_config(m, "max_outstanding: 11000", "max_outstanding: 12100"),
        lambda m: replace_in_serve_config(m, "ingress: {max_outstanding: 11000}", ""),
        lambda m: set_variable(m, "RAY_SERVE_HAPROXY_MAXCONN", "26200"),
        lambda m: set_variable(m, "RAY_SERVE_ENABLE_HA_PROXY", "0"),
    ],
    rules.front_does_not_splice: [
        lambda m: set_variable(m, "RAY_SERVE_HAPROXY_BINARY_PATH", "/usr/sbin/haproxy"),
    ],
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_kubernetes_manifests_satisfy_each_rule(rule: rules.Rule, name: str) -> None:
    """No cluster exists here, so the manifests are checked as text."""
    assert [] == list(rule(render_manifests(name)))


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_every_violation_of_a_manifest_rule_is_found(rule: rules.Rule) -> None:
    """Each rule must be able to fail, and a new rule needs a case above."""
    for number, change in enumerate(BREACHES[rule]):
        found = render_manifests("base")
        change(found)
        assert list(rule(found)), f"breach {number}"


@pytest.mark.parametrize("name", NAMES)
def test_every_kubernetes_secret_is_in_the_readme(name: str) -> None:
    """A pod waits forever for a secret that was not created."""
    assert [] == list(rules.secrets_are_documented(render_manifests(name), README))


def test_secret_missing_in_the_readme_is_found() -> None:
    text = README.replace("create secret generic justitia-redis", "create secret generic redis")

    assert ["justitia-redis, password"] == sorted(
        set(rules.secrets_are_documented(render_manifests("base"), text))
    )


@pytest.mark.parametrize("file", sorted(K8S.glob("**/*.yaml")), ids=lambda f: f.name)
def test_every_resource_request_has_a_documented_reason(file: Any) -> None:
    """An administrator who sizes a cluster must know what may be changed."""
    assert [] == list(rules.resource_numbers_have_comments(file))


def test_resource_request_without_a_documented_reason_is_found(tmp_path: Any) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("limits:\n  cpu: '1'\n  memory: 1Gi  # measured\n  nvidia.com/gpu: 1\n")

    assert ["a.yaml:2: cpu: '1'", "a.yaml:4: nvidia.com/gpu: 1"] == list(
        rules.resource_numbers_have_comments(file)
    )


def test_local_overlay_keeps_the_serve_configuration_of_the_base() -> None:
    """Serve's configuration is one text, which an overlay can only replace as a whole."""
    base = (K8S / "base" / "serve.yaml").read_text(encoding="utf-8").splitlines()[2:]
    local = (K8S / "overlays" / "local" / "serve.yaml").read_text(encoding="utf-8").splitlines()[1:]

    differ = [(b, o) for b, o in zip(base, local, strict=True) if b != o]

    assert ["num_replicas: 1", "num_replicas: 1"] == [ours.strip() for _, ours in differ]
