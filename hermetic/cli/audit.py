"""The command that reads artefacts without running anything."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from hermetic.cli.common import AsJson, Html, app, out_console, print_json, reports_errors, require_page
from hermetic.errors import AuditError
from hermetic.files import write_text

if TYPE_CHECKING:
    from hermetic.audit import AuditReport

_STDOUT: Final = Path("-")


@app.command(
    epilog="Example: hermetic audit train.yaml --with trl==1.16.0",
)
@reports_errors
def audit(
    target: Annotated[
        list[str] | None,
        typer.Argument(
            help="A configuration, a Python script, a batch, a folder of hermetic pack; or, after --, a command line.",
            show_default=False,
        ),
    ] = None,
    *,
    batch: Annotated[
        Path | None, typer.Option(help="A file with a batch: safetensors, npz, Arrow, Parquet or JSON.")
    ] = None,
    stack: Annotated[
        str | None,
        typer.Option(
            help="Whose it is, if it could be several's: trl, axolotl, llamafactory, swift, torchtune, megatron or "
            "deepspeed."
        ),
    ] = None,
    versions: Annotated[
        list[str] | None, typer.Option("--with", help="A package and its version, such as trl==1.16.0; repeat it.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Of a packed folder: folder or hub id of the tokenizer that made its rows.")
    ] = None,
    duplicates: Annotated[
        bool, typer.Option("--duplicates", help="Of a packed folder: find near-duplicates that share a row.")
    ] = False,
    ignore: Annotated[
        list[str] | None, typer.Option(help="A code whose findings are only counted, such as HM720; repeat it.")
    ] = None,
    sarif: Annotated[
        Path | None, typer.Option(help="Write the findings here as SARIF, for code review; - prints them.")
    ] = None,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Say what packing does wrong in a setup, script, batch or folder.

    It is only read: nothing is run, and no model is loaded. The exit code is 0 if nothing was found, 1 on a finding,
    2 if it cannot be read.
    """
    printed = sarif == _STDOUT
    if printed and as_json:
        raise AuditError("--json and --sarif - both print; expected one of them, or a file for --sarif")
    require_page(html)
    ignored = _codes(ignore or [])
    report = _audited(target or [], batch, stack, _versions(versions or []), _Folder(tokenizer, duplicates))
    report = report.without(ignored) if ignored else report
    if sarif is not None:
        from hermetic.audit.sarif import to_sarif

        print_json(to_sarif(report)) if printed else write_text(sarif, json.dumps(to_sarif(report), indent=1) + "\n")
    if as_json:
        print_json(report.to_dict())
    elif not printed:
        out_console.print(report)
    if html is not None:
        from hermetic.report import write_report

        write_report(report, html)
    if not report.sound:
        raise typer.Exit(1)


class _Folder(NamedTuple):
    """What only the audit of a packed folder looks at."""

    tokenizer: str | None
    duplicates: bool


def _audited(
    target: list[str], batch: Path | None, stack: str | None, versions: dict[str, str], folder: _Folder
) -> "AuditReport":
    if (batch is None) == (not target):
        raise AuditError("expected one thing to audit: a file, a folder, --batch FILE, or a command after --")
    if batch is not None:
        from hermetic.audit import audit_batch
        from hermetic.audit.anything import require_folder_unset, require_unset

        require_unset("a batch", stack=stack, versions=versions)
        require_folder_unset(**folder._asdict())
        return audit_batch(batch)
    if len(target) > 1 and all(Path(one).exists() for one in target):
        raise AuditError(f"{len(target)} files to audit were named; expected one. A command goes after --")
    from hermetic.audit import audit as audit_anything

    subject = target if len(target) > 1 else target[0]
    return audit_anything(subject, stack=stack, versions=versions, **folder._asdict())


def _codes(named: list[str]) -> list[str]:
    from hermetic.audit.rules import rule_of

    codes = [one.strip().upper() for one in named]
    unknown = next((code for code in codes if rule_of(code) is None), None)
    if unknown is not None:
        raise AuditError(f"--ignore {unknown} is no rule's code; expected one of hermetic explain --list, as HM720")
    return codes


def _versions(named: list[str]) -> dict[str, str]:
    from hermetic.audit.setup import number_of_version

    found = {}
    for one in named:
        package, separator, version = one.partition("==")
        if not separator or not package.strip():
            raise AuditError(f"--with {one} names no version; expected a package and its version, as trl==1.16.0")
        number_of_version(version)
        found[package.strip().lower()] = version.strip()
    return found
