// AVX2: bytes are widened to 16 bits before they are multiplied. The shorter way, vpmaddubsw, adds two products of bytes
// in 16 bits and saturates.
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

// 4 channels of 4 features, as 16-bit numbers.
inline __m256i widened(const uint8_t* bytes) {
  return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
}

// One row and one block: each accumulator holds the sums of 4 channels in two halves, features 0-1 and 2-3 of each four.
inline void product_of_row(const int8_t* q, int64_t padded, const uint8_t* weights, int32_t* sums) {
  __m256i halves[4] = {};
  for (int64_t k = 0; k < padded; k += 4) {
    int32_t four;
    std::memcpy(&four, q + k, sizeof four);
    const __m256i features = _mm256_broadcastq_epi64(_mm_cvtepi8_epi16(_mm_cvtsi32_si128(four)));
    for (int part = 0; part < 4; ++part) {
      const __m256i products = _mm256_madd_epi16(features, widened(weights + k * kBlock + 16 * part));
      halves[part] = _mm256_add_epi32(halves[part], products);
    }
  }
  for (int pair = 0; pair < 2; ++pair) {
    // Adding neighbours leaves the channels 0 1 4 5 2 3 6 7.
    const __m256i mixed = _mm256_hadd_epi32(halves[2 * pair], halves[2 * pair + 1]);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + 8 * pair), _mm256_permute4x64_epi64(mixed, 0xd8));
  }
}

void product(const int8_t* q, int64_t rows, int64_t padded, const uint8_t* weights, int64_t blocks, int32_t* sums,
             int64_t stride) {
  for (int64_t b = 0; b < blocks; ++b) {
    for (int64_t r = 0; r < rows; ++r) {
      product_of_row(q + r * padded, padded, weights + b * padded * kBlock, sums + r * stride + b * kBlock);
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
