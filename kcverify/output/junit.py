"""Verdicts and findings as JUnit XML: a failure is a violation, skipped is undecided."""

from __future__ import annotations

import re
import unicodedata
import xml.etree.ElementTree as ET

from kcverify.diagnostics import Diagnostic
from kcverify.output.sarif import relative
from kcverify.output.style import still
from kcverify.output.verdicts import Measured, Result, silent, verdict_finding
from kcverify.prove.verdict import Status, Verdict
from kcverify.render import render

_NOT_XML = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_OBEYED = frozenset(("Cf", "Zl", "Zp"))


def text(results: list[Result]) -> str:
    """One suite a file; one case a guarantee, one a finding, and one for a file without either."""
    root = ET.Element("testsuites", name="kcverify")
    for result in results:
        cases = [_guarantee(verdict, result) for checked in result.checked for verdict in checked.verdicts]
        cases += [_finding(diagnostic, result) for diagnostic in result.diagnostics]
        cases += [_measured(one, result) for one in result.measured]
        cases += [_silent(said, result) for said, _ in silent(result)]
        if not cases:
            cases = [_case("reads", result)]
        suite = ET.SubElement(root, "testsuite", name=_clean(relative(result.path)), tests=str(len(cases)))
        for kind in ("failure", "error", "skipped"):
            suite.set({"failure": "failures", "error": "errors", "skipped": "skipped"}[kind], str(_count(cases, kind)))
        suite.extend(cases)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + still(ET.tostring(root, encoding="unicode"), "&#35;") + "\n"


def _count(cases: list[ET.Element], kind: str) -> int:
    return sum(case.find(kind) is not None for case in cases)


def _clean(words: str) -> str:
    """Text without the characters that XML cannot hold or that a terminal obeys."""
    held = _NOT_XML.sub("\ufffd", words)
    return "".join("\ufffd" if unicodedata.category(c) in _OBEYED else c for c in held)


def _case(name: str, result: Result) -> ET.Element:
    return ET.Element("testcase", name=_clean(name), classname=_clean(relative(result.path)))


def _guarantee(verdict: Verdict, result: Result) -> ET.Element:
    where = f" on {verdict.scope}" if verdict.scope else ""
    case = _case(f"guarantee {verdict.claim.name}{where}", result)
    if verdict.status is Status.REFUTED:
        ET.SubElement(case, "failure", message=_clean(verdict_finding(verdict)), type="REFUTED")
    elif verdict.status is Status.UNKNOWN:
        ET.SubElement(case, "skipped", message=_clean(verdict_finding(verdict)))
    return case


def _measured(one: Measured, result: Result) -> ET.Element:
    """Only a pass passes: a failure is a violation, everything else was skipped."""
    case = _case(f"clause {one.name}", result)
    if one.verdict == "fail":
        ET.SubElement(case, "failure", message=_clean(one.finding), type="fail")
    elif one.verdict != "pass":
        ET.SubElement(case, "skipped", message=_clean(one.finding))
    return case


def _silent(said: str, result: Result) -> ET.Element:
    """A contract without a guarantee is a case that was skipped: it passes nothing."""
    case = _case(said.partition(" claims")[0], result)
    ET.SubElement(case, "skipped", message=_clean(said))
    return case


def _finding(diagnostic: Diagnostic, result: Result) -> ET.Element:
    """An error is a failure, wrong input an error; a warning or note is a case that passes and says so."""
    place = diagnostic.span.place.rpartition("/")[2] if diagnostic.span is not None else ""
    case = _case(f"{diagnostic.code.slug} {place}".rstrip(), result)
    shown = _clean(render(diagnostic))
    if diagnostic.severity.value == "error":
        tag = "error" if diagnostic.code.input_fault else "failure"
        ET.SubElement(case, tag, message=_clean(diagnostic.message), type=diagnostic.code.id).text = shown
    else:
        ET.SubElement(case, "system-out").text = shown
    return case
