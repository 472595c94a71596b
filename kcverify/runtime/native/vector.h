// Vectors of 16 floats (AVX-512) or 8: loads of the three formats, and exp and expm1 to float32's resolution.
// GCC and Clang vector extensions; intrinsics only where the target has them.
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
static constexpr int LANES = 16;
#else
static constexpr int LANES = 8;
#endif
typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
typedef uint16_t vh __attribute__((vector_size(2 * LANES)));
typedef double vd __attribute__((vector_size(4 * LANES)));
static constexpr float NONE = -INFINITY;

#if KC_FP32
typedef float In;
static constexpr In ABSENT = -INFINITY;
static inline float one(In v) { return v; }
static inline vf load(const In* p) { vf v; std::memcpy(&v, p, sizeof v); return v; }
static inline void load_pair(const In* p, vf& a, vf& b) { a = load(p); b = load(p + LANES); }
#endif
#if KC_BF16
typedef uint16_t In;
static constexpr In ABSENT = 0xff80;
static inline float one(In v) { uint32_t u = uint32_t(v) << 16; float f; std::memcpy(&f, &u, 4); return f; }
static inline vf load(const In* p) {
  vh h; std::memcpy(&h, p, sizeof h);
  return (vf)(__builtin_convertvector(h, vu) << 16);
}
// Neighbours as two vectors, even and odd ones: no shuffle is needed, and the order of a sum is free.
static inline void load_pair(const In* p, vf& a, vf& b) {
  vu u; std::memcpy(&u, p, sizeof u);
  a = (vf)(u << 16); b = (vf)(u & 0xffff0000u);
}
#endif
#if KC_FP16
typedef uint16_t In;
static constexpr In ABSENT = 0xfc00;
#if defined(__AVX512F__)
static inline vf load(const In* p) { return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
#elif defined(__F16C__)
static inline vf load(const In* p) { return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
#else
static inline vf load(const In* p) {
  vh h; std::memcpy(&h, p, sizeof h);
  vu u = __builtin_convertvector(h, vu), sign = (u & 0x8000u) << 16, rest = u & 0x7fffu;
  vu big = (vu)(rest >= 0x7c00u), wide = 0x7f800000u | ((rest & 0x3ffu) << 13);
  vu plain = (vu)((vf)(rest << 13) * 5.192296858534828e33f);  // 2^112 moves the exponent's bias
  return (vf)(sign | (big & wide) | (~big & plain));
}
#endif
static inline float one(In v) { In p[LANES] = {v}; return load(p)[0]; }
static inline void load_pair(const In* p, vf& a, vf& b) { a = load(p); b = load(p + LANES); }
#endif

static inline vd doubles(double x) { return (vd){} + x; }
#if defined(__AVX512F__)
static inline vd wide(vf x, int half) {
  return (vd)_mm512_cvtps_pd(half ? _mm256_castpd_ps(_mm512_extractf64x4_pd((__m512d)x, 1)) : _mm512_castps512_ps256((__m512)x));
}
#elif defined(__AVX2__)
static inline vd wide(vf x, int half) { return (vd)_mm256_cvtps_pd(half ? _mm256_extractf128_ps((__m256)x, 1) : _mm256_castps256_ps128((__m256)x)); }
#else
static inline vd wide(vf x, int half) { return (vd){x[4 * half], x[4 * half + 1], x[4 * half + 2], x[4 * half + 3]}; }
#endif
// Fetch what a pair of loads wants, 2048 bytes before it is due; may point past the row: it is never read.
static inline void ahead(const In* p) {
  for (int at = 0; at < (int)(2 * LANES * sizeof(In)); at += 64) __builtin_prefetch((const char*)p + 2048 + at);
}
static inline vf all(float x) { return (vf){} + x; }
#if defined(__AVX512F__)
static inline vf larger(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }   // NaN in a gives b
static inline vf smaller(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }  // NaN in a gives b
static inline bool any(vi mask) { return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0; }
static inline vf root(vf x) { return (vf)_mm512_sqrt_ps((__m512)x); }
#elif defined(__AVX2__)
static inline vf larger(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }   // NaN in a gives b
static inline vf smaller(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }  // NaN in a gives b
static inline bool any(vi mask) { return _mm256_movemask_ps((__m256)mask) != 0; }
static inline vf root(vf x) { return (vf)_mm256_sqrt_ps((__m256)x); }
#else
static inline vf larger(vf a, vf b) { return a > b ? a : b; }
static inline vf smaller(vf a, vf b) { return a < b ? a : b; }
static inline bool any(vi m) { int32_t s = 0; for (int i = 0; i < LANES; i++) s |= m[i]; return s != 0; }
static inline vf root(vf x) { for (int i = 0; i < LANES; i++) x[i] = std::sqrt(x[i]); return x; }
#endif
#if KC_SOFTMAX
static inline vf floored(vf x) { return larger(x, all(-87.0f)); }  // exp of it is about 1e-38: nothing
#endif
static inline vf magnitude(vf x) { return (vf)((vi)x & 0x7fffffff); }
#if defined(__AVX512F__)
static inline float largest(vf x) { return _mm512_reduce_max_ps((__m512)x); }
static inline float smallest(vf x) { return _mm512_reduce_min_ps((__m512)x); }
static inline double total(vf x) { return _mm512_reduce_add_pd((__m512d)(wide(x, 0) + wide(x, 1))); }
#else
static inline float largest(vf x) { float m = x[0]; for (int i = 1; i < LANES; i++) m = x[i] > m ? x[i] : m; return m; }
static inline float smallest(vf x) { float m = x[0]; for (int i = 1; i < LANES; i++) m = x[i] < m ? x[i] : m; return m; }
static inline double total(vf x) { vd w = wide(x, 0) + wide(x, 1); double s = 0; for (int i = 0; i < LANES / 2; i++) s += w[i]; return s; }
#endif
static inline int64_t count(vi x) { int64_t s = 0; for (int i = 0; i < LANES; i++) s += x[i]; return s; }

#if KC_SOFTMAX
#if defined(__AVX512F__)
// 2^(i/32) less i/32 of an exponent's step, so that adding the shifted integer k gives 2^(k/32).
static constexpr uint32_t POWERS[32] = {
    0x3f800000, 0x3f7ecd87, 0x3f7daac3, 0x3f7c980f, 0x3f7b95c2, 0x3f7aa43a, 0x3f79c3d3, 0x3f78f4f0,
    0x3f7837f0, 0x3f778d3a, 0x3f76f532, 0x3f767043, 0x3f75fed7, 0x3f75a15b, 0x3f75583f, 0x3f7523f6,
    0x3f7504f3, 0x3f74fbaf, 0x3f7508a4, 0x3f752c4d, 0x3f75672a, 0x3f75b9be, 0x3f76248c, 0x3f76a81e,
    0x3f7744fd, 0x3f77fbb8, 0x3f78ccdf, 0x3f79b907, 0x3f7ac0c7, 0x3f7be4ba, 0x3f7d257d, 0x3f7e83b3};
// exp(x) for -87 <= x <= 88, relative error 2e-7: 2^(k/32) from a table in two registers times a short polynomial.
static inline vf exp_of(vf x) {
  vf t = x * 46.1662413084468283f + 12582912.0f;  // rounds to an integer in the low bits
  vf r = x - (t - 12582912.0f) * 0.0216608493924983f;
  vu low, high; std::memcpy(&low, POWERS, sizeof low); std::memcpy(&high, POWERS + 16, sizeof high);
  vf s = (vf)((vu)_mm512_permutex2var_epi32((__m512i)low, (__m512i)t, (__m512i)high) + ((vu)t << 18));
  return s + s * (r * (0.500002444f * r + 1.00000978f));
}
#else
// exp(x) for -87 <= x <= 88: 1 unit in the last place near 0, relative error |x| 3e-8 further out.
static inline vf exp_of(vf x) {
  vf t = x * 1.44269504088896341f + 12582912.0f;  // rounds to an integer in the low bits
  vf n = t - 12582912.0f, r = x - n * 0.69314718056f;
  vf p = 1.3981999507e-3f * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f; p = p * r + 1.6666665459e-1f; p = p * r + 5.0000001201e-1f;
  p = p * r + 1.0f; p = p * r + 1.0f;
  return (vf)((vu)p + ((vu)t << 23));
}
#endif
// expm1(x) - x for |x| <= 1/4 (CLOSE) or 1/2: never negative, relative error about 1e-7.
template <bool CLOSE> static inline vf excess_small(vf x) {
  vf p = all(CLOSE ? 1.39082782e-3f : 1.99448739e-4f);
  if (!CLOSE) p = p * x + 1.39821856e-3f;
  p = p * x + (CLOSE ? 8.34884774e-3f : 8.33323598e-3f);
  p = p * x + (CLOSE ? 4.16666381e-2f : 4.16657925e-2f);
  p = p * x + (CLOSE ? 1.66666418e-1f : 1.66666672e-1f); p = p * x + 0.5f;
  return p * (x * x);
}
// expm1(x) for |x| <= 1/4 (CLOSE) or 1/2, relative error about 1.5e-7.
template <bool CLOSE> static inline vf growth_small(vf x) {
  vf p = all(CLOSE ? 8.34884774e-3f : 1.39821856e-3f);
  if (!CLOSE) p = p * x + 8.40802956e-3f;
  p = p * x + (CLOSE ? 4.17752936e-2f : 4.16657925e-2f);
  p = p * x + (CLOSE ? 1.66666418e-1f : 1.66659653e-1f);
  p = p * x + (CLOSE ? 4.99998301e-1f : 0.5f); p = p * x + 1.0f;
  return p * x;
}
// t = expm1(x) and g = t - x, both to full relative accuracy, for |x| <= 60.
static inline void excess(vf x, vf& t, vf& g) {
  vf k = x * 1.44269504088896341f + 12582912.0f, n = k - 12582912.0f;
  vf r = x - n * 0.693359375f; r = r + n * 2.12194440e-4f;
  vf q = r + excess_small<false>(r), s = (vf)(((vu)k << 23) + 0x3f800000u);
  vf far = s * q + (s - 1.0f), near = excess_small<false>(x);
  vi small = magnitude(x) <= 0.5f;
  g = small ? near : far - x;
  t = small ? x + near : far;
}
// (w - z) - c without losing the part of the difference that the first rounding drops.
static inline vf centred(vf a, vf b, vf c) {
  vf s = b - a, v = s - b;
  return (s - c) + ((b - (s - v)) - (a + v));
}
#endif
