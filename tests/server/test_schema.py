from typing import Any

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from midreel.server.app import openapi_document
from tests.server.conftest import Serving, World


# The server runs in a thread of this process, so hypothesis takes its use of `random` for that of a strategy.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning")
@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.slow
def test_the_server_conforms_to_its_schema(own: World, served: Serving, mode: GenerationMode) -> None:
    """No request, valid or not, causes a server error or a response that the schema does not describe."""
    address = served(own)
    tried = try_all(schemathesis.openapi.from_url(f"{address}/openapi.json"), mode)
    assert "POST /v1/search" in tried
    assert "GET /v1/videos/{video_id}/thumbnail" in tried


def try_all(schema: Any, mode: GenerationMode) -> set[str]:
    """Return the operations that were tried."""
    tried = set()
    for found in schema.get_all_operations():
        operation = found.ok()

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
        def check(case: schemathesis.Case) -> None:
            tried.add(case.operation.label)
            case.call_and_validate()

        try:
            check()
        except Unsatisfiable:  # an operation without input has no invalid requests
            assert mode == GenerationMode.NEGATIVE
    return tried


def test_the_document_needs_no_library(client: TestClient) -> None:
    assert openapi_document() == client.get("/openapi.json").json()


def test_every_operation_of_the_schema_is_described(client: TestClient) -> None:
    schema = client.get("/openapi.json").json()
    assert schema["openapi"].startswith("3.1")
    operations = [operation for path in schema["paths"].values() for operation in path.values()]
    assert len(operations) == 22
    assert all(operation["summary"] and operation["description"] and operation["tags"] for operation in operations)
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    for operation in operations:
        for status, answer in operation["responses"].items():
            if int(status) >= 400:
                assert list(answer["content"]) == ["application/problem+json"]
