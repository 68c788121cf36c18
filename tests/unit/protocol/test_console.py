"""Lines of the console's stream, as a reader gets them."""

import msgspec
import pytest

from justitia_ray.errors import ResponseError
from justitia_ray.protocol.console import Bye, Frame, Line, read_line
from justitia_ray.protocol.console_answers import ConsoleApplication, WhatIfAnswer
from justitia_ray.protocol.status import read_answer
from tests.harness.console.made_up import MadeUp, hello_line

SERVICE = MadeUp()
LINES: tuple[Line, ...] = (
    hello_line(None, ("llama",)),
    SERVICE.frame(100),
    SERVICE.frame(101, is_whole=False),
    SERVICE.frame(101, "acme"),
    SERVICE.predictor(),
    SERVICE.trouble(2.5),
    Bye(reason="the key was revoked", code="invalid_api_key", retry_after_s=None),
)


@pytest.mark.parametrize("line", LINES, ids=lambda line: str(line.kind))
def test_console_line_survives_encoding_and_decoding(line: Line) -> None:
    assert read_line(msgspec.json.decode(msgspec.json.encode(line))) == line


def test_console_lines_and_fields_of_later_versions_are_ignored() -> None:
    told = msgspec.json.decode(msgspec.json.encode(SERVICE.trouble(1.0)))

    assert read_line(told | {"more": 1}) == SERVICE.trouble(1.0)
    assert read_line({"kind": "later"}) is None


def test_console_error_names_the_wrong_field() -> None:
    told = msgspec.json.decode(msgspec.json.encode(SERVICE.frame(3)))
    told["bars"][0][4] = "soon"

    with pytest.raises(ResponseError, match=r"line of the kind frame: bars\.0\.4"):
        read_line(told)


def test_console_answers_for_application_and_what_if_survive_encoding() -> None:
    application = SERVICE.application("globex|run-3", 100)
    estimate = SERVICE.what_if("vtc", {"globex": 2.0}, 8)

    for answer, kind in ((application, ConsoleApplication), (estimate, WhatIfAnswer)):
        told = msgspec.json.decode(msgspec.json.encode(answer))
        assert read_answer(kind, told, "answer") == answer


def test_console_updates_add_up_to_the_bars_of_a_complete_message() -> None:
    bars = {bar.id: bar for bar in SERVICE.frame(60).bars}
    for second in range(61, 91):
        bars |= {bar.id: bar for bar in SERVICE.frame(second, is_whole=False).bars}

    assert bars == {bar.id: bar for bar in SERVICE.frame(90).bars}


def test_console_data_for_a_tenant_omits_other_tenants() -> None:
    frame = SERVICE.frame(100, "acme")
    told = msgspec.json.encode(frame).decode()

    assert isinstance(frame, Frame)
    assert frame.bars
    assert "globex" not in told
    assert "initech" not in told
