#if KC_SWEEP
template <bool SMALL, bool MASK, bool EXACT> static void second_block(const Row& r, int64_t lo, int n, double* out) {
  vf tv{}, chi{}, roots{}, b = all((float)r.b), inverse = all((float)(1 / r.grown));
  auto body = [&](vf a, vf v) {
    vi both{};
    if (MASK) both = (a > all(NONE)) & (v > all(NONE));
    vf d = EXACT ? centred(a, v, all(r.c)) : v - a - r.c, x = a - r.m;
#if KC_SCALED
    x *= r.scale; d *= r.scale;
#endif
    vf e = exp_of(floored(x)), t, g;
    if (MASK) { e = both ? e : all(0); d = both ? d : all(0); }
    if (SMALL) { g = excess_small(d); t = d + g; } else excess(d, t, g);
    vf gap = t - b;
#if KC_TV
    tv += e * magnitude(gap);
#endif
#if KC_CHI2 || KC_BC
    vf ratio = (SMALL ? t + 1.0f : exp_of(d)) * inverse;
#endif
#if KC_CHI2
    chi += e * (gap * gap) / ratio;
#endif
#if KC_BC
    vf part = gap / (root(ratio) + 1.0f);
    roots += e * (part * part);
#endif
  };
  if (MASK || EXACT) vectors(r.z + lo, r.w + lo, n, body);
  else for (int j = 0; j < n; j += 2 * LANES) {
    vf a0, a1, b0, b1;
    load_pair(r.z + lo + j, a0, a1); load_pair(r.w + lo + j, b0, b1);
    body(a0, b0); body(a1, b1);
  }
  out[0] += total(tv); out[1] += total(chi); out[2] += total(roots);
}

static void sweep_two(Row& r) {
  double out[3] = {0, 0, 0};
  bool far = std::fabs(r.c) >= 0.5f;
  for (int64_t at = (r.width - 1) / BLOCK; at >= 0; at--) {
    int64_t lo = at * BLOCK;
    int n = r.width - lo < BLOCK ? r.width - lo : BLOCK;
    const Range& k = r.range[at];
    if (!(k.high >= k.low)) continue;
    bool small = r.near(k.high, k.low, 0.5);
    if (k.masked) small ? second_block<true, true, true>(r, lo, n, out) : second_block<false, true, true>(r, lo, n, out);
    else if (!small) second_block<false, false, true>(r, lo, n, out);
    else if (far || n % (2 * LANES)) second_block<true, false, true>(r, lo, n, out);
    else second_block<true, false, false>(r, lo, n, out);
  }
  r.TV = out[0]; r.CHI2 = out[1]; r.BC = out[2] / (r.grown * r.grown);
}
#endif
