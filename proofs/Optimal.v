(* The optimal sequence bound: any family psi that dominates one step of the recursion bounds TV_H by psi H 1.
   psi n w is the value of n further steps when the candidate's mass is w times the reference's. *)
From Coq Require Import Reals Lra Psatz List Arith.
From KC Require Import Sums Divergence Span Seq.
Import ListNotations.
Open Scope R_scope.

Section Optimal.
  Context {A : Type}.
  Variables (voc : list A) (s : R) (psi : nat -> R -> R).
  Hypothesis Hs : 0 < s.
  Hypothesis psi_0 : forall w, 0 < w -> Rabs (1 - w) / 2 <= psi 0 w.
  Hypothesis psi_convex : forall n x w y, 0 < x -> x <= w <= y -> (y - x) * psi n w <= (y - w) * psi n x + (w - x) * psi n y.
  (* One token with two outcomes, of ratios c and c exp s. *)
  Hypothesis psi_step : forall n w c, 0 < w -> exp (- s) <= c <= 1 ->
    (c * exp s - 1) * psi n (w * c) + (1 - c) * psi n (w * (c * exp s)) <= c * (exp s - 1) * psi (S n) w.

  Let F n a b := a * psi n (b / a).
  Let paired a b := (0 < a /\ 0 < b) \/ (a = 0 /\ b = 0).

  Lemma exp_gt_1 : 1 < exp s.  Proof. rewrite <- exp_0. now apply exp_increasing. Qed.

  Lemma optimal_token p q h n a b : policy voc p -> policy voc q -> within voc s p q h -> paired a b ->
    sum (fun x => F n (a * p h x) (b * q h x)) voc <= F (S n) a b.
  Proof.
    intros Hp Hq Hw Hab. pose proof exp_gt_1 as E1. destruct Hab as [[ha hb]|[-> ->]].
    2:{ rewrite (sum_ext _ (fun _ => 0)) by (intros; unfold F; ring). rewrite sum_zero. unfold F. lra. }
    destruct (Hp h) as [p0 p1]. destruct (Hq h) as [q0 q1]. assert (w0 : 0 < b / a) by now apply Rdiv_lt_0_compat.
    destruct Hw as [E|(Pp & Pq & Sp)].
    - rewrite (sum_ext _ (fun x => F n a b * p h x)).
      + rewrite sum_scal, p1. unfold F. rewrite Rmult_1_r. apply Rmult_le_compat_l; [lra|].
        pose proof (psi_step n (b / a) 1 w0) as st. rewrite !Rmult_1_l, !Rmult_1_r in st.
        assert (exp (- s) <= 1) by (rewrite <- exp_0; apply exp_mono; lra). specialize (st ltac:(lra)).
        apply Rmult_le_reg_l with (exp s - 1); lra.
      + intros x Hx. rewrite <- (E x Hx). unfold F. destruct (p0 x Hx) as [h0|h0].
        * replace (b * p h x / (a * p h x)) with (b / a) by (field; lra). ring.
        * rewrite <- h0. ring.
    - destruct (span_ratio voc (p h) (q h) s (Hp h) Pp Pq Sp) as (c & c0 & Hc).
      pose proof (ratio_range voc (p h) (q h) c (exp s * c) (Hp h) (Hq h) Hc) as [c1 c2].
      assert (c3 : exp (- s) <= c) by (pose proof (exp_inv_r s); pose proof (exp_pos (- s)); nra).
      assert (K : 0 < c * (exp s - 1)) by (apply Rmult_lt_0_compat; lra).
      apply Rmult_le_reg_l with (c * (exp s - 1)); [exact K|]. rewrite <- sum_scal. set (w := b / a) in *.
      apply Rle_trans with (sum (fun x => (a * (c * exp s) * psi n (w * c) - a * c * psi n (w * (c * exp s))) * p h x
                                          + (a * psi n (w * (c * exp s)) - a * psi n (w * c)) * q h x) voc).
      + apply sum_le. intros x Hx. specialize (Pp x Hx). specialize (Pq x Hx). specialize (Hc x Hx). unfold F.
        set (v := b * q h x / (a * p h x)).
        assert (Ev : v = w * (q h x / p h x)) by (unfold v, w; field; lra).
        assert (B : c <= q h x / p h x <= c * exp s) by
          (split; apply Rmult_le_reg_r with (p h x); try exact Pp; unfold Rdiv; rewrite Rmult_assoc, Rinv_l; lra).
        assert (C : w * c <= v <= w * (c * exp s)) by (rewrite Ev; split; apply Rmult_le_compat_l; lra).
        pose proof (psi_convex n (w * c) v (w * (c * exp s)) (Rmult_lt_0_compat _ _ w0 c0) C) as cv.
        apply (Rmult_le_compat_l (a * p h x * / w)) in cv;
          [|apply Rmult_le_pos; [apply Rmult_le_pos; lra | left; now apply Rinv_0_lt_compat]].
        rewrite Ev in cv at 2 3. clearbody w v.
        replace (a * p h x * / w * ((w * (c * exp s) - w * c) * psi n v)) with (c * (exp s - 1) * (a * p h x * psi n v)) in cv by (field; lra).
        replace (a * p h x * / w * ((w * (c * exp s) - w * (q h x / p h x)) * psi n (w * c) + (w * (q h x / p h x) - w * c) * psi n (w * (c * exp s))))
          with ((a * (c * exp s) * psi n (w * c) - a * c * psi n (w * (c * exp s))) * p h x + (a * psi n (w * (c * exp s)) - a * psi n (w * c)) * q h x)
          in cv by (field; lra).
        exact cv.
      + rewrite sum_plus, !sum_scal, p1, q1. unfold F. fold w. pose proof (psi_step n w c w0 ltac:(lra)) as st.
        apply (Rmult_le_compat_l a) in st; lra.
  Qed.

  Lemma law_paired p q n : policy voc p -> policy voc q -> (forall h, context voc n h -> within voc s p q h) ->
    forall h, In h (seqs voc n) -> paired (law p h) (law q h).
  Proof.
    intros Hp Hq. induction n as [|n IH]; intros Hw h Hh.
    - destruct Hh as [<-|[]]. left. simpl. lra.
    - simpl in Hh. apply in_flat_map in Hh. destruct Hh as (t & Ht & Hh). apply in_map_iff in Hh. destruct Hh as (x & <- & Hx).
      simpl. destruct (IH (fun y Hy => Hw y (context_S voc n y Hy)) t Ht) as [[lp lq]|[-> ->]]; [|right; split; ring].
      destruct (Hw t (context_last voc n t Ht)) as [E|(Pp & Pq & _)].
      + rewrite <- (E x Hx). destruct (proj1 (Hp t) x Hx) as [h0|h0]; [left | right; rewrite <- h0; split; ring].
        split; now apply Rmult_lt_0_compat.
      + left. split; apply Rmult_lt_0_compat; try assumption; [now apply Pp | now apply Pq].
  Qed.

  Theorem seq_tv_optimal p q H : policy voc p -> policy voc q -> (forall h, context voc H h -> within voc s p q h) ->
    tv (law p) (law q) (seqs voc H) <= psi H 1.
  Proof.
    intros Hp Hq.
    assert (R : forall n k, (forall h, context voc n h -> within voc s p q h) ->
      sum (fun y => F k (law p y) (law q y)) (seqs voc n) <= F (n + k) 1 1).
    { induction n as [|n IH]; intros k Hw; [simpl; lra|]. rewrite sum_seqs.
      assert (Hw' : forall h, context voc n h -> within voc s p q h) by (intros h Hh; apply Hw, context_S, Hh).
      apply Rle_trans with (sum (fun y => F (S k) (law p y) (law q y)) (seqs voc n)).
      - apply sum_le. intros h Hh. simpl. apply optimal_token; try assumption; [now apply Hw, context_last | now apply (law_paired p q n)].
      - replace (S n + k)%nat with (n + S k)%nat by lia. now apply IH. }
    intros Hw. specialize (R H O Hw). rewrite Nat.add_0_r in R. unfold F in R at 2. replace (1 / 1) with 1 in R by field. rewrite Rmult_1_l in R.
    eapply Rle_trans; [|exact R]. unfold tv, Rdiv. rewrite Rmult_comm, <- sum_scal. apply sum_le. intros y Hy. unfold F.
    destruct (law_paired p q H Hp Hq Hw y Hy) as [[lp lq]|[-> ->]]; [|rewrite Rminus_0_r, Rabs_R0; lra].
    pose proof (psi_0 (law q y / law p y) (Rdiv_lt_0_compat _ _ lq lp)) as z. apply (Rmult_le_compat_l (law p y)) in z; [|lra].
    replace (law p y * (Rabs (1 - law q y / law p y) / 2)) with (/ 2 * Rabs (law p y - law q y)) in z; [exact z|].
    replace (law p y - law q y) with (law p y * (1 - law q y / law p y)) by (field; lra). rewrite Rabs_mult, (Rabs_pos_eq (law p y)) by lra. field; lra.
  Qed.
End Optimal.

(* ---- the closed form: affinity for the first H - 1 tokens, the exact optimum for the last ---- *)
Section Closed.
  Context {A : Type}.
  Variables (voc : list A) (s : R).
  Hypothesis Hs : 0 < s.

  Lemma closed_numbers k al be : 1 < k -> 0 <= al -> 0 <= be ->
    (k * k - 1) * Rabs (al * al - be * be) <= (k * k + 1) * (al * al + be * be) - 4 * k * (al * be).
  Proof.
    intros Hk Ha Hb. pose proof (Rle_0_sqr (al - k * be)) as h1. pose proof (Rle_0_sqr (k * al - be)) as h2. unfold Rsqr in *.
    unfold Rabs. destruct (Rcase_abs _); lra.
  Qed.

  (* One token, the two sides weighted by al^2 and be^2; k = exp(s/2). *)
  Lemma closed_token p q h al be : policy voc p -> policy voc q -> within voc s p q h -> 0 <= al -> 0 <= be ->
    sum (fun x => Rabs (al * al * p h x - be * be * q h x)) voc
    <= cosh (s / 2) / sinh (s / 2) * (al * al + be * be) - 2 * (al * be) / sinh (s / 2).
  Proof.
    intros Hp Hq Hw Ha Hb. set (k := exp (s / 2)). assert (k1 : 1 < k) by (unfold k; rewrite <- exp_0; apply exp_increasing; lra).
    assert (Ek : exp s = k * k) by (symmetry; apply exp_half).
    assert (Ei : exp (- (s / 2)) = / k) by (unfold k; apply exp_Ropp). assert (kk : 0 < k * k - 1) by nra.
    replace (cosh (s / 2) / sinh (s / 2) * (al * al + be * be) - 2 * (al * be) / sinh (s / 2))
      with (((k * k + 1) * (al * al + be * be) - 4 * k * (al * be)) / (k * k - 1))
      by (unfold cosh, sinh; fold k; rewrite Ei; field; repeat split; nra).
    apply Rmult_le_reg_l with (k * k - 1); [exact kk|].
    replace ((k * k - 1) * (((k * k + 1) * (al * al + be * be) - 4 * k * (al * be)) / (k * k - 1)))
      with ((k * k + 1) * (al * al + be * be) - 4 * k * (al * be)) by (field; lra).
    destruct (Hp h) as [p0 p1]. destruct (Hq h) as [q0 q1]. destruct Hw as [E|(Pp & Pq & Sp)].
    - rewrite (sum_ext _ (fun x => Rabs (al * al - be * be) * p h x)); [rewrite sum_scal, p1, Rmult_1_r; now apply closed_numbers|].
      intros x Hx. rewrite <- (E x Hx), <- Rmult_minus_distr_r, Rabs_mult, (Rabs_pos_eq (p h x)) by now apply p0. reflexivity.
    - destruct (span_ratio voc (p h) (q h) s (Hp h) Pp Pq Sp) as (c & c0 & Hc).
      pose proof (ratio_range voc (p h) (q h) c (exp s * c) (Hp h) (Hq h) Hc) as [c1 c2]. rewrite Ek in *.
      apply Rmult_le_reg_l with c; [exact c0|]. rewrite <- Rmult_assoc, <- sum_scal.
      set (lo := Rabs (al * al - be * be * c)). set (hi := Rabs (al * al - be * be * (k * k * c))).
      apply Rle_trans with (sum (fun x => (k * k * c * lo - c * hi) * p h x + (hi - lo) * q h x) voc).
      + apply sum_le. intros x Hx. specialize (Hc x Hx).
        rewrite <- (Rabs_pos_eq (c * (k * k - 1))) at 1 by (apply Rmult_le_pos; lra). rewrite <- Rabs_mult.
        replace (c * (k * k - 1) * (al * al * p h x - be * be * q h x))
          with ((k * k * c * p h x - q h x) * (al * al - be * be * c) + (q h x - c * p h x) * (al * al - be * be * (k * k * c))) by ring.
        eapply Rle_trans; [apply Rabs_triang|]. rewrite !Rabs_mult. fold lo hi.
        rewrite (Rabs_pos_eq (k * k * c * p h x - q h x)), (Rabs_pos_eq (q h x - c * p h x)) by lra. lra.
      + rewrite sum_plus, !sum_scal, p1, q1. pose proof (closed_numbers k al be k1 Ha Hb) as N.
        apply (Rmult_le_compat_l c) in N; [|lra]. pose proof (Rle_0_sqr (al - c * k * be)) as h3. unfold Rsqr in h3.
        assert (mono : be * be * c <= be * be * (k * k * c)) by (apply Rmult_le_compat_l; [apply Rle_0_sqr | lra]).
        unfold lo, hi. unfold Rabs in *. destruct (Rcase_abs (al * al - be * be * c)); destruct (Rcase_abs (al * al - be * be * (k * k * c)));
          destruct (Rcase_abs (al * al - be * be)); nra.
  Qed.

  (* seq_tv_closed: TV_H <= coth(s/2) - sech(s/4)^(H-1) / sinh(s/2), with H = n + 1. *)
  Theorem seq_tv_closed p q n : policy voc p -> policy voc q -> (forall h, context voc (S n) h -> within voc s p q h) ->
    tv (law p) (law q) (seqs voc (S n)) <= cosh (s / 2) / sinh (s / 2) - (/ cosh (s / 4)) ^ n / sinh (s / 2).
  Proof.
    intros Hp Hq Hw. assert (S0 : 0 < sinh (s / 2)).
    { unfold sinh. assert (exp (- (s / 2)) < exp (s / 2)) by (apply exp_increasing; lra). lra. }
    assert (B0 : 0 < / cosh (s / 4)) by apply Rinv_0_lt_compat, cosh_pos.
    assert (K : (/ cosh (s / 4)) ^ n <= bc (law p) (law q) (seqs voc n)).
    { apply seq_bc_product; try assumption; [lra|]. intros h Hh. apply bc_within; try assumption. now apply Hw, context_S. }
    destruct (law_dist voc p n Hp) as [lp0 lp1]. destruct (law_dist voc q n Hq) as [lq0 lq1].
    unfold tv. rewrite sum_seqs.
    apply Rle_trans with (sum (fun y => cosh (s / 2) / sinh (s / 2) * (law p y + law q y) + - (2 / sinh (s / 2)) * sqrt (law p y * law q y)) (seqs voc n) / 2).
    - unfold Rdiv at 1 3. apply Rmult_le_compat_r; [lra|]. apply sum_le. intros y Hy. specialize (lp0 y Hy). specialize (lq0 y Hy).
      pose proof (closed_token p q y (sqrt (law p y)) (sqrt (law q y)) Hp Hq (Hw y (context_last voc n y Hy)) (sqrt_pos _) (sqrt_pos _)) as c.
      rewrite !sqrt_sqrt in c by assumption. rewrite <- sqrt_mult in c by assumption.
      eapply Rle_trans; [exact c|]. right. field. lra.
    - rewrite sum_plus, !sum_scal, sum_plus, lp1, lq1. fold (bc (law p) (law q) (seqs voc n)).
      apply Rle_trans with (cosh (s / 2) / sinh (s / 2) - bc (law p) (law q) (seqs voc n) / sinh (s / 2)); [right; field; lra|].
      unfold Rdiv. assert ((/ cosh (s / 4)) ^ n * / sinh (s / 2) <= bc (law p) (law q) (seqs voc n) * / sinh (s / 2)); [|lra].
      apply Rmult_le_compat_r; [left; now apply Rinv_0_lt_compat | exact K].
  Qed.
End Closed.
