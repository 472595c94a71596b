#if KC_SWEEP
template <int LEVEL, bool MASK, bool EXACT> static void second_block(const Row& r, int64_t lo, int n, double* out) {
  vf tv{}, chi{}, roots{}, tvs{}, chis{}, all_roots{}, b = all((float)r.b), inverse = all((float)(1 / r.grown));
  auto body = [&](vf a, vf v) {
    vi both{};
    if (MASK) both = (a > all(NONE)) & (v > all(NONE));
    vf d = EXACT ? centred(a, v, all(r.c)) : v - a - r.c, x = a - r.m;
#if KC_SCALED
    x *= r.scale; d *= r.scale;
#endif
    vf e = exp_of(floored(x)), t, g;
    if (MASK) { e = both ? e : all(0); d = both ? d : all(0); }
    if (LEVEL < 2) t = growth_small<LEVEL == 0>(d); else excess(d, t, g);
    vf gap = t - b;
#if KC_TV
    tv += e * magnitude(gap);
#endif
#if KC_CHI2 || KC_BC
    vf ratio = (LEVEL < 2 ? t + 1.0f : exp_of(d)) * inverse;
#endif
#if KC_CHI2
    chi += e * (gap * gap) / ratio;
#endif
#if KC_BC
    vf part = gap / (root(ratio) + 1.0f);
    roots += e * (part * part);
#endif
  };
  for (int at = 0; at < n; at += PART) {
    const In *z = r.z + lo + at, *w = r.w + lo + at;
    int some = n - at < PART ? n - at : PART;
    tv = chi = roots = vf{};
    if (MASK || EXACT) vectors(z, w, some, body);
    else for (int j = 0; j < some; j += 2 * LANES) {
      vf a0, a1, b0, b1;
      load_pair(z + j, a0, a1); load_pair(w + j, b0, b1);
      body(a0, b0); body(a1, b1);
    }
    tvs += tv; chis += chi; all_roots += roots;
  }
  out[0] += total(tvs); out[1] += total(chis); out[2] += total(all_roots);
}

static void sweep_two(Row& r) {
  double out[3] = {0, 0, 0};
  bool far = std::fabs(r.c) >= 0.5f;
  for (int64_t at = (r.width - 1) / BLOCK; at >= 0; at--) {
    int64_t lo = at * BLOCK;
    int n = r.width - lo < BLOCK ? r.width - lo : BLOCK;
    const Range& k = r.range[at];
    if (!(k.high >= k.low)) continue;
    int level = r.needs(k.high, k.low);
    if (k.masked) level < 2 ? second_block<1, true, true>(r, lo, n, out) : second_block<2, true, true>(r, lo, n, out);
    else if (level > 1) second_block<2, false, true>(r, lo, n, out);
    else if (far || n % (2 * LANES)) second_block<1, false, true>(r, lo, n, out);
    else level ? second_block<1, false, false>(r, lo, n, out) : second_block<0, false, false>(r, lo, n, out);
  }
  r.TV = out[0]; r.CHI2 = out[1]; r.BC = out[2] / (r.grown * r.grown);
}
#endif
