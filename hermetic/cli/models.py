"""Commands that look into models: probe, doctor, atlas."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from hermetic.cli.common import (
    AsJson,
    Backend,
    Html,
    TrustRemoteCode,
    app,
    bar,
    out_console,
    print_json,
    reports_errors,
    require_page,
    stages,
)


@app.command(epilog="Example: hermetic probe ./model --seal")
@reports_errors
def probe(
    model: Annotated[
        str,
        typer.Argument(
            help="Folder or hub id of a causal language model, or a model type: llama is a tiny random one."
        ),
    ],
    *,
    seal: Annotated[bool, typer.Option("--seal", help="Seal the model first.")] = False,
    attention: Annotated[
        str | None, typer.Option(help="Attention implementation to load the model with, as transformers names it.")
    ] = None,
    backend: Backend = "sdpa",
    layers: Annotated[bool, typer.Option("--layers", help="Read every layer, also where nothing leaks.")] = False,
    html: Html = None,
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Measure whether packed documents reach each other in a model.

    The model is called as it should be: positions that restart, no mask, no cache. What that says about another call
    of a model that is not sealed is nothing. The exit code is 1 on a leak.
    """
    import hermetic
    from hermetic.atlas import as_tiny, tiny_by_name
    from hermetic.probe import with_details
    from hermetic.report import write_report
    from hermetic.train import load_model

    require_page(html)
    with stages(quiet=as_json) as on_stage:
        on_stage(f"loading {model}")
        tiny = tiny_by_name(model, attention=attention)
        network = tiny or load_model(model, trust_remote_code=trust_remote_code, attention=attention)
        on_stage("probing")
        report = hermetic.probe(hermetic.seal(network, backend=backend) if seal else network)
        report = with_details(report, network, per_layer=layers, per_token=html is not None)
        report = as_tiny(report, model) if tiny else report
    if as_json:
        print_json(report.to_dict())
    else:
        out_console.print(report)
        if seal and report.verdict == "sealed":
            out_console.print(_SEALED_FIRST, style="dim", highlight=False)
    if html is not None:
        write_report(report, html)
    if report.verdict != "sealed":
        raise typer.Exit(1)


_SEALED_FIRST = "Probed after hermetic.seal: the model keeps documents apart however it is called."


@app.command(
    epilog="Example: hermetic doctor -- python train.py",
    context_settings={"allow_interspersed_args": False},  # what follows the command is the command's
)
@reports_errors
def doctor(
    command: Annotated[list[str], typer.Argument(help="Your training command with its arguments, after --.")],
    *,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds to wait for the first training batch; default: no limit.")
    ] = None,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Examine your own training command at its first batch.

    It runs until then: no file of yours is changed, and it is ended before any optimizer step. What it writes goes to
    stderr. The exit code is 1 on a finding, and 2 when it reached no training batch.
    """
    from hermetic.doctor import diagnose
    from hermetic.report import write_report

    require_page(html)
    diagnosis = diagnose(command, timeout=timeout, on_output=_pass_on)
    if as_json:
        print_json(diagnosis.to_dict())
    else:
        out_console.print(diagnosis)
    if html is not None:
        write_report(diagnosis, html)
    if not diagnosis.sound:
        raise typer.Exit(1)


def _pass_on(output: bytes) -> None:
    sys.stderr.write(output.decode(errors="replace"))
    sys.stderr.flush()


@app.command(epilog="Example: hermetic atlas llama gpt_oss qwen3_next")
@reports_errors
def atlas(
    types: Annotated[
        list[str] | None, typer.Argument(help="Model types, as transformers names them; by default all.")
    ] = None,
    *,
    sealed: Annotated[bool, typer.Option(help="Seal each model, too, and measure it.")] = True,
    markdown: Annotated[Path | None, typer.Option(help="Write the table as a page of Markdown here, too.")] = None,
    state: Annotated[
        Path | None, typer.Option(help="Keep finished types in this file and go on where it ends.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure what packing does to every type of causal language model.

    Tiny models with random weights, each as it is shipped, called in four ways, and sealed. All types take some
    minutes. A leak of a model as shipped is what is looked for and no failure: the exit code is 1 when a sealed model
    fails its probe.
    """
    from hermetic.atlas import render, require_place, survey, write_page

    if markdown is not None:
        require_place(markdown)
    with bar(quiet=as_json) as on_type:
        result = survey(types, sealed=sealed, state=state, on_type=on_type)
    if markdown is not None:
        write_page(result, markdown)
    if as_json:
        print_json(result.to_dict())
    else:
        out_console.print(render(result))
    if result.unsound:
        raise typer.Exit(1)
