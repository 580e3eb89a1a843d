// AVX2 kernels. vpmaddubsw multiplies unsigned weights by signed features and adds two products in 16 bits, with
// saturation. Two products fit if the sum of their features is between -128 and 128, because a weight is at most 255.
// Few pairs of features exceed these bounds; their halves are multiplied one after the other.
#include "kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "target.h"

BEGIN_TARGET("avx2")
#include "arithmetic.h"

namespace nightquant {
namespace {

using Vector = __m256i;  // 8 channels
constexpr int64_t kChannels = 8, kVectorsOfBlock = kBlock / kChannels;
// A tile of 4 rows and 2 vectors leaves half of the 16 registers to weights, features and sums of pairs.
constexpr int kRows = 4, kVectors = 2;
// The rows (8 KiB) stay in the L1 cache together with a block of weights.
constexpr int64_t kRowsAtOnce = 32, kFeaturesAtOnce = 256;

inline Vector load(const void* from) { return _mm256_loadu_si256(static_cast<const Vector*>(from)); }

inline void store(void* to, Vector value) { _mm256_storeu_si256(static_cast<Vector*>(to), value); }

inline Vector broadcast(const int8_t* four) {
  int32_t all;
  std::memcpy(&all, four, sizeof all);
  return _mm256_set1_epi32(all);
}

inline Vector add_products(Vector total, Vector weights, Vector features) {
  const Vector pairs = _mm256_maddubs_epi16(weights, features);
  return _mm256_add_epi32(total, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

// The second halves of four features, which begin at feature `start` of row `row`.
struct Excess {
  int16_t row, start;
  int8_t features[4];
};

inline bool fits(int sum) { return -128 <= sum && sum <= 128; }

// Rows of features whose pairs do not exceed the bounds, and what is left of the pairs that did.
struct Halved {
  alignas(64) int8_t rows[kRowsAtOnce * kFeaturesAtOnce];
  Excess excess[kRowsAtOnce * kFeaturesAtOnce / 4];
  int64_t count;

  // Entries of different rows alternate, because additions to one row would wait for each other.
  void fill(const int8_t* q, int64_t height, int64_t padded, int64_t features) {
    count = 0;
    for (int64_t r = 0; r < height; ++r) {
      std::memcpy(rows + r * kFeaturesAtOnce, q + r * padded, static_cast<size_t>(features));
    }
    for (int64_t k = 0; k < features; k += 4) {
      for (int64_t r = 0; r < height; ++r) halve(r, k);
    }
  }

  void halve(int64_t row, int64_t start) {
    int8_t* const q = rows + row * kFeaturesAtOnce + start;
    if (fits(q[0] + q[1]) && fits(q[2] + q[3])) return;
    Excess& half = excess[count++];
    half.row = static_cast<int16_t>(row);
    half.start = static_cast<int16_t>(start);
    for (int64_t j = 0; j < 4; ++j) {
      half.features[j] = static_cast<int8_t>(q[j] / 2);
      q[j] = static_cast<int8_t>(q[j] - half.features[j]);
    }
  }
};

// Loads the weights of V vectors of channels for four features from `k`.
template <int V>
inline void load_weights(const uint8_t* weights, int64_t padded, int64_t k, Vector (&to)[V]) {
  for (int v = 0; v < V; ++v) {
    to[v] = load(weights + (v / kVectorsOfBlock * padded + k) * kBlock + v % kVectorsOfBlock * 4 * kChannels);
  }
}

// Multiplies R rows by V vectors of channels, and adds the products to `sums`, which the first features overwrite.
template <int R, int V>
inline void tile(const int8_t* rows, int64_t features, const uint8_t* weights, int64_t padded, bool first,
                 int32_t* sums, int64_t stride) {
  Vector totals[R][V], bytes[V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) {
      totals[r][v] = first ? _mm256_setzero_si256() : load(sums + r * stride + v * kChannels);
    }
  }
  for (int64_t k = 0; k < features; k += 4) {
    load_weights<V>(weights, padded, k, bytes);
    if constexpr (R > 1) _mm_prefetch(weights + (padded + k) * kBlock, _MM_HINT_T0);  // the next block's weights
    for (int r = 0; r < R; ++r) {
      const Vector four = broadcast(rows + r * kFeaturesAtOnce + k);
      for (int v = 0; v < V; ++v) totals[r][v] = add_products(totals[r][v], bytes[v], four);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) store(sums + r * stride + v * kChannels, totals[r][v]);
  }
}

// Multiplies all rows by V vectors of channels, in tiles of nearly equal heights, because a last tile of one row would
// be slow.
template <int V>
void columns(int64_t rows, const Halved& halved, int64_t features, const uint8_t* weights, int64_t padded, bool first,
             int32_t* sums, int64_t stride) {
  constexpr decltype(&tile<1, V>) kTiles[] = {tile<1, V>, tile<2, V>, tile<3, V>, tile<kRows, V>};
  for (int64_t tiles = (rows + kRows - 1) / kRows, done = 0; tiles > 0; --tiles) {
    const int64_t height = (rows - done + tiles - 1) / tiles;
    kTiles[height - 1](halved.rows + done * kFeaturesAtOnce, features, weights, padded, first, sums + done * stride,
                       stride);
    done += height;
  }
  const Excess* const end = halved.excess + halved.count;
  for (const Excess* half = halved.excess; half < end;) {
    const int64_t row = half->row;
    Vector totals[V], bytes[V];
    for (int v = 0; v < V; ++v) totals[v] = load(sums + row * stride + v * kChannels);
    do {
      load_weights<V>(weights, padded, half->start, bytes);
      const Vector four = broadcast(half->features);
      for (int v = 0; v < V; ++v) totals[v] = add_products(totals[v], bytes[v], four);
    } while (++half < end && half->row == row);
    for (int v = 0; v < V; ++v) store(sums + row * stride + v * kChannels, totals[v]);
  }
}

void product(const int8_t* q, int64_t rows, int64_t padded, const uint8_t* weights, int64_t blocks, int32_t* sums,
             int64_t stride) {
  Halved halved;
  for (; rows > 0; rows -= kRowsAtOnce, q += kRowsAtOnce * padded, sums += kRowsAtOnce * stride) {
    const int64_t height = rows < kRowsAtOnce ? rows : kRowsAtOnce;
    for (int64_t start = 0; start < padded; start += kFeaturesAtOnce) {
      const int64_t features = padded - start < kFeaturesAtOnce ? padded - start : kFeaturesAtOnce;
      halved.fill(q + start, height, padded, features);
      for (int64_t block = 0; block < blocks;) {
        // For a single row, loads are the bottleneck, so two blocks of channels share the loads of features.
        const bool two = height == 1 && blocks - block >= 2;
        (two ? columns<2 * kVectors> : columns<kVectors>)(height, halved, features,
                                                          weights + (block * padded + start) * kBlock, padded,
                                                          start == 0, sums + block * kBlock, stride);
        block += two ? 2 : 1;
      }
    }
  }
}

constexpr Kernels kKernels = {"avx2", quantize_row, product, finish_row, advance_cells};

}  // namespace
}  // namespace nightquant
END_TARGET

namespace nightquant {
const Kernels* avx2_kernels() { return __builtin_cpu_supports("avx2") ? &kKernels : nullptr; }
}  // namespace nightquant
#else
namespace nightquant {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace nightquant
#endif
