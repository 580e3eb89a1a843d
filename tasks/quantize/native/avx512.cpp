// AVX-512 kernels without VNNI: an instruction computes 64 products of 8-bit numbers and adds pairs of products.
#include "kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "target.h"

#if defined(__clang__)
BEGIN_TARGET("avx512f,avx512bw,avx512dq,avx512vl")
#else
BEGIN_TARGET("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#endif
namespace nightquant {
namespace {

struct Lanes {
  using Vector = __m512i;
  // A tile of 8 rows and 2 vectors leaves half of the 32 registers to weights, features and sums of pairs.
  static constexpr int kChannels = 16, kRows = 8, kVectors = 2;

  static Vector zero() { return _mm512_setzero_si512(); }
  static Vector load(const void* from) { return _mm512_loadu_si512(from); }
  static void store(void* to, Vector value) { _mm512_storeu_si512(to, value); }

  static Vector broadcast(const int8_t* four) {
    int32_t all;
    std::memcpy(&all, four, sizeof all);
    return _mm512_set1_epi32(all);
  }

  static Vector add_products(Vector total, Vector weights, Vector features) {
    const Vector pairs = _mm512_maddubs_epi16(weights, features);
    return _mm512_add_epi32(total, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
  }
};

}  // namespace
}  // namespace nightquant
#include "arithmetic.h"
#include "pair_product.h"
END_TARGET

namespace nightquant {
namespace {
constexpr Kernels kKernels = {"avx512", quantize_row, pair_product, finish_row, advance_cells};
}  // namespace

const Kernels* avx512_kernels() {
  const bool here = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return here ? &kKernels : nullptr;
}
}  // namespace nightquant
#else
namespace nightquant {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace nightquant
#endif
