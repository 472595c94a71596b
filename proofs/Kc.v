(* The whole library: a contract file needs only "From KC Require Import Kc". *)
From KC Require Export Sums Divergence Span Token Seq Gradient Optimal Contract.
