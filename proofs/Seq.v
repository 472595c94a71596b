(* H tokens, generated one after the other, every next-token distribution may depend on all earlier tokens.
   A context (or response) is the list of tokens so far, the most recent first.
   The prompt is fixed; it is part of the policies. *)
From Coq Require Import Reals Lra Psatz List Arith.
From KC Require Import Sums Divergence Span.
Import ListNotations.
Open Scope R_scope.

Section Sequence.
  Context {A : Type}.
  Variable voc : list A.
  Implicit Types (p q : list A -> A -> R) (h : list A).

  (* All sequences of length n. *)
  Fixpoint seqs (n : nat) : list (list A) :=
    match n with O => [nil] | S m => flat_map (fun h => map (fun x => x :: h) voc) (seqs m) end.

  (* The probability of a sequence. *)
  Fixpoint law p (h : list A) : R := match h with nil => 1 | x :: t => law p t * p t x end.

  (* Contexts in which one of the first H tokens is drawn. *)
  Definition context (H : nat) h := exists n, (n < H)%nat /\ In h (seqs n).
  Definition policy p := forall h, dist (p h) voc.

  (* The sum over t < H of the mean of f over contexts of length t. *)
  Fixpoint total p (f : list A -> R) (H : nat) : R :=
    match H with O => 0 | S n => total p f n + mean (law p) f (seqs n) end.

  Lemma context_S H h : context H h -> context (S H) h.
  Proof. intros (n & Hn & Hi). exists n. split; [lia | exact Hi]. Qed.

  Lemma context_last H h : In h (seqs H) -> context (S H) h.
  Proof. intros Hi. exists H. split; [lia | exact Hi]. Qed.

  Lemma sum_seqs f n : sum f (seqs (S n)) = sum (fun h => sum (fun x => f (x :: h)) voc) (seqs n).
  Proof. simpl. rewrite sum_flat_map. apply sum_ext. intros h _. apply sum_map. Qed.

  Lemma law_nonneg p n : policy p -> forall h, In h (seqs n) -> 0 <= law p h.
  Proof.
    intros Hp. induction n as [|n IH]; simpl; [intros h [<-|[]]; simpl; lra|].
    intros h Hh. apply in_flat_map in Hh. destruct Hh as (t & Ht & Hh). apply in_map_iff in Hh. destruct Hh as (x & <- & Hx).
    simpl. apply Rmult_le_pos; [now apply IH | now apply Hp].
  Qed.

  Theorem law_dist p n : policy p -> dist (law p) (seqs n).
  Proof.
    intros Hp. split; [now apply law_nonneg|]. induction n as [|n IH]; [simpl; lra|].
    rewrite sum_seqs. rewrite <- IH. apply sum_ext. intros h _. simpl. rewrite sum_scal. rewrite (proj2 (Hp h)). ring.
  Qed.

  Lemma total_le p f f' H : policy p -> (forall h, context H h -> f h <= f' h) -> total p f H <= total p f' H.
  Proof.
    intros Hp. induction H as [|n IH]; intros Hf; simpl; [lra|]. apply Rplus_le_compat.
    - apply IH. intros h Hh. apply Hf, context_S, Hh.
    - apply sum_le. intros h Hh. apply Rmult_le_compat_l; [now apply (law_nonneg p n) | apply Hf, context_last, Hh].
  Qed.

  Lemma total_const p c H : policy p -> total p (fun _ => c) H = INR H * c.
  Proof.
    intros Hp. induction H as [|n IH]; [simpl; lra|]. rewrite S_INR. simpl. rewrite IH. unfold mean.
    rewrite (sum_ext _ (fun h => c * law p h)) by (intros; ring). rewrite sum_scal, (proj2 (law_dist p n Hp)). ring.
  Qed.

  (* seq_bc_product: the affinity multiplies. *)
  Theorem seq_bc_product p q b H : policy p -> policy q -> 0 <= b ->
    (forall h, context H h -> b <= bc (p h) (q h) voc) -> b ^ H <= bc (law p) (law q) (seqs H).
  Proof.
    intros Hp Hq Hb. induction H as [|n IH]; intros Hc.
    - simpl. unfold bc. simpl. rewrite Rmult_1_r, sqrt_1. lra.
    - unfold bc. rewrite sum_seqs. apply Rle_trans with (sum (fun h => b * sqrt (law p h * law q h)) (seqs n)).
      + rewrite sum_scal. simpl. apply Rmult_le_compat_l; [exact Hb|]. apply IH. intros h Hh. apply Hc, context_S, Hh.
      + apply sum_le. intros h Hh. simpl. pose proof (law_nonneg p n Hp h Hh) as lp. pose proof (law_nonneg q n Hq h Hh) as lq.
        rewrite (sum_ext _ (fun x => sqrt (law p h * law q h) * sqrt (p h x * q h x))).
        * rewrite sum_scal, Rmult_comm. apply Rmult_le_compat_l; [apply sqrt_pos | apply Hc, context_last, Hh].
        * intros x Hx. rewrite <- sqrt_mult.
          -- f_equal. ring.
          -- now apply Rmult_le_pos.
          -- apply Rmult_le_pos; [now apply Hp | now apply Hq].
  Qed.

  (* seq_tv_union, in overlap form: the overlap multiplies as well. *)
  Theorem seq_tv_union p q t H : policy p -> policy q -> t <= 1 ->
    (forall h, context H h -> tv (p h) (q h) voc <= t) -> tv (law p) (law q) (seqs H) <= 1 - (1 - t) ^ H.
  Proof.
    intros Hp Hq Ht Hc.
    cut ((1 - t) ^ H <= overlap (law p) (law q) (seqs H)); [rewrite overlap_tv by (now apply law_dist); lra|].
    induction H as [|n IH]; [unfold overlap; simpl; rewrite Rmin_left by lra; lra|].
    unfold overlap. rewrite sum_seqs.
    apply Rle_trans with (sum (fun h => (1 - t) * Rmin (law p h) (law q h)) (seqs n)).
    - rewrite sum_scal. simpl. apply Rmult_le_compat_l; [lra|]. apply IH. intros h Hh. apply Hc, context_S, Hh.
    - apply sum_le. intros h Hh. pose proof (law_nonneg p n Hp h Hh) as lp. pose proof (law_nonneg q n Hq h Hh) as lq.
      assert (M : 0 <= Rmin (law p h) (law q h)) by now apply Rmin_glb.
      apply Rle_trans with (Rmin (law p h) (law q h) * overlap (p h) (q h) voc).
      + rewrite Rmult_comm. apply Rmult_le_compat_l; [exact M|]. rewrite overlap_tv by auto.
        pose proof (Hc h (context_last n h Hh)). lra.
      + unfold overlap. rewrite <- sum_scal. apply sum_le. intros x Hx. simpl.
        assert (N : 0 <= Rmin (p h x) (q h x)) by (apply Rmin_glb; [now apply Hp | now apply Hq]).
        apply Rmin_glb; apply Rmult_le_compat; try assumption; try apply Rmin_l; apply Rmin_r.
  Qed.

  (* seq_tv_expected: TV of the sequence is at most the sum of the mean token TV along the sampler q. *)
  Theorem seq_tv_expected p q H : policy p -> policy q ->
    tv (law p) (law q) (seqs H) <= total q (fun h => tv (p h) (q h) voc) H.
  Proof.
    intros Hp Hq. induction H as [|n IH]; [unfold tv; simpl; rewrite Rminus_diag_eq, Rabs_R0; lra|].
    simpl total. eapply Rle_trans; [|apply Rplus_le_compat_r, IH]. unfold tv at 1. rewrite sum_seqs.
    unfold tv at 1, mean.
    apply Rle_trans with ((sum (fun h => Rabs (law p h - law q h) + 2 * (law q h * tv (p h) (q h) voc)) (seqs n)) / 2);
      [|rewrite sum_plus, sum_scal; lra].
    unfold Rdiv. apply Rmult_le_compat_r; [lra|]. apply sum_le. intros h Hh. pose proof (law_nonneg q n Hq h Hh) as lq.
    apply Rle_trans with (sum (fun x => Rabs (law p h - law q h) * p h x + law q h * Rabs (p h x - q h x)) voc).
    - apply sum_le. intros x Hx. simpl. destruct (Hp h) as [h0 _]. specialize (h0 x Hx).
      replace (law p h * p h x - law q h * q h x) with ((law p h - law q h) * p h x + law q h * (p h x - q h x)) by ring.
      eapply Rle_trans; [apply Rabs_triang|]. rewrite !Rabs_mult, (Rabs_pos_eq (p h x)), (Rabs_pos_eq (law q h)) by assumption. lra.
    - rewrite sum_plus, !sum_scal, (proj2 (Hp h)). unfold tv. lra.
  Qed.

  Lemma law_dominated p q n : policy p -> policy q -> (forall h, context n h -> dominated (p h) (q h) voc) ->
    dominated (law p) (law q) (seqs n).
  Proof.
    intros Hp Hq. induction n as [|n IH]; intros Hd h Hh Hpos.
    - destruct Hh as [<-|[]]. simpl. lra.
    - simpl in Hh. apply in_flat_map in Hh. destruct Hh as (t & Ht & Hh). apply in_map_iff in Hh. destruct Hh as (x & <- & Hx).
      simpl in *. pose proof (law_nonneg p n Hp t Ht) as lp. destruct (Hp t) as [h0 _]. specialize (h0 x Hx).
      apply Rmult_lt_0_compat.
      + apply IH; [intros y Hy; apply Hd, context_S, Hy | exact Ht |]. destruct lp as [lp|lp]; [exact lp|]. rewrite <- lp in Hpos. lra.
      + apply (Hd t (context_last n t Ht) x Hx). destruct h0 as [h0|h0]; [exact h0|]. rewrite <- h0 in Hpos. lra.
  Qed.

  (* seq_kl_chain: the chain rule, exact. Contexts come from the first argument of KL. *)
  Theorem seq_kl_chain p q H : policy p -> policy q -> (forall h, context H h -> dominated (p h) (q h) voc) ->
    kl (law p) (law q) (seqs H) = total p (fun h => kl (p h) (q h) voc) H.
  Proof.
    intros Hp Hq. induction H as [|n IH]; intros Hd.
    - unfold kl. simpl. replace (1 / 1) with 1 by field. rewrite ln_1. ring.
    - assert (Hd' : forall h, context n h -> dominated (p h) (q h) voc) by (intros h Hh; apply Hd, context_S, Hh).
      simpl total. rewrite <- IH by exact Hd'. unfold kl at 1. rewrite sum_seqs. unfold kl at 1. unfold mean. rewrite <- sum_plus.
      apply sum_ext. intros h Hh. simpl. pose proof (law_nonneg p n Hp h Hh) as lp.
      destruct lp as [lp|lp].
      + pose proof (law_dominated p q n Hp Hq Hd' h Hh lp) as lq.
        rewrite (sum_ext _ (fun x => (law p h * ln (law p h / law q h)) * p h x + law p h * (p h x * ln (p h x / q h x)))).
        * rewrite sum_plus, !sum_scal, (proj2 (Hp h)). unfold kl. ring.
        * intros x Hx. destruct (proj1 (Hp h) x Hx) as [px|px].
          -- pose proof (Hd h (context_last n h Hh) x Hx px) as qx.
             rewrite !ln_div, !ln_mult by (try apply Rmult_lt_0_compat; assumption). ring.
          -- rewrite <- px. ring.
      + rewrite <- lp. rewrite (sum_ext _ (fun _ => 0)) by (intros; ring). rewrite sum_zero. ring.
  Qed.

  Corollary seq_kl_bound p q k H : policy p -> policy q -> (forall h, context H h -> dominated (p h) (q h) voc) ->
    (forall h, context H h -> kl (p h) (q h) voc <= k) -> kl (law p) (law q) (seqs H) <= INR H * k.
  Proof. intros Hp Hq Hd Hk. rewrite seq_kl_chain by assumption. rewrite <- (total_const p k H Hp). now apply total_le. Qed.

  (* Two policies, each context either identical (an ended response, say) or within log-ratio range s. *)
  Definition within s p q h := (forall x, In x voc -> p h x = q h x) \/
    (positive (p h) voc /\ positive (q h) voc /\ span_le s (p h) (q h) voc).

  Lemma bc_within s p q h : policy p -> policy q -> within s p q h -> / cosh (s / 4) <= bc (p h) (q h) voc.
  Proof.
    intros Hp Hq [E|(Pp & Pq & Hs)].
    - rewrite (bc_same voc (p h) (q h) (Hp h) E). apply Rle_trans with (/ 1); [apply Rinv_le_contravar; [lra | apply cosh_ge_1] | rewrite Rinv_1; lra].
    - apply bc_of_span; auto.
  Qed.

  (* TV_H <= sqrt(1 - sech(s/4)^(2H)). *)
  Theorem seq_tv_of_span p q s H : policy p -> policy q -> (forall h, context H h -> within s p q h) ->
    tv (law p) (law q) (seqs H) <= sqrt (1 - (/ cosh (s / 4)) ^ (2 * H)).
  Proof.
    intros Hp Hq Hw. eapply Rle_trans; [apply tv_of_bc; now apply law_dist|]. apply sqrt_le_1_alt.
    assert (B0 : 0 < / cosh (s / 4)) by apply Rinv_0_lt_compat, cosh_pos.
    pose proof (seq_bc_product p q (/ cosh (s / 4)) H Hp Hq ltac:(lra) (fun h Hh => bc_within s p q h Hp Hq (Hw h Hh))) as K.
    rewrite Nat.mul_comm, pow_mult. pose proof (pow_le (/ cosh (s / 4)) H ltac:(lra)).
    replace (((/ cosh (s / 4)) ^ H) ^ 2) with ((/ cosh (s / 4)) ^ H * (/ cosh (s / 4)) ^ H) by ring.
    assert ((/ cosh (s / 4)) ^ H * (/ cosh (s / 4)) ^ H <= bc (law p) (law q) (seqs H) * bc (law p) (law q) (seqs H)) by (apply Rmult_le_compat; lra).
    lra.
  Qed.

  (* ---- exceedance: the premise fails on some contexts ---- *)
  Variable exceeds : list A -> bool.
  Definition indicator (h : list A) : R := if exceeds h then 1 else 0.
  (* The reference where the premise fails, the candidate elsewhere. *)
  Definition repaired p q h x := if exceeds h then p h x else q h x.

  Lemma repaired_policy p q : policy p -> policy q -> policy (repaired p q).
  Proof. intros Hp Hq h. unfold repaired, dist. destruct (exceeds h); [apply Hp | apply Hq]. Qed.

  (* seq_exceedance: at most m exceeding contexts per response on average, counted under the sampler q (m = H rho). *)
  Theorem seq_exceedance p q s m H : policy p -> policy q ->
    (forall h, context H h -> exceeds h = false -> within s p q h) ->
    total q indicator H <= m ->
    tv (law p) (law q) (seqs H) <= m + sqrt (1 - (/ cosh (s / 4)) ^ (2 * H)).
  Proof.
    intros Hp Hq Hw Hr. pose proof (repaired_policy p q Hp Hq) as Hm.
    eapply Rle_trans; [apply (tv_triangle _ (law p) (law (repaired p q)))|]. rewrite Rplus_comm. apply Rplus_le_compat.
    - eapply Rle_trans; [apply seq_tv_expected; assumption|]. eapply Rle_trans; [|exact Hr]. apply total_le; [exact Hq|].
      intros h _. unfold indicator. destruct (exceeds h) eqn:E.
      + apply tv_le_1; auto.
      + rewrite tv_eq; [lra|]. intros x _. unfold repaired. now rewrite E.
    - apply seq_tv_of_span; try assumption. intros h Hh. destruct (exceeds h) eqn:E.
      + left. intros x _. unfold repaired. now rewrite E.
      + destruct (Hw h Hh E) as [W|(P1 & P2 & W)]; [left|right].
        * intros x Hx. unfold repaired. rewrite E. now apply W.
        * unfold positive, span_le, repaired in *. rewrite E. auto.
  Qed.
End Sequence.
