"""What an application is opened with, and the headers in which a request says so."""

import re
from dataclasses import dataclass

from justitia_ray.errors import RequestError, shown_short
from justitia_ray.predictor.class_mean import check_class_name

DEFAULT_CLASS = "default"
DEFAULT_TENANT = "default"

_ID = re.compile(r"[A-Za-z0-9._:/-]{1,128}")


@dataclass(frozen=True, slots=True)
class Opening:
    """An application to open.

    Raises:
        RequestError: If an id, a class or a tenant has another form than is allowed.
    """

    application_class: str
    input: str
    tenant: str = DEFAULT_TENANT
    weight: float | None = None
    application_id: str | None = None

    def __post_init__(self) -> None:
        for name, value in (("application_id", self.application_id), ("tenant", self.tenant)):
            if value is not None and not _ID.fullmatch(value):
                raise RequestError(
                    f"{name} is {shown_short(value)}: 1 to 128 of A-Z a-z 0-9 . _ : / - are"
                    " allowed",
                    name,
                )
        check_class_name(self.application_class)
