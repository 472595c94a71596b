#if KC_TOP
// Top-k agreement, tolerant of ties: whether some choice among ties gives both rows the same k largest tokens.
static void scan_top(const In* p, int64_t lo, int n, Top& top) {
  for (int j = 0; j < n; j += LANES) {
    if (j + LANES <= n && top.n == K && !any(load(p + lo + j) > all(top.bound()))) continue;
    for (int i = j; i < j + LANES && i < n; i++) { float x = one(p[lo + i]); if (x > top.bound()) top.add(x, lo + i); }
  }
}

struct Places {  // tokens at or above either side's K-th value; `full` where there are too many to keep
  static constexpr int MOST = 512;
  float a[MOST], b[MOST]; int n = 0; bool full = false;
};

static void collect(const Row& r, int k, Places& p) {
  float ka = r.tz.kth(k), kb = r.tw.kth(k);
  for (int64_t j = 0; j < r.width && !p.full; j += LANES) {
    if (j + LANES <= r.width && !any((load(r.z + j) >= all(ka)) | (load(r.w + j) >= all(kb)))) continue;
    for (int64_t i = j; i < j + LANES && i < r.width; i++) {
      float a = one(r.z[i]), b = one(r.w[i]);
      if (!(a >= ka || b >= kb)) continue;
      if (p.n == Places::MOST) { p.full = true; break; }
      p.a[p.n] = a; p.b[p.n++] = b;
    }
  }
}

// Whether some choice among ties gives both rows the same k largest tokens.
static bool same_tied(const Row& r, int k, const Places& p) {
  float ka = r.tz.kth(k), kb = r.tw.kth(k);
  int64_t eligible = 0, forced = 0, outside = 0;
  auto see = [&](float a, float b) {
    bool fits = a >= ka && b >= kb, must = a > ka || b > kb;
    eligible += fits; forced += must; outside += must && !fits;
  };
  if (p.full) for (int64_t i = 0; i < r.width; i++) see(one(r.z[i]), one(r.w[i]));
  else for (int i = 0; i < p.n; i++) see(p.a[i], p.b[i]);
  return eligible >= k && forced <= k && !outside;
}

static bool same_set(const Row& r, int k) {
  for (int i = 0; i < k; i++) {
    bool found = false;
    for (int j = 0; j < k; j++) found |= r.tz.at[i] == r.tw.at[j];
    if (!found) return false;
  }
  return true;
}

static void agreements(const Row& r, double* out) {
  Places p;
  bool collected = false;
  for (int t = 0; t < TOPS; t++) {
    int most = TOP_K[t] < r.width ? TOP_K[t] : (int)r.width;
    bool agree = true;
    for (int k = TOP_ORDERED[t] ? 1 : most; k <= most && agree; k++) {
      if (!r.tz.tied(k) && !r.tw.tied(k)) { agree = same_set(r, k); continue; }
      if (!collected) { collect(r, K - 1 < r.width ? K - 1 : (int)r.width, p); collected = true; }
      agree = same_tied(r, k, p);
    }
    out[t] = agree;
  }
}
#endif
