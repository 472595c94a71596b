(* Distances between two distributions on a finite vocabulary, and the inequalities that connect them.
   A vocabulary is a list; a distribution is a function that is non-negative on it and sums to 1. *)
From Coq Require Import Reals Lra Psatz List.
From KC Require Import Sums.
Import ListNotations.
Open Scope R_scope.

Definition dist {A} (p : A -> R) (voc : list A) := (forall x, In x voc -> 0 <= p x) /\ sum p voc = 1.
Definition mean {A} (p f : A -> R) voc := sum (fun x => p x * f x) voc.
Definition tv {A} (p q : A -> R) voc := sum (fun x => Rabs (p x - q x)) voc / 2.
Definition bc {A} (p q : A -> R) voc := sum (fun x => sqrt (p x * q x)) voc.
Definition kl {A} (p q : A -> R) voc := sum (fun x => p x * ln (p x / q x)) voc.
Definition chi2 {A} (p q : A -> R) voc := sum (fun x => (p x - q x) * (p x - q x) / q x) voc.
Definition overlap {A} (p q : A -> R) voc := sum (fun x => Rmin (p x) (q x)) voc.
(* The support of p lies in the support of q. *)
Definition dominated {A} (p q : A -> R) voc := forall x, In x voc -> 0 < p x -> 0 < q x.

Lemma exp_ge u : 1 + u <= exp u.
Proof. destruct (Req_dec u 0) as [->|h]; [rewrite exp_0; lra | left; apply exp_ineq1; exact h]. Qed.

Lemma exp_mono s t : s <= t -> exp s <= exp t.
Proof. intros [h|h]; [left; now apply exp_increasing | rewrite h; lra]. Qed.

Lemma ln_mono x y : 0 < x -> x <= y -> ln x <= ln y.
Proof. intros Hx [h|h]; [left; now apply ln_increasing | rewrite h; lra]. Qed.

Lemma ln_div x y : 0 < x -> 0 < y -> ln (x / y) = ln x - ln y.
Proof.
  intros Hx Hy. unfold Rdiv. rewrite ln_mult, ln_Rinv; try assumption; [ring|]. now apply Rinv_0_lt_compat.
Qed.

Lemma sqrt_exp x : sqrt (exp x) = exp (x / 2).
Proof. replace x with (x / 2 + x / 2) at 1 by lra. rewrite exp_plus. apply sqrt_square. left; apply exp_pos. Qed.

(* The rational lower bound of the logarithm behind Pinsker's inequality, by the mean value theorem. *)
Lemma ln_pade u : 0 < u -> (u - 1) * (5 * u + 1) / (2 * u * (u + 2)) <= ln u.
Proof.
  intros Hu.
  set (k := fun x => ln x - (5 / 2 - / 4 * / x - 27 / 4 * / (x + 2))).
  set (k' := fun x => / x - (0 - / 4 * (- / (x * x)) - 27 / 4 * (- / ((x + 2) * (x + 2))))).
  assert (K : k u = ln u - (u - 1) * (5 * u + 1) / (2 * u * (u + 2))) by (unfold k; field; lra).
  assert (K1 : k 1 = 0) by (unfold k; rewrite ln_1; lra).
  assert (D : forall x, 0 < x -> derivable_pt_lim k x (k' x)).
  { intros x Hx. unfold k, k'.
    assert (I1 : derivable_pt_lim (fun x => / x) x (- / (x * x))).
    { replace (- / (x * x)) with ((0 * x - 1 * 1) / Rsqr x) by (unfold Rsqr; field; lra).
      apply (derivable_pt_lim_ext (fun x => 1 / x)); [intros; unfold Rdiv; ring|].
      apply (derivable_pt_lim_div (fun _ => 1) id x 0 1); [apply derivable_pt_lim_const | apply derivable_pt_lim_id | unfold id; lra]. }
    assert (I2 : derivable_pt_lim (fun x => / (x + 2)) x (- / ((x + 2) * (x + 2)))).
    { replace (- / ((x + 2) * (x + 2))) with ((0 * (x + 2) - (1 + 0) * 1) / Rsqr (x + 2)) by (unfold Rsqr; field; lra).
      apply (derivable_pt_lim_ext (fun x => 1 / (x + 2))); [intros; unfold Rdiv; ring|].
      apply (derivable_pt_lim_div (fun _ => 1) (fun x => x + 2) x 0 (1 + 0)); [apply derivable_pt_lim_const | | lra].
      apply (derivable_pt_lim_plus id (fun _ => 2)); [apply derivable_pt_lim_id | apply derivable_pt_lim_const]. }
    apply (derivable_pt_lim_minus ln (fun x => 5 / 2 - / 4 * / x - 27 / 4 * / (x + 2))); [now apply derivable_pt_lim_ln|].
    apply (derivable_pt_lim_minus (fun x => 5 / 2 - / 4 * / x) (fun x => 27 / 4 * / (x + 2))).
    - apply (derivable_pt_lim_minus (fun _ => 5 / 2) (fun x => / 4 * / x)); [apply derivable_pt_lim_const|].
      now apply (derivable_pt_lim_scal (fun x => / x) (/ 4)).
    - now apply (derivable_pt_lim_scal (fun x => / (x + 2)) (27 / 4)). }
  assert (S : forall x, 0 < x -> k' x = (x - 1) * ((x - 1) * (x - 1)) * / (x * x * ((x + 2) * (x + 2))))
    by (intros x Hx; unfold k'; field; lra).
  assert (P : forall x, 0 < x -> 0 < / (x * x * ((x + 2) * (x + 2)))).
  { intros x Hx. apply Rinv_0_lt_compat. repeat apply Rmult_lt_0_compat; lra. }
  cut (0 <= k u); [lra|].
  destruct (Rtotal_order u 1) as [h|[->|h]]; [| lra |].
  - destruct (MVT_cor2 k k' u 1 h) as (c & E & Hc); [intros c Hc; apply D; lra|].
    rewrite K1, (S c) in E by lra. specialize (P c ltac:(lra)).
    assert (0 <= (1 - c) * ((1 - c) * (1 - c)) * / (c * c * ((c + 2) * (c + 2))) * (1 - u))
      by (repeat apply Rmult_le_pos; lra). lra.
  - destruct (MVT_cor2 k k' 1 u h) as (c & E & Hc); [intros c Hc; apply D; lra|].
    rewrite K1, (S c) in E by lra. specialize (P c ltac:(lra)).
    assert (0 <= (c - 1) * ((c - 1) * (c - 1)) * / (c * c * ((c + 2) * (c + 2))) * (u - 1))
      by (repeat apply Rmult_le_pos; lra). lra.
Qed.

Section Divergence.
  Context {A : Type}.
  Variable voc : list A.
  Implicit Types p q r f : A -> R.

  Lemma tv_nonneg p q : 0 <= tv p q voc.
  Proof. unfold tv. assert (0 <= sum (fun x => Rabs (p x - q x)) voc) by (apply sum_nonneg; intros; apply Rabs_pos). lra. Qed.

  Lemma tv_sym p q : tv p q voc = tv q p voc.
  Proof. unfold tv. f_equal. apply sum_ext. intros; apply Rabs_minus_sym. Qed.

  Lemma tv_triangle p q r : tv p r voc <= tv p q voc + tv q r voc.
  Proof.
    unfold tv.
    assert (sum (fun x => Rabs (p x - r x)) voc <= sum (fun x => Rabs (p x - q x) + Rabs (q x - r x)) voc).
    { apply sum_le. intros x _. replace (p x - r x) with ((p x - q x) + (q x - r x)) by ring. apply Rabs_triang. }
    rewrite sum_plus in H. lra.
  Qed.

  Lemma tv_eq p q : (forall x, In x voc -> p x = q x) -> tv p q voc = 0.
  Proof.
    intros H. unfold tv. rewrite (sum_ext _ (fun _ => 0)); [rewrite sum_zero; lra|].
    intros x Hx. rewrite (H x Hx), Rminus_diag_eq, Rabs_R0; reflexivity.
  Qed.

  Lemma overlap_tv p q : dist p voc -> dist q voc -> overlap p q voc = 1 - tv p q voc.
  Proof.
    intros [_ Hp] [_ Hq]. unfold overlap, tv.
    rewrite (sum_ext _ (fun x => (1/2) * p x + ((1/2) * q x + (-1/2) * Rabs (p x - q x)))).
    - rewrite !sum_plus, !sum_scal, Hp, Hq. lra.
    - intros x _. unfold Rmin, Rabs. destruct (Rle_dec (p x) (q x)); destruct (Rcase_abs (p x - q x)); lra.
  Qed.

  Lemma tv_le_1 p q : dist p voc -> dist q voc -> tv p q voc <= 1.
  Proof.
    intros Hp Hq. pose proof (overlap_tv p q Hp Hq) as E.
    assert (0 <= overlap p q voc); [|lra]. apply sum_nonneg. intros x Hx. apply Rmin_glb; [now apply Hp | now apply Hq].
  Qed.

  Lemma bc_sym p q : bc p q voc = bc q p voc.
  Proof. unfold bc. apply sum_ext. intros; now rewrite Rmult_comm. Qed.

  Lemma bc_nonneg p q : 0 <= bc p q voc.
  Proof. apply sum_nonneg. intros; apply sqrt_pos. Qed.

  Lemma bc_same p q : dist p voc -> (forall x, In x voc -> p x = q x) -> bc p q voc = 1.
  Proof.
    intros [H0 H1] E. unfold bc. rewrite <- H1. apply sum_ext. intros x Hx. rewrite <- (E x Hx). now apply sqrt_square, H0.
  Qed.

  (* tv_of_bc, upper half: TV^2 <= 1 - BC^2. *)
  Lemma tv_bc_sq p q : dist p voc -> dist q voc -> tv p q voc * tv p q voc <= 1 - bc p q voc * bc p q voc.
  Proof.
    intros [Hp Sp] [Hq Sq].
    pose proof (sum_cs_prod (fun x => Rabs (p x - q x))
      (fun x => (p x + q x) + (-2) * sqrt (p x * q x)) (fun x => (p x + q x) + 2 * sqrt (p x * q x)) voc) as C.
    rewrite !sum_plus, !sum_scal, Sp, Sq in C. fold (bc p q voc) in C. unfold tv.
    cut (sum (fun x => Rabs (p x - q x)) voc * sum (fun x => Rabs (p x - q x)) voc
         <= (1 + 1 + -2 * bc p q voc) * (1 + 1 + 2 * bc p q voc)); [lra|]. apply C.
    intros x Hx. specialize (Hp x Hx); specialize (Hq x Hx). rewrite sqrt_mult by assumption.
    pose proof (sqrt_sqrt _ Hp) as Ep. pose proof (sqrt_sqrt _ Hq) as Eq.
    set (u := sqrt (p x)) in *; set (v := sqrt (q x)) in *.
    pose proof (Rle_0_sqr (u - v)) as h1. pose proof (Rle_0_sqr (u + v)) as h2. unfold Rsqr in *.
    repeat split; [lra | lra |].
    rewrite <- Rabs_mult, Rabs_pos_eq by apply Rle_0_sqr. rewrite <- Ep, <- Eq. right; ring.
  Qed.

  Theorem tv_of_bc p q : dist p voc -> dist q voc -> tv p q voc <= sqrt (1 - bc p q voc * bc p q voc).
  Proof. intros Hp Hq. apply sq_le_sqrt. now apply tv_bc_sq. Qed.

  (* tv_of_bc, lower half. *)
  Theorem tv_lower_bc p q : dist p voc -> dist q voc -> 1 - bc p q voc <= tv p q voc.
  Proof.
    intros Hp Hq. pose proof (overlap_tv p q Hp Hq) as E.
    assert (overlap p q voc <= bc p q voc); [|lra]. apply sum_le. intros x Hx.
    apply sq_le_sqrt. apply Rmult_le_compat; try apply Rmin_l; try apply Rmin_r;
      apply Rmin_glb; (now apply Hp || now apply Hq).
  Qed.

  Lemma bc_le_1 p q : dist p voc -> dist q voc -> bc p q voc <= 1.
  Proof.
    intros Hp Hq. pose proof (tv_bc_sq p q Hp Hq) as h. pose proof (Rle_0_sqr (tv p q voc)) as k. unfold Rsqr in k.
    apply sq_le_le; lra.
  Qed.

  Lemma pinsker_pointwise a b : 0 <= a -> 0 < b ->
    3 * ((a - b) * (a - b)) <= (2 * a + 4 * b) * (a * ln (a / b) - a + b).
  Proof.
    intros [Ha|<-] Hb; [|nra].
    pose proof (ln_pade (a / b) (Rdiv_lt_0_compat _ _ Ha Hb)) as L.
    replace ((a / b - 1) * (5 * (a / b) + 1) / (2 * (a / b) * (a / b + 2)))
      with (((a - b) * (5 * a + b)) * / (2 * a * (a + 2 * b))) in L by (field; repeat split; lra).
    assert (HD : 0 < a * (2 * a + 4 * b)) by (apply Rmult_lt_0_compat; lra).
    apply (Rmult_le_compat_l (a * (2 * a + 4 * b))) in L; [|lra].
    replace (a * (2 * a + 4 * b) * ((a - b) * (5 * a + b) * / (2 * a * (a + 2 * b))))
      with ((a - b) * (5 * a + b)) in L by (field; lra). lra.
  Qed.

  (* kl_lower_tv: KL >= 2 TV^2. *)
  Theorem kl_lower_tv p q : dist p voc -> dist q voc -> dominated p q voc ->
    2 * (tv p q voc * tv p q voc) <= kl p q voc.
  Proof.
    intros [Hp Sp] [Hq Sq] Hd.
    pose proof (sum_cs_prod (fun x => Rabs (p x - q x))
      (fun x => 2 / 3 * p x + 4 / 3 * q x) (fun x => p x * ln (p x / q x) + (-1 * p x + q x)) voc) as C.
    rewrite !sum_plus, !sum_scal, Sp, Sq in C. fold (kl p q voc) in C. unfold tv.
    cut (sum (fun x => Rabs (p x - q x)) voc * sum (fun x => Rabs (p x - q x)) voc
         <= (2 / 3 * 1 + 4 / 3 * 1) * (kl p q voc + (-1 * 1 + 1))); [lra|]. apply C. clear C.
    intros x Hx. specialize (Hp x Hx); specialize (Hq x Hx); specialize (Hd x Hx).
    rewrite <- Rabs_mult, Rabs_pos_eq by apply Rle_0_sqr.
    destruct Hq as [Hq|Hq].
    - pose proof (pinsker_pointwise (p x) (q x) Hp Hq) as L. repeat split; [lra | | lra].
      pose proof (Rle_0_sqr (p x - q x)) as k. unfold Rsqr in k.
      apply Rmult_le_reg_l with (2 * p x + 4 * q x); [lra|]. rewrite Rmult_0_r. lra.
    - destruct Hp as [Hp|Hp]; [specialize (Hd Hp); lra|]. rewrite <- Hp, <- Hq. repeat split; lra.
  Qed.

  Theorem pinsker p q : dist p voc -> dist q voc -> dominated p q voc -> tv p q voc <= sqrt (kl p q voc / 2).
  Proof. intros Hp Hq Hd. apply sq_le_sqrt. pose proof (kl_lower_tv p q Hp Hq Hd). lra. Qed.

  Lemma kl_nonneg p q : dist p voc -> dist q voc -> dominated p q voc -> 0 <= kl p q voc.
  Proof.
    intros Hp Hq Hd. pose proof (kl_lower_tv p q Hp Hq Hd). pose proof (Rle_0_sqr (tv p q voc)) as h. unfold Rsqr in h. lra.
  Qed.

  (* BC >= exp(-KL/2), by Jensen's inequality in tangent form. *)
  Lemma bc_of_kl p q : dist p voc -> dist q voc -> dominated p q voc -> exp (- (kl p q voc / 2)) <= bc p q voc.
  Proof.
    intros [Hp Sp] [Hq Sq] Hd. set (m := - (kl p q voc / 2)).
    assert (E : exp m = sum (fun x => exp m * ((1 - m) * p x + -1 / 2 * (p x * ln (p x / q x)))) voc).
    { rewrite sum_scal, sum_plus, !sum_scal, Sp. fold (kl p q voc).
      replace (kl p q voc) with (-2 * m) by (unfold m; lra). lra. }
    rewrite E. apply sum_le. intros x Hx. destruct (Hp x Hx) as [h|h].
    - specialize (Hd x Hx h). set (y := -1 / 2 * ln (p x / q x)).
      assert (R : sqrt (p x * q x) = p x * exp y).
      { replace (p x * q x) with (exp (ln (p x) + ln (q x))) by (rewrite exp_plus, !exp_ln; lra).
        rewrite sqrt_exp. unfold y. rewrite ln_div by assumption. rewrite <- (exp_ln (p x)) at 2 by exact h.
        rewrite <- exp_plus. f_equal. lra. }
      rewrite R. pose proof (exp_ge (y - m)) as T.
      replace (exp y) with (exp m * exp (y - m)) by (rewrite <- exp_plus; f_equal; lra).
      pose proof (Rmult_lt_0_compat _ _ (exp_pos m) h) as pos.
      replace (p x * (exp m * exp (y - m))) with (exp m * p x * exp (y - m)) by ring.
      replace (exp m * ((1 - m) * p x + -1 / 2 * (p x * ln (p x / q x)))) with (exp m * p x * (1 + (y - m))) by (unfold y; ring).
      apply Rmult_le_compat_l; lra.
    - rewrite <- h. replace (0 * q x) with 0 by ring. rewrite sqrt_0. right; ring.
  Qed.

  Theorem bretagnolle_huber p q : dist p voc -> dist q voc -> dominated p q voc ->
    tv p q voc <= sqrt (1 - exp (- kl p q voc)).
  Proof.
    intros Hp Hq Hd. apply sq_le_sqrt. pose proof (tv_bc_sq p q Hp Hq) as h. pose proof (bc_of_kl p q Hp Hq Hd) as k.
    replace (- kl p q voc) with (- (kl p q voc / 2) + - (kl p q voc / 2)) by lra. rewrite exp_plus.
    pose proof (exp_pos (- (kl p q voc / 2))) as e.
    assert (exp (- (kl p q voc / 2)) * exp (- (kl p q voc / 2)) <= bc p q voc * bc p q voc) by (apply Rmult_le_compat; lra).
    lra.
  Qed.
End Divergence.
