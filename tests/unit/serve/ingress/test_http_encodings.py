"""Content codings of request bodies: decoded within the size limit, and unsupported ones named."""

import asyncio
import gzip
import json
import random
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import brotli
import httpx
import pytest
import zstandard

from justitia_ray.errors import BodyTooLarge, RequestError
from justitia_ray.protocol.endpoints import TENANT_HEADER
from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from justitia_ray.serve.asgi import Message
from justitia_ray.serve.ingress.body_room import BodyRoom
from justitia_ray.serve.ingress.door import DEFAULT_TENANT, Door
from justitia_ray.serve.ingress.http_app import build_http_app
from justitia_ray.serve.ingress.http_body import BodyReader
from justitia_ray.serve.ingress.http_encodings import decoders_of
from justitia_ray.serve.ingress.models import ServedModels
from justitia_ray.serve.ingress.submission import ApplicationSpecCache
from tests.unit.serve.ingress.answering_model import answering_model
from tests.unit.serve.ingress.asgi_caller import Caller
from tests.unit.serve.ingress.http_client import FINDER, StandInGateway, client_of, served_model
from tests.unit.serve.ingress.test_http_inference import _BODY

Encode = Callable[[bytes], bytes]

_MOST = 100_000
_APPLICATIONS = "/v1/applications"


def raw_deflate(data: bytes) -> bytes:
    """Return a deflate body without the zlib frame, as many clients send it."""
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def streamed_zstd(data: bytes) -> bytes:
    packer = zstandard.ZstdCompressor().compressobj()
    return packer.compress(data) + packer.flush()


def encode_in_halves(encode: Encode) -> Encode:
    """Return an encoder that writes a body as two concatenated gzip or zstd members."""
    return lambda data: encode(data[: len(data) // 2]) + encode(data[len(data) // 2 :])


_ENCODED: dict[str, tuple[str, Encode]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("X-GZip", gzip.compress),
    "gzip members": ("gzip", encode_in_halves(gzip.compress)),
    "deflate": ("deflate", zlib.compress),
    "raw deflate": ("deflate", raw_deflate),
    "zstd": ("zstd", zstandard.compress),
    "zstd slow": ("zstd", zstandard.ZstdCompressor(level=22).compress),
    "zstd streamed": ("zstd", streamed_zstd),
    "zstd frames": ("zstd", encode_in_halves(zstandard.compress)),
    "br": ("br", lambda data: brotli.compress(data, quality=2)),
    "identity": ("identity", bytes),
    "none": ("", bytes),
    "two": ("gzip, zstd", lambda data: zstandard.compress(gzip.compress(data))),
    "four": (
        "identity, br,deflate , gzip, zstd",
        lambda data: zstandard.compress(gzip.compress(zlib.compress(brotli.compress(data)))),
    ),
}


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    specs = ApplicationSpecCache(600.0, 100)
    model = answering_model(specs, max_body_bytes=_MOST)
    async with client_of(model, specs=specs, raise_app_exceptions=False) as client:
        yield client


def body_of(path: str) -> bytes:
    if path == _APPLICATIONS:
        return json.dumps({"application_class": "c", "input": "word " * 300}).encode()
    left_out = "prompt" if path == RESPONSES else ""
    fields: dict[str, Any] = {k: v for k, v in _BODY.items() if k != left_out}
    return json.dumps(fields | {"metadata": {"a": "word " * 300}}).encode()


@pytest.mark.parametrize("coding", _ENCODED)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES, RESPONSES, _APPLICATIONS])
async def test_compressed_request_body_is_decoded(
    http: httpx.AsyncClient, path: str, coding: str
) -> None:
    name, encode = _ENCODED[coding]
    answer = await http.post(
        path, content=encode(body_of(path)), headers={"content-encoding": name}
    )

    assert answer.status_code in (200, 201), answer.text


async def test_content_codings_may_be_in_several_headers(http: httpx.AsyncClient) -> None:
    body = zlib.compress(gzip.compress(body_of(CHAT)))
    headers = [("content-encoding", "gzip"), ("content-encoding", "deflate")]
    answer = await http.post(CHAT, content=body, headers=headers)

    assert 200 == answer.status_code


@pytest.mark.parametrize("name", ["compress", "gzip, snappy", "utf-8", "*", ", ".join(["br"] * 5)])
@pytest.mark.parametrize("path", [CHAT, MESSAGES, _APPLICATIONS])
async def test_unsupported_content_coding_is_refused_by_name(
    http: httpx.AsyncClient, path: str, name: str
) -> None:
    answer = await http.post(path, content=b"{}", headers={"content-encoding": name})
    message = answer.json()["error"]["message"]

    assert 415 == answer.status_code
    assert message.startswith(f"content-encoding is {name!r}: gzip, deflate, zstd, br")
    assert "gzip, deflate, zstd, br" == answer.headers["accept-encoding"]


_SIMPLE = ["gzip", "deflate", "raw deflate", "zstd", "zstd streamed", "br"]


@pytest.mark.parametrize("coding", _SIMPLE)
@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(lambda body: body[:-1], id="cut"),
        pytest.param(lambda body: body[: len(body) // 2], id="halved"),
        pytest.param(lambda body: body + b"garbage", id="garbage"),
        pytest.param(lambda body: body + b"\0", id="zero"),
        pytest.param(lambda body: b"\xff" * len(body), id="broken"),
    ],
)
async def test_corrupt_encoded_body_is_a_client_error(
    http: httpx.AsyncClient, coding: str, harm: Callable[[bytes], bytes]
) -> None:
    """Bytes after the end may belong to another request, so they are not dropped."""
    name, encode = _ENCODED[coding]
    body = harm(encode(body_of(CHAT)))
    answer = await http.post(CHAT, content=body, headers={"content-encoding": name})

    assert 400 == answer.status_code
    assert "content-encoding" in answer.json()["error"]["message"]


async def test_unencoded_body_declared_as_gzip_is_refused(http: httpx.AsyncClient) -> None:
    """Some proxies decode a body and leave the header in place."""
    headers = {"content-encoding": "gzip"}
    answer = await http.post(CHAT, content=body_of(CHAT), headers=headers)

    assert (400, "not valid gzip") == (answer.status_code, answer.json()["error"]["message"][12:26])


class Upload:
    """Body in pieces that counts the pieces that were read."""

    def __init__(self, body: bytes, piece_bytes: int) -> None:
        self.taken = 0
        self._pieces = [body[i : i + piece_bytes] for i in range(0, len(body), piece_bytes)]

    async def receive(self) -> Message:
        piece = self._pieces[self.taken]
        self.taken += 1
        more = self.taken < len(self._pieces)
        return {"type": "http.request", "body": piece, "more_body": more}


async def read_upload(most_bytes: int, upload: Upload, coding: str) -> bytes:
    room = BodyRoom(2**30)
    with room.hold("a") as held:
        return await BodyReader(most_bytes, room).read_body(held, "", upload.receive, [coding])


_ZEROS = bytes(2**25)
_BOMBS: dict[str, tuple[str, bytes]] = {
    **{name: (_ENCODED[name][0], _ENCODED[name][1](_ZEROS)) for name in _SIMPLE},
    "gzip of gzip": ("gzip, gzip", gzip.compress(gzip.compress(_ZEROS))),
    # The gzip body contains a large zstd frame that decodes to nothing.
    "skippable frame": (
        "zstd, gzip",
        gzip.compress(b"\x50\x2a\x4d\x18\x00\x00\x00\x02" + _ZEROS),
    ),
    # Each block of 4 bytes expands to 128 KiB.
    "zstd blocks": (
        "zstd",
        b"\x28\xb5\x2f\xfd\x00\x58" + (131_072 << 3 | 2).to_bytes(3, "little") * 1_000 + b"\0",
    ),
}
del _ZEROS


@pytest.mark.slow
@pytest.mark.parametrize("bomb", _BOMBS)
async def test_decoding_of_a_request_body_stops_at_the_size_limit(bomb: str) -> None:
    """A few kilobytes can encode 32 MiB, so decoding proceeds in small steps."""
    name, body = _BOMBS[bomb]
    upload = Upload(body, 1_000)
    with pytest.raises(BodyTooLarge):
        await read_upload(_MOST, upload, name)

    assert upload.taken <= 3


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
async def test_number_of_empty_members_of_a_compressed_body_is_bounded(coding: str) -> None:
    """Starting an empty member takes as long as decoding 10 kB."""
    name, encode = _ENCODED[coding]
    upload = Upload(encode(b"") * 2_000, 2**16)
    with pytest.raises(RequestError, match="more than 1,024 members"):
        await read_upload(_MOST, upload, name)


async def test_size_of_a_compressed_request_body_is_bounded(http: httpx.AsyncClient) -> None:
    body = gzip.compress(random.Random(1).randbytes(_MOST + 1))
    answer = await http.post(CHAT, content=body, headers={"content-encoding": "gzip"})

    assert 413 == answer.status_code


@pytest.mark.parametrize("coding", _SIMPLE)
async def test_event_loop_keeps_running_while_a_large_body_is_decoded(coding: str) -> None:
    """Other streams run on the same event loop, so a turn decodes at most 256 KiB."""
    name, encode = _ENCODED[coding]
    body = random.Random(1).randbytes(2**22).hex().encode()
    upload = Upload(encode(body), 2**30)
    reading = asyncio.create_task(read_upload(2**24, upload, name))
    turns = 0
    while not reading.done():
        turns += 1
        await asyncio.sleep(0)

    assert body == await reading
    assert turns >= 16


@pytest.mark.parametrize("coding", _SIMPLE)
@pytest.mark.parametrize("steps", [1, 3])
def test_decoded_body_is_complete_for_any_length(coding: str, steps: int) -> None:
    """The decoder may have read all input while decoded output is still pending."""
    name, encode = _ENCODED[coding]
    lengths = range(steps * 2**18 - 8, steps * 2**18 + 300, 8)
    bodies = [b" " * length for length in lengths]
    cut = []
    for body in bodies:
        (decoder,) = decoders_of([name], 2**24)
        made = b"".join(decoder.decode(encode(body)))
        if made != body or not decoder.is_at_end():
            cut.append(len(body))

    assert [] == cut


class EndlessBody:
    """Beginning of a body that never ends."""

    def __init__(self, body: bytes) -> None:
        self.is_read = asyncio.Event()
        self._pieces = [body[i : i + 2**16] for i in range(0, len(body), 2**16)]

    async def receive(self) -> Message:
        if self._pieces:
            return {"type": "http.request", "body": self._pieces.pop(0), "more_body": True}
        self.is_read.set()
        await asyncio.Event().wait()
        raise AssertionError("nothing comes")


@pytest.mark.parametrize("coding", [*_SIMPLE, "none"])
@pytest.mark.parametrize("path", [CHAT, "/tokenize", _APPLICATIONS])
async def test_unfinished_compressed_body_counts_with_the_bytes_received(
    path: str, coding: str
) -> None:
    """Open connections may hold 16 MiB each, so they count against the tenant's share."""
    name, encode = _ENCODED[coding]
    text = random.Random(1).randbytes(2**18).hex().encode()
    begun = encode(text)[: None if coding == "none" else -8]
    section = {"max_body_bytes": 2**19, "max_body_bytes_held": 5 * 2**19}
    models = ServedModels([served_model(StandInGateway(), ingress=section)])
    specs = ApplicationSpecCache(600.0, 100)
    app = build_http_app(models, specs, Door(None, DEFAULT_TENANT), FINDER)
    refused, calls = list[Caller](), list[asyncio.Task[None]]()

    def start_call(receive: Callable[[], Any], caller: Caller, tenant: str) -> asyncio.Task[None]:
        headers = [(TENANT_HEADER.encode(), tenant.encode())]
        scope: Message = {"type": "http", "method": "POST", "path": path, "root_path": ""}
        scope.update(query_string=b"", server=("a", 80), scheme="http", headers=headers)
        if name:
            headers.append((b"content-encoding", name.encode()))
        return asyncio.create_task(app(scope, receive, caller.send))

    while not refused:
        assert len(calls) < 10, "none is refused"
        upload, caller = EndlessBody(begun), Caller()
        calls.append(start_call(upload.receive, caller, "a"))
        held = asyncio.create_task(upload.is_read.wait())
        await asyncio.wait({calls[-1], held}, return_when=asyncio.FIRST_COMPLETED)
        held.cancel()
        if calls[-1].done():
            refused.append(caller)
    of_another = EndlessBody(encode(text[: 2**17])[:-8])
    calls.append(start_call(of_another.receive, Caller(), "b"))
    await of_another.is_read.wait()

    assert 429 == refused[0].messages[0]["status"]
    for begun_call in calls:
        begun_call.cancel()
    await asyncio.wait(calls)
