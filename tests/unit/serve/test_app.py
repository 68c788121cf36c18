"""Which clusters `build` refuses, tested with stand-ins for Ray and Serve."""

import logging
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
import ray
from ray.exceptions import GetTimeoutError, RayActorError
from ray.serve.config import HTTPOptions

from justitia_ray.errors import ConfigError
from justitia_ray.serve import app

ARGS = {"name": "demo", "model": {"name": "m", "path": "none"}, "engine": {"kind": "fake"}}
CERTIFICATE = {"ssl_keyfile": "key.pem", "ssl_certfile": "certificate.pem"}

Answer: TypeAlias = HTTPOptions | Exception


class StandIn:
    """Fake controller of Ray Serve with one fixed answer."""

    def __init__(self, answer: Answer) -> None:
        self.get_http_config = self
        self.waited_s: list[float | None] = []
        self._answer = answer

    def remote(self) -> "StandIn":
        """Call the controller; `get` reads the answer from the returned object."""
        return self

    def get(self, answer: object, *, timeout: float | None = None) -> HTTPOptions:
        """Return the controller's answer as `ray.get` does."""
        assert answer is self
        self.waited_s.append(timeout)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


Behind = Callable[..., StandIn]


@pytest.fixture
def start_behind(monkeypatch: pytest.MonkeyPatch) -> Behind:
    """Place this process in a cluster, behind HAProxy by default."""

    def start_cluster(answer: Answer, *, haproxy: bool = True) -> StandIn:
        controller = StandIn(answer)
        monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "1" if haproxy else "0")
        monkeypatch.setattr(ray, "is_initialized", lambda: True)
        monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True}])
        monkeypatch.setattr(ray, "get", controller.get)

        def get_actor(name: str, namespace: str) -> StandIn:
            assert ("SERVE_CONTROLLER_ACTOR", "serve") == (name, namespace)
            if isinstance(answer, ValueError):
                raise answer
            return controller

        monkeypatch.setattr(ray, "get_actor", get_actor)
        return controller

    return start_cluster


def warnings_about_controller(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "Serve's controller" in text]


def test_tls_in_serves_options_is_refused_behind_haproxy(start_behind: Behind) -> None:
    """Callers would get plaintext or no answer; the error names both remedies."""
    start_behind(HTTPOptions(**CERTIFICATE))

    with pytest.raises(ConfigError) as refused:
        app.build(ARGS)
    sentence = str(refused.value)
    assert sentence.startswith("http_options.ssl_certfile: HAProxy, the front of this cluster")
    assert "without RAY_SERVE_ENABLE_HA_PROXY" in sentence
    assert "leave http_options.ssl_* out" in sentence


@pytest.mark.parametrize(
    ("options", "haproxy"),
    [
        pytest.param({}, True, id="HAProxy without certificates"),
        pytest.param({"ssl_keyfile": "key.pem"}, True, id="a key alone is no TLS to Serve"),
        pytest.param(CERTIFICATE, False, id="Serve's own proxy has TLS"),
    ],
)
def test_http_options_without_tls_are_accepted_behind_haproxy(
    start_behind: Behind, options: dict[str, Any], haproxy: bool, caplog: pytest.LogCaptureFixture
) -> None:
    start_behind(HTTPOptions(**options), haproxy=haproxy)

    assert app.build(ARGS) is not None
    assert [] == warnings_about_controller(caplog)


def test_build_does_not_wait_for_serve_to_start(start_behind: Behind) -> None:
    """`serve run module:app` builds the application before it starts Serve."""
    controller = start_behind(ValueError("Failed to look up actor SERVE_CONTROLLER_ACTOR"))

    assert app.build(ARGS) is not None
    assert [] == controller.waited_s


def test_build_in_a_process_without_ray_calls_no_cluster(
    start_behind: Behind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`serve build` needs no cluster and must not start one."""
    controller = start_behind(HTTPOptions(**CERTIFICATE))
    monkeypatch.setattr(ray, "is_initialized", lambda: False)

    assert app.build(ARGS) is not None
    assert [] == controller.waited_s


@pytest.mark.parametrize("error", [GetTimeoutError("busy"), RayActorError()])
def test_unreachable_serve_controller_does_not_delay_the_build(
    start_behind: Behind, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The controller may be busy or restarting; the doctor finds the problem later."""
    controller = start_behind(error)

    with caplog.at_level(logging.WARNING):
        assert app.build(ARGS) is not None
    assert [5.0] == controller.waited_s
    (warning,) = warnings_about_controller(caplog)
    assert type(error).__name__ in warning


# --- number of replicas


def replicas_of(**sections: Any) -> Any:
    """Return the engine deployment of an application with these configuration sections."""
    ingress = app.build(ARGS | sections)
    ((replicas, _),) = ingress._bound_deployment.init_args[1]
    return replicas._bound_deployment


def test_number_of_replicas_is_configured_without_autoscaling(start_behind: Behind) -> None:
    """Old files set Serve's `num_replicas` under `deployments`."""
    start_behind(HTTPOptions(), haproxy=False)

    assert replicas_of()._deployment_config.autoscaling_config is None


def test_autoscaling_uses_the_drain_time_policy_with_its_own_delays(start_behind: Behind) -> None:
    """Ray Serve applies limits and delays; the scheduler receives the sizing rules."""
    start_behind(HTTPOptions(), haproxy=False)
    section = {"min_replicas": 0, "max_replicas": 5, "load_s": 200.0, "target_drain_s": 30.0}
    scaling = replicas_of(autoscaling=section)._deployment_config.autoscaling_config

    assert (0, 5, 10.0, 400.0) == (
        scaling.min_replicas,
        scaling.max_replicas,
        scaling.upscale_delay_s,
        scaling.downscale_delay_s,
    )
    assert "justitia_ray.serve.drain_policy.DrainTimePolicy" == scaling.policy.policy_function
    assert {
        "scheduler": "scheduler/demo/m",
        "namespace": "justitia",
        "rules": {
            "minimum": 0,
            "maximum": 5,
            "target_drain_s": 30.0,
            "load_s": 200.0,
            "hold_s": 60.0,
        },
        "poll_s": 1.0,
    } == scaling.policy.policy_kwargs


def test_external_autoscaler_alone_decides_the_number_of_replicas(start_behind: Behind) -> None:
    start_behind(HTTPOptions(), haproxy=False)
    section = {"max_replicas": 5, "external": True}

    assert replicas_of(autoscaling=section)._deployment_config.autoscaling_config is None
