"""Something to report for each kind of page, with the same text wherever there is any."""

from test_compare_page import a_comparison
from test_probe_page import everything

from hermetic.audit import AuditFinding, AuditReport, Place
from hermetic.compare import page as compare_page
from hermetic.doctor import Diagnosis
from hermetic.probe.page import page as probe_page
from hermetic.report import audit_page, doctor_page


def a_finding(text="text", *, certainty="certain", code="HM120", line=None, way_out=None):
    return AuditFinding(
        code=code,
        certainty=certainty,
        what=text,
        place=Place(key=text, file=text, line=line),
        value=text,
        way_out=text if way_out is None else way_out,
        versions=text if certainty == "depends on version" else None,
    )


def an_audit(text="text", *, findings=None, stack="axolotl"):
    every = tuple(a_finding(text, certainty=one) for one in ("likely", "certain", "depends on version"))
    return AuditReport(
        subject=text,
        kind="configuration",
        stack=stack,
        findings=every if findings is None else findings,
        facts=((text, text),),
        notes=(text,),
    )


def a_diagnosis(text="text", **changes):
    report = everything(text)
    fields = {
        "model": text,
        "packing": "packed",
        "rows": 1,
        "slots": 8,
        "documents": (2, 3),
        "source": text,
        "inferred": True,
        "findings": report.findings,
        "notes": (text,),
        "report": report,
    }
    return Diagnosis(**{**fields, **changes})


PAGES = {
    "audit": lambda text="text": audit_page(an_audit(text)),
    "audit of nothing": lambda text="text": audit_page(
        AuditReport(subject=text, kind="batch", stack=None, findings=())
    ),
    "compare": lambda text="text": compare_page(a_comparison(seeds=3, text=text)),
    "doctor": lambda text="text": doctor_page(a_diagnosis(text)),
    "probe": lambda text="text": probe_page(everything(text)),
}
"""The page of each kind, with this text wherever there is any; a pack is a folder and comes beside."""
