// The updates of optimization.py and the norm of the gradients, on raw memory; see there for what is computed.
//
// Sums are made over blocks whose size is fixed, and the blocks' sums added up in order, so that no result depends on
// the number of threads.
#pragma once

#include "elementwise.h"

namespace bert {

// What all variables share: optimization.Hyper (keep: beta, take: 1 - beta), the factor of the gradients and the
// learning rate.
struct Update {
  float keep1, take1, keep2, take2, epsilon;
  float correction1, correction2, scale, lr;
  bool trust_ratio;
};

// A variable of `size` elements with its moments, and its copy in another dtype: rows of `columns`, the first of which
// is at `copy`, the next `stride` further. copy: may be null.
template <class C>
struct Parameter {
  int64_t size;
  float *w, *m, *v;
  float decay;
  C* copy;
  int64_t columns, stride;
};

template <class G, class C>
void update(const Parallel&, const Update&, const Parameter<C>&, const G* gradient);

template <class G>
double sum_of_squares(const Parallel&, int64_t size, const G* gradient);

}  // namespace bert
