"""Rules of the HTTP front end: the process that accepts callers' connections for Serve.

The front end follows from the environment in which Ray was started and from Serve's HTTP options.
These may contradict each other, or the machine's limits.
"""

from collections.abc import Iterator

from justitia_ray.doctor.rule import Breach, Rule, Severity, Snapshot, breach, breach_if


def _replaceable_proxy(look: Snapshot) -> Iterator[Breach]:
    front, serve = look.seen.ingress.front, look.seen.serve
    # HAProxy cannot replace Serve's proxy if that proxy terminates TLS.
    if serve is not None and serve.tls:
        return
    if front is not None and front.kind == "serve" and front.haproxy_can_run:
        yield breach("front")


def _differing_fronts(look: Snapshot) -> Iterator[Breach]:
    front, serve = look.seen.ingress.front, look.seen.serve
    if front is not None and serve is not None and serve.front not in (None, front.kind):
        yield breach("kind", front=front, runs=serve.front)


def _tls_behind_haproxy(look: Snapshot) -> Iterator[Breach]:
    serve = look.seen.serve
    if serve is not None:
        yield from breach_if(serve.tls and serve.front == "haproxy", "tls")


def _front_without_descriptors(look: Snapshot) -> Iterator[Breach]:
    front = look.seen.ingress.front
    if front is not None and (front.wanted_descriptors or 0) > front.descriptors:
        yield breach("descriptors", front=front)


def _splicing_haproxy(look: Snapshot) -> Iterator[Breach]:
    front = look.seen.ingress.front
    if front is not None:
        yield from breach_if(front.splices, "front")


def _callers_beyond_the_front(look: Snapshot) -> Iterator[Breach]:
    ingress, serve = look.seen.ingress, look.seen.serve
    if ingress.front is None or ingress.max_outstanding is None or serve is None:
        return
    held, wait = ingress.front.max_connections, ingress.max_outstanding * serve.ingresses
    if held is not None and held < wait:
        share = held // max(1, serve.ingresses)
        yield breach("connections", front=ingress.front, wait=wait, share=share)


FRONT_RULES: tuple[Rule[[Snapshot]], ...] = (
    Rule(
        "front_that_could_be_cheaper",
        Severity.NOTE,
        "HAProxy takes callers' connections where it can run.",
        _replaceable_proxy,
        "callers come through Serve's own proxy, and HAProxy could run here, at a third of the CPU"
        " a call",
        "start Ray on every node with the environment that `justitia env FILE` prints",
    ),
    Rule(
        "front_that_differs",
        Severity.WRONG,
        "Serve's controller and the ingress go by the same front.",
        _differing_fronts,
        "Serve's controller runs the front {runs}, and the ingress was started for {front.kind}",
        "start Ray on every node, the head too, with the environment of `justitia env FILE`",
    ),
    Rule(
        "tls_behind_haproxy",
        Severity.WRONG,
        "Serve's http_options name no certificate where HAProxy is the front.",
        _tls_behind_haproxy,
        "Serve's http_options name a certificate, and HAProxy, the front, has no TLS: it speaks"
        " plaintext to callers, and to ingresses, which expect TLS",
        "start Ray without RAY_SERVE_ENABLE_HA_PROXY, so that Serve's own proxy has TLS; or leave"
        " http_options.ssl_* out, start Serve anew, and let what stands before the cluster end TLS",
    ),
    Rule(
        "front_without_open_files",
        Severity.RISK,
        "HAProxy's connections fit into the limit of open files.",
        _front_without_descriptors,
        "HAProxy is to hold {front.max_connections:,} connections, which take"
        " {front.wanted_descriptors:,} open files, and `ulimit -Hn` is {front.descriptors:,}",
        "it may not start again: raise the limit, or set RAY_SERVE_HAPROXY_MAXCONN to"
        " {front.fitting_connections:,} (`justitia env FILE` computes it)",
    ),
    Rule(
        "front_that_splices",
        Severity.RISK,
        "HAProxy runs without splicing.",
        _splicing_haproxy,
        "HAProxy splices bodies, as Ray configures it: a unary call whose body came in a TCP"
        " segment of its own runs to its end after its caller has left",
        "start Ray on every node with the environment of `justitia env FILE`: its"
        " RAY_SERVE_HAPROXY_BINARY_PATH starts HAProxy without splicing",
    ),
    Rule(
        "front_with_too_few_connections",
        Severity.RISK,
        "HAProxy has a connection for every caller that may wait.",
        _callers_beyond_the_front,
        "{wait:,} callers may wait (ingress.max_outstanding of all ingresses), and HAProxy holds"
        " {front.max_connections:,} connections: callers beyond wait unanswered",
        "set ingress.max_outstanding to {share:,} or less, so that they are told at once to come"
        " back; or raise `ulimit -Hn` and start Ray with what `justitia env FILE` prints then",
    ),
)
"""Rules about the process that accepts callers' connections, and its limits."""
