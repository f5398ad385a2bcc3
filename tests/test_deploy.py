"""The files in deploy/ are valid and fit midreel. No container runtime is needed, and none runs them here."""

import json
import re
import tomllib
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
import yaml

from tests import ROOT

DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
CONTAINERFILE = (DEPLOY / "Containerfile").read_text(encoding="utf-8")


def schema() -> dict[str, Any]:
    """Return the schema of the Compose Specification, which check-jsonschema contains."""
    found = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    content: dict[str, Any] = json.loads(found.read_text(encoding="utf-8"))
    return content


def test_compose_follows_its_schema() -> None:
    jsonschema.validate(COMPOSE, schema())
    wrong = COMPOSE | {"services": {"postgres": {"imagge": "typo"}}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema())


def test_the_services() -> None:
    services = COMPOSE["services"]
    assert services.keys() == {"postgres", "qdrant", "server-1", "server-2", "ray-head"}
    one, other = (dict(services[name]) for name in ("server-1", "server-2"))
    assert one.pop("ports") != other.pop("ports")
    assert one == other
    for service in services.values():
        assert set(service.get("depends_on", {})) <= services.keys()
        for volume in service.get("volumes", ()):
            name = volume.split(":", 1)[0]
            assert name in COMPOSE["volumes"] or name.startswith("${VIDEOS")
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))  # not for the whole network


def test_passwords_come_from_the_environment() -> None:
    for service in COMPOSE["services"].values():
        for name, value in service.get("environment", {}).items():
            if re.search("PASSWORD|TOKEN", name):
                assert str(value).startswith("${"), name
        assert not re.search(r"//[^/@]*:[^/@]*@", " ".join(service.get("command", ())))


def test_images_have_a_version() -> None:
    images = [service["image"] for service in COMPOSE["services"].values()] + re.findall(
        "^FROM (.*)$", CONTAINERFILE, re.M
    )
    for image in images:
        assert image == "midreel" or re.search(r":[\w.-]*\d[\w.-]*\}?$", image), image


def test_the_options_of_the_servers_exist(midreel: Any) -> None:
    command = COMPOSE["services"]["server-1"]["command"]
    helped = midreel("serve", "--help").out
    assert command[0] == "serve"
    assert all(word in helped for word in command if word.startswith("--"))


def test_the_container_copies_files_that_exist_and_installs_extras_that_exist() -> None:
    copied = [name for line in re.findall("^COPY (.*)$", CONTAINERFILE, re.M) for name in line.split()[:-1]]
    assert "midreel" in copied
    assert all((ROOT / name).exists() for name in copied)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    (wanted,) = re.findall(r"\.\[([\w,]+)\]", CONTAINERFILE)
    assert set(wanted.split(",")) <= extras.keys()
    build = COMPOSE["services"]["server-1"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == (DEPLOY / "Containerfile").resolve()
