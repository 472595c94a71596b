"""The answer of `init`: a first contract from a few answers, its limit derived from the tolerance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from fractions import Fraction

from kcverify.diagnostics import InputError, Report, input_error
from kcverify.elaborate import elaborate
from kcverify.elaborate.contract import Contract
from kcverify.exact import NumberError, decimal_exact, parse_number
from kcverify.output.format import format_source
from kcverify.prove.budget import derive
from kcverify.source import Source
from kcverify.syntax.parser import parse


@dataclass(frozen=True)
class Answers:
    """What a first contract needs to know, each as it is typed."""

    name: str = "rollout"
    reference: str = "fsdp-bf16"
    candidate: str = "vllm-fp8"
    temperature: str = "0.6..1.0"
    horizon: str = "256"
    reward: str = "0..1"
    tolerance: str = "0.4"
    exception: str = "0.02%"


QUESTIONS: dict[str, str] = {
    "name": "name of the contract",
    "reference": "the kernel that is trusted",
    "candidate": "the kernel that is to replace it",
    "temperature": "sampling temperatures, low..high",
    "horizon": "most tokens of one response",
    "reward": "range of the reward, low..high",
    "tolerance": "how far the expected reward may move",
    "exception": "share of tokens that may exceed the limit",
}
"""Each question as it is asked, in order."""


def ask(given: dict[str, str], question: Callable[[str, str], str] | None) -> Answers:
    """The answers: those given, the others asked for, or the defaults where nobody can be asked."""
    values = dict(given)
    for field in fields(Answers):
        if field.name not in values and question is not None:
            values[field.name] = question(QUESTIONS[field.name], str(field.default))
    return Answers(**values)


def contract_text(answers: Answers) -> str:
    """A contract that checks. Raises InputError for an answer that is not usable, or a tolerance that nothing meets."""
    draft = _draft(answers, "?")
    (contract,) = _read(draft)
    budgets, failed = derive(contract)
    if failed or not budgets:
        blocked = "; ".join(demand.blocked for _, demands in failed for demand in demands if demand.blocked)
        hint = "allow a larger tolerance, a smaller exception or a shorter response"
        raise input_error("option_invalid", option="--tolerance", reason=blocked or "no limit meets it", hint=hint)
    return format_source(Source("contract.kc", _draft(answers, budgets[0].decimal)))


def _read(text: str) -> tuple[Contract, ...]:
    report = Report()
    contracts = elaborate(parse(Source("contract.kc", text), report), report, parameters={})
    if report.errors:
        raise InputError(*report.errors)
    return contracts


def _quoted(option: str, text: str) -> str:
    if any(sign in text for sign in '"\r\n'):
        raise input_error(
            "option_invalid", option=option, reason="a name on one line without quotes is needed", hint=""
        )
    return f'"{text}"'


def _number(option: str, text: str) -> Fraction:
    try:
        return parse_number(text)
    except NumberError as error:
        hint = "write a number such as 0.05 or 0.1%"
        raise input_error("option_invalid", option=option, reason=str(error), hint=hint) from None


def _ends(option: str, text: str) -> str:
    """`low..high`, or one number, as a range of the language."""
    low, dots, high = text.partition("..")
    ends = _number(option, low), _number(option, high if dots else low)
    return f"[{decimal_exact(ends[0])}, {decimal_exact(ends[1])}]"


def _draft(answers: Answers, limit: str) -> str:
    if not answers.name.isidentifier() or not answers.name.isascii():
        reason = f"`{answers.name[:40]}` is not a name"
        raise input_error("option_invalid", option="--name", reason=reason, hint="letters, digits and `_`")
    horizon = _number("--horizon", answers.horizon)
    tolerance = decimal_exact(_number("--tolerance", answers.tolerance))
    exception = decimal_exact(_number("--exception", answers.exception) * 100)
    return f"""contract {answers.name} version "1.0"
pair {{
  reference baseline = {_quoted("--reference", answers.reference)}
  candidate deployed = {_quoted("--candidate", answers.candidate)}
}}
assume {{
  temperature in {_ends("--temperature", answers.temperature)}
  sampler = full_softmax # truncated sampling has no such bound
  horizon <= {decimal_exact(horizon)} tokens
  reward in {_ends("--reward", answers.reward)}
}}
numerical {{
  drift: logit_span <= {limit} except {exception}% -> L2 # the largest limit that the guarantee allows
}}
guarantee {{
  reward_safe: reward_drift <= {tolerance}
}}
escalate {{
  L2 -> guard, false_alarm_every 30 d, dwell 10 minutes, recover 2000 requests
}}
"""
