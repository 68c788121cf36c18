"""The stores on Redis as operators run it: behind Sentinel, as a cluster, with TLS."""

import ssl
import subprocess
from pathlib import Path

import pytest
import redis

from justitia_ray.errors import ConfigError, StoreError
from justitia_ray.predictor.versions import VersionIndex
from justitia_ray.store.connection import Credentials
from justitia_ray.store.leader import StaleEpoch
from justitia_ray.store.prediction_store import Learned, PredictionStore
from justitia_ray.store.scheduler_store import SchedulerStore
from tests.eventually import eventually
from tests.integration.store.redis_processes import (
    free_port,
    one_node_cluster,
    redis_sentinel,
    redis_server,
    tls_front,
)

pytestmark = pytest.mark.redis


async def test_epoch_and_state_outlive_a_failover_behind_sentinel(tmp_path: Path) -> None:
    """The new master is found by its name, and the scheduler continues with its saved state."""
    first, second, watch = free_port(), free_port(), free_port()
    with (
        redis_server(tmp_path, first, "--save", "") as master,
        redis_server(
            tmp_path, second, "--save", "", "--replicaof", "127.0.0.1", str(first)
        ) as copy,
        redis_sentinel(tmp_path, watch, "main", first),
    ):
        with redis.Redis(port=watch, decode_responses=True) as asked:
            await eventually(
                lambda: (
                    copy.info()["master_link_status"] == "up"
                    and int(asked.sentinel_master("main")["num-slaves"]) == 1
                ),
                "Sentinel knows the copy",
                30.0,
            )
        # The first Sentinel is down, so the second is asked.
        url = f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{watch}/main/0"
        store = SchedulerStore(url, "app/m")
        epoch = await store.become_leader()
        await store.save(epoch, {"v": 1}, {"a": {"F": 1}}, ())
        master.wait(1, 5_000)
        master.shutdown(nosave=True)

        troubles: list[str] = []

        async def state_is_saved() -> bool:
            try:
                return await store.save(epoch, {"v": 2}, {}, ())
            except StoreError as error:
                troubles.append(str(error))
                return False

        kept = await eventually(state_is_saved, "the copy is master", 30.0)
        stored = await store.load()
        next_epoch = await store.become_leader()
        await store.aclose()

        assert kept
        assert all(url.removesuffix("/0") in trouble for trouble in troubles)
        assert ({"v": 2}, {"a": {"F": 1}}) == (stored.clock, stored.applications)
        assert epoch < next_epoch


async def test_scheduler_and_prediction_stores_work_on_a_redis_cluster(tmp_path: Path) -> None:
    """All Redis keys of a model lie in one slot, so every script finds them on one node."""
    port = free_port()
    with one_node_cluster(tmp_path, port) as raw:
        await eventually(lambda: raw.cluster("INFO")["cluster_state"] == "ok", "the cluster is up")
        url = f"redis+cluster://127.0.0.1:{port}"
        store, other = SchedulerStore(url, "app/m"), SchedulerStore(url, "app/m")
        epoch = await store.become_leader()
        await store.save(epoch, {"v": 1}, {"a": {"F": 1}}, (), {"s": 1}, {"r": {}})
        await other.become_leader()
        with pytest.raises(StaleEpoch):
            await store.save(epoch, {"v": 2}, {}, ())
        stored = await other.load()
        learner = PredictionStore(url, "app/m")
        await learner.add_observed([{"n": 1}])
        held = await learner.hold("me", 10.0)
        ((entry, value),) = await learner.read_observed("0-0", 10)
        learned = Learned(entry, {"c": {"x": 1}}, {"c": {}}, {"c": [{"n": 1}]})
        revision = await learner.save("me", learned, 10)
        changed = await learner.save_index("c", VersionIndex(), VersionIndex(), b"bytes")
        samples, _ = await learner.load_samples("c")
        await learner.release("me")
        known = await learner.load()
        pings = (await store.ping(), await learner.hold("you", 1.0))
        for one in (store, other, learner):
            await one.aclose()

    assert ({"v": 1}, {"a": {"F": 1}}) == (stored.clock, stored.applications)
    assert (True, {"n": 1}, 1, 2) == (held, value, revision, changed)
    assert ([{"n": 1}], {"c": {"x": 1}}) == (samples, known.classes)
    assert (True, True) == pings


async def test_unreachable_redis_cluster_is_a_store_error(tmp_path: Path) -> None:
    """Redis's cluster client has other error types, which must not end the scheduler."""
    store = SchedulerStore(f"redis+cluster://127.0.0.1:{free_port()}", "app/m")
    with pytest.raises(StoreError, match=r"redis\+cluster://127\.0\.0\.1"):
        await store.become_leader()
    assert not await store.ping()
    await store.aclose()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tls")

    def run_openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True)

    run_openssl(
        *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=ca"),
        *("-keyout", "ca.key", "-out", "ca.pem"),
        *("-addext", "keyUsage=critical,keyCertSign"),
    )
    for name in ("server", "client"):
        (directory / f"{name}.ext").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        run_openssl(
            *("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}"),
            *("-keyout", f"{name}.key", "-out", f"{name}.csr"),
        )
        run_openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key"),
            *("-CAcreateserial", "-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.pem"),
        )
    return directory


async def test_stores_connect_by_mutual_tls_with_user_and_password(
    tmp_path: Path, certificates: Path
) -> None:
    """The server presents a certificate; the client presents its own, then a password."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    context.load_verify_locations(certificates / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    authority = str(certificates / "ca.pem")
    ours = str(certificates / "client.pem"), str(certificates / "client.key")
    port = free_port()
    with redis_server(tmp_path, port) as raw:
        raw.acl_setuser("us", enabled=True, passwords="+s3cret", keys="*", commands=["+@all"])
        raw.acl_setuser("default", enabled=False)
        async with tls_front(port, context) as tls_port:
            url = f"rediss://localhost:{tls_port}/0"
            trusted = Credentials("us", "s3cret", None, authority, *ours)
            store = SchedulerStore(url, "app/m", trusted)
            epoch = await store.become_leader()
            await store.aclose()
            for wrong in (
                # The authority of the server's certificate is not trusted.
                Credentials("us", "s3cret", None, None, *ours),
                Credentials("us", "s3cret", None, authority),  # no client certificate
                Credentials("us", "wrong", None, authority, *ours),
            ):
                refused = SchedulerStore(url, "app/m", wrong)
                with pytest.raises(StoreError, match=f"rediss://localhost:{tls_port}") as told:
                    await refused.become_leader()
                await refused.aclose()
                assert "s3cret" not in str(told.value)

    assert epoch > 0


@pytest.mark.parametrize("kind", ["rediss://h", "rediss+sentinel://h/s", "rediss+cluster://h"])
async def test_error_for_a_missing_tls_file_names_the_file(kind: str) -> None:
    gone = "/nowhere/ca.pem"
    with pytest.raises(ConfigError, match=r"redis_tls_ca_file: '/nowhere/ca\.pem'"):
        SchedulerStore(kind, "app/m", Credentials(tls_ca_file=gone))
