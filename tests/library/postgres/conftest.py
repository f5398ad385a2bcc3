import pytest


@pytest.fixture
def url(postgres_url: str, schema_name: str) -> str:
    """The URL of a library that does not exist yet."""
    return f"{postgres_url}#{schema_name}"
