"""The command that draws a row and its masks."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from hermetic.cli.common import AsJson, app, out_console, reports_errors


@app.command(epilog="Example: hermetic show --lengths 2,3")
@reports_errors
def show(
    subject: Annotated[
        Path | None, typer.Argument(help="A folder that `hermetic pack` made, or a file of a batch.")
    ] = None,
    *,
    lengths: Annotated[
        str | None, typer.Option(help="Lengths of documents instead, as numbers with commas: 2,3.")
    ] = None,
    row: Annotated[int, typer.Option(help="Which row, from 0.")] = 0,
    window: Annotated[int | None, typer.Option(help="A token sees itself and window - 1 tokens before it.")] = None,
    chunk: Annotated[int | None, typer.Option(help="A token sees its chunk of so many tokens only.")] = None,
    causal: Annotated[bool, typer.Option(help="A token sees no later token.")] = True,
    reader: Annotated[
        list[str] | None,
        typer.Option(
            help="Whose mask to draw beside the right one; may be given often: causal, flex, transformers_mask, "
            "transformers_flash, edges, numbers, column. Default: all that apply."
        ),
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder or hub id of the tokenizer, to show texts; without, ids.")
    ] = None,
    svg: Annotated[Path | None, typer.Option(help="Write the picture here as SVG.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write the picture here as PNG.")] = None,
    as_json: AsJson = False,
) -> None:
    """Draw a row: its documents, and what each of its tokens may read.

    It draws and judges nothing: the exit code is 0. To have a batch or a folder judged, use `hermetic audit`.
    """
    from hermetic.show import show as draw

    if (subject is None) == (lengths is None):
        raise typer.BadParameter("give a folder or a file, or --lengths")
    picture = draw(
        subject if lengths is None else _numbers(lengths),
        row=row,
        window=window,
        chunk=chunk,
        causal=causal,
        backends=reader,
        tokenizer=tokenizer,
    )
    if svg is not None:
        picture.to_svg(svg)
    if png is not None:
        picture.to_png(png)
    if as_json:
        sys.stdout.write(picture.to_json())
    else:
        out_console.print(picture)


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"--lengths is {text!r}, expected whole numbers with commas, such as 2,3") from error
