"""The command that tells what a finding means."""

from typing import Annotated

import typer

from hermetic.cli.common import AsJson, app, out_console, print_json, reports_errors


@app.command(epilog="Example: hermetic explain HM101")
@reports_errors
def explain(
    code: Annotated[
        str | None, typer.Argument(help="Code of a finding, such as HM101, or of an error, such as HE501.")
    ] = None,
    *,
    every: Annotated[bool, typer.Option("--list", help="List all codes instead, and who finds them.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what the code of a finding or an error means."""
    from hermetic.audit.explain import as_plain, error_as_plain, error_of, render, render_error, render_list
    from hermetic.audit.explain import explain as look_up

    if every == (code is not None):
        raise typer.BadParameter("give a code, or --list")
    if code is not None:
        error = error_of(code)
        if error is not None:
            print_json(error_as_plain(error)) if as_json else out_console.print(render_error(error), highlight=False)
            return
        rule = look_up(code)
        print_json(as_plain(rule)) if as_json else out_console.print(render(rule), highlight=False)
        return
    from hermetic.audit.rules import RULES  # all of them: more to import than one takes

    if as_json:
        print_json({"rules": [as_plain(rule) for rule in RULES.values()]})
    else:
        out_console.print(render_list(RULES.values()), highlight=False)
