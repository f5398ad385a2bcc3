from typing import Any

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from tests.server.conftest import Serving, World


# The server runs in a thread of this process; whatever it draws at random looks to hypothesis as if a strategy did.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning")
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_the_server_does_as_its_schema_says(own: World, served: Serving, mode: GenerationMode) -> None:
    """Whatever is asked, valid or not: no server error, and an answer of a described status, type and form."""
    address = served(own)
    tried = try_all(schemathesis.openapi.from_url(f"{address}/openapi.json"), mode)
    assert "POST /v1/search" in tried
    assert "GET /v1/videos/{video_id}/thumbnail" in tried


def try_all(schema: Any, mode: GenerationMode) -> set[str]:
    """Which operations there was something to try of."""
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
        except Unsatisfiable:  # an operation that takes nothing cannot be asked wrongly
            assert mode == GenerationMode.NEGATIVE
    return tried


def test_the_schema_is_of_openapi_3_1_and_every_operation_is_explained(client: TestClient) -> None:
    schema = client.get("/openapi.json").json()
    assert schema["openapi"].startswith("3.1")
    operations = [operation for path in schema["paths"].values() for operation in path.values()]
    assert len(operations) == 18
    assert all(operation["summary"] and operation["operationId"] for operation in operations)
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    for operation in operations:
        for status, answer in operation["responses"].items():
            if int(status) >= 400:
                assert list(answer["content"]) == ["application/problem+json"]
