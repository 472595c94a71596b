(* Why pg_bias_token_sum asks for an advantage per prefix: with one advantage for the whole response, as in
   outcome-reward training, the bias can be twice 2 Amax G1 (TV_1 + TV_2).
   Two tokens out of {a, b, c}; first token a or c, the same law on both sides; |advantage| <= 1, |score of a token| <= 1,
   and every token's score has mean zero under p, as a score must. *)
From Coq Require Import Reals Lra List.
From KC Require Import Kc.
Import ListNotations.
Open Scope R_scope.

Inductive token := a | b | c.
Definition voc := [a; b; c].
Definition first x := match x with a => 1 / 2 | b => 0 | c => 1 / 2 end.
Definition p (h : list token) x := match h with nil => first x | _ => match x with a => 1 / 4 | b => 1 / 4 | c => 1 / 2 end end.
Definition q (h : list token) x := match h with nil => first x | _ => match x with a => 0 | b => 1 / 2 | c => 1 / 2 end end.
Definition sign x := match x with a => 1 | b => 0 | c => -1 end.
(* The score of the newest token. *)
Definition score (y : list token) := match y with
  | [x] => sign x | [x; x1] => sign x1 * match x with c => -1 | _ => 1 end | _ => 0 end.
Definition adv (y : list token) := match y with [x; x1] => sign x1 * match x with a => 1 | b => -1 | c => 0 end | _ => 0 end.
Definition total_score (y : list token) := match y with [x; x1] => score [x1] + score [x; x1] | _ => 0 end.

Theorem laws : policy voc p /\ policy voc q.
Proof.
  split; intros [|h t]; split; try (intros [] _; simpl; lra); simpl; lra.
Qed.

Theorem zero_mean h : (length h <= 1)%nat -> mean (p h) (fun x => score (x :: h)) voc = 0.
Proof. destruct h as [|x1 [|x2 t]]; intros H; [| destruct x1 |]; unfold mean; simpl in *; lra. Qed.

Theorem bounded : (forall y, Rabs (adv y) <= 1) /\ (forall y, Rabs (score y) <= 1).
Proof.
  split; intros [|x [|x1 [|x2 t]]]; try destruct x; try destruct x1; simpl; unfold Rabs; destruct (Rcase_abs _); lra.
Qed.

Theorem token_sum_fails :
  mean (law p) (fun y => adv y * total_score y) (seqs voc 2) - mean (law q) (fun y => adv y * total_score y) (seqs voc 2)
  = 2 * (2 * 1 * 1 * (tv (law p) (law q) (seqs voc 1) + tv (law p) (law q) (seqs voc 2))).
Proof.
  unfold mean, tv. simpl. unfold Rabs. repeat (destruct (Rcase_abs _); try (exfalso; lra)). all: lra.
Qed.

Theorem token_sum_positive : 0 < tv (law p) (law q) (seqs voc 2).
Proof. unfold tv. simpl. unfold Rabs. repeat (destruct (Rcase_abs _); try (exfalso; lra)). all: lra. Qed.
