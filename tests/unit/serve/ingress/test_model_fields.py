"""A large body is refused as fast as a small one, and in the same words."""

import json
import time
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from justitia_ray.config import describe
from justitia_ray.serve.ingress.http_applications import ApplicationBody
from justitia_ray.serve.ingress.model_fields import known_fields
from justitia_ray.serve.ingress.predictor_http import HistoryBody

_MIB = 2**20


def _read(kind: type[BaseModel], raw: bytes) -> dict[str, Any] | str:
    try:
        return kind.model_validate_json(known_fields(kind, raw)).model_dump()
    except ValidationError as error:
        return describe(error)


def test_large_body_is_read_as_it_is() -> None:
    text = 'a\n\u4e2d"' * (_MIB // 4)
    body = {"application_class": "c", "weight": 2.0, "input": text, "deadline_s": None}
    expected = ApplicationBody.model_validate(body).model_dump()

    assert expected == _read(ApplicationBody, json.dumps(body).encode())
    assert expected == _read(ApplicationBody, json.dumps(body, ensure_ascii=False).encode())


@pytest.mark.parametrize(
    ("large", "small"),
    [
        (b'{"more":[%b1],"input":""}' % (b"1," * _MIB), b'{"more":0}'),
        (b'{"weight":[%b1]}' % (b"1," * _MIB), b'{"weight":[]}'),
        (b"[%b1]" % (b"1," * _MIB), b"[]"),
        (b'{"input":"%b"' % (b"a" * _MIB), b'{"input":"aaa'),
        (b'{"input":"a"}%bx' % (b" " * _MIB), b'{"input":"a"}x'),
        (b'{"\xff":"%b"}' % (b"a" * _MIB), b'{"\xff":""}'),
    ],
    ids=["unknown field", "list for a number", "no object", "no end", "more", "no text"],
)
def test_large_body_is_refused_as_a_small_one_is(large: bytes, small: bytes) -> None:
    told = _read(ApplicationBody, large)

    assert isinstance(told, str)
    assert str(_read(ApplicationBody, small)).split("\n")[0][:60] == told[:60]


def test_fields_that_are_unknown_cost_nothing_each() -> None:
    """A million of them took 17 s, in which no stream of the process went on."""
    raw = b'{"application_class":"c",%b}' % b",".join(b'"k%06d":1' % n for n in range(10**6))
    began_at = time.process_time()
    told = _read(ApplicationBody, raw)
    took_s = time.process_time() - began_at

    assert "k000000" in str(told)
    assert "k000001" not in str(told)
    assert took_s < 0.5


def test_lists_of_a_model_that_has_them_are_kept() -> None:
    samples = [{"cost": number, "class": "c" * 100} for number in range(1_000)]

    assert {"samples": samples} == _read(HistoryBody, json.dumps({"samples": samples}).encode())
