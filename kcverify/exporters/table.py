"""The targets of `kcverify emit`, a row each: what it is, what it reads, how it is written and what it does with a verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kcverify.diagnostics import input_error
from kcverify.exporters import argo, ci, cloudevents, flagger, openslo, prometheus
from kcverify.exporters.request import Request, closed


@dataclass(frozen=True)
class Target:
    """One target.

    `needs` and `takes` are parts of a request: `contract`, `result`, `store`, `findings` (which runs the proofs),
    `gateway`, `endpoint`; of `any_of` one must be there. `render` is None where the extra `otel` writes it. `checked` is
    what the tests hold the file against. `passes`, `fails` and `undecided` say what the system does with each verdict.
    """

    name: str
    title: str
    file: str
    render: Callable[[Request], str] | None
    needs: tuple[str, ...]
    takes: tuple[str, ...]
    checked: str
    gives: str
    passes: str
    fails: str
    undecided: str
    limits: tuple[str, ...]
    any_of: tuple[str, ...] = ()


def _rules(request: Request) -> str:
    closed(request.subject)
    return prometheus.rules(request.subject)


def _objectives(request: Request) -> str:
    closed(request.subject)
    return openslo.objectives(request)


_PLACE = (
    "The gate answers for the stage that the store is in: a stage behind it has passed, one before it is undecided. So "
    "`kcverify promote` must move the store in step with the rollout."
)

ROWS: tuple[Target, ...] = (
    Target(
        "prometheus",
        "rules of Prometheus",
        "kcverify.rules.yml",
        _rules,
        ("contract",),
        (),
        "`promtool check rules` and `promtool test rules`; a Prometheus that fires the alert",
        "For each clause the e-value against its limit as an expression over `kcverify_observations_total` and "
        "`kcverify_exceedances_total`, the alert `KcverifyClauseFails`, the series `kcverify:verdict:sign`, and burn rates.",
        "the series is 1; no alert",
        "the series is -1; `KcverifyClauseFails` fires and may be looked at as often as wanted",
        "the series is 0; no alert fires, which is no pass. `KcverifyClauseUnmeasured` fires where nothing is scraped",
        (
            "Share and mean clauses need the gauge `kcverify_log_wealth`; readings of all requests have no rule, which a comment says.",
            "The verdict is that of the counters as they stand. A restarted gateway starts from zero: what it had counted no longer "
            "counts for or against, and each restart is one more chance of a false alarm.",
            "That a clause once failed is kept by the gate's store, not by the alert, which ends where the evidence falls again.",
            "A clause on several slices is judged over all that it names, also while some of them have no traffic.",
            "A burn-rate rule is left out where its factor times the allowed rate reaches 1, since no traffic could fire it.",
        ),
    ),
    Target(
        "argo",
        "AnalysisTemplates of Argo Rollouts",
        "analysis-templates.yaml",
        argo.templates,
        ("contract",),
        ("gateway",),
        "the schema of `analysistemplates.argoproj.io` v1alpha1",
        "One template a stage with traffic: the `web` provider asks the gateway for the gate's verdict every minute.",
        "Successful after one pass (`consecutiveSuccessLimit: 1`); the rollout goes on",
        "Failed (`failureLimit: 0`); the rollout aborts",
        "it asks again until the stage's time and an hour are over, then Inconclusive: the rollout pauses",
        (
            "Use the templates in inline steps. An analysis in the background that the rollout's end terminates is Successful, "
            "whatever it has seen.",
            "`consecutiveSuccessLimit` needs Argo Rollouts 1.8. A gateway that does not answer 5 times in a row is an Error: the "
            "rollout aborts.",
            _PLACE,
            "The token is read from the secret `kcverify-gateway`, key `token`. Weights are whole percents, rounded down.",
        ),
    ),
    Target(
        "flagger",
        "webhooks of a Flagger Canary",
        "canary.yaml",
        flagger.canary,
        ("contract",),
        ("gateway",),
        "the schema of `canaries.flagger.app` v1beta1",
        "Hooks that wait for the gate before traffic is shifted, raised or promoted, and one that rolls back.",
        "2xx from the `confirm-` hooks: the canary advances; non-2xx from `rollback`",
        "2xx from `rollback`: traffic goes back and the canary has failed; non-2xx from the others",
        "non-2xx from every hook: the canary waits at its share of traffic",
        (
            "A gateway that does not answer neither promotes nor rolls back: the canary waits, and the alert rules must see it.",
            _PLACE,
            "Flagger sends no headers, so these paths of the gateway must be open to it, and to nothing else, by network policy.",
            "The stage `full` comes after Flagger's end. Weights are whole percents, rounded down; smaller ones are left out.",
        ),
    ),
    Target(
        "openslo",
        "objectives in OpenSLO v1",
        "openslo.yaml",
        _objectives,
        ("contract",),
        (),
        "a transcription of the OpenSLO v1 specification",
        "An SLO, alert policy and condition for each clause that good and bad units decide, and for each of its slices.",
        "budget is left; OpenSLO has no word for certified",
        "the alert condition is met; for a clause without exception by the first exceedance",
        "no data alerts (`alertWhenNoData`); little data looks like success to an error budget, so ask the gate",
        (
            "An error budget is no test and has no guarantee against false alarms.",
            "No target can be 1. A clause without exception gets the nearest one and an alert condition of burn rate above 0.",
            "Share and mean clauses and readings cannot be said; comments name each one and why.",
        ),
    ),
    Target(
        "cloudevents",
        "CloudEvents 1.0 as JSON lines",
        "events.jsonl",
        cloudevents.lines,
        (),
        ("contract", "result", "store"),
        "the JSON schema of CloudEvents 1.0",
        "One event for a run and one for each clause and slice (`--result`); one for each event of a store (`--store`).",
        "`data.verdict` is `pass`",
        "`data.verdict` is `fail`",
        "`data.verdict` keeps its word: `inconclusive`, `unobservable` or `not_enforced`",
        (
            "The id of a stored event is its hash in the chain, that of a verdict a digest of what it says and of its file: a repetition is seen.",
            "Only stored events have a time; a result of `measure` has none. `subject` is for people, `data` is exact.",
        ),
        ("result", "store"),
    ),
    Target(
        "github",
        "annotations of GitHub Actions",
        "annotations.txt",
        ci.github_text,
        ("contract", "findings"),
        ("result",),
        "the escapes of workflow commands, read back",
        "The findings and verdicts of `check`, and with `--result` the measured verdicts at the line of each clause.",
        "no annotation",
        "`::error`",
        "`::warning`; `::notice` for a clause that is not enforced",
        ("Annotations do not fail a job; the exit code of `check`, `measure` or `gate` does.",),
    ),
    Target(
        "junit",
        "JUnit XML",
        "kcverify.xml",
        ci.junit_text,
        ("contract", "findings"),
        ("result",),
        "a reader of JUnit XML",
        "A case for each guarantee, finding and, with `--result`, each measured clause and slice.",
        "a case that passes",
        "`failure`",
        "`skipped`, with the reason",
        ("Many dashboards colour a suite with skipped cases green: count them.",),
    ),
    Target(
        "sarif",
        "SARIF 2.1.0",
        "kcverify.sarif",
        ci.sarif_text,
        ("contract", "findings"),
        ("result",),
        "a part of the SARIF 2.1.0 schema",
        "The findings and verdicts of `check` and, with `--result`, measured clauses that do not pass.",
        "no result",
        "the level of the clause's severity: L1 note, L2 warning, L3 error",
        "warning; note for a clause that is not enforced",
        ("Code scanning shows results, not passes: an empty log means nothing was found, not that all was measured.",),
    ),
    Target(
        "otel",
        "OpenTelemetry metrics and a trace (extra `kcverify[otel]`)",
        "telemetry.jsonl",
        None,
        ("result",),
        ("contract", "endpoint"),
        "the SDK's own exporter in memory, and a receiver of OTLP over HTTP",
        "Gauges for each clause and slice and one span each; sent to `--endpoint`, or written as OTLP JSON.",
        "gauge 1, span status OK",
        "gauge -1, span status ERROR",
        "gauge 0, span status UNSET, with the word in `kcverify.verdict`",
        (
            "The largest double stands for infinite evidence, since the SDK takes finite numbers only; spans have the word.",
            "The time is that of the emission, not of the measurement, which a result does not state.",
        ),
    ),
)
BY_NAME = {row.name: row for row in ROWS}


def target(name: str) -> Target:
    """The row of a name. Raises InputError: `option_invalid`."""
    row = BY_NAME.get(name)
    if row is None:
        reason = f"`{name}` is not one of {', '.join(BY_NAME)}"
        raise input_error("option_invalid", option="TARGET", reason=reason, hint="kcverify emit --list")
    return row
