import subprocess
import sys

import midreel


def test_all_names_exist() -> None:
    assert len(midreel.__all__) <= 10
    for name in midreel.__all__:
        assert getattr(midreel, name)
        assert name in dir(midreel)


def test_import_loads_nothing_heavy() -> None:
    code = "import sys, midreel; print([m for m in ('torch', 'numpy', 'huggingface_hub') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_losses_are_imported_by_name() -> None:
    code = "from midreel import losses; losses.relational.angle_preservation; losses.alignment.cross_branch_alignment"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_indexes_searches_and_serves_imports_no_torch() -> None:
    """The contract in pyproject.toml reads imports; this runs them."""
    modules = [
        *("midreel.library.indexer", "midreel.library.reindex", "midreel.library.searcher", "midreel.library.watch"),
        *("midreel.library.export", "midreel.library.summary", "midreel.index.embedded", "midreel.index.exact"),
        *("midreel.features.extract", "midreel.media.decode", "midreel.server.app", "midreel.server.client"),
    ]
    code = f"import sys, {', '.join(modules)}; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
