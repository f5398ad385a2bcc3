from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, settings

from midreel.server.app import create_app
from tests.server.conftest import World


@pytest.fixture(scope="module")
def described(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An application of its own: what is tried here may change its library."""
    own = world.copied(tmp_path_factory.mktemp("described"))
    with own.searcher() as searcher:
        app = create_app(searcher, hosts=["testserver"])
        with TestClient(app):
            yield schemathesis.openapi.from_asgi("/openapi.json", app)


api = schemathesis.pytest.from_fixture("described")


@api.parametrize()
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_server_does_as_its_schema_says(case: schemathesis.Case) -> None:
    """Whatever is asked, valid or not: no server error, and an answer of a described status, type and form."""
    case.call_and_validate()


def test_the_schema_is_of_openapi_3_1_and_every_operation_is_explained(client: TestClient) -> None:
    schema = client.get("/openapi.json").json()
    assert schema["openapi"].startswith("3.1")
    operations = [operation for path in schema["paths"].values() for operation in path.values()]
    assert len(operations) == 17
    assert all(operation["summary"] and operation["operationId"] for operation in operations)
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    for operation in operations:
        for status, answer in operation["responses"].items():
            if int(status) >= 400:
                assert list(answer["content"]) == ["application/problem+json"]
