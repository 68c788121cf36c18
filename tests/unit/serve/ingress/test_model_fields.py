"""Large bodies are parsed in small steps; refusals are as fast as for small ones."""

import asyncio
import json
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from justitia_ray.config import describe
from justitia_ray.errors import RequestError
from justitia_ray.serve.ingress.http_applications import ApplicationBody
from justitia_ray.serve.ingress.model_fields import read_fields, text_pieces
from justitia_ray.serve.ingress.predictor_http import HistoryBody

_MIB = 2**20


def _read_fields(kind: type[BaseModel], raw: bytes) -> dict[str, Any] | str:
    try:
        return asyncio.run(read_fields(kind, raw)).model_dump()
    except ValidationError as error:
        return describe(error)
    except RequestError as error:
        return str(error)


def test_large_body_is_parsed_like_a_small_one() -> None:
    text = 'a\n\u4e2d"' * (_MIB // 4)
    body = {"application_class": "c", "weight": 2.0, "input": text, "deadline_s": None}
    expected = ApplicationBody.model_validate(body).model_dump()

    assert expected == _read_fields(ApplicationBody, json.dumps(body).encode())
    assert expected == _read_fields(ApplicationBody, json.dumps(body, ensure_ascii=False).encode())


@pytest.mark.parametrize(
    ("large", "small"),
    [
        (b'{"more":[%b1],"input":""}' % (b"1," * _MIB), b'{"more":0}'),
        (b'{"weight":[%b1]}' % (b"1," * _MIB), b'{"weight":[]}'),
        (b"[%b1]" % (b"1," * _MIB), b"[]"),
        (b'"%b"' % (b"a" * _MIB), b'"a"'),
    ],
    ids=["unknown field", "list for a number", "a list", "a text"],
)
def test_large_invalid_body_gets_the_same_error_as_a_small_one(large: bytes, small: bytes) -> None:
    told = _read_fields(ApplicationBody, large)

    assert isinstance(told, str)
    assert str(_read_fields(ApplicationBody, small)).split("\n")[0][:60] == told[:60]


_LONG = b'{"application_class":"c","input":"%b"' % (b"a" * 70_000)


@pytest.mark.parametrize(
    ("end", "large", "small"),
    [
        (b"", "Input data was truncated", "Expecting ',' delimiter"),
        (b"}x", "trailing characters", "Extra data"),
        (b',"\xff":1}', "", "'utf-8' codec can't decode"),
        (b',"weight":+1}', "invalid character", "Expecting value"),
        (b',"weight":%b}' % (b"[" * 9_000), "it nests too deep", "it nests deeper than 128"),
    ],
    ids=["no end", "more", "no text", "no value", "deep"],
)
def test_error_of_invalid_json_has_the_reason(end: bytes, large: str, small: str) -> None:
    """A large invalid body must not be reported as truncated."""
    said = "the body is not valid JSON: "
    told = str(_read_fields(ApplicationBody, _LONG + end))
    of_small = str(_read_fields(ApplicationBody, _LONG.replace(b"a" * 70_000, b"") + end))

    assert told.startswith(said)
    assert large in told
    assert of_small.startswith(said + small)


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity"])
@pytest.mark.parametrize("value", [b"%b", b"[1,%b]", b'{"a":%b}'])
def test_invalid_json_number_is_located_in_the_error(number: bytes, value: bytes) -> None:
    raw = _LONG + b',"weight":%b}' % (value % number)
    expected = f"{number.decode()} (byte {raw.index(number)}) is no JSON number"

    assert f"the body is not valid JSON: {expected}" == _read_fields(ApplicationBody, raw)


def test_unknown_json_fields_are_skipped_quickly() -> None:
    """Parsing a million unknown fields as Python objects takes 17 s."""
    raw = b'{"application_class":"c",%b}' % b",".join(b'"k%06d":1' % n for n in range(10**6))
    began_at = time.process_time()
    told = _read_fields(ApplicationBody, raw)
    took_s = time.process_time() - began_at

    assert "k000000" in str(told)
    assert "k000001" not in str(told)
    assert took_s < 0.5


def test_list_fields_of_a_request_model_are_parsed() -> None:
    samples = [{"cost": number, "class": "c" * 100} for number in range(1_000)]

    assert {"samples": samples} == _read_fields(
        HistoryBody, json.dumps({"samples": samples}).encode()
    )


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e400", "[[NaN]]", '{"b":Infinity}'])
@pytest.mark.parametrize("is_large", [False, True])
def test_invalid_number_is_refused_at_every_body_size(value: str, is_large: bool) -> None:
    more = "a" * (70_000 if is_large else 10)
    told = _read_fields(HistoryBody, f'{{"samples":[{{"more":"{more}","k":{value}}}]}}'.encode())

    assert isinstance(told, str)


@pytest.mark.parametrize("depth", [130, 600, 950])
@pytest.mark.parametrize("is_large", [False, True])
def test_deep_value_is_refused_at_every_body_size(depth: int, is_large: bool) -> None:
    """A recursive check of a deep value once raised RecursionError."""
    more, deep = "a" * (70_000 if is_large else 10), "[" * depth + "]" * depth
    told = _read_fields(HistoryBody, f'{{"samples":[{{"more":"{more}","k":{deep}}}]}}'.encode())

    assert "it nests " in str(told)


def test_error_names_the_sample_with_an_infinite_number() -> None:
    with pytest.raises(ValidationError, match=r"k of sample 1: only finite numbers are allowed"):
        HistoryBody(samples=[{"k": 1.5}, {"k": [{"a": float("inf")}]}])


def test_duplicate_json_name_is_refused() -> None:
    told = _read_fields(ApplicationBody, b'{"tenant":"a","application_class":"c","tenant":"b"}')

    assert "the body is not valid JSON: it names 'tenant' twice in one object" == told


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        (b"{}," * 5 * _MIB + b"{}", "samples has more than 1000 elements"),
        (b'{"x":[%b1]}' % (b"{}," * _MIB), "samples[0] takes 3145737 bytes"),
        (
            b",".join([b'{"x":[%b1]}' % (b"{}," * 20_000)] * 100),
            "samples has 200020 objects and lists in its first 10 elements",
        ),
    ],
    ids=["elements", "one element", "all together"],
)
def test_list_of_millions_of_json_objects_is_refused_before_parsing(
    samples: bytes, reason: str
) -> None:
    """A list of 16 MiB becomes 0.4 GB of objects and blocks the event loop for a second."""
    raw = b'{"samples":[%b]}' % samples
    tracemalloc.start()
    told = _read_fields(HistoryBody, raw)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert isinstance(told, str)
    assert told.startswith(reason)
    assert "are allowed" in told
    assert most_bytes < 64 * _MIB


@pytest.mark.parametrize("unit", ["a", "\u00e9", "\u4e2d", "\U0001f600", "\n", "\\", '"\u4e2d'])
@pytest.mark.parametrize("is_ascii", [False, True])
def test_event_loop_runs_while_a_long_text_is_parsed(unit: str, is_ascii: bool) -> None:
    """Parsing 16 MiB at once blocks the event loop for up to 105 ms."""
    text = unit * (4 * _MIB)
    raw = json.dumps({"application_class": "c", "input": text}, ensure_ascii=is_ascii).encode()
    steps = 0

    async def count_steps() -> None:
        nonlocal steps
        while True:
            await asyncio.sleep(0)
            steps += 1

    async def read_input() -> str:
        other = asyncio.create_task(count_steps())
        body = await read_fields(ApplicationBody, raw)
        other.cancel()
        return body.input

    assert text == asyncio.run(read_input())
    assert steps >= len(raw) // (2 * _MIB)


@pytest.mark.parametrize("text", [b"\\q", b"\xff", b"\\ud83d", b"\x01"])
def test_invalid_json_is_refused_with_the_position_of_the_error(text: bytes) -> None:
    told = _read_fields(
        ApplicationBody, b'{"application_class":"c","input":"%b%b"}' % (b"a" * _MIB, text)
    )

    assert str(told).startswith("input is not valid JSON: ") or "body is not valid JSON" in str(
        told
    )


@given(
    st.lists(
        st.one_of(
            st.text(st.characters(codec="utf-8"), max_size=20),
            st.text(st.sampled_from('\\"u/d8\n\U0001f600\u4e2d'), max_size=60),
            st.builds(
                lambda unit, times: unit * times,
                st.sampled_from("\\a\U0001f600"),
                st.integers(0, 90),
            ),
        ),
        max_size=12,
    ),
    st.booleans(),
    st.integers(48, 80),
)
def test_pieces_of_a_long_json_text_can_be_joined_to_the_original(
    parts: list[str], is_ascii: bool, size_bytes: int
) -> None:
    """No piece ends inside a character, an escape or a surrogate pair."""
    text = "".join(parts)
    value = json.dumps(text, ensure_ascii=is_ascii).encode()
    pieces = list(text_pieces(memoryview(value), size_bytes))

    assert text == "".join(piece for piece, _ in pieces)
    assert len(value) - 2 == sum(taken for _, taken in pieces)
    assert all(0 < taken <= size_bytes for _, taken in pieces)
