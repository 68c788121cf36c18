"""Stand-in for a Kubernetes API server that stores objects and runs no pods.

kubectl and Helm talk to it unchanged. It checks every object by the schemas of Kubernetes and
KubeRay, refuses changes of fields that Kubernetes does not let change, and answers a server-side
apply as a merge, without field managers.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jsonpatch
import yaml

from tests.harness.kubernetes_protobuf import decode_object

Json = dict[str, Any]

KINDS: Mapping[str, tuple[tuple[str, str, bool], ...]] = {
    "v1": (
        ("namespaces", "Namespace", False),
        ("nodes", "Node", False),
        ("pods", "Pod", True),
        ("secrets", "Secret", True),
        ("configmaps", "ConfigMap", True),
        ("services", "Service", True),
        ("serviceaccounts", "ServiceAccount", True),
        ("persistentvolumeclaims", "PersistentVolumeClaim", True),
    ),
    "apps/v1": (("statefulsets", "StatefulSet", True),),
    "policy/v1": (("poddisruptionbudgets", "PodDisruptionBudget", True),),
    "networking.k8s.io/v1": (("networkpolicies", "NetworkPolicy", True),),
    "monitoring.coreos.com/v1": (
        ("podmonitors", "PodMonitor", True),
        ("prometheusrules", "PrometheusRule", True),
    ),
    "ray.io/v1": (("rayservices", "RayService", True), ("rayclusters", "RayCluster", True)),
}
"""(plural, kind, whether namespaced) of the known Kubernetes resources, by API version."""
_SHORT = {"persistentvolumeclaims": ["pvc"], "poddisruptionbudgets": ["pdb"]}
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_FROZEN = {
    "StatefulSet": ("selector", "serviceName", "volumeClaimTemplates", "podManagementPolicy"),
    "PersistentVolumeClaim": ("accessModes", "storageClassName", "volumeName"),
}
"""Fields of a spec that Kubernetes refuses to change, by kind."""

Check = Callable[[Json], list[str]]


@dataclass(frozen=True, slots=True)
class Refusal(Exception):
    """Error answer of the fake Kubernetes API to a request."""

    code: HTTPStatus
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Place:
    """Resource type, namespace and name in a Kubernetes URL."""

    version: str
    plural: str
    kind: str
    namespace: str | None
    name: str | None


class Store:
    """Objects of a fake cluster, by API version, plural, namespace and name."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._changes = 0
        self.objects: dict[tuple[str, str, str, str], Json] = {}
        self.lock = threading.Lock()

    def put_object(self, place: Place, found: Json) -> Json:
        """Store an object, and return it with the fields that the server adds.

        Raises:
            Refusal: If the object does not fit its schema, its namespace is missing, or it changes
                a field that cannot change.
        """
        metadata = found.setdefault("metadata", {})
        found |= {"apiVersion": place.version, "kind": place.kind}
        if place.namespace is not None:
            metadata["namespace"] = place.namespace
            if ("v1", "namespaces", "", place.namespace) not in self.objects:
                message = f'namespaces "{place.namespace}" not found'
                raise Refusal(HTTPStatus.NOT_FOUND, "NotFound", message)
        key = (place.version, place.plural, place.namespace or "", metadata["name"])
        old = self.objects.get(key)
        errors = self._check(_without_server_fields(found))
        for field in _FROZEN.get(place.kind, ()) if old is not None else ():
            if old is not None and old["spec"].get(field) != found["spec"].get(field):
                errors.append(f"spec.{field}: field is immutable")
        if errors:
            message = f"{place.kind} {metadata['name']} is invalid: {'; '.join(errors)}"
            raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid", message)
        if "stringData" in found:
            raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid", "stringData: not supported")
        self._changes += 1
        metadata["resourceVersion"] = str(self._changes)
        metadata["uid"] = old["metadata"]["uid"] if old else f"uid-{self._changes}"
        metadata.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        self.objects[key] = found
        return found

    def get_object(self, place: Place) -> Json:
        """Return the stored object with a resource type, namespace and name.

        Raises:
            Refusal: If there is none.
        """
        key = (place.version, place.plural, place.namespace or "", str(place.name))
        if key not in self.objects:
            message = f'{place.plural} "{place.name}" not found'
            raise Refusal(HTTPStatus.NOT_FOUND, "NotFound", message)
        return self.objects[key]

    def list_objects(self, place: Place, selector: str) -> list[Json]:
        """Return the stored objects of a resource type whose labels match a selector."""
        return [
            found
            for (version, plural, namespace, _), found in sorted(self.objects.items())
            if (version, plural) == (place.version, place.plural)
            and place.namespace in (None, namespace)
            and _labels_match(found["metadata"].get("labels", {}), selector)
        ]


def _without_server_fields(found: Json) -> Json:
    written = deepcopy(found)
    for name in ("resourceVersion", "uid", "creationTimestamp", "managedFields", "generation"):
        written["metadata"].pop(name, None)
    written.pop("status", None)
    return written


def _labels_match(labels: Mapping[str, str], selector: str) -> bool:
    wanted = (term.partition("=") for term in selector.split(",") if term)
    return all(labels.get(name) == value.removeprefix("=") for name, _, value in wanted)


def _apply_merge_patch(old: Any, patch: Any) -> Any:
    """Return a value changed by a JSON merge patch."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _apply_merge_patch(merged.get(key), value)
    return merged


class _Handler(BaseHTTPRequestHandler):
    store: Store
    protocol_version = "HTTP/1.1"

    def _handle_request(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        sent = self.rfile.read(length)
        body: Any = None  # The body of a DELETE holds options, which are ignored.
        if sent and self.command != "DELETE":
            body = decode_object(sent) or yaml.safe_load(sent)
        try:
            with self.store.lock:
                code, answer = self._answer_api_request(parts.path, query, body)
        except Refusal as refusal:
            code = refusal.code
            answer = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
            answer |= {"reason": refusal.reason, "message": refusal.message}
        text = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle_request  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def _answer_api_request(
        self, path: str, query: Mapping[str, str], body: Any
    ) -> tuple[HTTPStatus, Json]:
        discovered = discovery_answer(path)
        if discovered is not None:
            return HTTPStatus.OK, discovered
        place = parse_path(path)
        dry = "dryRun" in query
        if self.command == "GET":
            if place.name is not None:
                return HTTPStatus.OK, self.store.get_object(place)
            items = self.store.list_objects(place, query.get("labelSelector", ""))
            name = query.get("fieldSelector", "").removeprefix("metadata.name=")
            items = [item for item in items if name in ("", item["metadata"]["name"])]
            listed = {"kind": f"{place.kind}List", "apiVersion": place.version, "items": items}
            return HTTPStatus.OK, listed | {"metadata": {"resourceVersion": "1"}}
        if self.command == "DELETE":
            gone = self.store.get_object(place)
            for key in [k for k, v in self.store.objects.items() if v is gone and not dry]:
                del self.store.objects[key]
            return HTTPStatus.OK, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        if self.command == "POST":
            named = Place(*_collection_of(place), body["metadata"]["name"])
            if self._object_exists(named):
                message = f'{place.plural} "{named.name}" already exists'
                raise Refusal(HTTPStatus.CONFLICT, "AlreadyExists", message)
            return HTTPStatus.CREATED, body if dry else self.store.put_object(place, body)
        return HTTPStatus.OK, self._patched_object(place, body, dry=dry)

    def _object_exists(self, place: Place) -> bool:
        try:
            self.store.get_object(place)
        except Refusal:
            return False
        return True

    def _patched_object(self, place: Place, body: Any, *, dry: bool) -> Json:
        how = self.headers.get("Content-Type", "")
        if ("apply" in how and not self._object_exists(place)) or self.command == "PUT":
            found = body
        elif "json-patch" in how:
            found = jsonpatch.apply_patch(self.store.get_object(place), body)
        else:
            found = _apply_merge_patch(deepcopy(self.store.get_object(place)), body)
        return found if dry else self.store.put_object(place, found)


def _collection_of(place: Place) -> tuple[str, str, str, str | None]:
    return place.version, place.plural, place.kind, place.namespace


def parse_path(path: str) -> Place:
    """Return the resource type, namespace and name that a Kubernetes URL contains.

    Raises:
        Refusal: If the server has no such kind.
    """
    parts = path.strip("/").split("/")
    version = parts[1] if parts[0] == "api" else "/".join(parts[1:3])
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = None
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    for plural, kind, _ in KINDS.get(version, ()):
        if rest[:1] == [plural] and len(rest) <= 2:
            return Place(version, plural, kind, namespace, rest[1] if rest[1:] else None)
    raise Refusal(HTTPStatus.NOT_FOUND, "NotFound", f"the server could not find {path}")


def discovery_answer(path: str) -> Json | None:
    """Return the list of API groups or resources for a discovery path; None for other paths."""
    groups = [version for version in KINDS if "/" in version]
    if path == "/version":
        return {"major": "1", "minor": "33", "gitVersion": "v1.33.0"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        entries = [{"groupVersion": g, "version": g.partition("/")[2]} for g in groups]
        listed = [
            {"name": g.partition("/")[0], "versions": [entry], "preferredVersion": entry}
            for g, entry in zip(groups, entries, strict=True)
        ]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
    version = path.removeprefix("/api/").removeprefix("/apis/")
    if version in KINDS and path in (f"/api/{version}", f"/apis/{version}"):
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": version,
            "resources": [_api_resource(*row) for row in KINDS[version]],
        }
    if path == "/openapi/v3":
        urls = {_api_group(v): {"serverRelativeURL": f"/openapi/v3/{_api_group(v)}"} for v in KINDS}
        return {"paths": urls}
    return next(
        (_openapi_document(v) for v in KINDS if path == f"/openapi/v3/{_api_group(v)}"), None
    )


def _api_group(version: str) -> str:
    return f"apis/{version}" if "/" in version else f"api/{version}"


def _api_resource(plural: str, kind: str, namespaced: bool) -> Json:
    names = {"name": plural, "singularName": kind.lower(), "kind": kind}
    return names | {
        "namespaced": namespaced,
        "verbs": _VERBS,
        "shortNames": _SHORT.get(plural, []),
    }


def _openapi_document(version: str) -> Json:
    """Return an OpenAPI document that leaves validation of fields to the server."""
    group, _, number = version.rpartition("/")
    parameters = [{"name": name, "in": "query"} for name in ("fieldValidation", "dryRun")]
    paths = {
        f"/{_api_group(version)}/{plural}/{{name}}": {
            "patch": {
                "parameters": parameters,
                "x-kubernetes-group-version-kind": {
                    "group": group,
                    "version": number,
                    "kind": kind,
                },
            }
        }
        for plural, kind, _ in KINDS[version]
    }
    return {"openapi": "3.0.0", "info": {"title": "k", "version": "1"}, "paths": paths}


@contextmanager
def kubernetes_api(check: Check) -> Iterator[tuple[Store, str]]:
    """Serve a fake Kubernetes API without objects; yield its store and its URL.

    Args:
        check: Returns the errors of an object that is written.
    """
    store = Store(check)
    handler = type("Handler", (_Handler,), {"store": store})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield store, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
