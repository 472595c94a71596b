(* From total variation to what training sees: rewards, exceedance rates, policy gradients. *)
From Coq Require Import Reals Lra Psatz List.
From KC Require Import Sums Divergence Seq.
Import ListNotations.
Open Scope R_scope.

(* ---- reward ---- *)
(* Rewards between lo and hi: the mean moves by at most (hi - lo) TV. *)
Theorem reward_of_tv {A} (p q r : A -> R) voc lo hi : dist p voc -> dist q voc ->
  (forall x, In x voc -> lo <= r x <= hi) -> Rabs (mean p r voc - mean q r voc) <= (hi - lo) * tv p q voc.
Proof.
  intros [_ Hp] [_ Hq] Hr. set (c := (lo + hi) / 2). unfold mean, tv.
  replace (sum (fun x => p x * r x) voc - sum (fun x => q x * r x) voc) with (sum (fun x => (p x - q x) * (r x - c)) voc).
  2:{ rewrite (sum_ext (fun x => (p x - q x) * (r x - c)) (fun x => p x * r x + (-1 * (q x * r x) + (- c * p x + c * q x)))) by (intros; ring).
      rewrite !sum_plus, !sum_scal, Hp, Hq. lra. }
  eapply Rle_trans; [apply sum_abs|].
  replace ((hi - lo) * (sum (fun x => Rabs (p x - q x)) voc / 2)) with (sum (fun x => (hi - lo) / 2 * Rabs (p x - q x)) voc) by (rewrite sum_scal; lra).
  apply sum_le; intros x Hx. specialize (Hr x Hx). rewrite Rabs_mult, Rmult_comm. apply Rmult_le_compat_r; [apply Rabs_pos|].
  unfold c, Rabs; destruct (Rcase_abs (r x - (lo + hi) / 2)); lra.
Qed.

(* Hammersley-Chapman-Robbins: the mean moves by at most sqrt(Var_q(r) chi2(p||q)); m is the mean under q. *)
Theorem reward_of_chi2 {A} (p q r : A -> R) voc m : dist p voc -> dist q voc -> (forall x, In x voc -> 0 < q x) ->
  m = mean q r voc ->
  Rabs (mean p r voc - m) <= sqrt (mean q (fun x => (r x - m) * (r x - m)) voc * chi2 p q voc).
Proof.
  intros [_ Hp] [_ Hq] Pq Hm. apply sq_le_sqrt. rewrite <- Rabs_mult, Rabs_pos_eq by apply Rle_0_sqr.
  assert (E : mean p r voc - m = sum (fun x => (p x - q x) * (r x - m)) voc).
  { rewrite (sum_ext (fun x => (p x - q x) * (r x - m)) (fun x => p x * r x + (-1 * (q x * r x) + (- m * p x + m * q x)))) by (intros; ring).
    rewrite !sum_plus, !sum_scal, Hp, Hq. fold (mean p r voc) (mean q r voc). rewrite <- Hm. lra. }
  rewrite E. unfold mean, chi2. apply sum_cs_prod. intros x Hx. specialize (Pq x Hx).
  pose proof (Rle_0_sqr (r x - m)) as h1. pose proof (Rle_0_sqr (p x - q x)) as h2. unfold Rsqr in *. repeat split.
  - apply Rmult_le_pos; lra.
  - apply Rmult_le_pos; [exact h2 | left; now apply Rinv_0_lt_compat].
  - right. field. lra.
Qed.

(* ---- averages over contexts, weighted by mu ---- *)
Theorem exceedance_mix {A} (mu x : A -> R) (f : R -> R) ctx tau rho fmax : dist mu ctx ->
  (forall u v, u <= v -> f u <= f v) -> (forall c, In c ctx -> f (x c) <= fmax) -> f tau <= fmax ->
  mean mu (fun c => if Rle_dec (x c) tau then 0 else 1) ctx <= rho ->
  mean mu (fun c => f (x c)) ctx <= (1 - rho) * f tau + rho * fmax.
Proof.
  intros [H0 H1] Hf Hmax Ht Hr. set (e := mean mu (fun c => if Rle_dec (x c) tau then 0 else 1) ctx) in *.
  apply Rle_trans with (f tau + (fmax - f tau) * e).
  - unfold e, mean. rewrite <- sum_scal. replace (f tau) with (f tau * sum mu ctx) at 1 by (rewrite H1; ring).
    rewrite <- sum_scal, <- sum_plus. apply sum_le. intros c Hc. specialize (H0 c Hc). specialize (Hmax c Hc).
    destruct (Rle_dec (x c) tau) as [h|h]; [specialize (Hf _ _ h)|]; nra.
  - assert ((fmax - f tau) * e <= (fmax - f tau) * rho) by (apply Rmult_le_compat_l; lra). lra.
Qed.

Theorem mean_tv_of_mean_kl {A B} (mu : B -> R) ctx (p q : B -> A -> R) voc : dist mu ctx ->
  (forall c, In c ctx -> dist (p c) voc /\ dist (q c) voc /\ dominated (p c) (q c) voc) ->
  mean mu (fun c => tv (p c) (q c) voc) ctx <= sqrt (mean mu (fun c => kl (p c) (q c) voc) ctx / 2).
Proof.
  intros [H0 H1] H. apply sq_le_sqrt.
  replace (mean mu (fun c => kl (p c) (q c) voc) ctx / 2) with (sum mu ctx * sum (fun c => mu c * (kl (p c) (q c) voc / 2)) ctx).
  - apply sum_cs_prod. intros c Hc. destruct (H c Hc) as (hp & hq & hd). specialize (H0 c Hc).
    pose proof (kl_lower_tv voc _ _ hp hq hd) as k. pose proof (Rle_0_sqr (tv (p c) (q c) voc)) as s. unfold Rsqr in s.
    repeat split; [exact H0 | apply Rmult_le_pos; lra |].
    replace (mu c * tv (p c) (q c) voc * (mu c * tv (p c) (q c) voc)) with (mu c * mu c * (tv (p c) (q c) voc * tv (p c) (q c) voc)) by ring.
    replace (mu c * (mu c * (kl (p c) (q c) voc / 2))) with (mu c * mu c * (kl (p c) (q c) voc / 2)) by ring.
    apply Rmult_le_compat_l; [now apply Rmult_le_pos | lra].
  - rewrite H1. unfold mean. rewrite (sum_ext (fun c => mu c * (kl (p c) (q c) voc / 2)) (fun c => / 2 * (mu c * kl (p c) (q c) voc))) by (intros; field).
    rewrite sum_scal. field.
Qed.

(* ---- policy gradient: vectors with coordinates in a finite list ---- *)
Section Gradient.
  Context {D : Type}.
  Variable coords : list D.
  Definition norm (v : D -> R) := sqrt (sum (fun k => v k * v k) coords).

  Lemma norm_sq v : norm v * norm v = sum (fun k => v k * v k) coords.
  Proof. apply sqrt_sqrt. apply sum_nonneg. intros; apply Rle_0_sqr. Qed.

  Lemma norm_nonneg v : 0 <= norm v.  Proof. apply sqrt_pos. Qed.

  Lemma norm_ext v w : (forall k, In k coords -> v k = w k) -> norm v = norm w.
  Proof. intros H. unfold norm. f_equal. apply sum_ext. intros k Hk. now rewrite H. Qed.

  Lemma inner_le v w : sum (fun k => v k * w k) coords <= norm v * norm w.
  Proof.
    apply sq_le_le; [apply Rmult_le_pos; apply norm_nonneg|].
    replace (norm v * norm w * (norm v * norm w)) with ((norm v * norm v) * (norm w * norm w)) by ring.
    rewrite !norm_sq. apply sum_cs.
  Qed.

  Lemma norm_scal c v : norm (fun k => c * v k) = Rabs c * norm v.
  Proof.
    unfold norm. rewrite (sum_ext _ (fun k => Rsqr c * (v k * v k))) by (intros; unfold Rsqr; ring).
    rewrite sum_scal, sqrt_mult, sqrt_Rsqr_abs; [reflexivity | apply Rle_0_sqr |].
    apply sum_nonneg. intros; apply Rle_0_sqr.
  Qed.

  Lemma norm_sum {A} (v : A -> D -> R) l : norm (fun k => sum (fun x => v x k) l) <= sum (fun x => norm (v x)) l.
  Proof.
    set (d := fun k => sum (fun x => v x k) l).
    assert (H : norm d * norm d <= norm d * sum (fun x => norm (v x)) l).
    { rewrite norm_sq. rewrite (sum_ext (fun k => d k * d k) (fun k => sum (fun x => v x k * d k) l)).
      - rewrite sum_swap, <- sum_scal. apply sum_le. intros x _. rewrite Rmult_comm. apply inner_le.
      - intros k _. unfold d at 1. rewrite Rmult_comm, <- sum_scal. apply sum_ext. intros; ring. }
    destruct (norm_nonneg d) as [h|h].
    - now apply Rmult_le_reg_l with (norm d).
    - rewrite <- h. apply sum_nonneg. intros; apply norm_nonneg.
  Qed.

  Section Bias.
    Context {A : Type}.
    Variables (p q : A -> R) (voc : list A) (adv : A -> R) (score : A -> D -> R) (Amax G : R).
    Hypothesis HA : forall x, In x voc -> Rabs (adv x) <= Amax.
    Hypothesis HG : forall x, In x voc -> norm (score x) <= G.

    Lemma weighted_norm (c : A -> R) :
      norm (fun k => sum (fun x => c x * (adv x * score x k)) voc) <= Amax * G * sum (fun x => Rabs (c x)) voc.
    Proof.
      eapply Rle_trans; [apply norm_sum|]. rewrite <- sum_scal. apply sum_le. intros x Hx.
      rewrite (norm_ext _ (fun k => (c x * adv x) * score x k)) by (intros; ring). rewrite norm_scal, Rabs_mult.
      pose proof (Rabs_pos (adv x)). pose proof (norm_nonneg (score x)). pose proof (HA x Hx). pose proof (HG x Hx). pose proof (Rabs_pos (c x)).
      replace (Rabs (c x) * Rabs (adv x) * norm (score x)) with ((Rabs (adv x) * norm (score x)) * Rabs (c x)) by ring.
      apply Rmult_le_compat_r; [assumption|]. apply Rmult_le_compat; assumption.
    Qed.

    (* || E_p[adv score] - E_q[adv score] || <= 2 Amax G TV. *)
    Theorem pg_bias_of_tv :
      norm (fun k => mean p (fun x => adv x * score x k) voc - mean q (fun x => adv x * score x k) voc) <= 2 * Amax * G * tv p q voc.
    Proof.
      rewrite (norm_ext _ (fun k => sum (fun x => (p x - q x) * (adv x * score x k)) voc)).
      - eapply Rle_trans; [apply weighted_norm|]. unfold tv. lra.
      - intros k _. unfold mean. rewrite <- sum_minus. apply sum_ext. intros; ring.
    Qed.

    (* The same bound for every direction u: the component of the bias along u. *)
    Corollary pg_bias_direction (u : D -> R) : norm u <= 1 ->
      sum (fun k => u k * (mean p (fun x => adv x * score x k) voc - mean q (fun x => adv x * score x k) voc)) coords <= 2 * Amax * G * tv p q voc.
    Proof.
      intros Hu. eapply Rle_trans; [apply inner_le|]. eapply Rle_trans; [|apply pg_bias_of_tv].
      pose proof (norm_nonneg (fun k => mean p (fun x => adv x * score x k) voc - mean q (fun x => adv x * score x k) voc)).
      rewrite <- (Rmult_1_l (norm (fun k => mean p _ voc - _))) at 2. now apply Rmult_le_compat_r.
    Qed.

    (* With w = p/q: bias <= Amax G (E_q|w - 1| + p(q = 0)). *)
    Theorem pg_bias_of_ratio : dist p voc -> dist q voc ->
      norm (fun k => mean p (fun x => adv x * score x k) voc - mean q (fun x => adv x * score x k) voc)
      <= Amax * G * (mean q (fun x => Rabs (p x / q x - 1)) voc + sum (fun x => if Req_EM_T (q x) 0 then p x else 0) voc).
    Proof.
      intros [Hp _] [Hq _]. rewrite (norm_ext _ (fun k => sum (fun x => (p x - q x) * (adv x * score x k)) voc)).
      - eapply Rle_trans; [apply weighted_norm|]. right. f_equal. unfold mean. rewrite <- sum_plus. apply sum_ext. intros x Hx.
        specialize (Hp x Hx). specialize (Hq x Hx). destruct (Req_EM_T (q x) 0) as [e|e].
        + rewrite e, Rminus_0_r, Rmult_0_l, Rplus_0_l. now apply Rabs_pos_eq.
        + rewrite Rplus_0_r. rewrite <- (Rabs_pos_eq (q x)) at 2 by exact Hq. rewrite <- Rabs_mult. f_equal. field. exact e.
      - intros k _. unfold mean. rewrite <- sum_minus. apply sum_ext. intros; ring.
    Qed.

    (* Truncated importance weights min(p/q, C): bias <= Amax G sum (p - C q)_+. *)
    Theorem tis_bias C : dist p voc -> dist q voc -> 0 <= C ->
      norm (fun k => mean p (fun x => adv x * score x k) voc - mean q (fun x => Rmin (p x / q x) C * (adv x * score x k)) voc)
      <= Amax * G * sum (fun x => Rmax 0 (p x - C * q x)) voc.
    Proof.
      intros [Hp _] [Hq _] HC. rewrite (norm_ext _ (fun k => sum (fun x => Rmax 0 (p x - C * q x) * (adv x * score x k)) voc)).
      - eapply Rle_trans; [apply weighted_norm|]. right. f_equal. apply sum_ext. intros. apply Rabs_pos_eq, Rmax_l.
      - intros k _. unfold mean. rewrite <- sum_minus. apply sum_ext. intros x Hx. specialize (Hp x Hx). destruct (Hq x Hx) as [h|h].
        + assert (E : q x * (p x / q x) = p x) by (field; lra). unfold Rmin, Rmax.
          destruct (Rle_dec (p x / q x) C) as [c|c]; destruct (Rle_dec 0 (p x - C * q x)) as [d|d].
          * apply (Rmult_le_compat_l (q x)) in c; [|lra]. replace (p x - C * q x) with 0 by lra.
            replace (q x * (p x / q x * (adv x * score x k))) with (q x * (p x / q x) * (adv x * score x k)) by ring. rewrite E. ring.
          * replace (q x * (p x / q x * (adv x * score x k))) with (q x * (p x / q x) * (adv x * score x k)) by ring. rewrite E. ring.
          * ring.
          * exfalso. apply Rnot_le_lt in c. apply (Rmult_lt_compat_l (q x)) in c; lra.
        + rewrite <- h, Rmult_0_r, Rminus_0_r, Rmax_right by exact Hp. ring.
    Qed.
  End Bias.

  (* Per-token sum. adv and score belong to a prefix: they may depend on the tokens up to and including t, not on
     later ones. For one advantage of the whole response this bound is false; use pg_bias_of_tv with G = H G1. *)
  Theorem pg_bias_token_sum {A} (voc : list A) (p q : list A -> A -> R) (adv : list A -> R) (score : list A -> D -> R) Amax G1 (times : list nat) :
    (forall t y, In t times -> In y (seqs voc t) -> Rabs (adv y) <= Amax /\ norm (score y) <= G1) ->
    norm (fun k => sum (fun t => mean (law p) (fun y => adv y * score y k) (seqs voc t) - mean (law q) (fun y => adv y * score y k) (seqs voc t)) times)
    <= 2 * Amax * G1 * sum (fun t => tv (law p) (law q) (seqs voc t)) times.
  Proof.
    intros H. eapply Rle_trans;
      [apply (norm_sum (fun t k => mean (law p) (fun y => adv y * score y k) (seqs voc t) - mean (law q) (fun y => adv y * score y k) (seqs voc t)))|].
    rewrite <- sum_scal. apply sum_le. intros t Ht. apply pg_bias_of_tv; intros y Hy; now apply (H t y Ht Hy).
  Qed.
End Gradient.

(* clip_share: kernel ratio within eta of 1 leaves this room to the policy update u under the clip eps. *)
Theorem clip_share w u eta eps : Rabs (w - 1) <= eta -> eta < 1 -> eta <= eps <= 1 ->
  1 - (eps - eta) / (1 - eta) <= u <= 1 + (eps - eta) / (1 + eta) -> 1 - eps <= w * u <= 1 + eps.
Proof.
  intros Hw H1 He [Hl Hu]. assert (E : 0 <= eta) by (pose proof (Rabs_pos (w - 1)); lra).
  assert (W : 1 - eta <= w <= 1 + eta) by (unfold Rabs in Hw; destruct (Rcase_abs (w - 1)); lra).
  replace (1 - (eps - eta) / (1 - eta)) with ((1 - eps) / (1 - eta)) in Hl by (field; lra).
  replace (1 + (eps - eta) / (1 + eta)) with ((1 + eps) / (1 + eta)) in Hu by (field; lra).
  assert (L0 : 0 <= (1 - eps) / (1 - eta)) by (apply Rmult_le_pos; [lra | left; apply Rinv_0_lt_compat; lra]). split.
  - replace (1 - eps) with ((1 - eta) * ((1 - eps) / (1 - eta))) by (field; lra). apply Rmult_le_compat; lra.
  - replace (1 + eps) with ((1 + eta) * ((1 + eps) / (1 + eta))) by (field; lra). apply Rmult_le_compat; lra.
Qed.
