"""Inspection of a healthy service, and a service in which tests break single parts."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from justitia_ray.doctor.rule import Snapshot
from justitia_ray.protocol.inspection import Inspection
from justitia_ray.store.scheduler_store import StoredState

Json = dict[str, Any]

_LIMITS: Json = {
    "lease_s": 5.0,
    "replica_s": 4.0,
    "heartbeat_s": 1.0,
    "ingress_s": 30.0,
    "long_poll_s": 20.0,
    "application_s": 600.0,
}


def _application_fields(**fields: Any) -> Json:
    return {
        "state": "open",
        "ingress_id": "ingress-1",
        "finish": 1_500.0,
        "clock": 1_000.0,
        "active": True,
        "withdrawn": False,
        "charged": 1_000.0,
        "attained": 250.0,
        "age_s": 9.0,
        "idle_s": None,
        "waiting": 0,
        "in_flight": 0,
    } | fields


def _inference_fields(application_id: str, state: str) -> Json:
    return {"application_id": application_id, "ingress_id": "ingress-1", "state": state}


def _lease_fields(request_id: str, replica_id: str, state: str, age_s: float) -> Json:
    return {
        "request_id": request_id,
        "replica_id": replica_id,
        "state": state,
        "age_s": age_s,
    }


def _held_lease(state: str, age_s: float) -> Json:
    return {"state": state, "age_s": age_s, "aborted": False}


def healthy_inspection() -> Json:
    """Return the answer of `GET /v1/examination` for a healthy service.

    Application `busy` runs two inferences, one on each replica, has a third one granted and a
    fourth one waiting for room; `resting` waits for a tool.
    """
    return {
        "name": "justitia",
        "model": "m",
        "scheduler": {
            "ready": True,
            "epoch": 3,
            "version": "0.1.0",
            "pid": 17,
            "virtual_time": 1_000.0,
            "waiting": 1,
            "first": "q4",
            "limits": dict(_LIMITS),
            "store": {
                "kind": "redis",
                "saves": 40,
                "saved_s_ago": 0.3,
                "save_interval_s": 0.5,
            },
            "applications": {
                "busy": _application_fields(waiting=1, in_flight=3),
                "resting": _application_fields(
                    finish=900.0, active=False, withdrawn=True, idle_s=30.0
                ),
            },
            "ended": ["over"],
            "inferences": {
                "q1": _inference_fields("busy", "running"),
                "q2": _inference_fields("busy", "running"),
                "q3": _inference_fields("busy", "leased"),
                "q4": _inference_fields("busy", "waiting"),
            },
            "leases": {
                "3-1": _lease_fields("q1", "r1", "running", 8.0),
                "3-2": _lease_fields("q2", "r2", "running", 8.0),
                "3-3": _lease_fields("q3", "r2", "granted", 0.1),
            },
            "replicas": {
                "r1": {"silent_s": 0.2, "kv_tokens": 1_000, "leases": 1},
                "r2": {
                    "silent_s": 0.1,
                    "kv_tokens": 1_000,
                    "leases": 2,
                    "unexplained_kv_tokens": 9,
                },
            },
            "ingresses": {"ingress-1": {"silent_s": 12.0, "unread": 1}},
            "scaling": {
                "wanted": 2,
                "asked": 2,
                "minimum": 1,
                "maximum": 4,
                "load_s": 45.0,
                "asked_s_ago": 0.4,
                "downscale_delay_s": 120.0,
                "is_serves": True,
            },
        },
        "replicas": {
            "r1": {
                "epoch": 3,
                "draining": False,
                "engine": None,
                "kv_tokens": 1_000,
                "free_kv_tokens": 700,
                "held": {"3-1": _held_lease("running", 7.9)},
            },
            "r2": {
                "epoch": 3,
                "draining": False,
                "engine": None,
                "kv_tokens": 1_000,
                "free_kv_tokens": 500,
                "held": {"3-2": _held_lease("running", 7.9)},
                "unconfirmed": ["3-0"],
            },
        },
        "ingress": {
            "ingress_id": "ingress-1",
            "epoch": 3,
            "open_applications": 2,
            "tickets": {"q1": False, "q2": False, "q3": False, "q4": True, "q0": False},
            "max_outstanding": 3_500,
            "front": {
                "kind": "haproxy",
                "max_connections": 7_700,
                "wanted_descriptors": 19_506,
                "descriptors": 20_000,
                "fitting_connections": 7_897,
                "haproxy_can_run": True,
            },
        },
        "serve": {
            "nodes": 1,
            "replicas": {
                "r1": {"state": "RUNNING", "pid": 101, "node_ip": "10.0.0.1"},
                "r2": {"state": "RUNNING", "pid": 102, "node_ip": "10.0.0.1"},
                "r3": {"state": "STARTING"},
            },
            "ingresses": 1,
            "front": "haproxy",
            "tls": False,
            "predictors": 1,
            "deployments": {
                "Replica": {
                    "status": "UPDATING",
                    "target": 3,
                    "running": 2,
                    "starting": 1,
                    "starting_s": 40.0,
                    "unchanged_s": 40.0,
                }
            },
        },
        "silent": {},
    }


def _redis_record(**fields: Any) -> Json:
    return {"state": "open", "finish": 1_500.0, "charged": 1_000.0} | fields


@dataclass
class PatientService:
    """Healthy service as the doctor sees it; a test damages parts of it."""

    seen: Json = field(default_factory=healthy_inspection)
    stored: Json | None = field(
        default_factory=lambda: {
            "epoch": 3,
            "leader": {"epoch": 3, "host": "h", "process_id": 17},
            "clock": {"virtual_time": 990.0},
            "applications": {
                "busy": _redis_record(),
                "resting": _redis_record(finish=900.0),
                "over": {"finish": 1_100.0},
            },
        }
    )
    more: Json = field(default_factory=dict)
    """Additional fields of the state that the doctor's rules read."""

    @property
    def scheduler(self) -> Json:
        scheduler: Json = self.seen["scheduler"]
        return scheduler

    @property
    def redis(self) -> Json:
        assert self.stored is not None
        return self.stored

    def take_look(self) -> Snapshot:
        """Return the state of the service as the doctor's rules read it."""
        stored = None
        if self.stored is not None:
            stored = StoredState(settings=None, replicas={}, **deepcopy(self.stored))
        return Snapshot(Inspection.model_validate(self.seen), stored=stored, **self.more)


def look_after(*harms: Callable[[PatientService], object]) -> Snapshot:
    """Return the state of the service after these failures were injected."""
    patient = PatientService()
    for harm in harms:
        harm(patient)
    return patient.take_look()
