(* Finite sums over a list, and the Cauchy-Schwarz inequality in the form that every bound below uses. *)
From Coq Require Import Reals Lra Psatz List.
Import ListNotations.
Open Scope R_scope.

Fixpoint sum {A : Type} (f : A -> R) (l : list A) : R :=
  match l with nil => 0 | x :: t => f x + sum f t end.

Section Sums.
  Context {A : Type}.
  Implicit Types (f g : A -> R) (l : list A).

  Lemma sum_le f g l : (forall x, In x l -> f x <= g x) -> sum f l <= sum g l.
  Proof.
    induction l as [|x t IH]; intros H; simpl; [lra|].
    apply Rplus_le_compat; [apply H; now left | apply IH; intros y Hy; apply H; now right].
  Qed.

  Lemma sum_ext f g l : (forall x, In x l -> f x = g x) -> sum f l = sum g l.
  Proof. intros H; apply Rle_antisym; apply sum_le; intros x Hx; rewrite (H x Hx); lra. Qed.

  Lemma sum_plus f g l : sum (fun x => f x + g x) l = sum f l + sum g l.
  Proof. induction l as [|x t IH]; simpl; [lra|]. rewrite IH; lra. Qed.

  Lemma sum_minus f g l : sum (fun x => f x - g x) l = sum f l - sum g l.
  Proof. induction l as [|x t IH]; simpl; [lra|]. rewrite IH; lra. Qed.

  Lemma sum_scal c f l : sum (fun x => c * f x) l = c * sum f l.
  Proof. induction l as [|x t IH]; simpl; [lra|]. rewrite IH; lra. Qed.

  Lemma sum_zero l : sum (fun _ : A => 0) l = 0.
  Proof. induction l as [|x t IH]; simpl; [lra|]. rewrite IH; lra. Qed.

  Lemma sum_nonneg f l : (forall x, In x l -> 0 <= f x) -> 0 <= sum f l.
  Proof. intros H. rewrite <- (sum_zero l). apply sum_le; exact H. Qed.

  Lemma sum_pos f l : l <> nil -> (forall x, In x l -> 0 < f x) -> 0 < sum f l.
  Proof.
    intros Hl Hf. destruct l as [|x t]; [congruence|]. simpl.
    assert (0 < f x) by (apply Hf; now left).
    assert (0 <= sum f t) by (apply sum_nonneg; intros y Hy; left; apply Hf; now right). lra.
  Qed.

  Lemma sum_abs f l : Rabs (sum f l) <= sum (fun x => Rabs (f x)) l.
  Proof.
    induction l as [|x t IH]; simpl; [rewrite Rabs_R0; lra|].
    eapply Rle_trans; [apply Rabs_triang|]; lra.
  Qed.

  Lemma sum_app f l m : sum f (l ++ m) = sum f l + sum f m.
  Proof. induction l as [|x t IH]; simpl; [lra|]. rewrite IH; lra. Qed.

  (* Cauchy-Schwarz. *)
  Lemma sum_cs f g l : sum (fun x => f x * g x) l * sum (fun x => f x * g x) l
    <= sum (fun x => f x * f x) l * sum (fun x => g x * g x) l.
  Proof.
    set (S := sum (fun x => f x * g x) l). set (F := sum (fun x => f x * f x) l).
    set (G := sum (fun x => g x * g x) l).
    assert (Q : forall t, 0 <= F + t * (-2 * S) + t * t * G).
    { intros t. unfold S, F, G. rewrite <- !sum_scal, <- !sum_plus.
      apply sum_nonneg. intros x _. pose proof (Rle_0_sqr (f x - t * g x)) as h. unfold Rsqr in h. lra. }
    assert (HG : 0 <= G) by (apply sum_nonneg; intros; apply Rle_0_sqr).
    destruct HG as [HG|HG].
    - pose proof (Q (S / G)) as h. apply Rmult_le_reg_l with (/ G); [now apply Rinv_0_lt_compat|].
      replace (/ G * (F * G)) with F by (field; lra).
      replace (F + S / G * (-2 * S) + S / G * (S / G) * G) with (F - / G * (S * S)) in h by (field; lra). lra.
    - assert (S = 0) as ->; [|rewrite <- HG; lra].
      destruct (Req_dec S 0) as [h|h]; [exact h|exfalso].
      pose proof (Q ((F + 1) / (2 * S))) as k. rewrite <- HG in k.
      replace (F + (F + 1) / (2 * S) * (-2 * S) + (F + 1) / (2 * S) * ((F + 1) / (2 * S)) * 0) with (-1) in k by (field; lra).
      lra.
  Qed.

  (* If f^2 <= a b in every place, then (sum f)^2 <= (sum a)(sum b). *)
  Lemma sum_cs_prod f a b l : (forall x, In x l -> 0 <= a x /\ 0 <= b x /\ f x * f x <= a x * b x) ->
    sum f l * sum f l <= sum a l * sum b l.
  Proof.
    intros H. set (h := fun x => sqrt (a x) * sqrt (b x)).
    assert (K : sum (fun x => Rabs (f x)) l <= sum h l).
    { apply sum_le. intros x Hx. destruct (H x Hx) as (Ha & Hb & Hf). unfold h.
      rewrite <- sqrt_mult by assumption. rewrite <- sqrt_Rsqr_abs. apply sqrt_le_1_alt. exact Hf. }
    pose proof (sum_abs f l) as HA. pose proof (Rabs_pos (sum f l)) as H0.
    assert (E : sum f l * sum f l = Rabs (sum f l) * Rabs (sum f l))
      by (rewrite <- Rabs_mult; symmetry; apply Rabs_pos_eq, Rle_0_sqr).
    rewrite E. apply Rle_trans with (sum h l * sum h l); [apply Rmult_le_compat; lra|].
    eapply Rle_trans; [apply sum_cs|]. right.
    f_equal; apply sum_ext; intros x Hx; destruct (H x Hx) as (Ha & Hb & _); now apply sqrt_sqrt.
  Qed.

  Lemma argmin f l : l <> nil -> exists x, In x l /\ forall y, In y l -> f x <= f y.
  Proof.
    induction l as [|x t IH]; [congruence|]. intros _. destruct t as [|y u].
    - exists x. split; [now left|]. intros y [<-|[]]. lra.
    - destruct IH as (m & Hm & Hmin); [discriminate|]. destruct (Rle_dec (f x) (f m)) as [h|h].
      + exists x. split; [now left|]. intros w [<-|Hw]; [lra|]. specialize (Hmin w Hw). lra.
      + exists m. split; [now right|]. intros w [<-|Hw]; [lra|]. now apply Hmin.
  Qed.
End Sums.

Lemma sum_map {A B : Type} (h : A -> B) (f : B -> R) l : sum f (map h l) = sum (fun x => f (h x)) l.
Proof. induction l as [|x t IH]; simpl; [reflexivity|]. now rewrite IH. Qed.

Lemma sum_flat_map {A B : Type} (h : A -> list B) (f : B -> R) l :
  sum f (flat_map h l) = sum (fun x => sum f (h x)) l.
Proof. induction l as [|x t IH]; simpl; [reflexivity|]. now rewrite sum_app, IH. Qed.

Lemma sum_swap {A B : Type} (f : A -> B -> R) l m :
  sum (fun x => sum (f x) m) l = sum (fun y => sum (fun x => f x y) l) m.
Proof.
  induction l as [|x t IH]; simpl; [now rewrite sum_zero|]. rewrite IH. symmetry. apply sum_plus.
Qed.

(* x^2 <= y^2 with 0 <= y gives x <= y. *)
Lemma sq_le_le x y : 0 <= y -> x * x <= y * y -> x <= y.
Proof. intros Hy H. destruct (Rle_dec x y) as [h|h]; [exact h|exfalso]. nra. Qed.

Lemma sq_le_sqrt x y : x * x <= y -> x <= sqrt y.
Proof.
  intros H. apply sq_le_le; [apply sqrt_pos|]. rewrite sqrt_sqrt; [exact H|].
  pose proof (Rle_0_sqr x) as h. unfold Rsqr in h. lra.
Qed.
