"""A browser for the tests, and axe, which finds what is not accessible. Neither is fetched by playwright."""

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

AXE = "axe-core@4.10.3"
REQUIRED = "MIDREEL_BROWSER"  # set to "required", nothing is skipped
_HOW = (
    "the tests of the page were skipped: {missing}. To run them: apt-get install chromium npm (or the like), "
    "then make test again"
)
skipped: list[str] = []  # why, for the summary


def find_chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    return _missing("there is no chromium")


def axe_source() -> str:
    """The script, fetched once by npm into a folder for caches."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "midreel-tests"
    script = cache / f"{AXE}.js"
    if not script.is_file():
        npm = shutil.which("npm")
        if npm is None:
            return _missing("there is no npm to fetch axe-core with")
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
    reason = _HOW.format(missing=what)
    if os.environ.get(REQUIRED) == "required":
        pytest.fail(f"{what}, and {REQUIRED}=required")
    skipped.append(reason)
    pytest.skip(reason)
