(* Template of the file that a contract generates. It says: under the premises of Section Contract, every claim holds.

   CONSTANTS (the only lines that differ between contracts; all are exact rationals, written (n / d)):
     sigma       bound on the logit span, max - min of z' - z          (per context)
     T0          smallest temperature of the contract, > 0
     hmax        horizon: a response has at most hmax tokens
     lo, hi      reward range
     Amax, G     |advantage| <= Amax, norm of the score of a response <= G
     rho         share of contexts that may exceed sigma (second part only)
     t, t_exc    TV budgets of a response: t rounded up from sqrt(1 - sech(sigma/4T0)^(2 hmax)),
                 t_exc >= hmax rho + t; both < 1
     tau_xxx     the thresholds that the contract claims
   A claim that a contract does not make: delete its tau and its lemma. The rest never changes.

   Premises and claims are about every vocabulary, every pair of kernels, every T >= T0 and every H <= hmax;
   the proofs use the library, and the tactic interval for one closed inequality between constants. *)
From Coq Require Import Reals Lra List.
From Interval Require Import Tactic.
From KC Require Import Kc.
Open Scope R_scope.

(* ---- constants ---- *)
Notation sigma := (1 / 100).
Notation T0 := (3 / 5).
Notation hmax := 1024.
Notation lo := 0.
Notation hi := 10.
Notation Amax := 1.
Notation G := 5.
Notation rho := (1 / 100000).
Notation t := (133 / 1000).
Notation t_exc := (1433 / 10000).
Notation tau_tv := (417 / 100000).
Notation tau_kl := (348 / 10000000).
Notation tau_seq_tv := (133 / 1000).
Notation tau_seq_kl := (36 / 1000).
Notation tau_reward := (133 / 100).
Notation tau_pg := (133 / 100).
Notation tau_reward_exc := (1433 / 1000).
Notation tau_pg_exc := (1433 / 1000).

(* ---- closed inequalities between the constants ---- *)
Lemma closed_tv : 1 - 2 / (exp (2 * (sigma / T0 / 4)) + 1) <= tau_tv.
Proof. interval with (i_prec 200). Qed.
Lemma closed_kl : g (sigma / T0) <= tau_kl.
Proof. unfold g. interval with (i_prec 200). Qed.
Lemma closed_kl_0 : 0 <= g (sigma / T0).
Proof. unfold g. interval with (i_prec 200). Qed.
Lemma closed_seq_kl : hmax * g (sigma / T0) <= tau_seq_kl.
Proof. unfold g. interval with (i_prec 200). Qed.
Lemma closed_seq : seq_budget (sigma / T0) hmax t.
Proof. split; [lra | interval with (i_prec 200)]. Qed.

Section Contract.
  (* ---- premises ---- *)
  Context {token coordinate : Type}.
  Variables (voc : list token) (coords : list coordinate).
  Variables z z' : list token -> token -> R.             (* logits of reference and candidate, by context *)
  Variables (stopped : list token -> bool) (ended : list token -> token -> R). (* responses may end early *)
  Variables (T : R) (H : nat).
  Hypothesis voc_nonempty : voc <> nil.
  Hypothesis temperature : T0 <= T.
  Hypothesis horizon : INR H <= hmax.
  Hypothesis ended_law : forall h, dist (ended h) voc.
  Let p := law (sampler voc stopped ended T z).          (* law of a response, reference *)
  Let q := law (sampler voc stopped ended T z').         (* law of a response, candidate *)
  Let responses := seqs voc H.
  Variables (reward adv : list token -> R) (score : list token -> coordinate -> R).
  Hypothesis reward_range : forall y, In y responses -> lo <= reward y <= hi.
  Hypothesis adv_bound : forall y, In y responses -> Rabs (adv y) <= Amax.
  Hypothesis score_bound : forall y, In y responses -> norm coords (score y) <= G.

  Lemma T_range : 0 < T0 <= T.
  Proof. split; [lra | exact temperature]. Qed.

  (* ---- claims about one token, in a context whose logit span is at most sigma ---- *)
  Theorem claim_token_tv h : logit_span (z h) (z' h) voc sigma ->
    tv (softmax T (z h) voc) (softmax T (z' h) voc) voc <= tau_tv.
  Proof. intros S. exact (token_tv_claim voc (z h) (z' h) T T0 sigma voc_nonempty T_range S tau_tv closed_tv). Qed.

  Theorem claim_token_kl h : logit_span (z h) (z' h) voc sigma ->
    kl (softmax T (z h) voc) (softmax T (z' h) voc) voc <= tau_kl /\ kl (softmax T (z' h) voc) (softmax T (z h) voc) voc <= tau_kl.
  Proof. intros S. apply (token_kl_claim voc (z h) (z' h) T T0 sigma voc_nonempty T_range S tau_kl); [lra | exact closed_kl]. Qed.

  (* ---- claims about a response: the span holds on every context ---- *)
  Section Everywhere.
    Hypothesis span : forall h, context voc H h -> stopped h = false -> logit_span (z h) (z' h) voc sigma.

    Theorem claim_seq_tv : tv p q responses <= tau_seq_tv.
    Proof.
      apply Rle_trans with t; [|lra].
      exact (seq_tv_claim voc z z' stopped ended T T0 sigma hmax H voc_nonempty T_range ended_law horizon span t closed_seq).
    Qed.

    Theorem claim_seq_kl : kl p q responses <= tau_seq_kl.
    Proof.
      apply (seq_kl_claim voc z z' stopped ended T T0 sigma hmax H voc_nonempty T_range ended_law horizon span tau_seq_kl);
        [lra | exact closed_kl_0 | exact closed_seq_kl].
    Qed.

    Theorem claim_reward : Rabs (mean p reward responses - mean q reward responses) <= tau_reward.
    Proof.
      apply (seq_reward_claim voc z z' stopped ended T T0 sigma hmax H voc_nonempty T_range ended_law horizon span reward lo hi t tau_reward);
        [exact reward_range | lra | exact closed_seq | lra].
    Qed.

    Theorem claim_pg : norm coords (fun k => mean p (fun y => adv y * score y k) responses
                                           - mean q (fun y => adv y * score y k) responses) <= tau_pg.
    Proof.
      apply (seq_pg_claim voc z z' stopped ended T T0 sigma hmax H voc_nonempty T_range ended_law horizon span coords adv score Amax G t tau_pg);
        [exact adv_bound | exact score_bound | lra | lra | exact closed_seq | lra].
    Qed.
  End Everywhere.

  (* ---- the same, when the span fails on contexts that the candidate meets with frequency at most rho ---- *)
  Section Exceedance.
    Variable exceeds : list token -> bool.
    Hypothesis span_except : forall h, context voc H h -> stopped h = false -> exceeds h = false -> logit_span (z h) (z' h) voc sigma.
    (* The mean number of exceeding contexts in a response of the candidate is at most hmax rho. *)
    Hypothesis frequency : total voc (sampler voc stopped ended T z') (indicator exceeds) H <= hmax * rho.

    Theorem claim_seq_tv_exc : tv p q responses <= t_exc.
    Proof.
      apply (seq_tv_exceed_claim voc z z' stopped ended T T0 sigma hmax H voc_nonempty T_range ended_law horizon
        exceeds rho span_except frequency t t_exc); [exact closed_seq | lra].
    Qed.

    Theorem claim_reward_exc : Rabs (mean p reward responses - mean q reward responses) <= tau_reward_exc.
    Proof.
      apply (seq_reward_exceed_claim voc z z' stopped ended T T0 sigma hmax H voc_nonempty T_range ended_law horizon
        exceeds rho span_except frequency reward lo hi t t_exc tau_reward_exc);
        [exact reward_range | lra | exact closed_seq | lra | lra].
    Qed.

    Theorem claim_pg_exc : norm coords (fun k => mean p (fun y => adv y * score y k) responses
                                               - mean q (fun y => adv y * score y k) responses) <= tau_pg_exc.
    Proof.
      apply (seq_pg_exceed_claim voc z z' stopped ended T T0 sigma hmax H voc_nonempty T_range ended_law horizon
        exceeds rho span_except frequency coords adv score Amax G t t_exc tau_pg_exc);
        [exact adv_bound | exact score_bound | lra | lra | exact closed_seq | lra | lra].
    Qed.
  End Exceedance.
End Contract.
