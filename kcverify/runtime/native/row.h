// Drift statistics of pairs of logit rows: the sums from which the caller derives every statistic.
// Sweep one goes through memory once, block by block: an optimistic loop assumes finite values, a drift within 1/2 of
// the pilot and no new maximum; a block that breaks an assumption is done again from the first-level cache. The pilot
// shift follows the reference's running arg-max; all sums move to a new maximum and pilot in closed form.
// Sweep two, where something needs the normaliser first, runs backwards so that it starts in the cache.
static constexpr int BLOCK = 2048, PART = 256, MOST_BLOCKS = 262144 / BLOCK + 1;
#if KC_SOFTMAX
// How far from the pilot a drift may lie: the series of a level, and where float32 sums are not trusted any more.
static constexpr double LEVELS[] = {0.25, 0.5, 30.0};
#endif

struct Sums { double S = 0, PO = 0, A = 0, G = 0, PX = 0, D = 0, U = 0, Q = 0, gross = 0; };
// Sums in float32, of PART tokens and then of the parts, so that equal terms do not round all one way; Q lacks A + D + U.
struct Lanes {
  vf S{}, PO{}, A{}, G{}, PX{}, D{}, U{}, UO{}, Q{}, high = all(NONE), low = all(INFINITY), zx = all(NONE), wx = all(NONE);
  void add(const Lanes& k) {
    S += k.S; PO += k.PO; A += k.A; G += k.G; PX += k.PX; D += k.D; U += k.U; UO += k.UO; Q += k.Q;
    high = larger(high, k.high); low = smaller(low, k.low); zx = larger(zx, k.zx); wx = larger(wx, k.wx);
  }
};
struct Range { float high = NONE, low = INFINITY; bool masked = false; };

#if KC_TOP
// The K largest values, sorted, with their places; among equals the earlier place comes first.
struct Top {
  float v[K]; int64_t at[K]; int n = 0;
  float bound() const { return n < K ? NONE : v[K - 1]; }
  void add(float x, int64_t i) {
    int a = n < K ? n++ : K - 1;
    while (a > 0 && v[a - 1] < x) { v[a] = v[a - 1]; at[a] = at[a - 1]; a--; }
    v[a] = x; at[a] = i;
  }
  float kth(int k) const { return k <= n ? v[k - 1] : NONE; }
  bool tied(int k) const { return k > n || (k < n && v[k] == v[k - 1]); }  // the k-th place is not one token's alone
};
#endif

struct Row {
  const In *z, *w;
  int64_t width;
  float scale;
  Sums s;
  float m = NONE, c = 0, pilot = NONE;  // maximum, pilot shift, and the reference's logit where the shift was taken
  double high = -INFINITY, low = INFINITY;
  int64_t lost = 0, gained = 0;
  bool started = false, anchored = false, seen_z = false, seen_w = false, broken = false, wild = false, unswept = false, fixed = false;  // fixed: the pilot stays
  int level = 0;  // of LEVELS, what the drifts so far need
  Range range[MOST_BLOCKS];
  double b = 0, grown = 1, TV = 0, CHI2 = 0, BC = 0;
#if KC_TOP
  Top tz, tw;
#endif

#if KC_SOFTMAX
  // Move all sums to the maximum `nm` and the pilot shift `nc`.
  void rebase(float nm, float nc) {
    if (!started) { m = nm; c = nc; started = true; return; }
    if (nm == m && nc == c) return;
    double h = ((double)c - nc) * scale, d = ((double)m - nm) * scale, f = std::exp(d);
    if (!(std::fabs(h) < 60 && d < 300)) { wild = true; return; }
    double grow = std::exp(h), less = std::expm1(h), mass = s.S + s.A + s.G + s.PX, a = s.A;
    double second = std::fabs(h) < 1e-3 ? h * h * (0.5 + h / 6 + h * h / 24) : less - h;
    s.Q = grow * (s.Q + h * mass);
    s.gross = f * (grow * s.gross + std::fabs(h * less) * s.S);  // of what size G was the difference
    s.A = a + h * s.S;
    s.D = grow * s.D + grow * h * (a + s.G) + less * s.A;
    s.G = grow * s.G + less * a + second * s.S;
    s.PX *= grow;
    s.Q = f * (s.Q + d * (s.S + s.A + s.G + s.PX));
    s.U = f * (s.U + d * (s.S + s.PO));
    s.S *= f; s.PO *= f; s.A *= f; s.G *= f; s.PX *= f; s.D *= f;
    m = nm; c = nc;
  }

  // Start again with the maximum known and a fixed pilot.
  void restart(float nc) {
    float top = m;
    Row fresh{z, w, width, scale};
    *this = fresh;
    m = top; c = nc; pilot = INFINITY;
    started = anchored = fixed = true;
  }

  // The level that a block's drifts need, 3 beyond all.
  int needs(float hi, float lo) const {
    double above = ((double)hi - c) * scale, below = (c - (double)lo) * scale;
    int at = 0;
    while (at < 3 && !(above <= LEVELS[at] && below <= LEVELS[at])) at++;
    return at;
  }
#endif
  void widen(float hi, float lo, int at) {
    range[at].high = hi; range[at].low = lo;
    if (hi > high) high = hi;
    if (lo < low) low = lo;
  }
};

// One vector of tokens. LEVEL: of LEVELS. MASK: 0 all finite, 1 some absent, 2 some that only the candidate has.
// EXACT keeps the part of w-z that a far pilot would round away.
template <int LEVEL, int MASK, bool EXACT>
static inline __attribute__((always_inline)) void tokens(vf a, vf b, const Row& r, Lanes& k) {
  vi has_p{}, has_q{}, both{};
  if (MASK) { has_p = a > all(NONE); has_q = b > all(NONE); both = has_p & has_q; }
  vf raw = b - a;
  if (!MASK) { k.high = larger(raw, k.high); k.low = smaller(raw, k.low); k.zx = larger(a, k.zx); }
#if KC_TOP
  if (!MASK) k.wx = larger(b, k.wx);
#endif
#if KC_SOFTMAX
  vf d = EXACT ? centred(a, b, all(r.c)) : raw - r.c, x = a - r.m;
#if KC_SCALED
  x *= r.scale; d *= r.scale;
#endif
  x = floored(x);
  vf e = exp_of(x), t, g;
  if (MASK) {
    vi only = has_p & ~has_q;
    d = both ? d : all(0);
    k.PO += only ? e : all(0);
#if KC_ENTROPY
    k.UO += only ? e * x : all(0);
#endif
    e = both ? e : all(0);
  }
  if (LEVEL < 2) { g = excess_small<LEVEL == 0>(d); t = d + g; } else excess(d, t, g);
  k.S += e; k.A += e * d; k.G += e * g;
#if KC_REVERSE || KC_ENTROPY
  vf grown = e * t;
  k.D += grown * d;
#endif
#if KC_ENTROPY
  k.U += e * x; k.Q += grown * x;
#endif
  if (MASK == 2) {
    vi only = has_q & ~has_p;
    vf y = floored(only ? ((b - r.c) - r.m) * r.scale : all(0));
    vf q = only ? (y > all(80) ? all(INFINITY) : exp_of(smaller(y, all(80)))) : all(0);  // beyond float32: float64 takes the row
    k.PX += q;
#if KC_ENTROPY
    k.Q += q * y;
#endif
  }
#else
  k.G += raw - raw;  // 0, or NaN where a value is not finite
#endif
}

#if KC_SOFTMAX
static inline void fold(const Lanes& k, Sums& s) {
  double A = total(k.A), D = total(k.D), U = total(k.U);
  s.S += total(k.S); s.PO += total(k.PO); s.A += A; s.G += total(k.G); s.PX += total(k.PX);
  s.D += D; s.U += U + total(k.UO); s.Q += total(k.Q) + A + D + U;
}
#endif

// Calls `body(a, b)` for every vector of the block; the last one is filled up with absent tokens.
template <class Body> static inline void vectors(const In* z, const In* w, int64_t n, Body body) {
  int64_t j = 0;
  for (; j + LANES <= n; j += LANES) body(load(z + j), load(w + j));
  if (j == n) return;
  In a[LANES], b[LANES];
  for (int64_t i = 0; i < LANES; i++) { a[i] = j + i < n ? z[j + i] : ABSENT; b[i] = j + i < n ? w[j + i] : ABSENT; }
  body(load(a), load(b));
}
