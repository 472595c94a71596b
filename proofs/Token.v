(* More bounds for one token: log ratio, trimmed vocabulary, confident reference, averages, and a witness that
   the span bound is attained. *)
From Coq Require Import Reals Lra Psatz List.
From KC Require Import Sums Divergence Span.
Import ListNotations.
Open Scope R_scope.

Lemma tanh_le_1 x : tanh x <= 1.
Proof.
  rewrite tanh_form. pose proof (exp_pos (2 * x)). assert (0 < 2 / (exp (2 * x) + 1)) by (apply Rdiv_lt_0_compat; lra). lra.
Qed.

(* ---- |ln(q/p)| <= lam everywhere ---- *)
Section LogRatio.
  Context {A : Type}.
  Variables (voc : list A) (p q : A -> R) (lam : R).
  Hypothesis Hp : dist p voc.
  Hypothesis Hq : dist q voc.
  Hypothesis Pp : positive p voc.
  Hypothesis Hl : 0 < lam.
  Hypothesis Hw : forall x, In x voc -> exp (- lam) * p x <= q x <= exp lam * p x.

  Lemma positive_candidate : positive q voc.
  Proof. intros x Hx. pose proof (Rmult_lt_0_compat _ _ (exp_pos (- lam)) (Pp x Hx)). pose proof (proj1 (Hw x Hx)). lra. Qed.

  Lemma span_of_log_ratio : span_le (2 * lam) p q voc.
  Proof.
    intros x y Hx Hy. destruct (Hw x Hx) as [_ hx]. destruct (Hw y Hy) as [hy _].
    pose proof (Pp x Hx) as px. pose proof (Pp y Hy) as py. pose proof (exp_pos lam) as e.
    replace (exp (2 * lam)) with (exp lam * exp lam) by (rewrite <- exp_plus; f_equal; ring).
    apply (Rmult_le_compat_l (exp lam)) in hy; [|lra].
    replace (exp lam * (exp (- lam) * p y)) with (p y) in hy by (rewrite <- Rmult_assoc, exp_inv_r; ring).
    apply Rle_trans with (exp lam * p x * p y); [apply Rmult_le_compat_r; lra|].
    replace (exp lam * exp lam * (p x * q y)) with (exp lam * p x * (exp lam * q y)) by ring.
    apply Rmult_le_compat_l; [apply Rmult_le_pos; lra | exact hy].
  Qed.

  Theorem tv_of_log_ratio : tv p q voc <= tanh (lam / 2).
  Proof.
    replace (lam / 2) with (2 * lam / 4) by field.
    apply tv_of_span; [exact Hp | exact Hq | exact Pp | exact positive_candidate | exact span_of_log_ratio | lra].
  Qed.

  Theorem kl_of_log_ratio : kl p q voc <= lam * tanh (lam / 2).
  Proof.
    assert (E : exp (- lam) < exp lam) by (apply exp_increasing; lra).
    eapply Rle_trans; [apply (kl_of_ratio voc p q _ _ Hp Hq Pp (exp_pos (- lam)) Hw E)|].
    rewrite !ln_exp. unfold tanh, sinh, cosh.
    assert (X : exp lam = exp (lam / 2) * exp (lam / 2)) by (symmetry; apply exp_half).
    assert (Y : exp (- lam) = exp (- (lam / 2)) * exp (- (lam / 2))) by (rewrite <- exp_plus; f_equal; field).
    pose proof (exp_inv_r (lam / 2)) as I. pose proof (exp_pos (lam / 2)). pose proof (exp_pos (- (lam / 2))).
    rewrite X, Y in *. set (u := exp (lam / 2)) in *. set (v := exp (- (lam / 2))) in *.
    assert (uv : v < u) by nra. right.
    replace (- ((1 - v * v) * lam + (u * u - 1) * - lam)) with (lam * ((u - v) * (u - v))) by (rewrite <- I; ring).
    field. split; nra.
  Qed.
End LogRatio.

(* ---- span on a kept set, tail mass at most eta on both sides ---- *)
Theorem tv_of_trimmed_span {A} (kept rest : list A) (p q : A -> R) s eta : dist p (kept ++ rest) -> dist q (kept ++ rest) ->
  kept <> nil -> positive p kept -> positive q kept -> span_le s p q kept -> 0 <= s ->
  sum p rest <= eta -> sum q rest <= eta -> tv p q (kept ++ rest) <= (1 - eta) * tanh (s / 4) + eta.
Proof.
  intros Hp Hq Hk Pp Pq Hs H0 Ep Eq. pose proof (overlap_tv _ p q Hp Hq) as O. unfold overlap in O. rewrite sum_app in O.
  destruct Hp as [p0 p1]. destruct Hq as [q0 q1]. rewrite sum_app in p1, q1.
  set (a := sum p kept) in *. set (b := sum q kept) in *.
  assert (a0 : 0 < a) by now apply sum_pos. assert (b0 : 0 < b) by now apply sum_pos.
  assert (Rest : 0 <= sum (fun x => Rmin (p x) (q x)) rest).
  { apply sum_nonneg. intros x Hx. apply Rmin_glb; [apply p0 | apply q0]; apply in_or_app; now right. }
  assert (Da : dist (fun x => / a * p x) kept).
  { split; [intros x Hx; apply Rmult_le_pos; [left; now apply Rinv_0_lt_compat | left; now apply Pp]|]. rewrite sum_scal. fold a. field; lra. }
  assert (Db : dist (fun x => / b * q x) kept).
  { split; [intros x Hx; apply Rmult_le_pos; [left; now apply Rinv_0_lt_compat | left; now apply Pq]|]. rewrite sum_scal. fold b. field; lra. }
  assert (Ia : 0 < / a) by now apply Rinv_0_lt_compat. assert (Ib : 0 < / b) by now apply Rinv_0_lt_compat.
  assert (K : tv (fun x => / a * p x) (fun x => / b * q x) kept <= tanh (s / 4)).
  { apply tv_of_span; try assumption.
    - intros x Hx. apply Rmult_lt_0_compat; [exact Ia | now apply Pp].
    - intros x Hx. apply Rmult_lt_0_compat; [exact Ib | now apply Pq].
    - intros x y Hx Hy. specialize (Hs x y Hx Hy).
      replace (/ b * q x * (/ a * p y)) with (/ a * / b * (q x * p y)) by ring.
      replace (exp s * (/ a * p x * (/ b * q y))) with (/ a * / b * (exp s * (p x * q y))) by ring.
      apply Rmult_le_compat_l; [apply Rmult_le_pos; lra | exact Hs]. }
  pose proof (overlap_tv kept _ _ Da Db) as O2. unfold overlap in O2.
  assert (M : Rmin a b * sum (fun x => Rmin (/ a * p x) (/ b * q x)) kept <= sum (fun x => Rmin (p x) (q x)) kept).
  { rewrite <- sum_scal. apply sum_le. intros x Hx. pose proof (Pp x Hx) as px. pose proof (Pq x Hx) as qx.
    assert (N : 0 <= Rmin (/ a * p x) (/ b * q x)) by (apply Rmin_glb; apply Rmult_le_pos; lra).
    assert (N2 : 0 <= Rmin a b) by (apply Rmin_glb; lra). apply Rmin_glb.
    - apply Rle_trans with (a * (/ a * p x)); [apply Rmult_le_compat; try assumption; apply Rmin_l | right; field; lra].
    - apply Rle_trans with (b * (/ b * q x)); [apply Rmult_le_compat; try assumption; apply Rmin_r | right; field; lra]. }
  assert (L : 1 - eta <= Rmin a b) by (apply Rmin_glb; lra).
  pose proof (tanh_le_1 (s / 4)) as t1.
  assert ((1 - eta) * (1 - tanh (s / 4)) <= Rmin a b * (1 - tanh (s / 4))) by (apply Rmult_le_compat_r; lra).
  assert (Rmin a b * (1 - tanh (s / 4)) <= Rmin a b * sum (fun x => Rmin (/ a * p x) (/ b * q x)) kept)
    by (apply Rmult_le_compat_l; [apply Rmin_glb; lra | lra]).
  lra.
Qed.

(* ---- a reference that is confident: one token has mass pmax, so no set has a mass between 1 - pmax and pmax ---- *)
(* The largest gain of a set of mass x. *)
Definition lift s x := x * (1 - x) * (exp s - 1) / (1 + x * (exp s - 1)).

Lemma lift_step s x y : 0 <= s -> 0 <= x -> 0 <= y ->
  0 <= (y - x) * (1 - x - y - (exp s - 1) * x * y) -> lift s x <= lift s y.
Proof.
  intros Hs Hx Hy H. assert (K : 0 <= exp s - 1) by (pose proof (exp_ge s); lra). set (k := exp s - 1) in *. unfold lift. fold k.
  assert (dx : 0 < 1 + x * k) by (assert (0 <= x * k) by (apply Rmult_le_pos; lra); lra).
  assert (dy : 0 < 1 + y * k) by (assert (0 <= y * k) by (apply Rmult_le_pos; lra); lra).
  apply Rmult_le_reg_r with ((1 + x * k) * (1 + y * k)); [now apply Rmult_lt_0_compat|].
  replace (x * (1 - x) * k / (1 + x * k) * ((1 + x * k) * (1 + y * k))) with (k * (x * (1 - x) * (1 + y * k))) by (field; lra).
  replace (y * (1 - y) * k / (1 + y * k) * ((1 + x * k) * (1 + y * k))) with (k * (y * (1 - y) * (1 + x * k))) by (field; lra).
  apply Rmult_le_compat_l; [exact K|].
  replace (x * (1 - x) * (1 + y * k)) with (y * (1 - y) * (1 + x * k) - (y - x) * (1 - x - y - k * x * y)) by ring. lra.
Qed.

Theorem tv_of_span_confident {A} (voc : list A) (p q : A -> R) s m : dist p voc -> dist q voc -> positive p voc -> positive q voc ->
  span_le s p q voc -> 0 <= s -> In m voc -> 1 - p m <= / (1 + exp (s / 2)) <= p m ->
  tv p q voc <= Rmax (lift s (1 - p m)) (lift s (p m)).
Proof.
  intros Hp Hq Pp Pq Hs H0 Hm [Hx1 Hx2].
  set (up := fun x => if Rle_dec (q x) (p x) then 0 else 1).
  assert (U : forall x, up x = 0 \/ up x = 1) by (intros x; unfold up; destruct (Rle_dec (q x) (p x)); auto).
  set (th := sum (fun x => up x * p x) voc). set (th' := sum (fun x => up x * q x) voc).
  destruct Hp as [p0 p1]. destruct Hq as [q0 q1].
  assert (T : tv p q voc = th' - th).
  { unfold tv, th, th'. rewrite (sum_ext _ (fun x => (p x - q x) + 2 * (up x * q x - up x * p x))).
    - rewrite sum_plus, sum_minus, sum_scal, sum_minus, p1, q1. field.
    - intros x _. unfold up, Rabs. destruct (Rle_dec (q x) (p x)); destruct (Rcase_abs (p x - q x)); lra. }
  assert (c1 : sum (fun x => (1 - up x) * p x) voc = 1 - th)
    by (unfold th; rewrite (sum_ext _ (fun x => p x - up x * p x)) by (intros; ring); rewrite sum_minus, p1; reflexivity).
  assert (c2 : sum (fun x => (1 - up x) * q x) voc = 1 - th')
    by (unfold th'; rewrite (sum_ext _ (fun x => q x - up x * q x)) by (intros; ring); rewrite sum_minus, q1; reflexivity).
  assert (th0 : 0 <= th) by (apply sum_nonneg; intros x Hx; specialize (p0 x Hx); destruct (U x) as [-> | ->]; lra).
  assert (th1 : th <= 1).
  { cut (0 <= 1 - th); [lra|]. rewrite <- c1. apply sum_nonneg. intros x Hx. specialize (p0 x Hx). destruct (U x) as [-> | ->]; lra. }
  (* q(S)(1 - p(S)) <= e^s p(S)(1 - q(S)) *)
  assert (X : th' * (1 - th) <= exp s * (th * (1 - th'))).
  { rewrite <- c1, <- c2. unfold th, th'. rewrite (Rmult_comm (sum (fun x => up x * q x) voc)), <- sum_scal.
    replace (exp s * (sum (fun x => up x * p x) voc * sum (fun x => (1 - up x) * q x) voc))
      with (sum (fun x => (exp s * sum (fun y => (1 - up y) * q y) voc) * (up x * p x)) voc) by (rewrite sum_scal; ring).
    apply sum_le. intros x Hx. rewrite (Rmult_comm (sum _ voc)), <- sum_scal.
    replace (exp s * sum (fun y => (1 - up y) * q y) voc * (up x * p x))
      with (sum (fun y => (exp s * (up x * p x)) * ((1 - up y) * q y)) voc) by (rewrite sum_scal; ring).
    apply sum_le. intros y Hy. specialize (Hs x y Hx Hy).
    destruct (U x) as [-> | ->]; destruct (U y) as [-> | ->]; lra. }
  assert (e1 : 1 <= exp s) by (rewrite <- exp_0; now apply exp_mono).
  assert (Lift : tv p q voc <= lift s th).
  { rewrite T. unfold lift. assert (d : 0 < 1 + th * (exp s - 1)) by (assert (0 <= th * (exp s - 1)) by (apply Rmult_le_pos; lra); lra).
    apply Rmult_le_reg_r with (1 + th * (exp s - 1)); [exact d|].
    replace (th * (1 - th) * (exp s - 1) / (1 + th * (exp s - 1)) * (1 + th * (exp s - 1))) with (th * (1 - th) * (exp s - 1)) by (field; lra). lra. }
  (* the turning point x = 1/(1 + e^(s/2)) solves (e^s - 1) x^2 + 2 x = 1 *)
  set (xs := / (1 + exp (s / 2))) in *. pose proof (exp_pos (s / 2)) as eh.
  assert (x0 : 0 < xs) by (apply Rinv_0_lt_compat; lra).
  assert (root : 1 - xs - xs - (exp s - 1) * xs * xs = 0) by (unfold xs; rewrite <- (exp_half s); field; lra).
  assert (low : forall f, (forall x, In x voc -> 0 <= f x) -> f m <= sum f voc).
  { clear - Hm. intros f Hf. induction voc as [|v l IH]; [destruct Hm|]; simpl; destruct Hm as [-> | Hm].
    - assert (0 <= sum f l) by (apply sum_nonneg; intros; apply Hf; now right). lra.
    - assert (0 <= f v) by (apply Hf; now left). specialize (IH Hm (fun y Hy => Hf y (or_intror Hy))). lra. }
  assert (pm1 : p m <= 1) by (rewrite <- p1; now apply (low p)).
  eapply Rle_trans; [exact Lift|]. destruct (U m) as [u|u].
  - (* the confident token is not lifted: the lifted mass is at most 1 - pmax *)
    assert (th <= 1 - p m).
    { cut (p m <= 1 - th); [lra|]. rewrite <- c1. apply Rle_trans with ((1 - up m) * p m); [rewrite u; lra|].
      apply (low (fun x => (1 - up x) * p x)). intros x Hx. specialize (p0 x Hx). destruct (U x) as [-> | ->]; lra. }
    eapply Rle_trans; [|apply Rmax_l]. apply lift_step; [exact H0 | exact th0 | lra |]. apply Rmult_le_pos; [lra|].
    assert (th * (1 - p m) <= xs * xs) by (apply Rmult_le_compat; lra).
    assert ((exp s - 1) * (th * (1 - p m)) <= (exp s - 1) * (xs * xs)) by (apply Rmult_le_compat_l; lra). lra.
  - assert (p m <= th).
    { unfold th. apply Rle_trans with (up m * p m); [rewrite u; lra|].
      apply (low (fun x => up x * p x)). intros x Hx. specialize (p0 x Hx). destruct (U x) as [-> | ->]; lra. }
    eapply Rle_trans; [|apply Rmax_r]. apply lift_step; [exact H0 | exact th0 | lra |].
    assert (xs * xs <= th * p m) by (apply Rmult_le_compat; lra).
    assert ((exp s - 1) * (xs * xs) <= (exp s - 1) * (th * p m)) by (apply Rmult_le_compat_l; lra).
    replace ((p m - th) * (1 - th - p m - (exp s - 1) * th * p m)) with ((th - p m) * (th + p m + (exp s - 1) * (th * p m) - 1)) by ring.
    apply Rmult_le_pos; lra.
Qed.

(* ---- the span bound is attained, by two tokens ---- *)
Theorem tv_of_span_attained s : 0 <= s -> exists p q : bool -> R, let voc := [true; false] in
  dist p voc /\ dist q voc /\ positive p voc /\ positive q voc /\ span_le s p q voc /\ tv p q voc = tanh (s / 4).
Proof.
  intros H0. set (k := exp (s / 2)). assert (K : 1 <= k) by (unfold k; rewrite <- exp_0; apply exp_mono; lra).
  exists (fun x : bool => if x then / (1 + k) else k * / (1 + k)), (fun x : bool => if x then k * / (1 + k) else / (1 + k)).
  assert (I : 0 < / (1 + k)) by (apply Rinv_0_lt_compat; lra). assert (S : / (1 + k) + k * / (1 + k) = 1) by (field; lra).
  assert (J : 0 < k * / (1 + k)) by (apply Rmult_lt_0_compat; lra).
  cbv zeta. unfold dist, positive, span_le. simpl. repeat split.
  - intros [] _; lra.
  - lra.
  - intros [] _; lra.
  - lra.
  - intros [] _; assumption.
  - intros [] _; assumption.
  - rewrite <- (exp_half s). fold k. set (i := / (1 + k)) in *.
    assert (ii : 0 < i * i) by now apply Rmult_lt_0_compat.
    assert (i * i <= k * i * (k * i)) by (apply Rmult_le_compat; nra).
    assert (i * i * 1 <= i * i * (k * k)) by (apply Rmult_le_compat_l; nra).
    assert (k * k * (i * (k * i)) >= i * (k * i)) by nra.
    assert (k * k * (k * i * i) >= k * i * i) by nra.
    intros [] [] _ _; nra.
  - unfold tv. simpl. replace (/ (1 + k) - k * / (1 + k)) with (- ((k - 1) * / (1 + k))) by ring.
    replace (k * / (1 + k) - / (1 + k)) with ((k - 1) * / (1 + k)) by ring.
    rewrite Rabs_Ropp, Rabs_pos_eq by (apply Rmult_le_pos; lra). rewrite tanh_form.
    replace (2 * (s / 4)) with (s / 2) by field. fold k. field; lra.
Qed.

(* ---- the mean of TV over contexts, from the mean span (tanh is concave) ---- *)
Lemma pade_exp y : 0 <= y -> 2 * (exp y - 1) <= y * (exp y + 1).
Proof.
  intros [H|<-]; [|rewrite exp_0; lra].
  set (h := fun x => (x - 2) * exp x + (x + 2)). set (h' := fun x => (1 * exp x + (x - 2) * exp x) + 1).
  assert (D : forall x, derivable_pt_lim h x (h' x)).
  { intros x. unfold h, h'. apply (derivable_pt_lim_plus (fun x => (x - 2) * exp x) (fun x => x + 2)).
    - apply (derivable_pt_lim_mult (fun x => x - 2) exp); [|apply derivable_pt_lim_exp].
      replace 1 with (1 - 0) by ring. apply (derivable_pt_lim_minus id (fun _ => 2)); [apply derivable_pt_lim_id | apply derivable_pt_lim_const].
    - replace 1 with (1 + 0) by ring. apply (derivable_pt_lim_plus id (fun _ => 2)); [apply derivable_pt_lim_id | apply derivable_pt_lim_const]. }
  destruct (MVT_cor2 h h' 0 y H) as (c & E & Hc); [intros; apply D|].
  assert (0 <= h' c).
  { unfold h'. pose proof (exp_ge (- c)) as e. pose proof (exp_inv_r c) as I. pose proof (exp_pos c) as ec.
    apply (Rmult_le_compat_l (exp c)) in e; [|lra]. lra. }
  assert (0 <= h' c * (y - 0)) by (apply Rmult_le_pos; lra). unfold h in E. rewrite exp_0 in E. lra.
Qed.

Lemma sinh_ge x : 0 <= x -> x <= sinh x.
Proof.
  intros [H|<-]; [|rewrite sinh_0; lra].
  destruct (MVT_cor2 sinh cosh 0 x H) as (c & E & Hc); [intros; apply derivable_pt_lim_sinh|].
  rewrite sinh_0 in E. pose proof (cosh_ge_1 c). assert (1 * (x - 0) <= cosh c * (x - 0)) by (apply Rmult_le_compat_r; lra). lra.
Qed.

(* The tangent of tanh at m lies above tanh. *)
Lemma tanh_tangent m x : 0 <= m -> 0 <= x -> tanh x <= tanh m + (1 - tanh m * tanh m) * (x - m).
Proof.
  intros Hm Hx. set (v := exp (2 * m)). set (u := exp (2 * x)).
  assert (v1 : 1 <= v) by (unfold v; rewrite <- exp_0; apply exp_mono; lra).
  assert (u1 : 1 <= u) by (unfold u; rewrite <- exp_0; apply exp_mono; lra).
  rewrite !tanh_form. fold u v. set (y := 2 * (x - m)).
  (* (u - v)(v + 1) <= v y (u + 1) *)
  assert (K : (u - v) * (v + 1) <= v * y * (u + 1)).
  { destruct (Rle_dec 0 y) as [h|h].
    - set (e := exp y). assert (Eu : u = v * e) by (unfold u, v, e, y; rewrite <- exp_plus; f_equal; ring).
      pose proof (pade_exp y h) as P. fold e in P. pose proof (exp_ge y) as e0. fold e in e0.
      pose proof (exp_ge (- y)) as em. pose proof (exp_inv_r y) as I. fold e in I. assert (ep : 0 < e) by apply exp_pos.
      apply (Rmult_le_compat_l e) in em; [|lra]. rewrite I in em.
      rewrite Eu. replace ((v * e - v) * (v + 1)) with (v * ((e - 1) * (v + 1))) by ring.
      replace (v * y * (v * e + 1)) with (v * (y * (v * e + 1))) by ring. apply Rmult_le_compat_l; [lra|].
      assert (0 <= (v - 1) * (y * e - e + 1)) by (apply Rmult_le_pos; lra). lra.
    - set (e := exp (- y)). assert (Ev : v = u * e) by (unfold u, v, e, y; rewrite <- exp_plus; f_equal; ring).
      pose proof (pade_exp (- y) ltac:(lra)) as P. fold e in P. pose proof (exp_ge (- y)) as e0. fold e in e0.
      rewrite Ev. replace ((u - u * e) * (u * e + 1)) with (u * ((1 - e) * (u * e + 1))) by ring.
      replace (u * e * y * (u + 1)) with (u * (e * y * (u + 1))) by ring. apply Rmult_le_compat_l; [lra|].
      assert (0 <= (u - 1) * (e * (e - 1 + y))) by (apply Rmult_le_pos; [lra | apply Rmult_le_pos; lra]).
      pose proof (sinh_ge (- y) ltac:(lra)) as sh. unfold sinh in sh. rewrite Ropp_involutive in sh. fold e in sh.
      assert (I : e * exp y = 1) by (unfold e; rewrite Rmult_comm; apply exp_inv_r).
      apply (Rmult_le_compat_l e) in sh; [|lra]. lra. }
  apply Rmult_le_reg_r with ((u + 1) * (v + 1) * (v + 1)); [repeat apply Rmult_lt_0_compat; lra|].
  replace (x - m) with (y / 2) by (unfold y; field). clearbody y.
  replace ((1 - 2 / (u + 1)) * ((u + 1) * (v + 1) * (v + 1))) with ((u - 1) * ((v + 1) * (v + 1))) by (field; lra).
  replace ((1 - 2 / (v + 1) + (1 - (1 - 2 / (v + 1)) * (1 - 2 / (v + 1))) * (y / 2)) * ((u + 1) * (v + 1) * (v + 1)))
    with ((v - 1) * ((u + 1) * (v + 1)) + 2 * (v * y * (u + 1))) by (field; lra).
  replace ((u - 1) * ((v + 1) * (v + 1))) with ((v - 1) * ((u + 1) * (v + 1)) + 2 * ((u - v) * (v + 1))) by ring. lra.
Qed.

Theorem mean_tv_of_mean_span {A B} (mu : B -> R) (ctx : list B) (p q : B -> A -> R) (voc : list A) (s : B -> R) : dist mu ctx ->
  (forall c, In c ctx -> dist (p c) voc /\ dist (q c) voc /\ positive (p c) voc /\ positive (q c) voc /\ span_le (s c) (p c) (q c) voc /\ 0 <= s c) ->
  mean mu (fun c => tv (p c) (q c) voc) ctx <= tanh (mean mu s ctx / 4).
Proof.
  intros [m0 m1] H. set (m := mean mu s ctx / 4).
  assert (0 <= mean mu s ctx) by (apply sum_nonneg; intros c Hc; apply Rmult_le_pos; [now apply m0 | now apply (H c Hc)]).
  assert (E : tanh m = sum (fun c => (tanh m - (1 - tanh m * tanh m) * m) * mu c + (1 - tanh m * tanh m) / 4 * (mu c * s c)) ctx).
  { rewrite sum_plus, !sum_scal, m1. fold (mean mu s ctx). unfold m at 4. unfold m. field. }
  rewrite E. apply sum_le. intros c Hc. destruct (H c Hc) as (dp & dq & Pp & Pq & Sp & s0).
  pose proof (tv_of_span voc (p c) (q c) (s c) dp dq Pp Pq Sp s0) as t. pose proof (tanh_tangent m (s c / 4) ltac:(unfold m; lra) ltac:(lra)) as tg.
  apply Rle_trans with (mu c * (tanh m + (1 - tanh m * tanh m) * (s c / 4 - m))); [|lra].
  apply Rmult_le_compat_l; [now apply m0 | lra].
Qed.
