#include "optimizer.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "simd.h"

namespace bert {
namespace {

// Elements of a block: its weights, moments and gradient stay in a core's own cache.
constexpr int64_t BLOCK = 16384;
constexpr int64_t COST = 4;  // cycles an element and pass, about

struct Squares {
  double w = 0, u = 0;
};

class Direction {
 public:
  Direction(const Update& update, float decay)
      : inverse1_(all(1.0f / update.correction1)),
        inverse2_(all(1.0f / update.correction2)),
        epsilon_(all(update.epsilon)),
        decay_(all(decay)) {}

  BERT_INLINE Vector operator()(Vector w, Vector m, Vector v) const {
    return divide(m * inverse1_, square_root(v * inverse2_) + epsilon_) + decay_ * w;
  }

 private:
  Vector inverse1_, inverse2_, epsilon_, decay_;
};

// New moments of the elements [begin, end), and the squares of the weight and of the direction.
template <class G>
Squares move_moments(const Update& update, int64_t begin, int64_t end, const float* w, float* m, float* v, float decay,
                     const G* gradient) {
  const Direction direction(update, decay);
  Sum w_squares, u_squares;
  along_row(end - begin, [&](int64_t c, auto lanes, int k) {
    const int64_t i = begin + c;
    const Vector g = load(gradient + i, lanes) * update.scale, weight = load(w + i, lanes);
    const Vector new_m = update.keep1 * load(m + i, lanes) + update.take1 * g;
    const Vector new_v = update.keep2 * load(v + i, lanes) + update.take2 * (g * g);
    store(m + i, new_m, lanes);
    store(v + i, new_v, lanes);
    const Vector u = direction(weight, new_m, new_v);  // zero beyond the end
    w_squares.parts[k] += weight * weight;
    u_squares.parts[k] += u * u;
  });
  return {w_squares.total(), u_squares.total()};
}

// Moves the weights [begin, end) by `length` times the direction.
template <class C>
void move_weights(const Update& update, int64_t begin, int64_t end, const Parameter<C>& p, float length) {
  const Direction direction(update, p.decay);
  const int64_t columns = p.columns == p.stride || !p.copy ? p.size : p.columns;  // side by side: one long row
  for (int64_t first = begin; first < end;) {
    const int64_t row = first / columns, count = std::min(end, (row + 1) * columns) - first;
    C* copy = p.copy ? p.copy + row * p.stride + (first - row * columns) : nullptr;
    along_row(count, [&](int64_t c, auto lanes, int) {
      const int64_t i = first + c;
      const Vector w = load(p.w + i, lanes), u = direction(w, load(p.m + i, lanes), load(p.v + i, lanes));
      const Vector moved = w - length * u;
      store(p.w + i, moved, lanes);
      if (copy) store(copy + c, moved, lanes);
    });
    first += count;
  }
}

float trust_ratio(Squares squares) {
  return squares.w > 0 && squares.u > 0 ? (float)std::sqrt(squares.w / squares.u) : 1.0f;
}

int64_t blocks_of(int64_t size) { return (size + BLOCK - 1) / BLOCK; }

// Calls body(number of the block, first element, element behind the last).
template <class F>
void over_blocks(const Parallel& parallel, int64_t size, F body) {
  parallel(blocks_of(size), BLOCK * COST, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; b++) body(b, b * BLOCK, std::min(size, (b + 1) * BLOCK));
  });
}

}  // namespace

// ------------------------------------------------------------------------------------------------- interface
template <class G, class C>
void update(const Parallel& parallel, const Update& update, const Parameter<C>& p, const G* gradient) {
  if (!update.trust_ratio) {
    over_blocks(parallel, p.size, [&](int64_t, int64_t begin, int64_t end) {
      move_moments(update, begin, end, p.w, p.m, p.v, p.decay, gradient);
      move_weights(update, begin, end, p, update.lr);
    });
    return;
  }
  std::vector<Squares> squares(blocks_of(p.size));
  over_blocks(parallel, p.size, [&](int64_t b, int64_t begin, int64_t end) {
    squares[b] = move_moments(update, begin, end, p.w, p.m, p.v, p.decay, gradient);
  });
  Squares total;
  for (const Squares& block : squares) total.w += block.w, total.u += block.u;
  const float length = update.lr * trust_ratio(total);
  over_blocks(parallel, p.size,
              [&](int64_t, int64_t begin, int64_t end) { move_weights(update, begin, end, p, length); });
}

template <class G>
double sum_of_squares(const Parallel& parallel, int64_t size, const G* gradient) {
  std::vector<double> squares(blocks_of(size));
  over_blocks(parallel, size, [&](int64_t b, int64_t begin, int64_t end) {
    Sum sum;
    along_row(end - begin, [&](int64_t c, auto lanes, int k) {
      const Vector g = load(gradient + begin + c, lanes);
      sum.parts[k] += g * g;
    });
    squares[b] = sum.total();
  });
  double total = 0;
  for (double block : squares) total += block;
  return total;
}

#define BERT_UPDATE(G, C) template void update(const Parallel&, const Update&, const Parameter<C>&, const G*);
#define BERT_INSTANCES(G) \
  BERT_UPDATE(G, bfloat16) BERT_UPDATE(G, float16) template double sum_of_squares(const Parallel&, int64_t, const G*);
BERT_INSTANCES(float)
BERT_INSTANCES(bfloat16)
BERT_INSTANCES(float16)

}  // namespace bert
