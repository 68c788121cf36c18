"""Delivered parts of a stream are counted and left out when the stream is generated again."""

import json
from collections.abc import AsyncGenerator

import pytest

from justitia_ray.errors import CannotContinue
from justitia_ray.protocol.engine import Output
from justitia_ray.protocol.stream_parts import Delivered, Part, Resume, joined, without_delivered


def completion_event(text: str, response: str = "cmpl-a", created: int = 1) -> bytes:
    fields = {"id": response, "object": "text_completion", "created": created, "text": text}
    return b"data: " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n"


async def regenerated_stream(*chunks: bytes) -> AsyncGenerator[str | Part]:
    """Yield the head and parts of a stream from an engine that continues an earlier output."""
    yield "head"
    for chunk in chunks:
        yield Part(chunk, 1, ())


async def rest_of(delivered: Delivered, *chunks: bytes) -> list[str | Part]:
    """Return the rest of a continued stream, after the part that was already sent."""
    resume = delivered.resume()
    assert resume is not None
    return [item async for item in without_delivered(regenerated_stream(*chunks), resume)]


def test_joined_stream_parts_keep_their_order_and_tokens() -> None:
    """A continuation would generate the lost tokens of a middle part twice."""
    first = Part(b"a", 1, (Output((1,)),))
    second = Part(b"bc", 2, (Output((2, 3)), Output((4,), "stop")), "why not")

    assert joined([first, second]) == Part(
        b"abc", 3, (Output((1,)), Output((2, 3)), Output((4,), "stop")), "why not"
    )


def test_tokens_delivered_by_one_attempt_are_kept_for_the_next() -> None:
    """A replica may report tokens before it sends the chunk with their text."""
    delivered = Delivered()
    delivered.add_part(Part(completion_event("x"), 1, (Output((1,)), Output((2,)))))
    delivered.add_part(
        Part(
            completion_event("yy") + completion_event("z"),
            2,
            (Output((3, 4)), Output((), "stop", 7)),
        )
    )

    start = completion_event("x").partition(b',"text"')[0]
    size = len(completion_event("x") + completion_event("yy") + completion_event("z"))
    outputs = (Output((1,)), Output((2,)), Output((3, 4)), Output((), "stop", 7))
    assert Resume(outputs, 3, size, start) == delivered.resume()


def test_stream_that_cannot_continue_raises_after_a_delivered_part() -> None:
    """A stream whose second half belongs to another answer is worse than an error."""
    delivered = Delivered()
    delivered.add_part(Part(completion_event("x"), 1, (), "it has more than one choice"))
    delivered.add_part(Part(completion_event("y"), 1, ()))

    with pytest.raises(CannotContinue, match="more than one choice"):
        delivered.resume()


async def test_continued_stream_starts_after_the_delivered_text_with_the_same_id() -> None:
    delivered = Delivered()
    delivered.add_part(Part(completion_event("x") + completion_event("y"), 2, ()))
    made_again = [completion_event(text, "cmpl-b", 7) for text in "xyz"]

    rest = await rest_of(delivered, *made_again, b"data: [DONE]\n\n")

    assert ["head", Part(completion_event("z"), 1, ()), Part(b"data: [DONE]\n\n", 1, ())] == rest


async def test_generated_text_that_looks_like_an_event_is_unchanged() -> None:
    """Only the ids outside the generated text are replaced."""
    told = 'data: {"id":"q","object":"q","created":9'
    delivered = Delivered()
    delivered.add_part(Part(completion_event("x"), 1, ()))

    (_, part) = await rest_of(
        delivered, completion_event("x", "cmpl-b", 7), completion_event(told, "cmpl-b", 7)
    )

    assert Part(completion_event(told), 1, ()) == part


async def test_stream_is_not_continued_if_the_repeated_beginning_differs() -> None:
    """Replicas of two vLLM versions may split a text into different chunks."""
    delivered = Delivered()
    delivered.add_part(Part(completion_event("x") + completion_event("y"), 2, ()))

    with pytest.raises(CannotContinue, match="answers differently"):
        await rest_of(
            delivered, completion_event("x"), completion_event("yz"), completion_event("")
        )


def event_of_kind(kind: str, **names: object) -> bytes:
    data = json.dumps({"type": kind} | names, separators=(",", ":"))
    return f"event: {kind}\ndata: {data}\n\n".encode()


def response_chunks(one: str, item: str, at: int, *texts: str) -> list[bytes]:
    """Return a response stream of one item with these texts."""
    return [
        event_of_kind("created", response={"id": one, "created_at": at}),
        event_of_kind("added", item={"id": item, "role": "assistant"}),
        *(event_of_kind("delta", item_id=item, delta=text) for text in texts),
        event_of_kind(
            "completed", response={"id": one, "created_at": at, "output": [{"id": "new_of_own"}]}
        ),
    ]


async def test_continued_response_keeps_the_ids_sent_to_the_caller() -> None:
    """Each attempt generates new ids, and clients ignore deltas of unknown items."""
    undisturbed = response_chunks("resp_a", "msg_a", 17, "x", "y")
    delivered = Delivered(names=True)
    delivered.add_part(Part(b"".join(undisturbed[:3]), 3, ()))

    _, *rest = await rest_of(delivered, *response_chunks("resp_b", "msg_b", 23, "x", "y"))

    assert undisturbed[3:] == [part.body for part in rest if isinstance(part, Part)]


async def test_response_item_that_begins_after_a_cut_keeps_its_id() -> None:
    delivered = Delivered(names=True)
    delivered.add_part(Part(response_chunks("resp_a", "msg_a", 17, "x")[0], 1, ()))

    _, added, delta, _ = await rest_of(delivered, *response_chunks("resp_b", "msg_b", 23, "x"))

    assert isinstance(added, Part)
    assert isinstance(delta, Part)
    assert b'"id":"msg_b"' in added.body
    assert b'"item_id":"msg_b"' in delta.body


async def test_id_in_generated_text_is_unchanged() -> None:
    """Quotes inside a text are escaped, so an id field in the text is not rewritten."""
    told = '"id":"msg_b","created_at":23'
    delivered = Delivered(names=True)
    delivered.add_part(Part(b"".join(response_chunks("resp_a", "msg_a", 17, "x")[:2]), 2, ()))

    _, delta, _ = await rest_of(delivered, *response_chunks("resp_b", "msg_b", 23, told))

    assert Part(event_of_kind("delta", item_id="msg_a", delta=told), 1, ()) == delta
