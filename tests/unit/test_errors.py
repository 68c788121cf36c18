"""The error classes keep their fields when pickled between processes."""

import inspect
import pickle
import re
from typing import Any

import pytest

from justitia_ray import errors
from justitia_ray.errors import JustitiaError

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, JustitiaError)
]

_SAMPLES: dict[str, Any] = {
    "str": "text",
    "str | None": "maybe",
    "int": 418,
    "float": 2.5,
    "float | None": 7.5,
    "bool | None": False,
    "dict[str, typing.Any]": {"message": "what the engine says"},
    "dict[str, typing.Any] | None": {"scope": "acme", "remaining": 0.0},
}


def _sample_error(error: type[JustitiaError]) -> JustitiaError:
    """Return an error with a value of the right type for every argument."""
    if error.__init__ is Exception.__init__:
        return error("what is wrong")
    parameters = list(inspect.signature(error.__init__).parameters.values())[1:]
    names = [inspect.formatannotation(parameter.annotation) for parameter in parameters]
    return error(*(_SAMPLES[name] for name in names))


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_error_survives_pickling_with_its_fields(error: type[JustitiaError]) -> None:
    """Ray pickles raised errors, and one that cannot be rebuilt hides the cause.

    Every argument is a field, because callers decide on fields.
    """
    original = _sample_error(error)
    again = pickle.loads(pickle.dumps(original))

    assert (type(original), original.args, vars(original)) == (type(again), again.args, vars(again))
    assert str(original) == str(again) != ""
    assert vars(original) == {} or sorted(map(str, vars(original).values())) == sorted(
        map(str, original.args)
    )


def test_module_docstring_names_every_error_class() -> None:
    """Users find the class to catch in the module's docstring."""
    named = set(re.findall(r"\b[A-Z]\w+\b", (errors.__doc__ or "").split("Errors cross")[0]))

    assert {error.__name__ for error in CLASSES} <= named


def test_every_error_is_a_justitia_error() -> None:
    """`except JustitiaError` catches every deliberate error of the project."""
    raised = [
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, BaseException)
    ]

    assert CLASSES == raised
