// The random numbers of ops._dropout_scale.
#pragma once

#include "simd.h"

namespace bert {

constexpr uint32_t ELEMENT = 0x9e3779b9u;  // what an element's number is multiplied by

inline uint32_t mix_one(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

// The factors, 0 or scale, of the elements first, first + 1, ... of an example.
class Factors {
 public:
  Factors(const Draw& draw, int64_t example, uint32_t first)
      : start_(mix_one(draw.seed + draw.first_row + (uint32_t)example) + first * ELEMENT + lane_numbers() * ELEMENT),
        threshold_(all_bits(draw.threshold)),
        scale_(all(draw.scale)) {}

  BERT_INLINE Vector at(int64_t element) const {
    const Bits kept = (Bits)(mix(start_ + (uint32_t)element * ELEMENT) >= threshold_);
    return (Vector)((Bits)scale_ & kept);
  }

 private:
  Bits start_, threshold_;
  Vector scale_;
};

// Those of a row of hidden states, ops._hidden_scale.
inline Factors row_factors(const Draw& draw, Places places, int64_t row, int64_t columns) {
  return Factors(draw, places.example[row], (uint32_t)places.position[row] * (uint32_t)columns);
}

// Number of the first key's score, ops._score_scale.
inline uint32_t first_score(int64_t head, int64_t query) { return (uint32_t)((head << 22) + (query << 11)); }

}  // namespace bert
