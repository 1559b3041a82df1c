// Depthwise 1-D convolution of channels-last tensors [B, T, C]: forward, and the gradient of the filters.
//
// One task is one utterance and a few vectors of LANES channels. Each vector's column of the input is first copied to
// a contiguous float32 buffer, zeros for padding around it: in the tensor there is a row of C values between frames,
// which falls on few cache sets. Then TILE outputs at a time are accumulated in registers over all taps, each tap one
// load and one FMA an output. Products and sums are float32; tensors are float32 or bfloat16.
//
// The gradient of the input is a forward convolution with reversed filters (stride 1). The gradient of the filters is
// the same correlation with the roles changed: it slides the output's gradient over the input.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <vector>

namespace {

// Vectors of GCC's extension: a tile of outputs, one filter tap and an input have to fit in the registers.
#ifdef __AVX512F__
constexpr int LANES = 16;
constexpr std::initializer_list<int> TILES = {24, 26, 22, 20, 16, 12};
#else
constexpr int LANES = 8;
constexpr std::initializer_list<int> TILES = {12, 11, 10, 8, 6, 4};
#endif
typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef uint32_t Bits __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));

struct bfloat16 {
  uint16_t bits;
};

Vector load(const float* source) {
  Vector value;
  std::memcpy(&value, source, sizeof value);
  return value;
}

Vector load(const bfloat16* source) {
  Halves halves;
  std::memcpy(&halves, source, sizeof halves);
  return (Vector)(__builtin_convertvector(halves, Bits) << 16);
}

void store(float* target, Vector value) { std::memcpy(target, &value, sizeof value); }

void store(bfloat16* target, Vector value) {  // rounds to the nearest, ties to even
  const Bits bits = (Bits)value;
  const Bits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const Bits is_nan = (Bits)((bits & 0x7fffffff) > 0x7f800000);
  const Halves halves = __builtin_convertvector((rounded & ~is_nan) | (0x7fc0 & is_nan), Halves);
  std::memcpy(target, &halves, sizeof halves);
}

// A vector of fewer than LANES channels, filled up with zeros.
template <class T>
Vector load_part(const T* source, int lanes) {
  T values[LANES] = {};
  std::memcpy(values, source, lanes * sizeof(T));
  return load(values);
}

template <class T>
void store_part(T* target, Vector value, int lanes) {
  T values[LANES];
  store(values, value);
  std::memcpy(target, values, lanes * sizeof(T));
}

// `count` frames of a column of `channels` channels, in rows `row` apart, into one buffer for each vector of channels;
// the buffers are `size` vectors apart. Several vectors at a time, so that whole cache lines are used.
template <class T>
void read_column(const T* column, long row, int count, int channels, Vector* buffer, long size) {
  const int whole = channels / LANES, rest = channels % LANES;
  for (int t = 0; t < count; t++, column += row) {
    for (int v = 0; v < whole; v++) buffer[v * size + t] = load(column + v * LANES);
    if (rest) buffer[whole * size + t] = load_part(column + whole * LANES, rest);
  }
}

template <class T>
void write_column(const Vector* buffer, long size, int count, int channels, T* column, long row) {
  const int whole = channels / LANES, rest = channels % LANES;
  for (int t = 0; t < count; t++, column += row) {
    for (int v = 0; v < whole; v++) store(column + v * LANES, buffer[v * size + t]);
    if (rest) store_part(column + whole * LANES, buffer[whole * size + t], rest);
  }
}

// out[j] += sum over i < taps of filter[i] in[i * tap_step + j * step] for j < count rounded up to a multiple of TILE.
// CONSTANT_STEP is `step` where it is known to the compiler, else 0.
template <int TILE, int CONSTANT_STEP>
void accumulate(const Vector* in, const Vector* filter, int taps, int tap_step, int step, int count, Vector* out) {
  const long between = CONSTANT_STEP ? CONSTANT_STEP : step;
  for (int j = 0; j < count; j += TILE) {
    Vector sums[TILE];
#pragma GCC unroll 32
    for (int r = 0; r < TILE; r++) sums[r] = out[j + r];
    const Vector* window = in + j * between;
    for (int i = 0; i < taps; i++, window += tap_step) {
      const Vector tap = filter[i];
#pragma GCC unroll 32
      for (int r = 0; r < TILE; r++) sums[r] += tap * window[r * between];
    }
#pragma GCC unroll 32
    for (int r = 0; r < TILE; r++) out[j + r] = sums[r];
  }
}

using Accumulate = void (*)(const Vector*, const Vector*, int, int, int, int, Vector*);

// The tile that wastes least on `count` outputs: a pass costs its outputs and the load of the tap.
int choose_tile(int count) {
  return *std::min_element(TILES.begin(), TILES.end(), [count](int a, int b) {
    return (count + a - 1) / a * (a + 1) < (count + b - 1) / b * (b + 1);
  });
}

template <int TILE>
Accumulate accumulate_by_step(int step) {
  return step == 1 ? accumulate<TILE, 1> : accumulate<TILE, 0>;
}

Accumulate choose_accumulate(int tile, int step) {
  switch (tile) {
    case 4: return accumulate_by_step<4>(step);
    case 6: return accumulate_by_step<6>(step);
    case 8: return accumulate_by_step<8>(step);
    case 10: return accumulate_by_step<10>(step);
    case 11: return accumulate_by_step<11>(step);
    case 12: return accumulate_by_step<12>(step);
    case 16: return accumulate_by_step<16>(step);
    case 20: return accumulate_by_step<20>(step);
    case 22: return accumulate_by_step<22>(step);
    case 24: return accumulate_by_step<24>(step);
    default: return accumulate_by_step<26>(step);
  }
}

// Memory for `count` vectors, aligned to their size.
class Buffer {
 public:
  explicit Buffer(long count) : memory_((count + 1) * LANES) {}
  Vector* data() {
    const uintptr_t mask = sizeof(Vector) - 1;
    return reinterpret_cast<Vector*>((reinterpret_cast<uintptr_t>(memory_.data()) + mask) & ~mask);
  }

 private:
  std::vector<float> memory_;
};

struct Shape {
  long batch, channels;
  int frames, out_frames, taps, stride, dilation, padding;
  const int *lengths, *out_lengths;  // valid frames of each utterance; null: all

  int valid(long b) const { return lengths ? lengths[b] : frames; }
  int out_valid(long b) const { return out_lengths ? out_lengths[b] : out_frames; }
};

int round_up(int count, int tile) { return (count + tile - 1) / tile * tile; }

// The channels of one task: some vectors, for whole cache lines, while there are several tasks for each thread.
struct Columns {
  int width;   // channels
  long count;  // columns
  Columns(int most_vectors, long channels, long batch, int threads) {
    width = most_vectors * LANES;
    while (width > LANES && batch * channels < 3L * threads * width) width /= 2;
    count = (channels + width - 1) / width;
  }
  int channels(long column, long all) const { return static_cast<int>(std::min<long>(width, all - column * width)); }
  int vectors() const { return width / LANES; }
};

// A padded column of one utterance: `padding` zeros, its valid frames, zeros to the end of each buffer.
template <class T>
void read_padded(const T* x, const Shape& s, long b, long channel, int channels, Vector* buffer, long size) {
  const int valid = s.valid(b);
  for (int v = 0; v * LANES < channels; v++) {
    std::memset(buffer + v * size, 0, s.padding * sizeof(Vector));
    std::memset(buffer + v * size + s.padding + valid, 0, (size - s.padding - valid) * sizeof(Vector));
  }
  read_column(x + b * s.frames * s.channels + channel, s.channels, valid, channels, buffer + s.padding, size);
}

template <class T>
void forward(const T* x, const float* weight, T* y, const Shape& s, int threads) {
  const int tile = choose_tile(s.out_frames);
  const Accumulate accumulate = choose_accumulate(tile, s.stride);
  const int outputs = round_up(s.out_frames, tile);
  const long reach = static_cast<long>(outputs - 1) * s.stride + static_cast<long>(s.taps - 1) * s.dilation + 1;
  const long inputs = std::max<long>(s.padding + s.frames, reach);
  const Columns columns(4, s.channels, s.batch, threads);  // more vectors leave the second-level cache
#pragma omp parallel num_threads(threads)
  {
    Buffer in(inputs * columns.vectors()), filter(s.taps), out(outputs * columns.vectors());
#pragma omp for schedule(static)
    for (long task = 0; task < s.batch * columns.count; task++) {
      const long b = task / columns.count, column = task % columns.count, channel = column * columns.width;
      const int channels = columns.channels(column, s.channels), valid = s.out_valid(b);
      read_padded(x, s, b, channel, channels, in.data(), inputs);
      for (int v = 0; v * LANES < channels; v++) {
        const int lanes = std::min(LANES, channels - v * LANES);
        for (int k = 0; k < s.taps; k++) {
          float values[LANES] = {};
          for (int lane = 0; lane < lanes; lane++) values[lane] = weight[(channel + v * LANES + lane) * s.taps + k];
          filter.data()[k] = load(values);
        }
        Vector* const sums = out.data() + v * outputs;
        std::memset(sums, 0, outputs * sizeof(Vector));
        accumulate(in.data() + v * inputs, filter.data(), s.taps, s.dilation, s.stride, valid, sums);
        std::memset(sums + valid, 0, (outputs - valid) * sizeof(Vector));
      }
      T* const first = y + b * s.out_frames * s.channels + channel;
      write_column(out.data(), outputs, s.out_frames, channels, first, s.channels);
    }
  }
}

template <class T>
void weight_gradient(const T* x, const T* grad, float* grad_weight, const Shape& s, int threads) {
  const int tile = choose_tile(s.taps);
  const Accumulate accumulate = choose_accumulate(tile, s.dilation);
  const int outputs = round_up(s.taps, tile);
  const long reach = static_cast<long>(outputs - 1) * s.dilation + static_cast<long>(s.out_frames - 1) * s.stride + 1;
  const long inputs = std::max<long>(s.padding + s.frames, reach);
  const Columns columns(2, s.channels, 1, threads);
#pragma omp parallel num_threads(threads)
  {
    const int vectors = columns.vectors();
    Buffer in(inputs * vectors), filter(static_cast<long>(s.out_frames) * vectors), out(outputs * vectors);
#pragma omp for schedule(static)
    for (long column = 0; column < columns.count; column++) {  // whole sums in one thread: the same result every time
      const long channel = column * columns.width;
      const int channels = columns.channels(column, s.channels);
      std::memset(out.data(), 0, outputs * vectors * sizeof(Vector));
      for (long b = 0; b < s.batch; b++) {
        const int valid = s.out_valid(b);
        const T* const first = grad + b * s.out_frames * s.channels + channel;
        read_padded(x, s, b, channel, channels, in.data(), inputs);
        read_column(first, s.channels, valid, channels, filter.data(), s.out_frames);
        for (int v = 0; v * LANES < channels; v++) {
          accumulate(in.data() + v * inputs, filter.data() + v * s.out_frames, valid, s.stride, s.dilation, s.taps,
                     out.data() + v * outputs);
        }
      }
      for (int k = 0; k < s.taps; k++) {
        for (int c = 0; c < channels; c++) {
          grad_weight[(channel + c) * s.taps + k] = out.data()[c / LANES * outputs + k][c % LANES];
        }
      }
    }
  }
}

}  // namespace

extern "C" {

// x [batch, frames, channels], weight [channels, taps] float32, y [batch, out_frames, channels]. Frames of y beyond
// out_lengths are zero; those of x beyond lengths are taken as zero.
void depthwise_forward(int is_bfloat16, const void* x, const float* weight, void* y, const int* lengths,
                       const int* out_lengths, long batch, long channels, int frames, int out_frames, int taps,
                       int stride, int dilation, int padding, int threads) {
  const Shape shape = {batch, channels, frames, out_frames, taps, stride, dilation, padding, lengths, out_lengths};
  if (is_bfloat16) {
    forward(static_cast<const bfloat16*>(x), weight, static_cast<bfloat16*>(y), shape, threads);
  } else {
    forward(static_cast<const float*>(x), weight, static_cast<float*>(y), shape, threads);
  }
}

// grad [batch, out_frames, channels], taken as zero beyond out_lengths; grad_weight [channels, taps] float32.
void depthwise_weight_gradient(int is_bfloat16, const void* x, const void* grad, float* grad_weight, const int* lengths,
                               const int* out_lengths, long batch, long channels, int frames, int out_frames, int taps,
                               int stride, int dilation, int padding, int threads) {
  const Shape shape = {batch, channels, frames, out_frames, taps, stride, dilation, padding, lengths, out_lengths};
  if (is_bfloat16) {
    weight_gradient(static_cast<const bfloat16*>(x), static_cast<const bfloat16*>(grad), grad_weight, shape, threads);
  } else {
    weight_gradient(static_cast<const float*>(x), static_cast<const float*>(grad), grad_weight, shape, threads);
  }
}

}  // extern "C"
