"""Find chromium for the tests of the page, and fetch axe, which checks accessibility."""

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

AXE = "axe-core@4.10.3"
REQUIRED = "MIDREEL_BROWSER"  # if it is "required", a missing browser is a failure
_REASON = "the tests of the page were skipped: {missing}. Install it and run them again: apt-get install chromium npm"
skipped: list[str] = []  # reasons, for the summary


def find_chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    return _missing("chromium is missing")


def axe_source() -> str:
    """Return the script of axe, which npm downloads once into a cache folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "midreel-tests"
    script = cache / f"{AXE}.js"
    if not script.is_file():
        npm = shutil.which("npm")
        if npm is None:
            return _missing("npm is missing, which fetches axe-core")
        cache.mkdir(parents=True, exist_ok=True)
        fetched = subprocess.run([npm, "pack", AXE, "--silent"], cwd=cache, capture_output=True, text=True, timeout=120)
        if fetched.returncode:
            return _missing(f"npm could not fetch {AXE} ({fetched.stderr.strip()[:200]})")
        archive = cache / fetched.stdout.strip().splitlines()[-1]
        with tarfile.open(archive) as files:
            member = files.extractfile("package/axe.min.js")
            assert member is not None
            script.write_bytes(member.read())
        archive.unlink()
    return script.read_text(encoding="utf-8")


def _missing(what: str) -> str:
    reason = _REASON.format(missing=what)
    if os.environ.get(REQUIRED) == "required":
        pytest.fail(f"{what}, and {REQUIRED}=required")
    skipped.append(reason)
    pytest.skip(reason)
