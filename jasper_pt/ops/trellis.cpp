// CTC's trellis: scores of the best paths to all states, some frames on. The same in NumPy is trellis.advance_reference.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

// One frame: from [S+2], two impossible states before the first, to [S]. step [S] (or null): by how many states the
// best path to each has moved.
static void one_frame(const double* __restrict from, double* __restrict to, const double* __restrict skips,
                      const int64_t* __restrict symbols, const double* __restrict row, int64_t S,
                      uint8_t* __restrict step) {
    if (!step) {
        for (int64_t s = 0; s < S; s++) {
            to[s] = std::max(std::max(from[s + 2], from[s + 1]), from[s] + skips[s]) + row[symbols[s]];
        }
        return;
    }
    for (int64_t s = 0; s < S; s++) {
        const double stay = from[s + 2], one = from[s + 1], two = from[s] + skips[s];
        const double best = std::max(stay, one);
        step[s] = two > best ? 2 : one > stay ? 1 : 0;
        to[s] = std::max(best, two) + row[symbols[s]];
    }
}

// scores [S]: before the first of the frames, then behind the last. skips [S]: added to the score of the state two
// before. symbols [S]; log_probs [frames,V]; steps [frames,S] or null.
extern "C" void trellis_advance(double* scores, const double* skips, const int64_t* symbols, const double* log_probs,
                                uint8_t* steps, int64_t S, int64_t V, int64_t frames) {
    std::vector<double> a(S + 2, -std::numeric_limits<double>::infinity()), b(a);
    std::copy(scores, scores + S, a.begin() + 2);
    for (int64_t t = 0; t < frames; t++) {
        one_frame(a.data(), b.data() + 2, skips, symbols, log_probs + t * V, S, steps ? steps + t * S : nullptr);
        a.swap(b);
    }
    std::copy(a.begin() + 2, a.end(), scores);
}
