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
from kcverify.syntax.parser import LIMITS, parse


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
        words = QUESTIONS[field.name]
        while field.name not in values and question is not None:
            answer = question(words, str(field.default))
            try:
                _CHECKS[field.name](f"--{field.name}", answer)
            except InputError as error:
                words = f"{error.diagnostics[0].message.partition(': ')[2]}; {QUESTIONS[field.name]}"
            else:
                values[field.name] = answer
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
    if ends[0] > ends[1]:
        raise _refused(option, f"the range {text} is reversed", f"write {high}..{low}")
    return f"[{decimal_exact(ends[0])}, {decimal_exact(ends[1])}]"


def _refused(option: str, reason: str, hint: str) -> InputError:
    return input_error("option_invalid", option=option, reason=reason, hint=hint)


def _name(option: str, text: str) -> str:
    if not text.isidentifier() or not text.isascii() or len(text) > LIMITS.name:
        raise _refused(option, f"`{text[:40]}` is not a name", f"at most {LIMITS.name} letters, digits and `_`")
    return text


def _horizon(option: str, text: str) -> str:
    tokens = _number(option, text)
    if tokens < 1 or tokens.denominator != 1:
        raise _refused(option, f"`{text}` is not a whole number of at least 1", "tokens of one response")
    return decimal_exact(tokens)


def _temperature(option: str, text: str) -> str:
    if _number(option, text.partition("..")[0]) <= 0:
        raise _refused(option, "a temperature must be above 0", "write a range such as 0.6..1.0")
    return _ends(option, text)


def _reward(option: str, text: str) -> str:
    low, dots, high = text.partition("..")
    if not dots or _number(option, low) == _number(option, high):
        raise _refused(option, f"`{text}` is not a range with two ends", "write a range such as 0..1")
    return _ends(option, text)


def _tolerance(option: str, text: str) -> str:
    if _number(option, text) <= 0:
        raise _refused(option, "a tolerance must be above 0", "every change of the logits moves the reward a little")
    return decimal_exact(_number(option, text))


def _share(option: str, text: str) -> str:
    share = _number(option, text)
    if not 0 <= share < 1:
        raise _refused(option, f"`{text}` is not a share from 0% to below 100%", "write a share such as 0.02%")
    return f"{decimal_exact(share * 100)}%"


_CHECKS: dict[str, Callable[[str, str], str]] = {
    "name": _name, "reference": _quoted, "candidate": _quoted, "temperature": _temperature, "horizon": _horizon,
    "reward": _reward, "tolerance": _tolerance, "exception": _share,
}  # fmt: skip
"""Each answer in the words of the language. Raises InputError for one that is not usable."""


def _draft(answers: Answers, limit: str) -> str:
    said = {name: check(f"--{name}", getattr(answers, name)) for name, check in _CHECKS.items()}
    low, high = (_number("--reward", end) for end in answers.reward.split(".."))
    if _number("--tolerance", answers.tolerance) >= high - low:
        reason = f"a reward in {said['reward']} never moves by more than {decimal_exact(high - low)}"
        raise _refused("--tolerance", reason, "give a smaller tolerance, which promises something")
    return f"""contract {said["name"]} version "1.0"
pair {{
  reference baseline = {said["reference"]}
  candidate deployed = {said["candidate"]}
}}
assume {{
  temperature in {said["temperature"]}
  sampler = full_softmax # truncated sampling has no such bound
  horizon <= {said["horizon"]} tokens
  reward in {said["reward"]}
}}
numerical {{
  drift: logit_span <= {limit} except {said["exception"]} -> L2 # the largest limit that the guarantee allows
}}
guarantee {{
  reward_safe: reward_drift <= {said["tolerance"]}
}}
escalate {{
  L2 -> guard, false_alarm_every 30 d, dwell 10 minutes, recover 2000 requests
}}
"""
