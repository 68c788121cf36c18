"""The manifests hold to the rules of `rules.py`, and each rule finds what breaks it."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.k8s import rules
from tests.unit.k8s.kustomization import Manifest
from tests.unit.k8s.manifests import K8S, NAMES, group, manifests, of_kind, ray_service

README = (K8S / "README.md").read_text(encoding="utf-8")


def pod(found: list[Manifest], name: str) -> dict[str, Any]:
    spec = group(found, name)["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def container(found: list[Manifest], name: str) -> dict[str, Any]:
    (only,) = pod(found, name)["containers"]
    assert isinstance(only, dict)
    return only


def cluster(found: list[Manifest]) -> dict[str, Any]:
    config = ray_service(found)["spec"]["rayClusterConfig"]
    assert isinstance(config, dict)
    return config


def in_serve_config(found: list[Manifest], old: str, new: str) -> None:
    spec = ray_service(found)["spec"]
    assert old in spec["serveConfigV2"]
    spec["serveConfigV2"] = spec["serveConfigV2"].replace(old, new, 1)


def first(found: list[Manifest], kind: str) -> dict[str, Any]:
    return of_kind(found, kind)[0]


def relabel(found: list[Manifest]) -> None:
    """Give the `cpu` pods, and with them the engines, labels that no policy names."""
    for name in ("cpu", "engines"):
        labels = group(found, name)["template"]["metadata"]["labels"]
        labels |= {"app.kubernetes.io/component": "x", "app.kubernetes.io/part-of": "x"}


Change = Callable[[list[Manifest]], object]
BREACHES: list[tuple[rules.Rule, Change]] = [
    (rules.images_are_pinned, lambda m: container(m, "cpu").update(image="justitia-ray")),
    (rules.images_are_pinned, lambda m: container(m, "cpu").update(image="justitia-ray:latest")),
    (rules.images_are_pinned, lambda m: container(m, "cpu").update(image="host:5000/justitia-ray")),
    (rules.no_secret_in_clear, lambda m: m.append({"kind": "Secret", "metadata": {"name": "x"}})),
    (
        rules.no_secret_in_clear,
        lambda m: container(m, "cpu")["env"].append({"name": "HF_TOKEN", "value": "hf"}),
    ),
    (
        rules.no_secret_in_clear,
        lambda m: cluster(m)["gcsFaultToleranceOptions"].update(redisPassword={"value": "x"}),
    ),
    (rules.pods_are_confined, lambda m: pod(m, "cpu")["securityContext"].update(runAsUser=0)),
    (rules.pods_are_confined, lambda m: container(m, "cpu")["securityContext"].pop("capabilities")),
    (
        rules.tokens_are_for_the_autoscaler,
        lambda m: pod(m, "cpu").update(automountServiceAccountToken=True),
    ),
    (rules.tokens_are_for_the_autoscaler, lambda m: pod(m, "cpu").update(serviceAccountName="x")),
    (
        rules.limits_fit_requests,
        lambda m: container(m, "engines")["resources"]["requests"].update(memory="1Gi"),
    ),
    (
        rules.limits_fit_requests,
        lambda m: container(m, "engines")["resources"]["limits"].update({"nvidia.com/gpu": 1}),
    ),
    (
        rules.head_takes_no_work,
        lambda m: cluster(m)["headGroupSpec"]["rayStartParams"].pop("num-cpus"),
    ),
    (
        rules.work_goes_where_it_belongs,
        lambda m: group(m, "engines")["rayStartParams"].pop("num-cpus"),
    ),
    (
        rules.work_goes_where_it_belongs,
        lambda m: in_serve_config(m, "num_cpus: 0, ", ""),
    ),
    (
        rules.work_goes_where_it_belongs,
        lambda m: in_serve_config(m, "{num_cpus: 0, ", "{num_gpus: 1, num_cpus: 0, "),
    ),
    (rules.replicas_have_pods, lambda m: group(m, "cpu").update(replicas=1)),
    (rules.replicas_have_pods, lambda m: group(m, "engines").update(maxReplicas=1)),
    (
        rules.replicas_have_pods,
        lambda m: container(m, "cpu")["resources"]["limits"].update(cpu="1"),
    ),
    (rules.streams_may_end, lambda m: pod(m, "engines").update(terminationGracePeriodSeconds=900)),
    (
        rules.streams_may_end,
        lambda m: ray_service(m)["spec"].update(rayClusterDeletionDelaySeconds=600),
    ),
    (rules.replacements_load_first, lambda m: container(m, "cpu").pop("lifecycle")),
    (
        rules.replacements_load_first,
        lambda m: container(m, "engines")["lifecycle"]["preStop"]["exec"].update(
            command=["leave-node", "600"]
        ),
    ),
    (
        rules.engines_are_ready_when_loaded,
        lambda m: container(m, "engines").update(
            readinessProbe=container(m, "cpu")["readinessProbe"]
        ),
    ),
    (
        rules.engines_are_ready_when_loaded,
        lambda m: container(m, "engines")["ports"][1].update(containerPort=8081),
    ),
    (
        rules.engines_are_ready_when_loaded,
        lambda m: in_serve_config(
            m, "      store:", "      metrics: {enabled: false}\n      store:"
        ),
    ),
    (rules.one_cluster_at_a_time, lambda m: ray_service(m)["spec"].pop("upgradeStrategy")),
    (
        rules.probes_ask_ports_that_are_there,
        lambda m: container(m, "cpu")["readinessProbe"]["httpGet"].update(port="http"),
    ),
    (rules.probes_ask_ports_that_are_there, lambda m: container(m, "cpu").pop("livenessProbe")),
    (
        rules.budgets_select_pods,
        lambda m: first(m, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"].update(x="y"),
    ),
    (
        rules.budgets_select_pods,
        lambda m: first(m, "PodDisruptionBudget")["spec"].update(minAvailable=2),
    ),
    (
        rules.budgets_select_pods,
        lambda m: first(m, "PodDisruptionBudget")["spec"].update(maxUnavailable=1),
    ),
    (
        rules.policies_name_ports_that_are_there,
        lambda m: container(m, "engines")["ports"].pop(0),
    ),
    (rules.policies_name_ports_that_are_there, relabel),
    (rules.services_find_pods, lambda m: first(m, "Service")["spec"]["selector"].update(x="y")),
    (rules.redis_is_reached, lambda m: in_serve_config(m, "6379/1", "6379/0")),
    (rules.redis_is_reached, lambda m: container(m, "cpu")["env"].pop(0)),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_rule_holds(rule: rules.Rule, name: str) -> None:
    """Nobody has the manifests on a cluster here: what can be read from them is all there is."""
    assert [] == list(rule(manifests(name)))


@pytest.mark.parametrize(
    ("rule", "change"), BREACHES, ids=[f"{r.__name__}-{i}" for i, (r, _) in enumerate(BREACHES)]
)
def test_breach_is_found(rule: rules.Rule, change: Change) -> None:
    """A rule that cannot fail says nothing."""
    found = manifests("base")
    change(found)

    assert list(rule(found))


def test_every_rule_is_seen_to_fail() -> None:
    """So that a rule that comes later is not forgotten above."""
    assert set(rules.RULES) == {rule for rule, _ in BREACHES}


@pytest.mark.parametrize("name", NAMES)
def test_every_secret_is_in_the_readme(name: str) -> None:
    """Pods wait for ever for a secret that nobody told the installer to make."""
    assert [] == list(rules.secrets_are_documented(manifests(name), README))


def test_secret_that_is_not_in_the_readme_is_found() -> None:
    """A reference that is renamed in one of the two places."""
    text = README.replace("create secret generic justitia-redis", "create secret generic redis")

    assert ["justitia-redis, password"] == sorted(
        set(rules.secrets_are_documented(manifests("base"), text))
    )


@pytest.mark.parametrize("file", sorted(K8S.glob("**/*.yaml")), ids=lambda f: f.name)
def test_every_resource_number_has_its_reason(file: Any) -> None:
    """Whoever sizes a cluster has to know what may be changed."""
    assert [] == list(rules.numbers_have_reasons(file))


def test_number_without_a_reason_is_found(tmp_path: Any) -> None:
    """Both forms in which they are written."""
    file = tmp_path / "a.yaml"
    file.write_text("limits:\n  cpu: '1'\n  memory: 1Gi  # measured\n  nvidia.com/gpu: 1\n")

    assert ["a.yaml:2: cpu: '1'", "a.yaml:4: nvidia.com/gpu: 1"] == list(
        rules.numbers_have_reasons(file)
    )


def test_local_serves_what_the_base_serves() -> None:
    """An overlay changes only what differs; Serve's configuration is one text, so it is held to."""
    base = (K8S / "base" / "serve.yaml").read_text(encoding="utf-8").splitlines()[2:]
    local = (K8S / "overlays" / "local" / "serve.yaml").read_text(encoding="utf-8").splitlines()[1:]

    differ = [(b, o) for b, o in zip(base, local, strict=True) if b != o]

    assert ["num_replicas: 1", "num_replicas: 1"] == [ours.strip() for _, ours in differ]
