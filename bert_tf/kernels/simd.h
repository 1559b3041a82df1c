// Vectors of LANES floats as GCC's extension, on whatever the processor has; tensors are float32, bfloat16 or (optimizer.h)
// float16.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "elementwise.h"  // bfloat16, float16
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include <immintrin.h>
#define BERT_AVX512 1
#endif

namespace bert {

#ifdef BERT_AVX512
constexpr int LANES = 16;
#else
constexpr int LANES = 8;
#endif
typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef uint32_t Bits __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));

#define BERT_INLINE inline __attribute__((always_inline))

// How much of a vector is meant: all of it, or the first few lanes at the end of a row.
struct All {};
struct Part {
  int lanes;
};

BERT_INLINE Vector all(float value) { return value - Vector{}; }
BERT_INLINE Bits all_bits(uint32_t value) { return value - Bits{}; }

BERT_INLINE Bits lane_numbers() {
  Bits numbers = {};
  for (int i = 0; i < LANES; i++) numbers[i] = i;
  return numbers;
}

// The lanes of `value` where the mask (all ones or zeros in each lane) is set, those of `other` elsewhere.
BERT_INLINE Vector select(Bits mask, Vector value, Vector other) {
  return (Vector)(((Bits)value & mask) | ((Bits)other & ~mask));
}

// What lies beyond the end of a row becomes `filler`.
BERT_INLINE Vector fill(Vector value, All, float) { return value; }
BERT_INLINE Vector fill(Vector value, Part part, float filler) {
  return select((Bits)(lane_numbers() < (uint32_t)part.lanes), value, all(filler));
}

// The smaller and the larger; where `b` is NaN the result is NaN.
BERT_INLINE Vector minimum(Vector a, Vector b) {
#ifdef BERT_AVX512
  return (Vector)_mm512_min_ps((__m512)a, (__m512)b);
#else
  return a < b ? a : b;
#endif
}
BERT_INLINE Vector maximum(Vector a, Vector b) {
#ifdef BERT_AVX512
  return (Vector)_mm512_max_ps((__m512)a, (__m512)b);
#else
  return a > b ? a : b;
#endif
}

BERT_INLINE float sum(Vector v) {
  float halves[LANES];
  std::memcpy(halves, &v, sizeof v);
  for (int width = LANES / 2; width > 0; width /= 2)
    for (int i = 0; i < width; i++) halves[i] += halves[i + width];
  return halves[0];
}

BERT_INLINE float largest(Vector v) {
  float result = v[0];
  for (int i = 1; i < LANES; i++) result = v[i] > result ? v[i] : result;
  return result;
}

// ------------------------------------------------------------------------------------------------ memory
// The 16 bits of a bfloat16 or float16 as float32 and back; back it rounds to the nearest, ties to even.
BERT_INLINE Vector widen(Halves halves, bfloat16) { return (Vector)(__builtin_convertvector(halves, Bits) << 16); }

BERT_INLINE Halves narrow(Vector value, bfloat16) {
#if defined(BERT_AVX512) && defined(__AVX512BF16__)
  return (Halves)_mm512_cvtneps_pbh((__m512)value);
#else
  const Bits bits = (Bits)value;
  const Bits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const Bits is_nan = (Bits)((bits & 0x7fffffff) > 0x7f800000);
  return __builtin_convertvector((rounded & ~is_nan) | (0x7fc0 & is_nan), Halves);
#endif
}

#ifdef BERT_AVX512
BERT_INLINE Vector widen(Halves halves, float16) { return (Vector)_mm512_cvtph_ps((__m256i)halves); }
BERT_INLINE Halves narrow(Vector value, float16) { return (Halves)_mm512_cvtps_ph((__m512)value, 0); }
#else
// An exponent of float16 is 112 less than that of float32, and its mantissa 13 bits shorter. TensorFlow's threads read
// subnormal float32 as zero, so that no step may go through one.
BERT_INLINE Vector widen(Halves halves, float16) {
  const Bits bits = __builtin_convertvector(halves, Bits), sign = (bits & 0x8000) << 16;
  const Bits shifted = (bits & 0x7fff) << 13, normal = shifted + (112u << 23);
  const Bits is_special = (Bits)((bits & 0x7c00) == 0x7c00), is_small = (Bits)((bits & 0x7c00) == 0);
  const Bits small = (Bits)((Vector)(normal + (1u << 23)) - 0x1p-14f);  // subnormal in float16
  const Bits special = normal + (112u << 23);                           // infinity, NaN
  return (Vector)(sign | (small & is_small) | (special & is_special) | (normal & ~is_small & ~is_special));
}
BERT_INLINE Halves narrow(Vector value, float16) {
  const Bits sign = ((Bits)value & 0x80000000u) >> 16, bits = (Bits)value & 0x7fffffffu;
  const Bits is_nan = (Bits)(bits > 0x7f800000u), is_large = (Bits)(bits >= (143u << 23));
  const Bits is_small = (Bits)(bits < (113u << 23));
  const Bits small = (Bits)((Vector)bits + 0.5f) - (126u << 23);  // the sum's last bit is float16's smallest step
  const Bits normal = (bits - (112u << 23) + 0xfff + ((bits >> 13) & 1)) >> 13;
  const Bits large = (0x7e00 & is_nan) | (0x7c00 & ~is_nan);
  return __builtin_convertvector(
      sign | (small & is_small) | (large & is_large) | (normal & ~is_small & ~is_large), Halves);
}
#endif

BERT_INLINE Vector load(const float* source, All) {
  Vector value;
  std::memcpy(&value, source, sizeof value);
  return value;
}
BERT_INLINE void store(float* target, Vector value, All) { std::memcpy(target, &value, sizeof value); }
template <class T>
BERT_INLINE Vector load(const T* source, All) {
  Halves halves;
  std::memcpy(&halves, source, sizeof halves);
  return widen(halves, T{});
}
template <class T>
BERT_INLINE void store(T* target, Vector value, All) {
  const Halves halves = narrow(value, T{});
  std::memcpy(target, &halves, sizeof halves);
}

// Fewer than LANES: what is beyond reads as zero and is not written.
#ifdef BERT_AVX512
BERT_INLINE __mmask16 lane_mask(Part part) { return (__mmask16)((1u << part.lanes) - 1); }
BERT_INLINE Vector load(const float* source, Part part) {
  return (Vector)_mm512_maskz_loadu_ps(lane_mask(part), source);
}
BERT_INLINE void store(float* target, Vector value, Part part) {
  _mm512_mask_storeu_ps(target, lane_mask(part), (__m512)value);
}
template <class T>
BERT_INLINE Vector load(const T* source, Part part) {
  return widen((Halves)_mm256_maskz_loadu_epi16(lane_mask(part), source), T{});
}
template <class T>
BERT_INLINE void store(T* target, Vector value, Part part) {
  _mm256_mask_storeu_epi16(target, lane_mask(part), (__m256i)narrow(value, T{}));
}
#else
template <class T>
BERT_INLINE Vector load(const T* source, Part part) {
  T values[LANES] = {};
  for (int i = 0; i < part.lanes; i++) values[i] = source[i];
  return load(values, All{});
}
template <class T>
BERT_INLINE void store(T* target, Vector value, Part part) {
  T values[LANES];
  store(values, value, All{});
  for (int i = 0; i < part.lanes; i++) target[i] = values[i];
}
#endif

// Calls f(first column, All or Part, number of an accumulator) along a row, so that sums are kept in ACCUMULATORS
// independent chains. Their number depends on the column only, hence so does the result.
constexpr int ACCUMULATORS = 4;
template <class F>
BERT_INLINE void along_row(int64_t columns, F f) {
  int64_t c = 0;
  for (; c + 4 * LANES <= columns; c += 4 * LANES) {
    f(c, All{}, 0);
    f(c + LANES, All{}, 1);
    f(c + 2 * LANES, All{}, 2);
    f(c + 3 * LANES, All{}, 3);
  }
  for (; c + LANES <= columns; c += LANES) f(c, All{}, 0);
  if (c < columns) f(c, Part{(int)(columns - c)}, 1);
}

struct Sum {
  Vector parts[ACCUMULATORS] = {};
  BERT_INLINE float total() const { return sum((parts[0] + parts[1]) + (parts[2] + parts[3])); }
};

template <class T>
std::vector<float> widened(const T* values, int64_t count) {
  std::vector<float> result(count);
  for (int64_t c = 0; c < count; c += LANES) {
    if (c + LANES <= count)
      store(&result[c], load(values + c, All{}), All{});
    else
      store(&result[c], load(values + c, Part{(int)(count - c)}), Part{(int)(count - c)});
  }
  return result;
}

template <class T>
void narrowed(const float* values, int64_t count, T* target) {
  along_row(count, [&](int64_t c, auto lanes, int) { store(target + c, load(values + c, lanes), lanes); });
}

// A row in float32 with room for whole vectors.
inline std::vector<float> row_buffer(int64_t columns) { return std::vector<float>((columns + LANES - 1) / LANES * LANES); }

// ---------------------------------------------------------------------------------------------- functions
// How exact a function has to be: to the last bits of float32, or well below half a unit of bfloat16.
template <class T>
constexpr bool EXACT = sizeof(T) == 4;

// 2^x; 0 below -127, infinity above 127.5, NaN for NaN. 2^x = 2^n 2^f with |f| <= 1/2; the polynomials in f are our
// own minimax fits (relative errors 8e-8 and 3e-6).
template <class T>
BERT_INLINE Vector exp2(Vector x) {
  x = minimum(all(128.0f), maximum(all(-127.0f), x));
  const Vector shifted = x + 12582912.0f;  // 1.5 * 2^23: the integer n is in the low bits
  const Vector f = x - (shifted - 12582912.0f);
  Vector p;
  if (EXACT<T>) {
    p = 0.001327647196f * f + 0.009675541503f;
    p = p * f + 0.05550713275f;
    p = p * f + 0.2402211972f;
    p = p * f + 0.6931469671f;
    p = p * f + 1.000000072f;
  } else {
    p = 0.009570101877f * f + 0.05591786178f;
    p = p * f + 0.2402474484f;
    p = p * f + 0.6931218146f;
    p = p * f + 0.9999992614f;
  }
  return p * (Vector)(((Bits)shifted << 23) + 0x3f800000u);
}

// 1 / x for x >= 1.
template <class T>
BERT_INLINE Vector reciprocal(Vector x) {
#ifdef BERT_AVX512
  if (!EXACT<T>) return (Vector)_mm512_rcp14_ps((__m512)x);
#endif
  return 1.0f / x;
}

// a / b and the root of x >= 0, for b and x far from the ends of float32's range (below 1e-37 the root is that of
// 1e-37), to the last bit or two: the processor's estimates and a step of Newton's method are several times faster than
// its divisions and roots.
BERT_INLINE Vector divide(Vector a, Vector b) {
#ifdef BERT_AVX512
  const Vector estimate = (Vector)_mm512_rcp14_ps((__m512)b);
  return a * (estimate * (2.0f - b * estimate));
#else
  return a / b;
#endif
}
BERT_INLINE Vector square_root(Vector x) {
#ifdef BERT_AVX512
  x = maximum(all(1e-37f), x);
  const Vector estimate = (Vector)_mm512_rsqrt14_ps((__m512)x), root = x * estimate;
  return root + 0.5f * root * (1.0f - root * estimate);
#else
  for (int i = 0; i < LANES; i++) x[i] = std::sqrt(x[i]);
  return x;
#endif
}

// Finalizer of MurmurHash3, see ops._mix.
BERT_INLINE Bits mix(Bits x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

}  // namespace bert
