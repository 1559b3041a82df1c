#include "elementwise.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "dropout.h"
#include "simd.h"

namespace bert {
namespace {

constexpr float LAYER_NORM_EPSILON = 1e-12f;
constexpr float LOG2_E = 1.44269504f;

// ----------------------------------------------------------------------------------------------- column sums
constexpr int64_t BLOCKS = 64;

int64_t block_rows(int64_t rows) { return std::max<int64_t>(8, (rows + BLOCKS - 1) / BLOCKS); }

// Calls body(first row, last row, sums [width]) for each block of rows, then adds up the blocks' sums in order.
template <class F>
std::vector<float> sum_over_rows(const Parallel& parallel, int64_t rows, int64_t row_cost, int64_t width, F body) {
  const int64_t size = block_rows(rows), blocks = (rows + size - 1) / size;
  std::vector<float> partial(blocks * width);
  parallel(blocks, row_cost * size, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; b++) body(b * size, std::min(rows, (b + 1) * size), &partial[b * width]);
  });
  std::vector<float> total(width);
  for (int64_t b = 0; b < blocks; b++)
    for (int64_t c = 0; c < width; c++) total[c] += partial[b * width + c];
  return total;
}

template <class L>
BERT_INLINE void add_to(float* sums, Vector value, L lanes) {
  store(sums, load(sums, lanes) + value, lanes);
}

// ------------------------------------------------------------------------------------------------------ gelu
// The normal distribution function at x and its slope times x: gelu(x) = x below, gelu'(x) = below + slope.
struct Below {
  Vector below, slope;
};

// below = 1 / (1 + exp(-2u)), which is (1 + tanh u) / 2, with u = sqrt(2/pi) (x + 0.044715 x^3).
template <class T>
BERT_INLINE Below below_by_tanh(Vector x) {
  constexpr float a = -2.0f * 0.7978845608f * LOG2_E, b = a * 0.044715f;
  const Vector square = x * x;
  const Vector below = reciprocal<T>(1.0f + exp2<T>(x * (square * b + a)));
  // below (1 - below) x 2u': far out the first is zero and the last may be infinite, unless x is bounded.
  constexpr float c = 2.0f * 0.7978845608f, d = 3.0f * c * 0.044715f;
  const Vector bounded = maximum(all(-100.0f), minimum(all(100.0f), x));
  return {below, below * (1.0f - below) * bounded * (bounded * bounded * d + c)};
}

// erfc(z) exp(z^2) = t P(t) with t = 1 / (1 + 0.4 z), z = |x| / sqrt(2); P is our own minimax fit on z <= 9 (relative
// errors 5e-8 and 2e-5).
template <class T>
BERT_INLINE Below below_by_erf(Vector x) {
  const Vector size = (Vector)((Bits)x & 0x7fffffffu);
  const Vector t = reciprocal<T>(1.0f + 0.2828427125f * size);
  const Vector gauss = exp2<T>(x * x * (-0.5f * LOG2_E));
  Vector p;
  if (EXACT<T>) {
    p = 0.0391410181f * t - 0.129893651f;
    p = p * t + 0.062083793f;
    p = p * t + 0.113483081f;
    p = p * t + 0.0617700784f;
    p = p * t + 0.201226505f;
    p = p * t + 0.199834162f;
    p = p * t + 0.226738694f;
    p = p * t + 0.225616373f;
  } else {
    p = -0.148416798f * t + 0.537766273f;
    p = p * t - 0.151632973f;
    p = p * t + 0.333170574f;
    p = p * t + 0.20166722f;
    p = p * t + 0.227463454f;
  }
  const Vector tail = 0.5f * t * p * gauss;
  const Bits negative = (Bits)(x < 0.0f);
  const Vector bounded = maximum(all(-100.0f), minimum(all(100.0f), x));  // far out gauss is zero
  return {select(negative, tail, 1.0f - tail), 0.3989422804f * gauss * bounded};
}

template <class T, bool ERF>
BERT_INLINE Below below(Vector x) {
  return ERF ? below_by_erf<T>(x) : below_by_tanh<T>(x);
}

template <class T, bool ERF>
void gelu_rows(const Parallel& parallel, int64_t rows, int64_t columns, const T* x, const T* bias, T* y) {
  const std::vector<float> bias32 = widened(bias, columns);
  parallel(rows, columns, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++) {
      const T* from = x + r * columns;
      T* to = y + r * columns;
      along_row(columns, [&](int64_t c, auto lanes, int) {
        const Vector v = load(from + c, lanes) + load(&bias32[c], lanes);
        store(to + c, v * below<T, ERF>(v).below, lanes);
      });
    }
  });
}

template <class T, bool ERF>
void gelu_grad_rows(const Parallel& parallel, int64_t rows, int64_t columns, const T* x, const T* bias, const T* dy,
                    T* dx, T* dbias) {
  const std::vector<float> bias32 = widened(bias, columns);
  const auto block = [&](int64_t begin, int64_t end, float* sums) {
    for (int64_t r = begin; r < end; r++) {
      const int64_t row = r * columns;
      along_row(columns, [&](int64_t c, auto lanes, int) {
        const Vector v = load(x + row + c, lanes) + load(&bias32[c], lanes);
        const Below b = below<T, ERF>(v);
        // x - x: zero, or NaN where x is not finite
        const Vector d = load(dy + row + c, lanes) * (b.below + b.slope + (v - v));
        store(dx + row + c, d, lanes);
        add_to(sums + c, d, lanes);
      });
    }
  };
  narrowed(sum_over_rows(parallel, rows, 2 * columns, columns, block).data(), columns, dbias);
}

// ------------------------------------------------------------------------------------------------- layer norm
template <class T, bool ADD, bool DROP>
void layer_norm_rows(const Parallel& parallel, int64_t rows, int64_t columns, Places places, const Draw& draw,
                     const T* x, const T* bias, const T* residual, const float* gamma, const float* beta, T* y, T* s,
                     float* mean, float* rstd) {
  const std::vector<float> bias32 = ADD ? widened(bias, columns) : std::vector<float>();
  parallel(rows, (DROP ? 3 : 1) * columns, [&](int64_t begin, int64_t end) {
    std::vector<float> buffer = row_buffer(columns);
    float* sums = buffer.data();
    for (int64_t r = begin; r < end; r++) {
      const int64_t row = r * columns;
      const Factors factors = DROP ? row_factors(draw, places, r, columns) : Factors(draw, 0, 0);
      Sum total, squares;
      along_row(columns, [&](int64_t c, auto lanes, int k) {
        Vector v = load(x + row + c, lanes);
        if (ADD) {
          v += load(&bias32[c], lanes);
          if (DROP) v *= factors.at(c);
          v += load(residual + row + c, lanes);
        }
        store(sums + c, v, All{});
        total.parts[k] += fill(v, lanes, 0.0f);
      });
      const float m = total.total() / columns;
      along_row(columns, [&](int64_t c, auto lanes, int k) {
        const Vector d = fill(load(sums + c, All{}) - m, lanes, 0.0f);
        squares.parts[k] += d * d;
      });
      const float scale = 1.0f / std::sqrt(squares.total() / columns + LAYER_NORM_EPSILON);
      along_row(columns, [&](int64_t c, auto lanes, int) {
        const Vector v = load(sums + c, All{});
        if (s) store(s + row + c, v, lanes);
        store(y + row + c, (v - m) * scale * load(gamma + c, lanes) + load(beta + c, lanes), lanes);
      });
      if (mean) mean[r] = m, rstd[r] = scale;
    }
  });
}

template <class T, bool DROP>
void layer_norm_grad_rows(const Parallel& parallel, int64_t rows, int64_t columns, Places places, const Draw& draw,
                          const T* dy, const T* s, const float* mean, const float* rstd, const float* gamma, T* dx,
                          T* ds, float* dgamma, float* dbeta, T* dbias) {
  const auto block = [&](int64_t begin, int64_t end, float* sums) {
    float *sum_gamma = sums, *sum_beta = sums + columns, *sum_bias = sums + 2 * columns;
    std::vector<float> first = row_buffer(columns), second = row_buffer(columns);
    float *normed = first.data(), *scaled = second.data();
    for (int64_t r = begin; r < end; r++) {
      const int64_t row = r * columns;
      const Factors factors = DROP ? row_factors(draw, places, r, columns) : Factors(draw, 0, 0);
      const float m = mean[r], scale = rstd[r];
      Sum total, products;
      along_row(columns, [&](int64_t c, auto lanes, int k) {
        const Vector n = (load(s + row + c, lanes) - m) * scale, up = load(dy + row + c, lanes);
        const Vector d = up * load(gamma + c, lanes);  // zero beyond the end
        store(normed + c, n, All{});
        store(scaled + c, d, All{});
        total.parts[k] += d;
        products.parts[k] += fill(d * n, lanes, 0.0f);
        add_to(sum_gamma + c, up * n, lanes);
        add_to(sum_beta + c, up, lanes);
      });
      const float a = total.total() / columns, b = products.total() / columns;
      along_row(columns, [&](int64_t c, auto lanes, int) {
        Vector d = scale * (load(scaled + c, All{}) - a - load(normed + c, All{}) * b);
        store(ds + row + c, d, lanes);
        if (DROP) {
          d *= factors.at(c);
          store(dx + row + c, d, lanes);
        }
        add_to(sum_bias + c, d, lanes);
      });
    }
  };
  const auto sums = sum_over_rows(parallel, rows, (DROP ? 5 : 3) * columns, 3 * columns, block);
  std::copy_n(&sums[0], columns, dgamma);
  std::copy_n(&sums[columns], columns, dbeta);
  narrowed(&sums[2 * columns], columns, dbias);
}

// -------------------------------------------------------------------------------------------------- attention
template <class T, bool DROP>
void attention_rows(const Parallel& parallel, ScoreShape shape, float scale, const Draw& draw, const T* scores,
                    const float* mask, T* p, T* dropped) {
  const int64_t keys = shape.keys, rows_each = shape.heads * shape.queries;
  parallel(shape.batch * rows_each, (DROP ? 3 : 2) * keys, [&](int64_t begin, int64_t end) {
    std::vector<float> first = row_buffer(keys), second = row_buffer(keys);
    float *mask2 = first.data(), *e = second.data();
    int64_t mask_of = -1;
    for (int64_t r = begin; r < end; r++) {
      const int64_t row = r * keys, example = r / rows_each, query = r % shape.queries;
      const Factors factors(draw, example, first_score(r / shape.queries % shape.heads, query));
      if (example != mask_of) {
        mask_of = example;
        for (int64_t c = 0; c < keys; c++) mask2[c] = mask[example * keys + c] * LOG2_E;
      }
      // Powers of two instead of e: scores are scaled once.
      Vector high[ACCUMULATORS];
      for (Vector& h : high) h = all(-INFINITY);
      along_row(keys, [&](int64_t c, auto lanes, int k) {
        const Vector v = load(scores + row + c, lanes) * (scale * LOG2_E) + load(mask2 + c, All{});
        store(e + c, v, All{});
        high[k] = maximum(fill(v, lanes, -INFINITY), high[k]);
      });
      const float top = largest(maximum(maximum(high[0], high[1]), maximum(high[2], high[3])));
      Sum total;
      along_row(keys, [&](int64_t c, auto lanes, int k) {
        const Vector v = exp2<T>(load(e + c, All{}) - top);
        store(e + c, v, All{});
        total.parts[k] += fill(v, lanes, 0.0f);
      });
      const float share = 1.0f / total.total();
      along_row(keys, [&](int64_t c, auto lanes, int) {
        const Vector v = load(e + c, All{}) * share;
        store(p + row + c, v, lanes);
        if (DROP) store(dropped + row + c, v * factors.at(c), lanes);
      });
    }
  });
}

template <class T, bool DROP>
void attention_grad_rows(const Parallel& parallel, ScoreShape shape, float scale, const Draw& draw, const T* dy,
                         const T* p, T* dscores) {
  const int64_t keys = shape.keys, rows_each = shape.heads * shape.queries;
  parallel(shape.batch * rows_each, (DROP ? 3 : 1) * keys, [&](int64_t begin, int64_t end) {
    std::vector<float> buffer = row_buffer(keys);
    float* up = buffer.data();
    for (int64_t r = begin; r < end; r++) {
      const int64_t row = r * keys;
      const Factors factors(draw, r / rows_each, first_score(r / shape.queries % shape.heads, r % shape.queries));
      Sum products;
      along_row(keys, [&](int64_t c, auto lanes, int k) {
        Vector d = load(dy + row + c, lanes);
        if (DROP) d *= factors.at(c);
        store(up + c, d, All{});
        products.parts[k] += d * load(p + row + c, lanes);
      });
      const float mean = products.total();
      along_row(keys, [&](int64_t c, auto lanes, int) {
        store(dscores + row + c, scale * load(p + row + c, lanes) * (load(up + c, All{}) - mean), lanes);
      });
    }
  });
}

// ------------------------------------------------------------------------------------------------------ heads
// Where row r of [batch * length, ...] is in [batch, heads, length, depth].
int64_t place(HeadShape shape, int64_t row, int64_t head) {
  const int64_t example = row / shape.length, position = row % shape.length;
  return ((example * shape.heads + head) * shape.length + position) * shape.depth;
}

}  // namespace

// ------------------------------------------------------------------------------------------------- interface
template <class T>
void gelu(const Parallel& parallel, int64_t rows, int64_t columns, bool erf, const T* x, const T* bias, T* y) {
  (erf ? gelu_rows<T, true> : gelu_rows<T, false>)(parallel, rows, columns, x, bias, y);
}

template <class T>
void gelu_grad(const Parallel& parallel, int64_t rows, int64_t columns, bool erf, const T* x, const T* bias,
               const T* dy, T* dx, T* dbias) {
  (erf ? gelu_grad_rows<T, true> : gelu_grad_rows<T, false>)(parallel, rows, columns, x, bias, dy, dx, dbias);
}

template <class T>
void layer_norm(const Parallel& parallel, int64_t rows, int64_t columns, Places places, const Draw& draw, const T* x,
                const T* bias, const T* residual, const float* gamma, const float* beta, T* y, T* s, float* mean,
                float* rstd) {
  const auto function = !residual        ? layer_norm_rows<T, false, false>
                        : draw.threshold ? layer_norm_rows<T, true, true>
                                         : layer_norm_rows<T, true, false>;
  function(parallel, rows, columns, places, draw, x, bias, residual, gamma, beta, y, s, mean, rstd);
}

template <class T>
void layer_norm_grad(const Parallel& parallel, int64_t rows, int64_t columns, Places places, const Draw& draw,
                     const T* dy, const T* s, const float* mean, const float* rstd, const float* gamma, T* dx, T* ds,
                     float* dgamma, float* dbeta, T* dbias) {
  const auto function = draw.threshold ? layer_norm_grad_rows<T, true> : layer_norm_grad_rows<T, false>;
  function(parallel, rows, columns, places, draw, dy, s, mean, rstd, gamma, dx, ds, dgamma, dbeta, dbias);
}

template <class T>
void attention(const Parallel& parallel, ScoreShape shape, float scale, const Draw& draw, const T* scores,
               const float* mask, T* p, T* dropped) {
  const auto function = draw.threshold ? attention_rows<T, true> : attention_rows<T, false>;
  function(parallel, shape, scale, draw, scores, mask, p, dropped);
}

template <class T>
void attention_grad(const Parallel& parallel, ScoreShape shape, float scale, const Draw& draw, const T* dy, const T* p,
                    T* dscores) {
  const auto function = draw.threshold ? attention_grad_rows<T, true> : attention_grad_rows<T, false>;
  function(parallel, shape, scale, draw, dy, p, dscores);
}

template <class T>
void split_heads(const Parallel& parallel, HeadShape shape, const T* x, const T* bias, Three<T> parts) {
  const int64_t depth = shape.depth, columns = 3 * shape.heads * depth;
  const std::vector<float> bias32 = widened(bias, columns);
  parallel(shape.batch * shape.length, columns / 2, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++) {
      for (int64_t h = 0; h < 3 * shape.heads; h++) {
        const T* from = x + r * columns + h * depth;
        T* to = parts[h / shape.heads] + place(shape, r, h % shape.heads);
        along_row(depth, [&](int64_t c, auto lanes, int) {
          store(to + c, load(from + c, lanes) + load(&bias32[h * depth + c], lanes), lanes);
        });
      }
    }
  });
}

template <class T>
void split_heads_grad(const Parallel& parallel, HeadShape shape, Three<const T> dparts, T* dx, T* dbias) {
  const int64_t depth = shape.depth, columns = 3 * shape.heads * depth;
  const auto block = [&](int64_t begin, int64_t end, float* sums) {
    for (int64_t r = begin; r < end; r++) {
      for (int64_t h = 0; h < 3 * shape.heads; h++) {
        const T* from = dparts[h / shape.heads] + place(shape, r, h % shape.heads);
        T* to = dx + r * columns + h * depth;
        along_row(depth, [&](int64_t c, auto lanes, int) {
          const Vector v = load(from + c, lanes);
          store(to + c, v, lanes);
          add_to(sums + h * depth + c, v, lanes);
        });
      }
    }
  };
  narrowed(sum_over_rows(parallel, shape.batch * shape.length, columns, columns, block).data(), columns, dbias);
}

template <class T>
void dropout(const Parallel& parallel, int64_t rows, int64_t columns, Places places, const Draw& draw, const T* x,
             T* y) {
  parallel(rows, columns, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++) {
      const Factors factors = row_factors(draw, places, r, columns);
      along_row(columns, [&](int64_t c, auto lanes, int) {
        store(y + r * columns + c, load(x + r * columns + c, lanes) * factors.at(c), lanes);
      });
    }
  });
}

#define BERT_INSTANCES(T)                                                                                             \
  template void gelu(const Parallel&, int64_t, int64_t, bool, const T*, const T*, T*);                                \
  template void gelu_grad(const Parallel&, int64_t, int64_t, bool, const T*, const T*, const T*, T*, T*);             \
  template void layer_norm(const Parallel&, int64_t, int64_t, Places, const Draw&, const T*, const T*, const T*,      \
                           const float*, const float*, T*, T*, float*, float*);                                       \
  template void layer_norm_grad(const Parallel&, int64_t, int64_t, Places, const Draw&, const T*, const T*,           \
                                const float*, const float*, const float*, T*, T*, float*, float*, T*);                \
  template void attention(const Parallel&, ScoreShape, float, const Draw&, const T*, const float*, T*, T*);           \
  template void attention_grad(const Parallel&, ScoreShape, float, const Draw&, const T*, const T*, T*);              \
  template void split_heads(const Parallel&, HeadShape, const T*, const T*, Three<T>);                                \
  template void split_heads_grad(const Parallel&, HeadShape, Three<const T>, T*, T*);                                 \
  template void dropout(const Parallel&, int64_t, int64_t, Places, const Draw&, const T*, T*);
BERT_INSTANCES(float)
BERT_INSTANCES(bfloat16)

}  // namespace bert
