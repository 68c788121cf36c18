"""Upgrade: this release is deployed under load over a running one of the last release."""

import os
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

import justitia_ray
from tests.eventually import eventually
from tests.harness.bodies import completion
from tests.harness.known_load import known_load
from tests.harness.open_calls import OpenStream
from tests.harness.service import Serving

LAST_RELEASE = "6aebf7b"
"""Commit of release 0.2.0; to be updated with each release."""
_ROOT = Path(__file__).parents[2]
_THIS_RELEASE = Path(justitia_ray.__file__).parents[1]
_REPLACED_WITHIN_S = 240.0
_SEATS, _CALLERS = 2, 24
_ITERATION_S = 0.02
"""Iteration time in seconds with which calls run longer than the new release takes to start."""


@pytest.fixture(scope="module")
def last_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with the package of the last release, taken from the repository's history."""
    packed = subprocess.run(
        ["git", "-C", _ROOT, "archive", LAST_RELEASE, "justitia_ray"],
        capture_output=True,
        check=False,
    )
    if packed.returncode:
        pytest.skip(f"the history has no {LAST_RELEASE}: {packed.stderr.decode().strip()}")
    directory = tmp_path_factory.mktemp("last-release")
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(directory, filter="data")
    return directory


_MESSAGES = """
import pickle
from justitia_ray.core import stages
from justitia_ray.predictor import input_features, observation

sample = observation.Sample(3.0, 1, 2, input_features.features_of("a text"))
sent = observation.Observation("c", sample, (stages.StageServed(1, 1, 2, 3, 4.0),))
"""
_SEND = "sys.stdout.buffer.write(pickle.dumps(sent))"
_READ = "print(pickle.loads(sys.stdin.buffer.read()) == sent)"


def run_in_release(release: Path, code: str, given: bytes = b"") -> bytes:
    command = [sys.executable, "-P", "-c", _MESSAGES + "import sys\n" + code]
    environment = os.environ | {"PYTHONPATH": str(release)}
    done = subprocess.run(command, input=given, capture_output=True, check=True, env=environment)
    return done.stdout


def test_predictor_reads_observations_of_the_previous_release(last_release: Path) -> None:
    """During an upgrade, an ingress may send observations to the other release's predictor."""
    sent = run_in_release(last_release, _SEND)

    assert b"True" == run_in_release(_THIS_RELEASE, _READ, sent).strip()


def test_previous_release_refuses_observations_of_this_release(last_release: Path) -> None:
    """The last release knows fewer fields of stages; the ingress retries at the next predictor."""
    sent = run_in_release(_THIS_RELEASE, _SEND)

    with pytest.raises(subprocess.CalledProcessError) as refused:
        run_in_release(last_release, _READ, sent)
    assert b"TypeError: StageServed.__new__() takes 6 positional arguments" in refused.value.stderr


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.asyncio(loop_scope="session")
async def test_upgrade_from_the_previous_release_under_load_loses_no_call(
    serving: Serving, last_release: Path
) -> None:
    """The deployment must end the old release's scheduler, and callers must notice nothing."""
    service = serving.service(
        "upgraded",
        fake={"max_num_seqs": _SEATS, "iteration_s": _ITERATION_S},
        scheduler={"application_idle_s": 10.0},
    )
    service.code = last_release
    await service.deploy()
    before = await service.status()
    old = set(service.actor_names())
    service.code = _THIS_RELEASE
    async with service.http() as client:
        open_stream = OpenStream(client, completion(max_tokens=1_500))
        await eventually(open_stream.has_begun, "a stream runs", 60.0)
        async with known_load(client, callers=_CALLERS) as load:
            await load.wait_for_answers(1)
            await service.deploy()
            await load.wait_for_answers(_CALLERS)

    assert "[DONE]" == await open_stream.end()
    await eventually(
        lambda: not old & {*service.actor_names()},
        "nothing of the old release is left",
        _REPLACED_WITHIN_S,
        every_s=0.2,
    )
    after = await service.until_idle()
    load.assert_all_correct()
    assert "0.2.0" == before["version"]
    assert justitia_ray.__version__ == after["version"]
    assert before["epoch"] < after["epoch"]
