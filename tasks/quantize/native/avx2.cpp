// AVX2 kernels: an instruction computes 16 products of 16-bit numbers.
#include "kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "target.h"

BEGIN_TARGET("avx2")
namespace nightquant {
namespace {

struct Lanes {
  using Vector = __m256i;
  // A tile of 4 rows and 2 vectors leaves half of the 16 registers to weights and features.
  static constexpr int kChannels = 8, kRows = 4, kVectors = 2;

  static Vector zero() { return _mm256_setzero_si256(); }
  static Vector load(const void* from) { return _mm256_loadu_si256(static_cast<const Vector*>(from)); }
  static void store(void* to, Vector value) { _mm256_storeu_si256(static_cast<Vector*>(to), value); }
  static Vector even(Vector bytes) { return _mm256_and_si256(bytes, _mm256_set1_epi16(0xff)); }
  static Vector odd(Vector bytes) { return _mm256_srli_epi16(bytes, 8); }

  static Vector broadcast(const int16_t* pair) {
    int32_t both;
    std::memcpy(&both, pair, sizeof both);
    return _mm256_set1_epi32(both);
  }

  static Vector add_products(Vector total, Vector a, Vector b) {
    return _mm256_add_epi32(total, _mm256_madd_epi16(a, b));
  }

  // Reorders every four features as 0 2 1 3.
  static void widen(const int8_t* q, int64_t count, int16_t* to) {
    for (int64_t k = 0; k < count; k += 16) {
      const Vector words = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q + k)));
      store(to + k, _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0xd8), 0xd8));
    }
  }
};

}  // namespace
}  // namespace nightquant
#include "arithmetic.h"
#include "pair_product.h"
END_TARGET

namespace nightquant {
namespace {
constexpr Kernels kKernels = {"avx2", quantize_row, pair_product, finish_row, advance_cells};
}  // namespace

const Kernels* avx2_kernels() { return __builtin_cpu_supports("avx2") ? &kKernels : nullptr; }
}  // namespace nightquant
#else
namespace nightquant {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace nightquant
#endif
