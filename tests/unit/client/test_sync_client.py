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
from tests.unit.client.fakes import FakeService, as_error

CHAT = "/v1/chat/completions"
CLOSE = "/v1/applications/a%2F1/close"
CANCEL = "/v1/applications/a%2F1"


@pytest.fixture
def client(service: FakeService) -> Generator[SyncClient]:
    """Synchronous client of the service over HTTP."""

    def make() -> JustitiaClient:
        return JustitiaClient(HttpTransport("http://service", transport=service.http()))

    with SyncClient(make) as client:
        yield client


def test_an_application_works_without_asyncio(client: SyncClient, service: FakeService) -> None:
    with client.application("SC", input="q") as app:
        opened = (app.application_id, app.predicted_kv_token_time, app.virtual_finish_time)
        answers = [app.chat("q").text, app.complete("q").text]
        many = [answer.text for answer in app.chat_many(["a", "b", "c"], max_tokens=4)]
        streamed = list(app.chat_stream("q"))

    assert opened == ("a/1", 1234.0, 99.5)
    assert answers == ["Hello"] * 2
    assert many == ["Hello"] * 3
    assert streamed == ["Hel", "lo"]
    assert len(service.sent(CLOSE)) == 1
    assert client.models() == ("tiny",)


def test_each_call_of_the_asynchronous_client_has_its_synchronous_form() -> None:
    other = {"aclose": "close"}
    for asynchronous, synchronous in ((JustitiaClient, SyncClient), (Application, SyncApplication)):
        for name, method in vars(asynchronous).items():
            if name.startswith("_") or isinstance(method, property):
                continue
            form = getattr(synchronous, other.get(name, name))
            expected = inspect.signature(getattr(asynchronous, name)).parameters
            assert list(expected) == list(inspect.signature(form).parameters), name


def test_deadline_of_a_call_is_sent(client: SyncClient, service: FakeService) -> None:
    with client.application("SC", input="q", deadline_s=30.0) as app:
        app.chat_many(["a", "b"], deadline_s=2.0)

    assert ["2.000000"] * 2 == [sent.headers[DEADLINE_HEADER] for sent in service.sent(CHAT)]


def test_an_exception_cancels_the_application(client: SyncClient, service: FakeService) -> None:
    service.answers[CHAT] = [as_error(400, "too long")]

    with pytest.raises(ResponseError, match="too long"), client.application("SC", input="q") as app:
        app.chat_many(["q"])

    assert len(service.sent(CANCEL)) == 1


def test_leaving_a_stream_early_tells_the_service(client: SyncClient, service: FakeService) -> None:
    """A plain `break` suffices, because the generator is finalised with its last reference."""
    with client.application("SC", input="q") as app:
        for text in app.chat_stream("q"):
            assert text == "Hel"
            break

    assert service.unfinished_streams == 1


def test_closing_ends_the_thread_and_open_streams(service: FakeService) -> None:
    client = SyncClient.from_handle(service.handle())
    app = client.application("SC", input="q").__enter__()
    stream = app.chat_stream("q")
    assert next(stream) == "Hel"
    client.close()
    client.close()

    assert service.unfinished_streams == 1
    assert [t.name for t in threading.enumerate() if t.name == "justitia-client"] == []
    with pytest.raises(RuntimeError, match="the client is closed"):
        app.status()
    stream.close()


def test_connect_takes_a_url() -> None:
    with SyncClient.connect("http://service", tenant="t1") as client:
        assert not client.application("SC", input="q")._inner.was_opened
