#if KC_SOFTMAX
// Take the pilot shift from the block's token of reference logit `best`, which both sides have.
static void follow(Row& r, int64_t lo, int n, float top, float best) {
  float c = r.c;
  for (int64_t j = lo, end = lo + n; best > r.pilot && j < end; j += LANES) {
    if (j + LANES <= end && !any(load(r.z + j) == all(best))) continue;
    for (int64_t i = j; best > r.pilot && i < j + LANES && i < end; i++)
      if (one(r.z[i]) == best && one(r.w[i]) > NONE) { c = one(r.w[i]) - best; r.pilot = best; }
  }
  if (!(std::fabs(c) < 1e30f)) { r.wild = true; return; }
  r.rebase(r.anchored && r.m > top ? r.m : top, c);
  r.anchored = true;
}

// The first pilot: the largest reference logit of the first block, where that is a number.
static void anchor(Row& r) {
  vf top = all(NONE);
  for (int j = 0; j < BLOCK; j += LANES) top = larger(load(r.z + j), top);
  float best = largest(top);
  if (best > NONE && best < INFINITY) follow(r, 0, BLOCK, best, best);
}
#endif

struct Scan {
  float zx, wx, common, high, low;
  int64_t lost, gained;
  bool bad, masked;
};

static Scan scan(const Row& r, int64_t lo, int n) {
  vf zx = all(NONE), wx = zx, common = zx, high = zx, low = all(INFINITY);
  vi lost{}, gained{}, bad{}, masked{};
  vectors(r.z + lo, r.w + lo, n, [&](vf a, vf b) {
    vi no_p = a == all(NONE), no_q = b == all(NONE), fine_p = magnitude(a) < all(INFINITY), fine_q = magnitude(b) < all(INFINITY);
    vi both = fine_p & fine_q;
    bad |= ~(no_p | fine_p) | ~(no_q | fine_q);
    lost += no_q & ~no_p; gained += no_p & ~no_q; masked |= no_p | no_q;
    vf d = b - a;
    zx = larger(a, zx); wx = larger(b, wx);
    common = both ? larger(a, common) : common;
    high = both ? larger(d, high) : high; low = both ? smaller(d, low) : low;
  });
  return {largest(zx), largest(wx), largest(common), largest(high), smallest(low), -count(lost), -count(gained), any(bad), any(masked)};
}

#if KC_SOFTMAX
template <int LEVEL, int MASK> static void sum_block(Row& r, int64_t lo, int n, Lanes& sum) {
  for (int at = 0; at < n; at += PART) {
    Lanes k;
    vectors(r.z + lo + at, r.w + lo + at, n - at < PART ? n - at : PART, [&](vf a, vf b) { tokens<LEVEL, MASK, true>(a, b, r, k); });
    sum.add(k);
  }
}
#endif

// Any block: masked, far from the pilot, the first, the last.
static void general(Row& r, int64_t lo, int n, int at) {
  Scan f = scan(r, lo, n);
  if (f.bad) { r.broken = true; return; }
  r.lost += f.lost; r.gained += f.gained;
  r.seen_z |= f.zx > NONE; r.seen_w |= f.wx > NONE;
  r.range[at].masked = f.masked;
  bool common = f.high >= f.low;
  if (common) r.widen(f.high, f.low, at);
#if KC_TOP
  if (f.zx > r.tz.bound() || r.tz.n < K) scan_top(r.z, lo, n, r.tz);
  if (f.wx > r.tw.bound() || r.tw.n < K) scan_top(r.w, lo, n, r.tw);
#endif
#if KC_SOFTMAX
  if (f.zx > NONE && (f.zx > r.m || f.common > r.pilot || !r.anchored)) follow(r, lo, n, f.zx, f.common);
  else if (!r.started && f.gained) r.rebase(f.wx, 0.0f);  // until the reference shows a token
  if ((!common && !f.lost && !f.gained) || r.wild) return;
  int level = common ? r.needs(f.high, f.low) : 0;
  if (level > 2) { r.wild = true; return; }
  Lanes k;
  if (f.gained) level < 2 ? sum_block<1, 2>(r, lo, n, k) : sum_block<2, 2>(r, lo, n, k);
  else if (f.masked) level < 2 ? sum_block<1, 1>(r, lo, n, k) : sum_block<2, 1>(r, lo, n, k);
  else level < 2 ? sum_block<1, 0>(r, lo, n, k) : sum_block<2, 0>(r, lo, n, k);
  fold(k, r.s);
#endif
}

// A new maximum this near the old one moves the sums after its block, a farther one before.
static constexpr float NEAR = 8;

// A block of whole vectors under the assumptions; false where one does not hold, and then nothing was counted.
template <int LEVEL, bool EXACT> static bool optimistic(Row& r, int64_t lo, int n, int at) {
  for (int pass = 0; pass < 2; pass++) {
    Lanes k;
    for (const In *z = r.z + lo, *w = r.w + lo, *end = z + n; z < end;) {
      Lanes part;
      for (const In* stop = end - z < PART ? end : z + PART; z < stop; z += 2 * LANES, w += 2 * LANES) {
        vf a0, a1, b0, b1;
        load_pair(z, a0, a1); load_pair(w, b0, b1);
        ahead(z); ahead(w);
        tokens<LEVEL, 0, EXACT>(a0, b0, r, part); tokens<LEVEL, 0, EXACT>(a1, b1, r, part);
      }
      k.add(part);
    }
    float zx = largest(k.zx), hi = largest(k.high), lw = smallest(k.low);
    bool finite = std::isfinite(total(k.G));
#if KC_SOFTMAX
    int needed = r.needs(hi, lw);
    bool above = zx > r.pilot && zx < INFINITY && !r.wild;
    if (above && pass == 0 && (needed > LEVEL || (zx - r.m) * r.scale > NEAR)) {
      follow(r, lo, n, zx, zx);
      if (r.wild) return false;
      continue;
    }
    if (!finite || (zx > r.m && !above)) return false;
    if (needed > LEVEL) { r.level = needed < 2 ? needed : 2; return false; }
#else
    if (!finite) return false;
#endif
#if KC_TOP
    if (zx > r.tz.bound() || r.tz.n < K) scan_top(r.z, lo, n, r.tz);
    if (largest(k.wx) > r.tw.bound() || r.tw.n < K) scan_top(r.w, lo, n, r.tw);
#endif
    r.widen(hi, lw, at);
#if KC_SOFTMAX
    fold(k, r.s);
    if (above) follow(r, lo, n, zx, zx);
#endif
    r.seen_z = r.seen_w = true;
    return true;
  }
  return false;
}

static void sweep_one(Row& r) {
  int failed = 0;
  bool hopeful = true;
#if KC_SOFTMAX
  if (r.width >= BLOCK && !r.anchored) anchor(r);
#endif
  for (int64_t lo = 0, at = 0; lo < r.width && !r.broken; lo += BLOCK, at++) {
    int n = r.width - lo < BLOCK ? r.width - lo : BLOCK;
#if KC_SOFTMAX
    hopeful = r.anchored && !r.wild && failed < 4;
#endif
    if (hopeful && n % (2 * LANES) == 0) {
#if KC_SOFTMAX
      bool close = std::fabs(r.c) < 0.5f;
      if (r.level == 0 && (close ? optimistic<0, false>(r, lo, n, at) : optimistic<0, true>(r, lo, n, at))) continue;
      if (r.level == 1 && (close ? optimistic<1, false>(r, lo, n, at) : optimistic<1, true>(r, lo, n, at))) continue;
      if (r.level == 2 && optimistic<2, true>(r, lo, n, at)) continue;
#else
      if (optimistic<0, false>(r, lo, n, at)) continue;
#endif
      failed++;
    }
    general(r, lo, n, at);
  }
}
