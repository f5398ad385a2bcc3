"""Each command imports only what it needs, so that it starts fast and works without the packages of training."""

import subprocess
import sys
from pathlib import Path

import pytest

from midreel.datasets import playhouse
from midreel.library.searcher import Searcher

TRAINING = ("torch", "transformers", "scipy", "matplotlib", "onnx", "onnxscript", "sympy")
SERVER = ("pydantic", "fastapi", "starlette", "uvicorn", "httpx2", "prometheus_client")
PACKAGES = [f"midreel.{name}" for name in ("library", "index", "server", "media", "features.stores", "datasets")]
FILES = ("av", "h5py", "PIL", "huggingface_hub")
# What a command must not import.
FORBIDDEN: dict[str, tuple[str, ...]] = {
    "--version": (*TRAINING, *SERVER, *FILES, "numpy", "onnxruntime", "tokenizers", "safetensors", "rich"),
    "search {library} a red ball": (*TRAINING, *SERVER, *FILES, "safetensors", "midreel.datasets", "rich", "numpy.ma"),
    "search {library} a red ball --json": (*TRAINING, *SERVER, *FILES, "safetensors", "midreel.datasets", "rich"),
    "search {library} --like {image}": (*TRAINING, *SERVER, "h5py", "huggingface_hub"),
    "export {library} ball {out}.csv": (*TRAINING, *SERVER, "h5py", "huggingface_hub"),
    "export {library} ball {out}": (*TRAINING, *SERVER, "h5py", "huggingface_hub"),
    "info {library}": (*TRAINING, *SERVER, "av", "onnxruntime", "tokenizers", "huggingface_hub"),
    "index {videos} --library {library}": (*TRAINING, *SERVER, "huggingface_hub"),
    "reindex {library}": (*TRAINING, *SERVER, "huggingface_hub"),
    "doctor {library}": ("transformers", "matplotlib", "scipy", "onnx", "fastapi", "uvicorn"),
    "playhouse {out}-clips --train 0 --val 0 --test 1": (*TRAINING, *SERVER, "onnxruntime", "huggingface_hub"),
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("lazy")
    playhouse.write_dataset(folder / "videos", seed=0, num_test=1)
    playhouse.contact_sheet([playhouse.make_split(0, "test", 1)[0]], folder / "image.png")
    with Searcher.create(folder / "library") as searcher:
        searcher.add(folder / "videos")
    names = {"library": "library", "videos": "videos", "image": "image.png", "out": "out"}
    return {name: str(folder / path) for name, path in names.items()}


@pytest.mark.parametrize("command", FORBIDDEN)
def test_a_command_imports_nothing_that_it_does_not_need(command: str, places: dict[str, str]) -> None:
    words = [word.format(**places) for word in command.split()]
    code = (
        "import sys\n"
        "from midreel import cli\n"
        f"sys.argv = ['midreel', *{words!r}]\n"
        "try:\n"
        "    cli.main()\n"
        "except SystemExit as ended:\n"
        "    if ended.code not in (0, None):\n"
        "        raise\n"
        f"print('imported:', [name for name in {FORBIDDEN[command]!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip().splitlines()[-1:] == ["imported: []"], done.stderr


def test_a_server_that_searches_imports_nothing_else(places: dict[str, str]) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from midreel.server import runner\n"
        "from midreel.server.app import create_app\n"
        "from midreel.library.searcher import Searcher\n"
        f"with Searcher.open({places['library']!r}) as searcher:\n"
        "    app = create_app(searcher)\n"
        "    searcher.search('a red ball')\n"
        "    app.state.services.close()\n"
        f"print([name for name in {(*TRAINING, *FILES)!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "[]", done.stderr


def test_every_part_of_an_installation_without_training_imports(tmp_path: Path) -> None:
    """With torch hidden, every module of the library, the index and the server can be imported."""
    code = (
        "import importlib, pkgutil, sys\n"
        f"for name in {TRAINING!r}:\n"
        "    sys.modules[name] = None\n"
        f"for name in {PACKAGES!r}:\n"
        "    package = importlib.import_module(name)\n"
        "    for module in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        importlib.import_module(module.name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
