(* The end-to-end claims that a per-contract file instantiates with numbers. Each has the structural premises
   (vocabulary, temperature, logit span on every context) and one closed inequality between constants. *)
From Coq Require Import Reals Lra Psatz List Arith.
From KC Require Import Sums Divergence Span Seq Gradient.
Import ListNotations.
Open Scope R_scope.

(* ---- the closed inequalities ---- *)
(* sqrt(1 - sech(s/4)^(2 hmax)) <= t, in the logarithmic form that interval arithmetic decides for any horizon. *)
Definition seq_budget s hmax t :=
  0 <= t < 1 /\ 2 * hmax * ln ((exp (s / 4) + exp (- (s / 4))) / 2) <= - ln (1 - t * t).

Lemma pow_exp x n : exp x ^ n = exp (INR n * x).
Proof.
  induction n as [|n IH]; [simpl; rewrite Rmult_0_l, exp_0; reflexivity|].
  rewrite S_INR. simpl. rewrite IH, <- exp_plus. f_equal. ring.
Qed.

Lemma seq_budget_sound s hmax t H : INR H <= hmax -> seq_budget s hmax t -> sqrt (1 - (/ cosh (s / 4)) ^ (2 * H)) <= t.
Proof.
  intros HH [[Ht0 Ht1] Hb]. fold (cosh (s / 4)) in Hb. set (c := cosh (s / 4)) in *.
  assert (c1 : 1 <= c) by apply cosh_ge_1. assert (L : 0 <= ln c) by (rewrite <- ln_1; apply ln_mono; lra).
  rewrite <- (sqrt_square t Ht0). apply sqrt_le_1_alt.
  replace (/ c) with (exp (- ln c)) by (rewrite exp_Ropp, exp_ln; lra). rewrite pow_exp, mult_INR. simpl (INR 2).
  assert (1 - t * t <= exp ((1 + 1) * INR H * - ln c)); [|lra].
  rewrite <- (exp_ln (1 - t * t)) by nra. apply exp_mono.
  assert (INR H * ln c <= hmax * ln c) by (apply Rmult_le_compat_r; assumption). lra.
Qed.

Lemma kl_same {A} (voc : list A) p q : (forall x, In x voc -> 0 <= p x) -> (forall x, In x voc -> p x = q x) -> kl p q voc = 0.
Proof.
  intros H0 E. unfold kl. rewrite (sum_ext _ (fun _ => 0)); [apply sum_zero|]. intros x Hx. rewrite <- (E x Hx).
  destruct (H0 x Hx) as [h|h]; [unfold Rdiv; rewrite Rinv_r, ln_1; lra | rewrite <- h; ring].
Qed.

(* ---- one token ---- *)
Section Token.
  Context {A : Type}.
  Variables (voc : list A) (z z' : A -> R) (T T0 sigma : R).
  Hypothesis Hv : voc <> nil.
  Hypothesis HT : 0 < T0 <= T.
  Hypothesis Hz : logit_span z z' voc sigma.
  Let p := softmax T z voc.
  Let q := softmax T z' voc.

  Theorem token_tv_claim tau : 1 - 2 / (exp (2 * (sigma / T0 / 4)) + 1) <= tau -> tv p q voc <= tau.
  Proof.
    intros H. rewrite <- tanh_form in H. eapply Rle_trans; [|exact H]. apply tv_of_span.
    - now apply softmax_dist.
    - now apply softmax_dist.
    - intros x _. now apply softmax_pos.
    - intros x _. now apply softmax_pos.
    - now apply span_of_logits.
    - apply Rmult_le_pos; [now apply (logit_span_nonneg voc Hv z z') | left; apply Rinv_0_lt_compat; lra].
  Qed.

  Theorem token_kl_claim tau : 0 < sigma -> g (sigma / T0) <= tau -> kl p q voc <= tau /\ kl q p voc <= tau.
  Proof.
    intros H0 H. assert (S : 0 < sigma / T0) by (apply Rdiv_lt_0_compat; lra).
    assert (Pp : positive p voc) by (intros x _; now apply softmax_pos). assert (Pq : positive q voc) by (intros x _; now apply softmax_pos).
    assert (Sp : span_le (sigma / T0) p q voc) by now apply span_of_logits.
    split; (eapply Rle_trans; [apply kl_of_span with (s := sigma / T0) | exact H]); try assumption;
      try (now apply softmax_dist). now apply span_sym.
  Qed.

  Theorem token_log_ratio_claim x : In x voc -> exp (- (sigma / T0)) * p x <= q x <= exp (sigma / T0) * p x.
  Proof.
    intros Hx. apply log_ratio_of_span with (voc := voc); try (now apply softmax_dist); try assumption;
      try (intros y _; now apply softmax_pos). now apply span_of_logits.
  Qed.
End Token.

(* ---- responses of H tokens, H <= hmax ---- *)
Section Response.
  Context {A D : Type}.
  Variable voc : list A.
  (* Logits of the reference and of the candidate after a context. *)
  Variables z z' : list A -> A -> R.
  (* A response may end early: from there on both sides follow the same fixed law (padding, say). *)
  Variables (stopped : list A -> bool) (ended : list A -> A -> R).
  Variables (T T0 sigma hmax : R) (H : nat).
  Hypothesis Hv : voc <> nil.
  Hypothesis HT : 0 < T0 <= T.
  Hypothesis Hend : forall h, dist (ended h) voc.
  Hypothesis HH : INR H <= hmax.

  Definition sampler (y : list A -> A -> R) (h : list A) (x : A) := if stopped h then ended h x else softmax T (y h) voc x.
  Let p := law (sampler z).
  Let q := law (sampler z').

  Lemma sampler_policy y : policy voc (sampler y).
  Proof. intros h. unfold sampler, dist. destruct (stopped h); [apply Hend | now apply softmax_dist]. Qed.

  Lemma sampler_within h : (stopped h = false -> logit_span (z h) (z' h) voc sigma) ->
    within voc (sigma / T0) (sampler z) (sampler z') h.
  Proof.
    intros Hz. unfold within, positive, span_le, sampler. destruct (stopped h) eqn:E; [left; reflexivity | right].
    repeat split; try (intros; now apply softmax_pos). intros x y Hx Hy. now apply (span_of_logits voc Hv T T0 (z h) (z' h) sigma HT (Hz eq_refl)).
  Qed.

  (* What a claim about TV implies for rewards and gradients. *)
  Lemma reward_claim_of_tv (r : list A -> R) lo hi t tau : (forall y, In y (seqs voc H) -> lo <= r y <= hi) -> lo <= hi ->
    (hi - lo) * t <= tau -> tv p q (seqs voc H) <= t -> Rabs (mean p r (seqs voc H) - mean q r (seqs voc H)) <= tau.
  Proof.
    intros Hr Hlh Hc Ht. eapply Rle_trans; [apply (reward_of_tv _ _ _ _ lo hi); try apply law_dist, sampler_policy; assumption|].
    assert ((hi - lo) * tv p q (seqs voc H) <= (hi - lo) * t) by (apply Rmult_le_compat_l; lra). lra.
  Qed.

  Lemma pg_claim_of_tv (coords : list D) (adv : list A -> R) (score : list A -> D -> R) Amax G t tau :
    (forall y, In y (seqs voc H) -> Rabs (adv y) <= Amax) -> (forall y, In y (seqs voc H) -> norm coords (score y) <= G) ->
    0 <= Amax -> 0 <= G -> 2 * Amax * G * t <= tau -> tv p q (seqs voc H) <= t ->
    norm coords (fun k => mean p (fun y => adv y * score y k) (seqs voc H) - mean q (fun y => adv y * score y k) (seqs voc H)) <= tau.
  Proof.
    intros HA HG A0 G0 Hc Ht. eapply Rle_trans; [apply (pg_bias_of_tv coords p q (seqs voc H) adv score Amax G HA HG)|].
    assert (2 * Amax * G * tv p q (seqs voc H) <= 2 * Amax * G * t) by (apply Rmult_le_compat_l; [repeat apply Rmult_le_pos; lra | exact Ht]). lra.
  Qed.

  (* -- the span holds on every context -- *)
  Section Everywhere.
    Hypothesis Hz : forall h, context voc H h -> stopped h = false -> logit_span (z h) (z' h) voc sigma.

    Theorem seq_tv_claim t : seq_budget (sigma / T0) hmax t -> tv p q (seqs voc H) <= t.
    Proof.
      intros Hb. eapply Rle_trans; [apply (seq_tv_of_span voc _ _ (sigma / T0) H); try apply sampler_policy | now apply (seq_budget_sound _ hmax)].
      intros h Hh. apply sampler_within. now apply Hz.
    Qed.

    Theorem seq_kl_claim tau : 0 < sigma -> 0 <= g (sigma / T0) -> hmax * g (sigma / T0) <= tau -> kl p q (seqs voc H) <= tau.
    Proof.
      intros S0 G0 Hc. apply Rle_trans with (INR H * g (sigma / T0)).
      - apply seq_kl_bound; try apply sampler_policy.
        + intros h Hh x Hx. destruct (sampler_within h (Hz h Hh)) as [E|(_ & Pq & _)]; [now rewrite <- (E x Hx) | intros _; now apply Pq].
        + intros h Hh. destruct (sampler_within h (Hz h Hh)) as [E|(Pp & Pq & Sp)].
          * rewrite kl_same; [exact G0 | apply (sampler_policy z h) | exact E].
          * apply kl_of_span; try apply sampler_policy; try assumption. apply Rdiv_lt_0_compat; lra.
      - eapply Rle_trans; [|exact Hc]. now apply Rmult_le_compat_r.
    Qed.

    Theorem seq_reward_claim (r : list A -> R) lo hi t tau : (forall y, In y (seqs voc H) -> lo <= r y <= hi) -> lo <= hi ->
      seq_budget (sigma / T0) hmax t -> (hi - lo) * t <= tau ->
      Rabs (mean p r (seqs voc H) - mean q r (seqs voc H)) <= tau.
    Proof. intros Hr Hlh Hb Hc. apply (reward_claim_of_tv r lo hi t tau); try assumption. now apply seq_tv_claim. Qed.

    Theorem seq_pg_claim (coords : list D) (adv : list A -> R) (score : list A -> D -> R) Amax G t tau :
      (forall y, In y (seqs voc H) -> Rabs (adv y) <= Amax) -> (forall y, In y (seqs voc H) -> norm coords (score y) <= G) ->
      0 <= Amax -> 0 <= G -> seq_budget (sigma / T0) hmax t -> 2 * Amax * G * t <= tau ->
      norm coords (fun k => mean p (fun y => adv y * score y k) (seqs voc H) - mean q (fun y => adv y * score y k) (seqs voc H)) <= tau.
    Proof. intros HA HG A0 G0 Hb Hc. apply (pg_claim_of_tv coords adv score Amax G t tau); try assumption. now apply seq_tv_claim. Qed.
  End Everywhere.

  (* -- the span holds except on contexts that the sampler q meets at most hmax rho times per response on average -- *)
  Section Exceedance.
    Variables (exceeds : list A -> bool) (rho : R).
    Hypothesis Hz : forall h, context voc H h -> stopped h = false -> exceeds h = false -> logit_span (z h) (z' h) voc sigma.
    Hypothesis Hfreq : total voc (sampler z') (indicator exceeds) H <= hmax * rho.

    Theorem seq_tv_exceed_claim t t' : seq_budget (sigma / T0) hmax t -> hmax * rho + t <= t' -> tv p q (seqs voc H) <= t'.
    Proof.
      intros Hb Hc. eapply Rle_trans; [apply (seq_exceedance voc exceeds _ _ (sigma / T0) (hmax * rho) H); try apply sampler_policy; try exact Hfreq|].
      - intros h Hh He. apply sampler_within. intros Hs. now apply Hz.
      - pose proof (seq_budget_sound _ hmax t H HH Hb). lra.
    Qed.

    Theorem seq_reward_exceed_claim (r : list A -> R) lo hi t t' tau : (forall y, In y (seqs voc H) -> lo <= r y <= hi) -> lo <= hi ->
      seq_budget (sigma / T0) hmax t -> hmax * rho + t <= t' -> (hi - lo) * t' <= tau ->
      Rabs (mean p r (seqs voc H) - mean q r (seqs voc H)) <= tau.
    Proof. intros Hr Hlh Hb Hx Hc. apply (reward_claim_of_tv r lo hi t' tau); try assumption. now apply (seq_tv_exceed_claim t). Qed.

    Theorem seq_pg_exceed_claim (coords : list D) (adv : list A -> R) (score : list A -> D -> R) Amax G t t' tau :
      (forall y, In y (seqs voc H) -> Rabs (adv y) <= Amax) -> (forall y, In y (seqs voc H) -> norm coords (score y) <= G) ->
      0 <= Amax -> 0 <= G -> seq_budget (sigma / T0) hmax t -> hmax * rho + t <= t' -> 2 * Amax * G * t' <= tau ->
      norm coords (fun k => mean p (fun y => adv y * score y k) (seqs voc H) - mean q (fun y => adv y * score y k) (seqs voc H)) <= tau.
    Proof. intros HA HG A0 G0 Hb Hx Hc. apply (pg_claim_of_tv coords adv score Amax G t' tau); try assumption. now apply (seq_tv_exceed_claim t). Qed.
  End Exceedance.
End Response.

(* ---- contracts that bound the distance of the next-token laws directly, whatever the sampler ---- *)
Section FromDistances.
  Context {A : Type}.
  Variables (voc : list A) (p q : list A -> A -> R) (hmax : R) (H : nat).
  Hypothesis Hp : policy voc p.
  Hypothesis Hq : policy voc q.
  Hypothesis HH : INR H <= hmax.

  Theorem seq_tv_of_tv_claim t t' : 0 <= t < 1 -> t' < 1 -> - (hmax * ln (1 - t)) <= - ln (1 - t') ->
    (forall h, context voc H h -> tv (p h) (q h) voc <= t) -> tv (law p) (law q) (seqs voc H) <= t'.
  Proof.
    intros Ht Ht' Hc Hz. eapply Rle_trans; [apply (seq_tv_union voc p q t H Hp Hq); [lra | exact Hz]|].
    rewrite <- (exp_ln (1 - t)) by lra. rewrite pow_exp.
    assert (1 - t' <= exp (INR H * ln (1 - t))); [|lra]. rewrite <- (exp_ln (1 - t')) by lra. apply exp_mono.
    assert (ln (1 - t) <= 0) by (rewrite <- ln_1; apply ln_mono; lra).
    assert (INR H * - ln (1 - t) <= hmax * - ln (1 - t)) by (apply Rmult_le_compat_r; lra). lra.
  Qed.

  (* By Pinsker or by Bretagnolle-Huber, whichever closes. *)
  Theorem seq_tv_of_kl_claim k t' : 0 <= k -> 0 <= t' -> hmax * k / 2 <= t' * t' \/ 1 - exp (- (hmax * k)) <= t' * t' ->
    (forall h, context voc H h -> dominated (p h) (q h) voc) ->
    (forall h, context voc H h -> kl (p h) (q h) voc <= k) -> tv (law p) (law q) (seqs voc H) <= t'.
  Proof.
    intros Hk Ht Hc Hd Hz. pose proof (seq_kl_bound voc p q k H Hp Hq Hd Hz) as K.
    assert (KK : kl (law p) (law q) (seqs voc H) <= hmax * k).
    { eapply Rle_trans; [exact K|]. now apply Rmult_le_compat_r. }
    pose proof (law_dist voc p H Hp) as Dp. pose proof (law_dist voc q H Hq) as Dq. pose proof (law_dominated voc p q H Hp Hq Hd) as Dd.
    rewrite <- (sqrt_square t' Ht). destruct Hc as [Hc|Hc].
    - eapply Rle_trans; [now apply pinsker|]. apply sqrt_le_1_alt. lra.
    - eapply Rle_trans; [now apply bretagnolle_huber|]. apply sqrt_le_1_alt.
      assert (exp (- (hmax * k)) <= exp (- kl (law p) (law q) (seqs voc H))) by (apply exp_mono; lra). lra.
  Qed.
End FromDistances.
