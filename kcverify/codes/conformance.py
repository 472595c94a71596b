"""Codes about kernels and their contracts (KC7xx)."""

from __future__ import annotations

from kcverify.codes.model import Code, Severity


def _row(
    id: str, slug: str, message: str, why: str, fix: str, severity: Severity = Severity.ERROR, input_fault: bool = False
) -> Code:
    return Code(id, slug, severity, message, why, fix, input_fault=input_fault)


ROWS: tuple[Code, ...] = (
    _row(
        "KC701",
        "kernel_not_found",
        "there is no kernel `{kernel}`: {reason}",
        "A kernel is a callable `module:function` that Python can import, or a name of the table of shipped kernels.",
        "name it as package.module:function; kcverify conformance kernels lists the shipped ones",
        input_fault=True,
    ),
    _row(
        "KC702",
        "kernel_contract_missing",
        "{file} holds no kernel contract that can run: {reason}",
        "Only `kernel contract` blocks with a class and an operation that kcverify knows can be run on a kernel.",
        "write `class C-PRC-01` and an `op` of the table, or choose the contract with --contract",
        input_fault=True,
    ),
    _row(
        "KC703",
        "tolerance_fails_closed",
        "the tolerance says nothing at {dims}: {reason}",
        "Past n u = 1/2 no bound of the form gamma(n) holds: a sum in that format need not resemble the exact one.",
        "declare a wider accumulator, or a smaller range of the dimension",
    ),
    _row(
        "KC704",
        "tolerance_refuted",
        "a schedule that keeps the declaration exceeds the tolerance: {value} against {limit} at {dims}",
        "A bound that conforming arithmetic breaks is false. A kernel that fails it may be right.",
        "use a derived form, 2 gamma(n - 1) times the sum of magnitudes for two orders of a sum",
    ),
    _row(
        "KC705",
        "tolerance_loose",
        "the tolerance is {factor} times the derived one ({limit} against {derived}) at {dims}",
        "Room beyond what the declared precision needs is room for faults.",
        "use the derived value; round to nearest has unit roundoff 2^-4 in e4m3 and 2^-3 in e5m2",
        Severity.WARNING,
    ),
    _row(
        "KC706",
        "fault_passes",
        "the shipped faulty kernel of {class_name} passes: {what}",
        "A contract that a known fault passes does not specify what it is about; a pass under it says nothing.",
        "tighten the tolerance, widen the shapes or add the distributions that show the fault",
    ),
    _row(
        "KC707",
        "good_fails",
        "the shipped good kernel of {class_name} fails: {what}",
        "A contract that a known-good kernel fails asks for more than the declared precision can give.",
        "derive the tolerance from the declared formats",
    ),
    _row(
        "KC708",
        "kernel_crashed",
        "the kernel ended its process: {reason}",
        "A kernel that reads or writes out of bounds may end the process, or silently return other memory.",
        "pad the operands to the kernel's multiples, or report it to the library",
    ),
    _row(
        "KC709",
        "kernel_raised",
        "the kernel raised {error} on operands of {shapes}: {reason}",
        "Operands inside the declared scope must be accepted.",
        "narrow the scope to what the kernel takes",
    ),
    _row(
        "KC710",
        "inputs_changed",
        "the kernel changed its operands ({shapes})",
        "An oracle that reads operands which the kernel rewrote agrees with anything.",
        "let the kernel write to memory of its own",
    ),
    _row(
        "KC711",
        "output_deferred",
        "the result changed after the kernel returned it ({shapes})",
        "Work that is put off past the check, and results that share memory with the operands, are measured as something else "
        "than what is used.",
        "finish the work before returning",
    ),
    _row(
        "KC712",
        "output_form",
        "the result is {reason}",
        "Only a plain tensor of the operation's shape can be compared.",
        "return the whole result as a torch.Tensor",
    ),
    _row(
        "KC713",
        "result_cached",
        "new numbers in the same memory gave the old result ({shapes})",
        "A result that is kept by shape or by address is right in a benchmark and wrong in use.",
        "compute from the operands' values",
    ),
    _row(
        "KC714",
        "nothing_decided",
        "zeros, a constant or the operand itself pass every comparison",
        "A tolerance that a kernel without work keeps has no power.",
        "scale the tolerance with the result, and draw operands whose result is not near zero",
    ),
    _row(
        "KC715",
        "not_here",
        "`{what}` cannot be checked here: {reason}",
        "Some faults need a device, a library or a processor without a feature.",
        "run the same command where it is at hand",
        Severity.NOTE,
    ),
    _row(
        "KC716",
        "entry_invalid",
        "{file} is no entry of the corpus that can be compared: {reason}",
        "Two entries are compared when both were written by `conformance record` for one contract and kernel.",
        "write it with kcverify conformance record",
        input_fault=True,
    ),
    _row(
        "KC717",
        "head_unbounded",
        "no bound on the logits of `{kernel}`: {reason}",
        "The norm bound needs the head's weights, a norm before it, and operands that are rounded relative to their size.",
        "choose a shipped model and one of the formats float32, bfloat16, int8, int4, int8_bf16, int4_bf16",
        input_fault=True,
    ),
    _row(
        "KC718",
        "signature_seen",
        "the kernel shows what the contract calls a violation: {signature} ({evidence})",
        "A signature is what its author says a fault looks like; it is looked for whether or not the tolerance is kept.",
        "repair the kernel, or take the line out of `violation`",
    ),
    _row(
        "KC719",
        "confidence_not_met",
        "{draws} of {asked} draws were made and told something: {reached} is reached of a confidence of {confidence}",
        "A contract's trials and confidence fix the share of faulty draws that it can rule out. Fewer draws rule out less.",
        "run without --trials, or with a larger --budget",
        Severity.NOTE,
    ),
    _row(
        "KC720",
        "kernel_not_imported",
        "the module of `{kernel}` cannot be imported: {reason}",
        "A module is imported in a process of its own: whatever it does there does not end the tool.",
        "make the module importable: python -c 'import MODULE' must end by itself with exit code 0",
        input_fault=True,
    ),
    _row(
        "KC721",
        "part_unchecked",
        "a run neither keeps nor checks `{part}`",
        "A pass says nothing about a condition that nobody looked at.",
        "leave it out, or say it as a word of the class: denormals(out) == preserve, finite(out), k % 16 == 0",
        Severity.WARNING,
    ),
    _row(
        "KC722",
        "process_changed",
        "the kernel changes the process that calls it: {what}",
        "A setting, a seed or a function that a call leaves changed moves what everybody else computes afterwards, the check included.",
        "put it back before returning, or set it once when the module is imported",
    ),
    _row(
        "KC723",
        "kernel_slow",
        "no answer of the kernel in {seconds} s",
        "A kernel that does not return can be neither passed nor failed.",
        "look for a loop or a lock in it; for a slow kernel take smaller `shapes` or fewer --trials",
    ),
    _row(
        "KC724",
        "check_disturbed",
        "the check of the kernel broke off: {reason}",
        "A kernel shares the process with its check and can change what that runs on. Nothing was decided about it.",
        "let the kernel change nothing but its result; if it does not, report this as a fault of kcverify",
    ),
)  # fmt: skip
