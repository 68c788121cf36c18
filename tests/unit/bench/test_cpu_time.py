"""Who used the CPU: processes of a Ray cluster are told apart by their titles and parents."""

from pathlib import Path

from justitia_ray.bench.cpu_time import SHARED, Process, cpu_by_role, processes

ROOT = 10
RAYLET = Process(11, ROOT, "raylet/raylet --raylet_socket_name=x", 1.0)


def by_role(*below_raylet: Process) -> dict[tuple[str, str], float]:
    client = Process(ROOT, 1, "python scripts/bench_serve.py", 99.0)
    table = [client, RAYLET, *below_raylet]
    return cpu_by_role(ROOT, {20: "justitia"}, lambda: table)


def test_deployments_are_told_apart_by_application_and_name() -> None:
    """The title also carries the running method, which changes from moment to moment."""
    found = by_role(
        Process(12, 11, "ray::ServeReplica:justitia:Ingress.handle_request_with_rejection ", 2.0),
        Process(13, 11, "ray::ServeReplica:direct:Ingress", 3.0),
        Process(14, 11, "ray::ServeReplica:direct:Replica", 4.0),
        Process(15, 11, "ray::ServeReplica:direct:Replica", 5.0),
    )

    assert {
        (SHARED, "ray"): 1.0,
        ("justitia", "ingress"): 2.0,
        ("direct", "ingress"): 3.0,
        ("direct", "replica"): 9.0,
    } == found


def test_engine_processes_belong_to_their_replica() -> None:
    """EngineCore and its worker, vLLM's own, are children of the replica, and most of its CPU."""
    found = by_role(
        Process(12, 11, "ray::ServeReplica:justitia:Replica", 1.0),
        Process(13, 12, "VLLM::EngineCore", 2.0),
        Process(14, 13, "VLLM::Worker", 3.0),
    )

    assert 1.0 == found["justitia", "replica"]
    assert 5.0 == found["justitia", "engine"]


def test_schedulers_are_known_by_pid_and_take_their_redis_along() -> None:
    """Their titles do not name the application; the embedded Redis is part of their cost."""
    found = by_role(
        Process(20, 11, "ray::SchedulerActor.pull", 1.0), Process(21, 20, "redis-server", 0.5)
    )

    assert 1.5 == found["justitia", "scheduler"]


def test_what_all_share_and_strangers_are_kept_apart() -> None:
    """The proxy counts for whoever is measured; another cluster on the machine for nobody."""
    found = by_role(
        Process(12, 11, "ray::ProxyActor", 2.0),
        Process(30, 1, "ray::ProxyActor", 50.0),
        Process(31, 30, "ray::ServeReplica:justitia:Ingress", 60.0),
    )

    assert {(SHARED, "ray"): 1.0, (SHARED, "proxy"): 2.0} == found


def test_process_table_is_read_whatever_the_command_is_called(tmp_path: Path) -> None:
    """The command stands in brackets and may hold brackets and blanks itself: ") R 1"."""
    entry = tmp_path / "42"
    entry.mkdir()
    (entry / "stat").write_text("42 (a) R 1) S 7 42 42 0 -1 0 0 0 0 0 250 150 0 0 20 0 1 0 0")
    (entry / "cmdline").write_bytes(b"ray::ProxyActor\0")
    (tmp_path / "uptime").write_text("1 1")

    (found,) = processes(tmp_path)

    assert (42, 7, "ray::ProxyActor ") == (found.pid, found.parent, found.title)
    assert found.cpu_s > 0
