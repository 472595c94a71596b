#!/bin/sh
# Compile the proof library and audit it.
#   check.sh             library and examples
#   check.sh FILE.v...   library (compiled where needed), then these contract files instead of the examples
#   check.sh --coqchk    the same as the first, then re-check the compiled library with Coq's independent kernel
# Exit 1: a file does not compile, contains a word that assumes or skips a proof, or a theorem rests on more than
# the standard library's real numbers (contract files also: its machine integers, which interval computes with).
# Exit 3: Coq is not installed.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
: "${COQC:=coqc}"
library="Sums Divergence Span Token Seq Gradient Optimal Contract Kc"
banned='\b(Axioms?|Admitted|admit|give_up|Parameters?|Conjectures?|bypass_check|Unset +(Guard|Positivity|Universe) +Checking|Declare +ML)\b'
reals='ClassicalDedekindReals\.sig_forall_dec|ClassicalDedekindReals\.sig_not_dec|FunctionalExtensionality\.functional_extensionality_dep|Classical_Prop\.classic'
integers='PrimInt63\.[A-Za-z0-9_]+|Uint63\.[A-Za-z0-9_]+'

command -v "$COQC" >/dev/null || { echo "check.sh: coqc not found (Debian: apt-get install coq libcoq-interval)" >&2; exit 3; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "check.sh: $*" >&2; exit 1; }
ban() { if grep -nEH "$banned" "$@" >&2; then fail "a proof is assumed or skipped"; fi; }
theorems() { sed -nE 's/^ *(Theorem|Corollary|Lemma) +([A-Za-z0-9_]+'\''?).*/\2/p' "$@"; }
# audit NAME ALLOWED FILE...: append to work/NAME.v one tuple of all theorems of FILE..., print its assumptions, compare.
audit() {
  name=$1; allowed=$2; shift 2
  theorems "$@" > "$work/names"
  [ -s "$work/names" ] || fail "$name: no theorem"
  { echo "Definition all_theorems := (0"; sed 's/.*/  , @&/' "$work/names"; echo "). Print Assumptions all_theorems."; } >> "$work/$name.v"
  nice "$COQC" -Q "$here" KC "$work/$name.v" > "$work/out" || fail "$name does not compile"
  grep -q '^Axioms:' "$work/out" || fail "$name: no audit"
  grep -vE '^(Axioms:|Closed under the global context| |$)' "$work/out" | sed 's/ .*//' | sort -u > "$work/found" || true
  if grep -vxE "$allowed" "$work/found" >&2; then fail "$name: not an allowed assumption"; fi
  echo "$name: $(wc -l < "$work/names") statements proved; assumes: $(grep -xE "$reals" "$work/found" | sed 's/.*\.//' | tr '\n' ' ')$(grep -qxE "$integers" "$work/found" && echo '+ machine integers' || true)"
}

chk=no
if [ "${1:-}" = --coqchk ]; then chk=yes; shift; fi

sources=""
stale=no
for m in $library; do
  sources="$sources $here/$m.v"
  ban "$here/$m.v"
  if [ $stale = yes ] || [ ! -e "$here/$m.vo" ] || [ -n "$(find "$here/$m.v" -newer "$here/$m.vo")" ]; then
    stale=yes
    nice "$COQC" -Q "$here" KC "$here/$m.v" || fail "$m.v does not compile"
  fi
done

if [ $# -eq 0 ]; then
  echo "From KC Require Import Kc." > "$work/library.v"
  # shellcheck disable=SC2086
  audit library "$reals" $sources
  set -- "$here"/examples/*.v
fi
for f in "$@"; do
  ban "$f"
  n=$(basename "$f" .v | tr -c 'A-Za-z0-9_\n' _)
  [ "$n" != library ] || n=contract
  cp "$f" "$work/$n.v"
  echo >> "$work/$n.v"
  audit "$n" "$reals|$integers" "$f"
done

if [ $chk = yes ]; then nice coqchk -silent -Q "$here" KC KC.Kc; echo "coqchk: passed"; fi
