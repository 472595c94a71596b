"""Masks and importance weights for training on another kernel's samples; torch, one signature, one report.

Log-probabilities are natural, of the sampled tokens, both at the temperature of the sampler.
"""

from kcverify.rl.certified import certified
from kcverify.rl.divergence import binary_kl, binary_tv, dppo, top_k
from kcverify.rl.enforce import ContractMasks, Rule
from kcverify.rl.loss import policy_loss
from kcverify.rl.region import k3, prefix_budget, stopped_prefix, trust_region
from kcverify.rl.report import Report
from kcverify.rl.table import BY_NAME, METHODS, Method
from kcverify.rl.weights import icepop, truncated, windowed

__all__ = [
    "BY_NAME",
    "METHODS",
    "ContractMasks",
    "Method",
    "Report",
    "Rule",
    "binary_kl",
    "binary_tv",
    "certified",
    "dppo",
    "icepop",
    "k3",
    "policy_loss",
    "prefix_budget",
    "stopped_prefix",
    "top_k",
    "truncated",
    "trust_region",
    "windowed",
]
