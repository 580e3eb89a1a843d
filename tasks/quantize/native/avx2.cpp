// AVX2 kernels: an instruction computes 32 products of 8-bit numbers and adds pairs of products.
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
  // A tile of 4 rows and 2 vectors leaves half of the 16 registers to weights, features and sums of pairs.
  static constexpr int kChannels = 8, kRows = 4, kVectors = 2;

  static Vector zero() { return _mm256_setzero_si256(); }
  static Vector load(const void* from) { return _mm256_loadu_si256(static_cast<const Vector*>(from)); }
  static void store(void* to, Vector value) { _mm256_storeu_si256(static_cast<Vector*>(to), value); }

  static Vector broadcast(const int8_t* four) {
    int32_t all;
    std::memcpy(&all, four, sizeof all);
    return _mm256_set1_epi32(all);
  }

  static Vector add_products(Vector total, Vector weights, Vector features) {
    const Vector pairs = _mm256_maddubs_epi16(weights, features);
    return _mm256_add_epi32(total, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
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
