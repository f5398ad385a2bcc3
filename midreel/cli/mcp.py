"""The command mcp: an MCP server for assistants."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from midreel.cli.commands import Commands, Device, SearchLibrary
from midreel.errors import BadPackage

app = Commands()


@app.command(
    examples=(
        "midreel mcp midreel-library",
        "midreel mcp midreel-library --write clips",
        "midreel mcp midreel-library --http --port 8766",
    )
)
def mcp(
    library: SearchLibrary,
    write: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Allow clips to be written to FOLDER.", show_default="read-only"),
    ] = None,
    http: Annotated[bool, typer.Option("--http", help="Serve over streamable HTTP, not stdio.")] = False,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Listen on ADDRESS. Any but localhost requires a token.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Listen on port N. 0 picks a free one.")
    ] = 8766,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Require the token in FILE.", show_default="MIDREEL_TOKEN, or no token"),
    ] = None,
    device: Device = "cpu",
) -> None:
    """Serve a library to assistants, over MCP.

    Assistants can search, list videos and look at moments.
    They change nothing, unless --write allows clips.
    """
    try:
        from midreel.server import mcp as serving
        from midreel.server.runner import read_token
    except ModuleNotFoundError as error:
        raise BadPackage(
            f"{error.name} is not installed, expected for midreel mcp. Install it: pip install 'midreel[mcp]'"
        ) from error

    if not http:
        serving.serve_stdio(library, device=device, clips=write)
        return
    try:
        serving.serve_http(
            library,
            host=host,
            port=port,
            token=read_token(token_file),
            device=device,
            clips=write,
            on_ready=lambda address: print(f"{address}\nstop with Ctrl-C", flush=True),
        )
    except KeyboardInterrupt:
        print("server stopped", file=sys.stderr)
