#include "attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "dropout.h"
#include "simd.h"

// As in arXiv 2205.14135 no matrix of scores is kept: the backward pass makes them again, a block of queries at a time.
// A sequence is short enough for a whole row of scores to stay in the cache, so the softmax is the plain one.

namespace bert {
namespace {

constexpr float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;

// ------------------------------------------------------------------------------------------- matrix products
// c [m, n] = a [m, k] b [k, n]. b lies in panels of WIDTH columns, [n / WIDTH][k][WIDTH], so that it is read in one
// stream; a may be transposed; c has rows of whole panels. A tile of TILE rows and one panel of c stays in registers.
constexpr int WIDTH = 2 * LANES;
constexpr int TILE = LANES == 16 ? 12 : 6;

int64_t whole_panels(int64_t columns) { return (columns + WIDTH - 1) / WIDTH * WIDTH; }

struct Matrix {
  const float* data;
  int64_t row, column;  // strides
};

template <int ROWS, bool ADD>
void tile(int64_t k, Matrix a, const float* b, float* c, int64_t c_row) {
  Vector sums[ROWS][2];
  for (int r = 0; r < ROWS; r++)
    for (int half = 0; half < 2; half++)
      sums[r][half] = ADD ? load(c + r * c_row + half * LANES, All{}) : Vector{};
  const float* from = a.data;
  for (int64_t i = 0; i < k; i++, b += WIDTH, from += a.column) {
    const Vector left = load(b, All{}), right = load(b + LANES, All{});
    for (int r = 0; r < ROWS; r++) {
      const Vector value = all(from[r * a.row]);
      sums[r][0] += value * left;
      sums[r][1] += value * right;
    }
  }
  for (int r = 0; r < ROWS; r++)
    for (int half = 0; half < 2; half++) store(c + r * c_row + half * LANES, sums[r][half], All{});
}

template <int ROWS, bool ADD>
void last_tile(int64_t rows, int64_t k, Matrix a, const float* b, float* c, int64_t c_row) {
  if constexpr (ROWS > 0) {
    if (rows == ROWS)
      tile<ROWS, ADD>(k, a, b, c, c_row);
    else
      last_tile<ROWS - 1, ADD>(rows, k, a, b, c, c_row);
  }
}

template <bool ADD>
void product(int64_t m, int64_t n, int64_t k, Matrix a, const float* panels, float* c, int64_t c_row) {
  for (int64_t column = 0; column < n; column += WIDTH) {
    const float* b = panels + column * k;
    for (int64_t row = 0; row < m; row += TILE) {
      const Matrix part = {a.data + row * a.row, a.row, a.column};
      float* to = c + row * c_row + column;
      if (m - row >= TILE)
        tile<TILE, ADD>(k, part, b, to, c_row);
      else
        last_tile<TILE - 1, ADD>(m - row, k, part, b, to, c_row);
    }
  }
}

// ------------------------------------------------------------------------------------------------ one head
constexpr int64_t QUERIES = 48;  // a block of queries, whole tiles

// Rows of one head, [length, depth] at a stride, in float32: (x + bias) * factor.
template <class T>
struct Rows {
  const T* data;
  int64_t stride, depth;
  const float* bias;  // or null

  // Rows `first` to first + count, end to end.
  void read(int64_t first, int64_t count, float factor, float* to) const {
    for (int64_t r = 0; r < count; r++) {
      const T* from = data + (first + r) * stride;
      along_row(depth, [&](int64_t c, auto lanes, int) {
        Vector v = load(from + c, lanes);
        if (bias) v += load(bias + c, lanes);
        store(to + r * depth + c, v * factor, lanes);
      });
    }
  }
};

// b = rows: panels [depth / WIDTH][length][WIDTH] of rows [length, depth].
void to_panels(const float* rows, int64_t length, int64_t depth, float* panels) {
  for (int64_t r = 0; r < length; r++)
    for (int64_t c = 0; c < depth; c++) panels[(c / WIDTH * length + r) * WIDTH + c % WIDTH] = rows[r * depth + c];
}

// b = rows^T: panels [length / WIDTH][depth][WIDTH] of rows [length, depth]; zeros beyond the end.
void to_transposed_panels(const float* rows, int64_t length, int64_t depth, float* panels) {
  for (int64_t first = 0; first < length; first += WIDTH) {
    const int64_t count = std::min<int64_t>(WIDTH, length - first);
    float* panel = panels + first * depth;
    for (int64_t c = 0; c < depth; c++) {
      for (int64_t r = 0; r < count; r++) panel[c * WIDTH + r] = rows[(first + r) * depth + c];
      for (int64_t r = count; r < WIDTH; r++) panel[c * WIDTH + r] = 0.0f;
    }
  }
}

// A thread's memory, cut into arrays.
class Scratch {
 public:
  explicit Scratch(int64_t floats) : memory_(floats) {}
  void reset() { used_ = 0; }
  float* take(int64_t floats) {
    float* result = memory_.data() + used_;
    used_ += whole_panels(floats);
    return result;
  }

 private:
  std::vector<float> memory_;
  int64_t used_ = 0;
};

// What a thread's arrays have to hold. length: of the longest sequence; wide: depth in whole panels; row: from one
// query's scores to the next's, not a power of two, which would put all into few sets of the cache.
struct Sizes {
  int64_t length = 1, depth, wide, row;
  Sizes(Spans spans, int64_t depth) : depth(depth), wide(whole_panels(depth)) {
    for (int64_t i = 0; i < spans.count; i++) length = std::max<int64_t>(length, spans.lengths[i]);
    row = whole_panels(length) + LANES;
  }
  int64_t of_keys() const { return whole_panels(length) * wide; }
  int64_t of_scores() const { return QUERIES * row; }
  int64_t of_queries() const { return QUERIES * wide; }
};

// Calls body(number of a sequence, head, scratch) for each. products: how many an item has.
template <class F>
void each_head(const Parallel& parallel, HeadsShape shape, Spans spans, int64_t floats, int products, F body) {
  int64_t squares = 0;
  for (int64_t i = 0; i < spans.count; i++) squares += (int64_t)spans.lengths[i] * spans.lengths[i];
  const int64_t cost = products * shape.depth * squares / (LANES * std::max<int64_t>(1, spans.count));
  parallel(spans.count * shape.heads, std::max<int64_t>(1, cost), [&](int64_t begin, int64_t end) {
    Scratch scratch(floats);
    for (int64_t item = begin; item < end; item++) {
      scratch.reset();
      body(item / shape.heads, item % shape.heads, scratch);
    }
  });
}

// Zeroes the rows [width] of tokens that belong to no sequence.
template <class T>
void clear_padding(HeadsShape shape, Spans spans, int64_t width, T* rows) {
  std::vector<char> used(shape.tokens);
  for (int64_t i = 0; i < spans.count; i++) std::fill_n(used.begin() + spans.starts[i], spans.lengths[i], 1);
  for (int64_t r = 0; r < shape.tokens; r++)
    if (!used[r]) std::fill_n(rows + r * width, width, T{});
}

template <class T>
void write(const float* from, int64_t count, float factor, T* to) {
  along_row(count, [&](int64_t c, auto lanes, int) { store(to + c, load(from + c, lanes) * factor, lanes); });
}

void add_columns(const float* rows, int64_t count, int64_t stride, int64_t columns, float factor, float* sums) {
  for (int64_t r = 0; r < count; r++)
    for (int64_t c = 0; c < columns; c++) sums[c] += factor * rows[r * stride + c];
}

template <class T, bool DROP>
void attend(const Parallel& parallel, HeadsShape shape, Spans spans, float scale, const Draw& draw, const T* x,
            const T* bias, T* context, float* log_sum) {
  const int64_t depth = shape.depth, hidden = shape.heads * depth;
  const std::vector<float> bias32 = widened(bias, 3 * hidden);
  const Sizes size(spans, depth);
  const int64_t floats = 3 * size.of_keys() + size.of_scores() + 2 * size.of_queries() + WIDTH * 8;
  clear_padding(shape, spans, hidden, context);
  each_head(parallel, shape, spans, floats, 2, [&](int64_t sequence, int64_t head, Scratch& scratch) {
    const int64_t start = spans.starts[sequence], length = spans.lengths[sequence];
    const auto rows = [&](int part) {
      const int64_t column = part * hidden + head * depth;
      return Rows<T>{x + start * 3 * hidden + column, 3 * hidden, depth, &bias32[column]};
    };
    float *keys = scratch.take(size.of_keys()), *values = scratch.take(size.of_keys());
    float *plain = scratch.take(size.of_keys()), *scores = scratch.take(size.of_scores());
    float *query = scratch.take(size.of_queries()), *result = scratch.take(size.of_queries());
    rows(1).read(0, length, 1.0f, plain);
    to_transposed_panels(plain, length, depth, keys);
    rows(2).read(0, length, 1.0f, plain);
    to_panels(plain, length, depth, values);
    for (int64_t first = 0; first < length; first += QUERIES) {
      const int64_t count = std::min(QUERIES, length - first);
      rows(0).read(first, count, scale * LOG2_E, query);
      product<false>(count, length, depth, {query, depth, 1}, keys, scores, size.row);
      for (int64_t q = 0; q < count; q++) {
        float* row = scores + q * size.row;
        const Factors factors(draw, sequence, first_score(head, first + q));
        Vector high[ACCUMULATORS];
        for (Vector& h : high) h = all(-INFINITY);
        along_row(length, [&](int64_t c, auto lanes, int k) {
          high[k] = maximum(fill(load(row + c, All{}), lanes, -INFINITY), high[k]);
        });
        const float top = largest(maximum(maximum(high[0], high[1]), maximum(high[2], high[3])));
        Sum total;
        along_row(length, [&](int64_t c, auto lanes, int k) {
          const Vector e = exp2<T>(load(row + c, All{}) - top);
          total.parts[k] += fill(e, lanes, 0.0f);
          store(row + c, DROP ? e * factors.at(c) : e, All{});
        });
        const float sum = total.total();
        log_sum[head * shape.tokens + start + first + q] = top + std::log2(sum);
        const Vector share = all(1.0f / sum);
        along_row(length, [&](int64_t c, auto, int) { store(row + c, load(row + c, All{}) * share, All{}); });
      }
      product<false>(count, depth, length, {scores, size.row, 1}, values, result, size.wide);
      for (int64_t q = 0; q < count; q++)
        write(result + q * size.wide, depth, 1.0f, context + (start + first + q) * hidden + head * depth);
    }
  });
}

template <class T, bool DROP>
void attend_grad(const Parallel& parallel, HeadsShape shape, Spans spans, float scale, const Draw& draw,
                 const T* dcontext, const T* x, const T* bias, const T* context, const float* log_sum, T* dx,
                 T* dbias) {
  const int64_t depth = shape.depth, hidden = shape.heads * depth;
  const std::vector<float> bias32 = widened(bias, 3 * hidden);
  const Sizes size(spans, depth);
  const int64_t floats = 6 * size.of_keys() + 2 * size.of_scores() + 6 * size.of_queries() + WIDTH * 16;
  std::vector<float> sums(spans.count * 3 * hidden);  // of each sequence's columns
  clear_padding(shape, spans, 3 * hidden, dx);
  each_head(parallel, shape, spans, floats, 5, [&](int64_t sequence, int64_t head, Scratch& scratch) {
    const int64_t start = spans.starts[sequence], length = spans.lengths[sequence];
    const auto rows = [&](int part) {
      const int64_t column = part * hidden + head * depth;
      return Rows<T>{x + start * 3 * hidden + column, 3 * hidden, depth, &bias32[column]};
    };
    const auto of_context = [&](const T* tensor) {
      return Rows<T>{tensor + start * hidden + head * depth, hidden, depth, nullptr};
    };
    float* column_sums = &sums[sequence * 3 * hidden + head * depth];
    float *keys = scratch.take(size.of_keys()), *values = scratch.take(size.of_keys());
    float *key_rows = scratch.take(size.of_keys()), *plain = scratch.take(size.of_keys());
    float *dkeys = scratch.take(size.of_keys()), *dvalues = scratch.take(size.of_keys());
    float *scores = scratch.take(size.of_scores()), *dscores = scratch.take(size.of_scores());
    float *query = scratch.take(size.of_queries()), *query_panels = scratch.take(size.of_queries());
    float *up = scratch.take(size.of_queries()), *up_panels = scratch.take(size.of_queries());
    float *out = scratch.take(size.of_queries()), *dquery = scratch.take(size.of_queries());
    rows(1).read(0, length, 1.0f, plain);
    to_transposed_panels(plain, length, depth, keys);
    to_panels(plain, length, depth, key_rows);
    rows(2).read(0, length, 1.0f, plain);
    to_transposed_panels(plain, length, depth, values);
    std::fill_n(dkeys, length * size.wide, 0.0f);
    std::fill_n(dvalues, length * size.wide, 0.0f);
    for (int64_t first = 0; first < length; first += QUERIES) {
      const int64_t count = std::min(QUERIES, length - first);
      rows(0).read(first, count, scale * LOG2_E, query);
      of_context(dcontext).read(first, count, 1.0f, up);
      of_context(context).read(first, count, 1.0f, out);
      to_panels(query, count, depth, query_panels);
      to_panels(up, count, depth, up_panels);
      product<false>(count, length, depth, {query, depth, 1}, keys, scores, size.row);
      product<false>(count, length, depth, {up, depth, 1}, values, dscores, size.row);
      for (int64_t q = 0; q < count; q++) {
        float *row = scores + q * size.row, *drow = dscores + q * size.row;
        const Factors factors(draw, sequence, first_score(head, first + q));
        const float log = log_sum[head * shape.tokens + start + first + q];
        Sum products;  // the sum of p dp over the keys is that of the output times its gradient
        along_row(depth, [&](int64_t c, auto lanes, int k) {
          products.parts[k] += load(up + q * depth + c, lanes) * load(out + q * depth + c, lanes);
        });
        const float mean = products.total();
        along_row(length, [&](int64_t c, auto, int) {
          const Vector p = exp2<T>(load(row + c, All{}) - log);
          Vector d = load(drow + c, All{});
          if (DROP) {
            const Vector f = factors.at(c);
            d *= f;
            store(row + c, p * f, All{});
          } else {
            store(row + c, p, All{});
          }
          store(drow + c, p * (d - mean), All{});
        });
      }
      product<false>(count, depth, length, {dscores, size.row, 1}, key_rows, dquery, size.wide);
      product<true>(length, depth, count, {dscores, 1, size.row}, query_panels, dkeys, size.wide);
      product<true>(length, depth, count, {scores, 1, size.row}, up_panels, dvalues, size.wide);
      for (int64_t q = 0; q < count; q++)
        write(dquery + q * size.wide, depth, scale, dx + (start + first + q) * 3 * hidden + head * depth);
      add_columns(dquery, count, size.wide, depth, scale, column_sums);
    }
    for (int64_t k = 0; k < length; k++) {
      T* to = dx + (start + k) * 3 * hidden + head * depth;
      write(dkeys + k * size.wide, depth, LN_2, to + hidden);  // the queries were scaled by log2 e
      write(dvalues + k * size.wide, depth, 1.0f, to + 2 * hidden);
    }
    add_columns(dkeys, length, size.wide, depth, LN_2, column_sums + hidden);
    add_columns(dvalues, length, size.wide, depth, 1.0f, column_sums + 2 * hidden);
  });
  std::vector<float> total(3 * hidden);
  for (int64_t i = 0; i < spans.count; i++)
    for (int64_t c = 0; c < 3 * hidden; c++) total[c] += sums[i * 3 * hidden + c];
  narrowed(total.data(), 3 * hidden, dbias);
}

}  // namespace

template <class T>
void packed_attention(const Parallel& parallel, HeadsShape shape, Spans spans, float scale, const Draw& draw,
                      const T* x, const T* bias, T* context, float* log_sum) {
  const auto function = draw.threshold ? attend<T, true> : attend<T, false>;
  function(parallel, shape, spans, scale, draw, x, bias, context, log_sum);
}

template <class T>
void packed_attention_grad(const Parallel& parallel, HeadsShape shape, Spans spans, float scale, const Draw& draw,
                           const T* dcontext, const T* x, const T* bias, const T* context, const float* log_sum, T* dx,
                           T* dbias) {
  const auto function = draw.threshold ? attend_grad<T, true> : attend_grad<T, false>;
  function(parallel, shape, spans, scale, draw, dcontext, x, bias, context, log_sum, dx, dbias);
}

#define BERT_INSTANCES(T)                                                                                         \
  template void packed_attention(const Parallel&, HeadsShape, Spans, float, const Draw&, const T*, const T*, T*, \
                                 float*);                                                                         \
  template void packed_attention_grad(const Parallel&, HeadsShape, Spans, float, const Draw&, const T*, const T*, \
                                      const T*, const T*, const float*, T*, T*);
BERT_INSTANCES(float)
BERT_INSTANCES(bfloat16)

}  // namespace bert
