"""Classification of a stream's end: complete, failed or cut."""

import pytest

from justitia_ray.errors import EngineFailed, StreamUnfinished
from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from justitia_ray.protocol.stream_ends import StreamEnd
from tests.unit.serve.ingress.engine_streams import PATHS, STREAMS, named_event

_ERROR = {"message": "m", "type": "InternalServerError", "code": 500}


def end_of(path: str, *chunks: bytes) -> StreamEnd:
    """Return the end of a stream of these chunks."""
    end = StreamEnd(path)
    for chunk in chunks:
        end.note_chunk(chunk)
    return end


@pytest.mark.parametrize("path", PATHS)
def test_stream_that_contains_its_last_event_is_complete(path: str) -> None:
    end_of(path, *STREAMS[path]).check()
    end_of(path, b"".join(STREAMS[path])).check()


@pytest.mark.parametrize("path", PATHS)
def test_stream_that_lacks_its_last_event_counts_as_cut(path: str) -> None:
    for length in range(len(STREAMS[path])):
        with pytest.raises(StreamUnfinished):
            end_of(path, *STREAMS[path][:length]).check()


@pytest.mark.parametrize(
    ("path", "event"),
    [
        (CHAT, b'data: {"error": {"message": "m"}}\n\n'),
        (CHAT, b'data: {"error":{"message":"m"}}\n\n'),
        (COMPLETIONS, b'data: {"error": {"message": "m"}}\n\n'),
        (MESSAGES, named_event("error", error={"type": "internal_error", "message": "m"})),
        (RESPONSES, named_event("error", code="500", message="m", sequence_number=4)),
        (RESPONSES, named_event("response.failed", response={"error": _ERROR}, sequence_number=4)),
    ],
)
def test_stream_with_an_error_event_has_failed_even_before_its_last_event(
    path: str, event: bytes
) -> None:
    for last in ((), STREAMS[path][-1:]):
        with pytest.raises(EngineFailed):
            end_of(path, *STREAMS[path][:-1], event, *last).check()
        with pytest.raises(EngineFailed):
            end_of(path, b"".join((*STREAMS[path][:-1], event, *last))).check()


@pytest.mark.parametrize("path", PATHS)
def test_generated_text_that_looks_like_an_error_event_is_no_error(path: str) -> None:
    """Line breaks in generated text are escaped in JSON, so they cannot start an event."""
    text = '\nevent: error\ndata: {"error": 1}\n\ndata: {"error": 1}'
    end_of(path, named_event("delta", text=text), *STREAMS[path]).check()


def test_response_that_reached_max_output_tokens_is_complete() -> None:
    end_of(RESPONSES, named_event("response.incomplete", sequence_number=4)).check()
