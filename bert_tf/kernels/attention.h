// Attention within the sequences of a packed batch (ops.attention), forward and backward.
#pragma once

#include "elementwise.h"

namespace bert {

// x [tokens, 3 * heads * depth]: queries, keys and values side by side, to which a bias is added.
struct HeadsShape {
  int64_t tokens, heads, depth;
};
// Sequence i is the tokens starts[i] to starts[i] + lengths[i]; they do not overlap.
struct Spans {
  int64_t count;
  const int32_t *starts, *lengths;
};

// context [tokens, heads * depth] = dropout(softmax(scale * queries keys^T)) values within each sequence; zero for
// tokens of none. log_sum [heads, tokens]: the softmax's denominators as powers of two, all that the backward pass
// needs.
template <class T>
void packed_attention(const Parallel&, HeadsShape, Spans, float scale, const Draw&, const T* x, const T* bias,
                      T* context, float* log_sum);
template <class T>
void packed_attention_grad(const Parallel&, HeadsShape, Spans, float scale, const Draw&, const T* dcontext, const T* x,
                           const T* bias, const T* context, const float* log_sum, T* dx, T* dbias);

}  // namespace bert
