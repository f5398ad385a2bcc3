"""Commands for models: make the form of a model that is computed without torch."""

import sys
from typing import TYPE_CHECKING

from midreel.cli.commands import AsJson, Commands, SearchLibrary, print_result
from midreel.errors import MidreelError

if TYPE_CHECKING:
    from midreel.library.writer import Writer

app = Commands(help="Make models that need no torch.", no_args_is_help=True)


@app.command(examples=("midreel models export midreel-library",))
def export(
    library: SearchLibrary,
    as_json: AsJson = False,
) -> None:
    """Make the ONNX form of a library's model, once.

    The library is then indexed and searched without torch, on any machine.
    The form is compared with torch, and the largest difference is printed.
    This needs torch: pip install 'midreel[train]'.
    """
    from midreel.library import engines
    from midreel.library.storage import expect_library
    from midreel.library.writer import Writer

    expect_library(library)  # Writer.open would create it
    with Writer.open(library) as writer:
        exported = engines.export(writer)
    print_result(as_json, exported.to_dict(), exported.text)


def make_form(writer: "Writer") -> None:
    """Make the ONNX form of a library's model if it is missing and torch can make it. A failure is only reported."""
    from midreel.library import encoder, engines

    if not engines.can_make() or not encoder.needs_torch(writer.generation):
        return
    print("midreel: making the ONNX form of the model, once, for searches without torch", file=sys.stderr)
    try:
        encoder.make_form(writer.generation)
        writer.storage.save_model(writer.generation)
    except MidreelError as error:
        print(f"midreel: there is no ONNX form, so searches use torch: {error}", file=sys.stderr)
