(* One token: from a bound on the logits to bounds on the distance of the two next-token distributions.
   [span_le s p q voc]: over the vocabulary the ratio q/p varies by a factor of at most exp s. *)
From Coq Require Import Reals Lra Psatz List.
From KC Require Import Sums Divergence.
Import ListNotations.
Open Scope R_scope.

Definition positive {A} (p : A -> R) (voc : list A) := forall x, In x voc -> 0 < p x.
Definition span_le {A} (s : R) (p q : A -> R) voc :=
  forall x y, In x voc -> In y voc -> q x * p y <= exp s * (p x * q y).

(* g: the attained worst case of KL at log-ratio range s. *)
Definition g s := s / (1 - exp (- s)) - 1 - ln (s / (1 - exp (- s))).

Definition softmax {A} (T : R) (z : A -> R) (voc : list A) (x : A) : R :=
  exp (z x / T) / sum (fun y => exp (z y / T)) voc.
(* max - min of the logit error z' - z is at most sigma. *)
Definition logit_span {A} (z z' : A -> R) voc sigma :=
  forall x y, In x voc -> In y voc -> (z' x - z x) - (z' y - z y) <= sigma.

Lemma cosh_pos x : 0 < cosh x.
Proof. unfold cosh. pose proof (exp_pos x); pose proof (exp_pos (- x)); lra. Qed.

Lemma exp_inv_r x : exp x * exp (- x) = 1.
Proof. rewrite <- exp_plus, Rplus_opp_r. apply exp_0. Qed.

Lemma exp_half x : exp (x / 2) * exp (x / 2) = exp x.
Proof. rewrite <- exp_plus. f_equal; lra. Qed.

Lemma cosh_ge_1 x : 1 <= cosh x.
Proof.
  unfold cosh. replace x with (x / 2 + x / 2) at 1 by lra. replace (- x) with (- (x / 2) + - (x / 2)) by lra.
  rewrite !exp_plus. pose proof (exp_inv_r (x / 2)). pose proof (Rle_0_sqr (exp (x / 2) - exp (- (x / 2)))) as h. unfold Rsqr in h. lra.
Qed.

Lemma tanh_sq x : 1 - (/ cosh x) * (/ cosh x) = tanh x * tanh x.
Proof.
  pose proof (cosh_pos x) as h. unfold tanh. assert (E : cosh x * cosh x - sinh x * sinh x = 1).
  { unfold cosh, sinh. pose proof (exp_inv_r x). lra. }
  replace (sinh x / cosh x * (sinh x / cosh x)) with ((cosh x * cosh x - 1) * (/ cosh x * / cosh x)).
  - field; lra.
  - replace (cosh x * cosh x - 1) with (sinh x * sinh x) by lra. field; lra.
Qed.

Lemma tanh_nonneg x : 0 <= x -> 0 <= tanh x.
Proof.
  intros H. unfold tanh. apply Rmult_le_pos; [|left; apply Rinv_0_lt_compat, cosh_pos].
  unfold sinh. assert (exp (- x) <= exp x) by (apply exp_mono; lra). lra.
Qed.

(* The form that interval arithmetic can evaluate. *)
Lemma tanh_form x : tanh x = 1 - 2 / (exp (2 * x) + 1).
Proof.
  unfold tanh, sinh, cosh. replace (2 * x) with (x + x) by ring. rewrite exp_plus. pose proof (exp_inv_r x) as U.
  pose proof (exp_pos x); pose proof (exp_pos (- x)).
  assert (E : exp (- x) = / exp x) by (apply Rmult_eq_reg_l with (exp x); [rewrite U; field; lra | lra]).
  rewrite E. assert (0 < exp x * exp x + 1) by nra. field. repeat split; try lra; nra.
Qed.

(* Chord of the exponential on [lo, hi]. *)
Lemma exp_chord lo hi x : lo <= x <= hi -> (hi - lo) * exp x <= (hi - x) * exp lo + (x - lo) * exp hi.
Proof.
  intros Hx. replace (exp hi) with (exp x * exp (hi - x)) by (rewrite <- exp_plus; f_equal; lra).
  replace (exp lo) with (exp x * exp (lo - x)) by (rewrite <- exp_plus; f_equal; lra).
  pose proof (exp_pos x) as ex.
  pose proof (Rmult_le_compat_l (hi - x) _ _ ltac:(lra) (exp_ge (lo - x))) as e1.
  pose proof (Rmult_le_compat_l (x - lo) _ _ ltac:(lra) (exp_ge (hi - x))) as e2.
  pose proof (Rmult_le_compat_l (exp x) _ _ (Rlt_le _ _ ex) (Rplus_le_compat _ _ _ _ e1 e2)) as h. lra.
Qed.

(* ---- bounds from an interval [a, b] that contains every ratio w = q/p ---- *)
Section Ratio.
  Context {A : Type}.
  Variables (voc : list A) (p q : A -> R) (a b : R).
  Hypothesis Hp : dist p voc.
  Hypothesis Hq : dist q voc.
  Hypothesis Pp : positive p voc.
  Hypothesis Ha : 0 < a.
  Hypothesis Hw : forall x, In x voc -> a * p x <= q x <= b * p x.

  Lemma ratio_range : a <= 1 <= b.
  Proof.
    destruct Hp as [_ Sp], Hq as [_ Sq]. split.
    - rewrite <- Sq. replace a with (a * sum p voc) by (rewrite Sp; ring). rewrite <- sum_scal. apply sum_le. intros x Hx; now apply Hw.
    - rewrite <- Sq. replace b with (b * sum p voc) by (rewrite Sp; ring). rewrite <- sum_scal. apply sum_le. intros x Hx; now apply Hw.
  Qed.

  Theorem tv_of_ratio : a < b -> tv p q voc <= (1 - a) * (b - 1) / (b - a).
  Proof.
    intros Hab. pose proof ratio_range as [H1 H2]. destruct Hp as [H0 Sp], Hq as [_ Sq].
    apply Rmult_le_reg_r with (2 * (b - a)); [lra|].
    replace ((1 - a) * (b - 1) / (b - a) * (2 * (b - a))) with (2 * ((1 - a) * (b - 1))) by (field; lra).
    unfold tv. replace (sum (fun x => Rabs (p x - q x)) voc / 2 * (2 * (b - a)))
      with ((b - a) * sum (fun x => Rabs (p x - q x)) voc) by field. rewrite <- sum_scal.
    replace (2 * ((1 - a) * (b - 1))) with (sum (fun x => (b * (1 - a) - a * (b - 1)) * p x + ((b - 1) - (1 - a)) * q x) voc)
      by (rewrite sum_plus, !sum_scal, Sp, Sq; ring).
    apply sum_le. intros x Hx. specialize (H0 x Hx). specialize (Hw x Hx).
    unfold Rabs. destruct (Rcase_abs (p x - q x)); nra.
  Qed.

  Theorem chi2_of_ratio : chi2 q p voc <= (1 - a) * (b - 1).
  Proof.
    destruct Hp as [H0 Sp], Hq as [_ Sq].
    replace ((1 - a) * (b - 1)) with (sum (fun x => (1 - a * b) * p x + (a + b - 2) * q x) voc)
      by (rewrite sum_plus, !sum_scal, Sp, Sq; ring).
    apply sum_le. intros x Hx. specialize (Pp x Hx). specialize (Hw x Hx).
    apply Rmult_le_reg_r with (p x); [exact Pp|].
    replace ((q x - p x) * (q x - p x) / p x * p x) with ((q x - p x) * (q x - p x)) by (field; lra).
    assert (0 <= (q x - a * p x) * (b * p x - q x)) by (apply Rmult_le_pos; lra). lra.
  Qed.

  (* KL(p||q) = mean of -ln w under p. *)
  Theorem kl_of_ratio : a < b -> kl p q voc <= - ((1 - a) * ln b + (b - 1) * ln a) / (b - a).
  Proof.
    intros Hab. destruct Hp as [H0 Sp], Hq as [_ Sq].
    assert (L : ln a <= ln b) by (apply ln_mono; lra).
    apply Rmult_le_reg_r with (b - a); [lra|].
    replace (- ((1 - a) * ln b + (b - 1) * ln a) / (b - a) * (b - a)) with (- ((1 - a) * ln b + (b - 1) * ln a)) by (field; lra).
    unfold kl. rewrite Rmult_comm, <- sum_scal.
    replace (- ((1 - a) * ln b + (b - 1) * ln a)) with (sum (fun x => (a * ln b - b * ln a) * p x + - (ln b - ln a) * q x) voc)
      by (rewrite sum_plus, !sum_scal, Sp, Sq; ring).
    apply sum_le. intros x Hx. specialize (Pp x Hx). destruct (Hw x Hx) as [h1 h2].
    assert (hq : 0 < q x) by (apply Rlt_le_trans with (a * p x); [now apply Rmult_lt_0_compat | exact h1]).
    assert (hw : 0 < q x / p x) by now apply Rdiv_lt_0_compat.
    assert (i1 : a <= q x / p x) by (apply Rmult_le_reg_r with (p x); [exact Pp | unfold Rdiv; rewrite Rmult_assoc, Rinv_l; lra]).
    assert (i2 : q x / p x <= b) by (apply Rmult_le_reg_r with (p x); [exact Pp | unfold Rdiv; rewrite Rmult_assoc, Rinv_l; lra]).
    pose proof (exp_chord (ln a) (ln b) (ln (q x / p x)) ltac:(split; apply ln_mono; lra)) as c.
    rewrite !exp_ln in c by lra. rewrite ln_div in c by assumption. rewrite ln_div by assumption.
    apply (Rmult_le_compat_l (p x)) in c; [|lra].
    replace (p x * ((ln b - ln a) * (q x / p x))) with ((ln b - ln a) * q x) in c by (field; lra). lra.
  Qed.

  Lemma bc_of_ratio : sqrt a * sqrt b + 1 <= bc p q voc * (sqrt a + sqrt b).
  Proof.
    pose proof ratio_range as [H1 H2]. destruct Hp as [H0 Sp], Hq as [_ Sq].
    replace (sqrt a * sqrt b + 1) with (sum (fun x => sqrt a * sqrt b * p x + q x) voc)
      by (rewrite sum_plus, sum_scal, Sp, Sq; ring).
    unfold bc. rewrite (Rmult_comm _ (sqrt a + sqrt b)), <- sum_scal. apply sum_le. intros x Hx.
    specialize (Pp x Hx). destruct (Hw x Hx) as [h1 h2].
    assert (hq : 0 < q x) by (apply Rlt_le_trans with (a * p x); [now apply Rmult_lt_0_compat | exact h1]).
    assert (j1 : sqrt a * sqrt (p x) <= sqrt (q x)) by (rewrite <- sqrt_mult by lra; now apply sqrt_le_1_alt).
    assert (j2 : sqrt (q x) <= sqrt b * sqrt (p x)) by (rewrite <- sqrt_mult by lra; now apply sqrt_le_1_alt).
    rewrite sqrt_mult by lra. pose proof (sqrt_sqrt (p x) ltac:(lra)) as Ep. pose proof (sqrt_sqrt (q x) ltac:(lra)) as Eq.
    set (u := sqrt (p x)) in *; set (v := sqrt (q x)) in *. rewrite <- Ep, <- Eq.
    assert (0 <= (v - sqrt a * u) * (sqrt b * u - v)) by (apply Rmult_le_pos; lra). lra.
  Qed.
End Ratio.

(* ---- bounds from the log-ratio range s ---- *)
Lemma span_sym {A} s (p q : A -> R) voc : span_le s p q voc -> span_le s q p voc.
Proof. intros H x y Hx Hy. pose proof (H y x Hy Hx). lra. Qed.

Lemma span_mono {A} s t (p q : A -> R) voc : positive p voc -> positive q voc -> s <= t -> span_le s p q voc -> span_le t p q voc.
Proof.
  intros Pp Pq Hst H x y Hx Hy. specialize (H x y Hx Hy). pose proof (exp_mono s t Hst).
  assert (0 < p x * q y) by (apply Rmult_lt_0_compat; [now apply Pp | now apply Pq]). nra.
Qed.

Lemma dist_nonempty {A} (p : A -> R) voc : dist p voc -> voc <> nil.
Proof. intros [_ S] ->. simpl in S. lra. Qed.

Section FromSpan.
  Context {A : Type}.
  Variables (voc : list A) (p q : A -> R) (s : R).
  Hypothesis Hp : dist p voc.
  Hypothesis Hq : dist q voc.
  Hypothesis Pp : positive p voc.
  Hypothesis Pq : positive q voc.
  Hypothesis Hs : span_le s p q voc.

  Lemma span_ratio : exists a, 0 < a /\ forall x, In x voc -> a * p x <= q x <= exp s * a * p x.
  Proof.
    destruct (argmin (fun x => q x / p x) voc (dist_nonempty p voc Hp)) as (m & Hm & Hmin).
    pose proof (Pp m Hm) as pm. pose proof (Pq m Hm) as qm.
    exists (q m / p m). split; [now apply Rdiv_lt_0_compat|]. intros x Hx. pose proof (Pp x Hx) as px. split.
    - specialize (Hmin x Hx). simpl in Hmin. apply (Rmult_le_compat_r (p x)) in Hmin; [|lra].
      replace (q x / p x * p x) with (q x) in Hmin by (field; lra). exact Hmin.
    - specialize (Hs x m Hx Hm). apply Rmult_le_reg_r with (p m); [exact pm|].
      replace (exp s * (q m / p m) * p x * p m) with (exp s * (p x * q m)) by (field; lra). exact Hs.
  Qed.

  (* log_ratio_of_span: exp(-s) <= q/p <= exp s. *)
  Theorem log_ratio_of_span x : In x voc -> exp (- s) * p x <= q x <= exp s * p x.
  Proof.
    intros Hx. destruct span_ratio as (a & Ha & Hw). pose proof (ratio_range voc p q a (exp s * a) Hp Hq Hw) as [h1 h2].
    specialize (Hw x Hx). specialize (Pp x Hx). pose proof (exp_pos s). pose proof (exp_inv_r s). pose proof (exp_pos (- s)).
    split; [apply Rle_trans with (a * p x) | apply Rle_trans with (exp s * a * p x)]; try apply Hw; apply Rmult_le_compat_r; nra.
  Qed.

  Theorem bc_of_span : / cosh (s / 4) <= bc p q voc.
  Proof.
    destruct span_ratio as (a & Ha & Hw). pose proof (bc_of_ratio voc p q a (exp s * a) Hp Hq Pp Ha Hw) as h.
    rewrite sqrt_mult, sqrt_exp in h by (pose proof (exp_pos s); lra).
    set (B := bc p q voc) in *. set (u := sqrt a) in *. assert (Hu : 0 < u) by now apply sqrt_lt_R0.
    replace (exp (s / 2)) with (exp (s / 4) * exp (s / 4)) in h by (rewrite <- exp_plus; f_equal; lra).
    pose proof (exp_inv_r (s / 4)) as I. unfold cosh.
    pose proof (exp_pos (s / 4)) as K. pose proof (exp_pos (- (s / 4))) as K'.
    set (k := exp (s / 4)) in *. set (k' := exp (- (s / 4))) in *.
    assert (N : 0 <= B) by apply bc_nonneg.
    apply Rmult_le_reg_r with ((k + k') / 2 * (u * k)); [apply Rmult_lt_0_compat; [lra | now apply Rmult_lt_0_compat]|].
    replace (/ ((k + k') / 2) * ((k + k') / 2 * (u * k))) with (u * k) by (field; lra).
    replace (B * ((k + k') / 2 * (u * k))) with (B * (u + k * k * u) / 2)
      by (replace (B * (u + k * k * u) / 2) with (B * u * (k * k' + k * k) / 2) by (rewrite I; field); field).
    pose proof (Rle_0_sqr (u * k - 1)) as q2. unfold Rsqr in q2. lra.
  Qed.

  Theorem tv_of_span : 0 <= s -> tv p q voc <= tanh (s / 4).
  Proof.
    intros H0. pose proof (tv_bc_sq voc p q Hp Hq) as h. pose proof bc_of_span as k.
    apply sq_le_le; [apply tanh_nonneg; lra|]. rewrite <- tanh_sq.
    assert (0 < / cosh (s / 4)) by apply Rinv_0_lt_compat, cosh_pos.
    assert (/ cosh (s / 4) * / cosh (s / 4) <= bc p q voc * bc p q voc) by (apply Rmult_le_compat; lra). lra.
  Qed.

  Theorem kl_of_span : 0 < s -> kl p q voc <= g s.
  Proof.
    intros H0. destruct span_ratio as (a & Ha & Hw). pose proof (ratio_range voc p q a (exp s * a) Hp Hq Hw) as [r1 r2].
    assert (E : 1 < exp s) by (rewrite <- exp_0; now apply exp_increasing).
    assert (Hab : a < exp s * a) by nra.
    eapply Rle_trans; [apply (kl_of_ratio voc p q a (exp s * a) Hp Hq Pp Ha Hw Hab)|].
    rewrite ln_mult, ln_exp by lra. set (al := ln a). set (c := (exp s - 1) / s).
    assert (Hc : 0 < c) by (apply Rdiv_lt_0_compat; lra).
    assert (G : g s = / c - 1 + ln c).
    { unfold g. pose proof (exp_inv_r s) as I. pose proof (exp_pos (- s)) as e. assert (e1 : exp (- s) < 1) by (rewrite <- exp_0; apply exp_increasing; lra).
      assert (F : s / (1 - exp (- s)) = exp s / c)
        by (unfold c; apply Rmult_eq_reg_r with ((1 - exp (- s)) * (exp s - 1));
          [field_simplify; [|lra..]; try nra | apply Rgt_not_eq, Rmult_lt_0_compat; lra]).
      assert (F2 : exp s / c = s + / c) by (unfold c; field; lra).
      rewrite F. rewrite ln_div, ln_exp by (try apply exp_pos; assumption). rewrite F2. lra. }
    rewrite G. pose proof (exp_ge (- (al + ln c))) as T.
    rewrite Ropp_plus_distr, exp_plus, !exp_Ropp, (exp_ln c) in T by assumption. unfold al in T at 2. rewrite exp_ln in T by assumption.
    replace (- ((1 - a) * (s + al) + (exp s * a - 1) * al) / (exp s * a - a)) with (/ c - / a * / c - al) by (unfold c; field; split; nra).
    lra.
  Qed.

  Theorem chi2_of_span : 0 <= s -> chi2 q p voc <= sinh (s / 2) * sinh (s / 2).
  Proof.
    intros H0. destruct span_ratio as (a & Ha & Hw).
    eapply Rle_trans; [apply (chi2_of_ratio voc p q a (exp s * a) Hp Hq Pp Hw)|].
    unfold sinh. pose proof (exp_inv_r (s / 2)) as I. rewrite <- (exp_half s).
    set (k := exp (s / 2)) in *. set (k' := exp (- (s / 2))) in *.
    pose proof (Rle_0_sqr (a * k - (k + k') / 2)) as q2. unfold Rsqr in q2.
    replace ((a * k - (k + k') / 2) * (a * k - (k + k') / 2)) with (a * a * (k * k) - a * (k * k + k * k') + (k + k') * (k + k') / 4) in q2 by field.
    rewrite I in q2. replace ((k + k') * (k + k')) with (k * k + 2 * (k * k') + k' * k') in q2 by ring. rewrite I in q2.
    replace ((k - k') / 2 * ((k - k') / 2)) with ((k * k - 2 * (k * k') + k' * k') / 4) by field. rewrite I. lra.
  Qed.
End FromSpan.

(* ---- softmax ---- *)
Section Softmax.
  Context {A : Type}.
  Variable voc : list A.
  Hypothesis Hv : voc <> nil.
  Implicit Types z : A -> R.

  Lemma softmax_pos T z x : 0 < softmax T z voc x.
  Proof. apply Rdiv_lt_0_compat; [apply exp_pos | apply sum_pos; [exact Hv | intros; apply exp_pos]]. Qed.

  Lemma softmax_dist T z : dist (softmax T z voc) voc.
  Proof.
    split; [intros x _; left; apply softmax_pos|]. unfold softmax. set (Z := sum (fun y => exp (z y / T)) voc).
    assert (0 < Z) by (apply sum_pos; [exact Hv | intros; apply exp_pos]).
    rewrite (sum_ext _ (fun x => / Z * exp (z x / T))) by (intros; unfold Rdiv; ring). rewrite sum_scal. fold Z. field; lra.
  Qed.

  Lemma span_of_drift z z' d : (forall x, In x voc -> Rabs (z' x - z x) <= d) -> logit_span z z' voc (2 * d).
  Proof.
    intros H x y Hx Hy. pose proof (Rle_abs (z' x - z x)). pose proof (Rle_abs (- (z' y - z y))).
    rewrite Rabs_Ropp in *. pose proof (H x Hx). pose proof (H y Hy). lra.
  Qed.

  Lemma logit_span_nonneg z z' sigma : logit_span z z' voc sigma -> 0 <= sigma.
  Proof. intros H. destruct voc as [|x t]; [congruence|]. specialize (H x x (or_introl eq_refl) (or_introl eq_refl)). lra. Qed.

  (* Two logit vectors with span sigma on a kept set: the softmax ratios there range over exp(sigma / T0), at every T >= T0. *)
  Theorem span_of_logits_on kept T T0 z z' sigma : 0 < T0 <= T -> logit_span z z' kept sigma ->
    span_le (sigma / T0) (softmax T z voc) (softmax T z' voc) kept.
  Proof.
    intros HT H x y Hx Hy. pose proof (H x x Hx Hx) as H0. rewrite Rminus_diag_eq in H0 by reflexivity. specialize (H x y Hx Hy). unfold softmax.
    set (Z := sum (fun y => exp (z y / T)) voc). set (Z' := sum (fun y => exp (z' y / T)) voc).
    assert (0 < Z) by (apply sum_pos; [exact Hv | intros; apply exp_pos]).
    assert (0 < Z') by (apply sum_pos; [exact Hv | intros; apply exp_pos]).
    replace (exp (z' x / T) / Z' * (exp (z y / T) / Z)) with (exp (z' x / T + z y / T) * (/ Z' * / Z)) by (rewrite exp_plus; field; lra).
    replace (exp (sigma / T0) * (exp (z x / T) / Z * (exp (z' y / T) / Z'))) with (exp (sigma / T0 + (z x / T + z' y / T)) * (/ Z' * / Z))
      by (rewrite !exp_plus; field; lra).
    apply Rmult_le_compat_r; [apply Rmult_le_pos; left; now apply Rinv_0_lt_compat|]. apply exp_mono.
    assert (sigma / T <= sigma / T0) by (unfold Rdiv; apply Rmult_le_compat_l; [exact H0 | apply Rinv_le_contravar; lra]).
    assert (((z' x - z x) - (z' y - z y)) / T <= sigma / T) by (unfold Rdiv; apply Rmult_le_compat_r; [left; apply Rinv_0_lt_compat; lra | exact H]).
    unfold Rdiv in *. lra.
  Qed.

  Theorem span_of_logits T T0 z z' sigma : 0 < T0 <= T -> logit_span z z' voc sigma ->
    span_le (sigma / T0) (softmax T z voc) (softmax T z' voc) voc.
  Proof. apply span_of_logits_on. Qed.

  (* topk_of_margin: a pair whose reference margin exceeds the span keeps its order. *)
  Theorem order_of_margin z z' sigma x y : logit_span z z' voc sigma -> In x voc -> In y voc ->
    sigma < z x - z y -> z' y < z' x.
  Proof. intros H Hx Hy m. specialize (H y x Hy Hx). lra. Qed.
End Softmax.
