// AVX-512 kernels without VNNI: an instruction computes 32 products of 16-bit numbers.
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
  // A tile of 8 rows and 2 vectors leaves half of the 32 registers to weights and features.
  static constexpr int kChannels = 16, kRows = 8, kVectors = 2;

  static Vector zero() { return _mm512_setzero_si512(); }
  static Vector load(const void* from) { return _mm512_loadu_si512(from); }
  static void store(void* to, Vector value) { _mm512_storeu_si512(to, value); }
  static Vector even(Vector bytes) { return _mm512_and_si512(bytes, _mm512_set1_epi16(0xff)); }
  static Vector odd(Vector bytes) { return _mm512_srli_epi16(bytes, 8); }

  static Vector broadcast(const int16_t* pair) {
    int32_t both;
    std::memcpy(&both, pair, sizeof both);
    return _mm512_set1_epi32(both);
  }

  static Vector add_products(Vector total, Vector a, Vector b) {
    return _mm512_add_epi32(total, _mm512_madd_epi16(a, b));
  }

  // Reorders every four features as 0 2 1 3.
  static void widen(const int8_t* q, int64_t count, int16_t* to) {
    for (int64_t k = 0; k < count; k += 32) {
      const Vector words = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(q + k)));
      store(to + k, _mm512_shufflehi_epi16(_mm512_shufflelo_epi16(words, 0xd8), 0xd8));
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
