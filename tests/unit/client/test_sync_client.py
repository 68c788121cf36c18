"""The client for synchronous code."""

import inspect
import threading
from collections.abc import Generator

import pytest

from justitia_ray.client import (
    Application,
    HttpTransport,
    JustitiaClient,
    SyncApplication,
    SyncClient,
)
from justitia_ray.errors import ResponseError
from justitia_ray.protocol.endpoints import DEADLINE_HEADER
from tests.unit.client.fakes import FakeService, error_answer

CHAT = "/v1/chat/completions"
CLOSE = "/v1/applications/a%2F1/close"
CANCEL = "/v1/applications/a%2F1"


@pytest.fixture
def sync_client(fake_service: FakeService) -> Generator[SyncClient]:
    def create_client() -> JustitiaClient:
        return JustitiaClient(
            HttpTransport("http://service", transport=fake_service.http_transport())
        )

    with SyncClient(create_client) as client:
        yield client


def test_synchronous_application_works_without_asyncio(
    sync_client: SyncClient, fake_service: FakeService
) -> None:
    with sync_client.application("SC", input="q") as app:
        opened = (app.application_id, app.predicted_kv_token_time, app.virtual_finish_time)
        answers = [app.chat("q").text, app.complete("q").text]
        many = [answer.text for answer in app.chat_many(["a", "b", "c"], max_tokens=4)]
        streamed = list(app.chat_stream("q"))

    assert opened == ("a/1", 1234.0, 99.5)
    assert answers == ["Hello"] * 2
    assert many == ["Hello"] * 3
    assert streamed == ["Hel", "lo"]
    assert len(fake_service.requests_to(CLOSE)) == 1
    assert sync_client.models() == ("tiny",)


def test_each_asynchronous_call_has_a_synchronous_form() -> None:
    other = {"aclose": "close"}
    for asynchronous, synchronous in ((JustitiaClient, SyncClient), (Application, SyncApplication)):
        for name, method in vars(asynchronous).items():
            if name.startswith("_") or isinstance(method, property):
                continue
            form = getattr(synchronous, other.get(name, name))
            expected = inspect.signature(getattr(asynchronous, name)).parameters
            assert list(expected) == list(inspect.signature(form).parameters), name


def test_deadline_of_a_call_is_sent(sync_client: SyncClient, fake_service: FakeService) -> None:
    with sync_client.application("SC", input="q", deadline_s=30.0) as app:
        app.chat_many(["a", "b"], deadline_s=2.0)

    assert ["2.000000"] * 2 == [
        sent.headers[DEADLINE_HEADER] for sent in fake_service.requests_to(CHAT)
    ]


def test_exception_cancels_the_application(
    sync_client: SyncClient, fake_service: FakeService
) -> None:
    fake_service.answers[CHAT] = [error_answer(400, "too long")]

    with (
        pytest.raises(ResponseError, match="too long"),
        sync_client.application("SC", input="q") as app,
    ):
        app.chat_many(["q"])

    assert len(fake_service.requests_to(CANCEL)) == 1


def test_leaving_a_stream_early_disconnects_from_the_service(
    sync_client: SyncClient, fake_service: FakeService
) -> None:
    """A plain `break` suffices, because the generator is finalised with its last reference."""
    with sync_client.application("SC", input="q") as app:
        for text in app.chat_stream("q"):
            assert text == "Hel"
            break

    assert fake_service.unfinished_streams == 1


def test_closing_the_client_ends_its_thread_and_open_streams(fake_service: FakeService) -> None:
    client = SyncClient.from_handle(fake_service.serve_handle())
    app = client.application("SC", input="q").__enter__()
    stream = app.chat_stream("q")
    assert next(stream) == "Hel"
    client.close()
    client.close()

    assert fake_service.unfinished_streams == 1
    assert [t.name for t in threading.enumerate() if t.name == "justitia-client"] == []
    with pytest.raises(RuntimeError, match="the client is closed"):
        app.status()
    stream.close()


def test_synchronous_connect_accepts_a_url() -> None:
    with SyncClient.connect("http://service", tenant="t1") as client:
        assert not client.application("SC", input="q")._inner.was_opened
