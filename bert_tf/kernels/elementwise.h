// The arithmetic of ops.py on raw memory, float32 inside; see there for what is computed. Any buffer of an input may be
// that of the output of the same shape.
//
// Work is divided by rows, and column sums are added up over blocks of rows that depend on the shape only, so that no
// result depends on the number of threads.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

namespace bert {

struct bfloat16 {
  uint16_t bits;
};
struct float16 {
  uint16_t bits;
};

// Runs body(begin, end) over parts of [0, total) on several threads; cost: rough cycles of one item.
using Body = std::function<void(int64_t begin, int64_t end)>;
using Parallel = std::function<void(int64_t total, int64_t cost, const Body& body)>;

// Which token of which sequence each row is (ops.Places); read where there is dropout only.
struct Places {
  const int32_t *example, *position;
};

// A dropout: ops._dropout_scale with threshold = rate * 2^32 and scale = 1 / (1 - rate). threshold 0: no dropout.
struct Draw {
  uint32_t seed = 0, first_row = 0, threshold = 0;
  float scale = 1.0f;
};

// [rows, columns]: y = gelu(x + bias).
template <class T>
void gelu(const Parallel&, int64_t rows, int64_t columns, bool erf, const T* x, const T* bias, T* y);
template <class T>
void gelu_grad(const Parallel&, int64_t rows, int64_t columns, bool erf, const T* x, const T* bias, const T* dy, T* dx,
               T* dbias);

// [rows, columns]: s = residual + dropout(x + bias), or x alone where residual is null; y = layer norm of s.
// s, mean and rstd [rows] may be null.
template <class T>
void layer_norm(const Parallel&, int64_t rows, int64_t columns, Places, const Draw&, const T* x, const T* bias,
                const T* residual, const float* gamma, const float* beta, T* y, T* s, float* mean, float* rstd);
// dx is not written without dropout (it is ds then).
template <class T>
void layer_norm_grad(const Parallel&, int64_t rows, int64_t columns, Places, const Draw&, const T* dy, const T* s,
                     const float* mean, const float* rstd, const float* gamma, T* dx, T* ds, float* dgamma,
                     float* dbeta, T* dbias);

// [batch, heads, queries, keys]: p = softmax(scores * scale + mask), mask [batch, keys]; dropped = dropout(p), written
// where there is dropout.
struct ScoreShape {
  int64_t batch, heads, queries, keys;
};
template <class T>
void attention(const Parallel&, ScoreShape, float scale, const Draw&, const T* scores, const float* mask, T* p,
               T* dropped);
template <class T>
void attention_grad(const Parallel&, ScoreShape, float scale, const Draw&, const T* dy, const T* p, T* dscores);

// x [batch * length, 3 * heads * depth] plus bias as three tensors [batch, heads, length, depth].
struct HeadShape {
  int64_t batch, length, heads, depth;
};
template <class T>
using Three = std::array<T*, 3>;
template <class T>
void split_heads(const Parallel&, HeadShape, const T* x, const T* bias, Three<T> parts);
template <class T>
void split_heads_grad(const Parallel&, HeadShape, Three<const T> dparts, T* dx, T* dbias);

// y = dropout(x), [rows, columns].
template <class T>
void dropout(const Parallel&, int64_t rows, int64_t columns, Places, const Draw&, const T* x, T* y);

}  // namespace bert
