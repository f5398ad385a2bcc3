"""Build the wheel, install it into an empty environment without torch, and use every command that needs no torch there.

    python -m tools.wheel [--constraints constraints.txt]

Prints the tags of the wheels and the size of the installation. `make test-wheel` runs it.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
ABSENT = ("matplotlib", "onnx", "scipy", "torch", "transformers")
OTHERS = ("python3.12", "python3.13")  # further versions to test the wheel with, where they are installed
LARGEST = {"all": 400, "what a search loads": 250}  # megabytes
# Prints the packages that a search has imported, with the folders of their shared libraries.
LOADED = """
import pathlib, sys
from midreel import cli
sys.argv = ["midreel", "search", "library", "a red ball"]
try:
    cli.main()
except SystemExit:
    pass
files = [pathlib.Path(m.__file__) for m in list(sys.modules.values()) if getattr(m, "__file__", None)]
names = {f.parts[f.parts.index("site-packages") + 1] for f in files if "site-packages" in f.parts}
print("\\n" + " ".join(sorted(names | {f"{name}.libs" for name in names})))
"""
_MEGABYTE = 1e6


class Failed(Exception):
    """A step did not do what it should."""


def run(*words: str | Path, where: Path = ROOT, code: int = 0, settings: Mapping[str, str] | None = None) -> str:
    """Run a program and return what it printed. Raise Failed if it ends with another exit code than `code`.

    Args:
        words: The program and its arguments.
        where: The working directory.
        code: The expected exit code.
        settings: Further variables of the environment.
    """
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, cwd=where, env=os.environ | (settings or {})
    )
    if done.returncode != code:
        shown = " ".join(map(str, words))
        raise Failed(f"{shown} ended with {done.returncode}, expected {code}:\n{done.stdout}\n{done.stderr}")
    return done.stdout + done.stderr


def build(folder: Path, **settings: str) -> Path:
    """Build a wheel from a copy of the sources into a folder, and return its path."""
    copy = folder / "sources"
    ignored = shutil.ignore_patterns(".*", "build", "dist", "runs", "site", "*.egg-info", "*.so", "__pycache__")
    shutil.copytree(ROOT, copy, ignore=ignored)
    run(sys.executable, "-m", "build", "--outdir", folder, copy, settings=settings)
    shutil.rmtree(copy)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, folder: Path, constraints: Path | None, extra: str = "", python: str = sys.executable) -> Path:
    """Install a wheel into a new environment, and return the folder of its programs.

    Args:
        wheel: The wheel.
        folder: The folder of the environment.
        constraints: The file that pins the versions of other packages.
        extra: The extras, in brackets.
        python: The interpreter of the environment.
    """
    run(python, "-m", "venv", folder)
    pinned = ["--constraint", str(constraints)] if constraints else []
    options = ["--quiet", "--disable-pip-version-check", *pinned]
    run(folder / "bin" / "python", "-m", "pip", "install", *options, f"midreel{extra} @ {wheel.as_uri()}")
    return folder / "bin"


def others() -> list[str]:
    """Return the interpreters on the path of other versions of Python that run. A shim without a version does not."""
    found = (shutil.which(name) for name in OTHERS)
    return [each for each in found if each and not subprocess.run([each, "-c", ""], capture_output=True).returncode]


def sizes(environment: Path) -> dict[str, float]:
    """Return the megabytes of each installed package, the largest first, without pip."""
    (packages,) = environment.glob("lib/python*/site-packages")
    found = {
        path.name: sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / _MEGABYTE
        for path in packages.iterdir()
        if path.is_dir() and not path.name.startswith(("pip", "setuptools"))
    }
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def weigh(bin_folder: Path, folder: Path) -> None:
    """Print the size of the installation, and of the packages that a search loads. Raise Failed if it is too large."""
    found = sizes(bin_folder.parent)
    loaded = run(bin_folder / "python", "-c", LOADED, where=folder).strip().splitlines()[-1].split()
    totals = {
        "all": sum(found.values()),
        "what a search loads": sum(size for name, size in found.items() if name in loaded),
    }
    print("installed, in MB:", ", ".join(f"{name} {size:.0f}" for name, size in totals.items()), flush=True)
    print("the largest:", ", ".join(f"{name} {size:.0f}" for name, size in list(found.items())[:8]), flush=True)
    for name, size in totals.items():
        if size > LARGEST[name]:
            raise Failed(f"{name} takes {size:.0f} MB, expected at most {LARGEST[name]}")


def use(bin_folder: Path, folder: Path) -> None:
    """Generate videos, index them, search, export, and examine the library, as a user would."""
    midreel, python = bin_folder / "midreel", bin_folder / "python"
    present = f"from importlib.util import find_spec; print([n for n in {ABSENT} if find_spec(n)])"
    if (found := run(python, "-c", present, where=folder).strip()) != "[]":
        raise Failed(f"{found} are installed, expected none of {ABSENT}")
    run(midreel, "playhouse", "videos", "--train", "0", "--val", "0", "--test", "3", where=folder)
    run(midreel, "index", "videos", "--library", "library", "--backbone", "tiny-clip", where=folder)
    query = json.loads((folder / "videos" / "annotations.jsonl").read_text().splitlines()[0])["query"]
    for engine in ("auto", "onnx", "onnx-int8"):
        found = run(midreel, "search", "library", query, "--json", "--engine", engine, where=folder)
        if len(json.loads(found)["results"][0]["hits"]) != 3:
            raise Failed(f"a search with {engine} found {found}, expected three videos")
    for model in ("zero-shot-clips", "tf-prvr", "zero-shot"):
        run(midreel, "reindex", "library", "--model", model, where=folder)
    image = ["search", "library", "--like", "videos/contact-sheet.png"]
    run(midreel, *image, where=folder)
    for out in ("moments.csv", "moments.m3u", "moments.edl", "moments.png", "clips"):
        run(midreel, "export", "library", query, out, where=folder)
    run(midreel, "info", "library", where=folder)
    run(midreel, "doctor", "library", where=folder, settings={"HF_HUB_OFFLINE": "1"})
    for refused in (
        ["search", "library", query, "--engine", "torch"],
        ["train", "--dataset", "videos", "--out", "run"],
    ):
        if "midreel[train]" not in run(midreel, *refused, where=folder, code=1):
            raise Failed(f"midreel {' '.join(refused)} names no remedy")


def serve(bin_folder: Path, folder: Path) -> None:
    """Serve the library, and search it over HTTP."""
    command = [bin_folder / "midreel", "serve", "library", "--port", "0"]
    with subprocess.Popen(list(map(str, command)), cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            address = server.stdout.readline().strip()
            body = json.dumps({"query": "a red ball"}).encode()
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{address}v1/search", body, headers)
            for _ in range(50):
                try:
                    with urllib.request.urlopen(request, timeout=60) as response:
                        found = json.load(response)
                    break
                except urllib.error.HTTPError:  # it is not ready yet
                    time.sleep(0.2)
            if len(found["hits"]) != 3:
                raise Failed(f"the server found {found}, expected three videos")
        finally:
            server.terminate()


def main() -> None:
    """Run all steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--constraints", type=Path, default=ROOT / "constraints.txt")
    constraints = parser.parse_args().constraints
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheels = {
            "pure": build(folder / "pure", MIDREEL_PURE="1"),
            "with a compiler": build(folder / "compiled"),
            "without a compiler": build(folder / "no-compiler", CC="/bin/false"),
        }
        for kind, wheel in wheels.items():
            print(f"{kind}: {wheel.name}, {wheel.stat().st_size / _MEGABYTE:.1f} MB", flush=True)
        plain = install(wheels["pure"], folder / "plain", constraints)
        (folder / "use").mkdir()
        use(plain, folder / "use")
        print("index, search, reindex, export, info and doctor work without torch", flush=True)
        weigh(plain, folder / "use")
        served = install(wheels["pure"], folder / "served", constraints, "[server]")
        serve(served, folder / "use")
        print("serve works without torch", flush=True)
        for kind in ("with a compiler", "without a compiler"):
            tried = install(wheels[kind], folder / kind.replace(" ", "-"), constraints)
            run(tried / "midreel", "search", "library", "a red ball", where=folder / "use")
            print(f"the wheel built {kind} works", flush=True)
        for python in others():
            name = Path(python).name
            tried = install(wheels["pure"], folder / name, constraints, "[server]", python)
            (folder / f"use-{name}").mkdir()
            use(tried, folder / f"use-{name}")
            serve(tried, folder / f"use-{name}")
            print(f"everything works with {name}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except Failed as failure:
        sys.exit(f"failed: {failure}")
