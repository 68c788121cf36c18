"""The schemas of requests in the package are those of the vLLM that is installed."""

import pytest

from justitia_ray.protocol.request_schemas import schema_file
from scripts.write_request_schemas import text_of_schemas, vllm_version


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
def test_schemas_are_of_the_installed_vllm() -> None:
    """Another release may take other requests: `scripts/write_request_schemas` writes its file."""
    assert schema_file(vllm_version()).read_text(encoding="utf-8") == text_of_schemas()
