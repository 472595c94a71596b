// The range of w-z over the tokens that both have, each difference in double.
static void exact_range(Row& r) {
  vd high = doubles(-INFINITY), low = doubles(INFINITY);
  vectors(r.z, r.w, r.width, [&](vf a, vf b) {
    for (int half = 0; half < 2; half++) {
      vd d = wide(b, half) - wide(a, half);
      auto both = (d < doubles(INFINITY)) & (d > doubles(-INFINITY));  // neither side absent
      high = both & (d > high) ? d : high; low = both & (d < low) ? d : low;
    }
  });
  r.high = -INFINITY; r.low = INFINITY;
  for (int i = 0; i < LANES / 2; i++) { r.high = high[i] > r.high ? high[i] : r.high; r.low = low[i] < r.low ? low[i] : r.low; }
}

#if KC_SOFTMAX
static void normalise(Row& r) {
  const Sums& s = r.s;
  double S = s.S + s.PO, gain = s.A + s.G + s.PX;
  r.b = (gain - s.PO) / S; r.grown = (gain + s.S) / S;
  if (!(r.b - r.b == 0) || !(r.grown > 0)) r.wild = true;
}

// Whether the float32 sums kept the digits of the divergence of the common tokens and of the normaliser.
static bool sound(const Row& r) {
  const Sums& s = r.s;
  if (r.wild || !(s.S > 0)) return true;
  double inner = (s.A + s.G) / s.S, growth = std::log1p(inner), largest = std::fmax(r.high - r.c, r.c - r.low) * r.scale;
  double spread = (inner >= 1 ? growth - s.A / s.S : s.G / s.S - (inner - growth)) + (s.PO + s.PX) / s.S;
  double size = (inner >= 1 ? growth : s.G / s.S) + s.gross / s.S;
  double lost = (std::fabs(s.A) + s.G + s.gross) / s.S / r.grown;
  return size <= 30 * spread && lost <= 16 * std::fmax(1, largest) && lost * std::fmin(std::fabs(r.b), 1) <= 30 * spread;
}
#endif

static void finish(Row& r) {
#if KC_SOFTMAX
  normalise(r);
  if (!sound(r)) {  // the pilot is far from the mass: once more around the mean drift, else in float64
    double mean = r.c + r.s.A / r.s.S / r.scale;
    if (r.fixed || !(std::fabs(mean) < 1e30)) r.wild = true;
    else { r.restart((float)mean); sweep_one(r); normalise(r); r.wild |= !sound(r); }
  }
#if KC_SWEEP
  bool needed = !r.wild;
#if KC_CERTIFIED
  const Sums& s = r.s;
  double S = s.S + s.PO, shift = r.b < -0.5 ? std::log(r.grown) : std::log1p(r.b);
  double kl = r.b >= 1 ? shift - s.A / S : s.G / S - (r.b - shift) + s.PX / S;
  double bound = std::sqrt(0.5 * (kl > 0 ? kl : 0)) * (1 + 2e-5) + 1e-12;
  r.unswept = needed && !r.lost && bound <= TV_LIMIT;
  needed = needed && !r.unswept;
#endif
  if (needed) sweep_two(r);
#endif
#endif
  if (r.high >= r.low && !(r.high < 0.5 && r.low > -0.5)) exact_range(r);
}

// Rows of `width` tokens at `z + i z_step`, `w + i w_step` (in elements); `out` has OUTPUTS doubles a row.
extern "C" void kcverify_rows(const In* z, const In* w, int64_t rows, int64_t width, int64_t z_step, int64_t w_step, double scale, double* out) {
  for (int64_t i = 0; i < rows; i++) {
    Row r{z + i * z_step, w + i * w_step, width, (float)scale};
    sweep_one(r);
    double* o = out + i * OUTPUTS;
    for (int k = 0; k < OUTPUTS; k++) o[k] = 0;
    if (r.broken || !r.seen_z || !r.seen_w) { o[O_INVALID] = 1; continue; }
    finish(r);
    const Sums& s = r.s;
    bool common = r.high >= r.low;
    double above = (r.high - r.c) * r.scale, below = (r.c - r.low) * r.scale, most = above > below ? above : below;
    o[O_S] = s.S + s.PO; o[O_PO] = s.PO; o[O_PX] = s.PX; o[O_X] = s.A; o[O_G] = s.G; o[O_D] = s.D; o[O_U] = s.U; o[O_Q] = s.Q;
    o[O_b] = r.b; o[O_grown] = r.grown; o[O_TV] = r.TV; o[O_CHI2] = r.CHI2; o[O_BC] = r.BC;
    o[O_pilot] = r.c; o[O_largest] = r.wild ? INFINITY : common && most > 0 ? most : 0;
    o[O_highest] = r.high; o[O_lowest] = r.low;
    o[O_drift] = std::fabs(r.high) > std::fabs(r.low) ? std::fabs(r.high) : std::fabs(r.low);
    o[O_unswept] = r.unswept; o[O_LOST] = r.lost; o[O_GAINED] = r.gained;
#if KC_TOP
    agreements(r, o + O_TOPS);
#endif
  }
}
