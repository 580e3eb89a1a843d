// AVX2 kernels widen bytes to 16 bits before the multiplication. vpmaddubsw would need fewer instructions, but adds two
// products in 16 bits with saturation.
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

// Returns 4 channels of 4 features as 16-bit numbers.
inline __m256i widened(const uint8_t* bytes) {
  return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
}

inline __m256i four_features(const int8_t* q) {
  int32_t four;
  std::memcpy(&four, q, sizeof four);
  return _mm256_broadcastq_epi64(_mm_cvtepi8_epi16(_mm_cvtsi32_si128(four)));
}

// Multiplies R rows by one block. Each accumulator has the sums of 4 channels in two halves: features 0-1 and 2-3.
template <int R>
inline void tile(const int8_t* q, int64_t padded, const uint8_t* weights, int32_t* sums, int64_t stride) {
  __m256i halves[R][4] = {};
  for (int64_t k = 0; k < padded; k += 4) {
    __m256i features[R];
    for (int r = 0; r < R; ++r) features[r] = four_features(q + r * padded + k);
    for (int part = 0; part < 4; ++part) {
      const __m256i channels = widened(weights + k * kBlock + 16 * part);
      for (int r = 0; r < R; ++r) {
        halves[r][part] = _mm256_add_epi32(halves[r][part], _mm256_madd_epi16(features[r], channels));
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int pair = 0; pair < 2; ++pair) {
      // Adding neighbours leaves the channels in the order 0 1 4 5 2 3 6 7.
      const __m256i mixed = _mm256_hadd_epi32(halves[r][2 * pair], halves[r][2 * pair + 1]);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + r * stride + 8 * pair),
                          _mm256_permute4x64_epi64(mixed, 0xd8));
    }
  }
}

void product(const int8_t* q, int64_t rows, int64_t padded, const uint8_t* weights, int64_t blocks, int32_t* sums,
             int64_t stride) {
  for (int64_t b = 0; b < blocks; ++b, weights += padded * kBlock, sums += kBlock) {
    int64_t r = 0;
    for (; r + 2 <= rows; r += 2) tile<2>(q + r * padded, padded, weights, sums + r * stride, stride);
    for (; r < rows; ++r) tile<1>(q + r * padded, padded, weights, sums + r * stride, stride);
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
