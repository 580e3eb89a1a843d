// AVX-512 kernels with VNNI: vpdpbusd adds four products of unsigned and signed bytes to each of 16 sums without
// saturation.
#include "kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "target.h"

#if defined(__clang__)
BEGIN_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
#else
BEGIN_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,prefer-vector-width=512")
#endif
#include "arithmetic.h"

namespace nightquant {
namespace {

inline __m512i four_features(const int8_t* q) {
  int32_t four;
  std::memcpy(&four, q, sizeof four);
  return _mm512_set1_epi32(four);
}

// Multiplies R rows by B blocks; the sums stay in R * B registers.
template <int R, int B>
inline void tile(const int8_t* q, int64_t padded, const uint8_t* weights, int32_t* sums, int64_t stride) {
  __m512i totals[R][B];
  for (int r = 0; r < R; ++r) {
    for (int b = 0; b < B; ++b) totals[r][b] = _mm512_setzero_si512();
  }
  for (int64_t k = 0; k < padded; k += 4) {
    __m512i channels[B];
    for (int b = 0; b < B; ++b) channels[b] = _mm512_loadu_si512(weights + (b * padded + k) * kBlock);
    for (int r = 0; r < R; ++r) {
      const __m512i features = four_features(q + r * padded + k);
      for (int b = 0; b < B; ++b) totals[r][b] = _mm512_dpbusd_epi32(totals[r][b], channels[b], features);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int b = 0; b < B; ++b) _mm512_storeu_si512(sums + r * stride + b * kBlock, totals[r][b]);
  }
}

// Multiplies all rows by B blocks, whose weights stay in the L1 cache.
template <int B>
void columns(const int8_t* q, int64_t rows, int64_t padded, const uint8_t* weights, int32_t* sums, int64_t stride) {
  for (; rows >= 4; rows -= 4, q += 4 * padded, sums += 4 * stride) tile<4, B>(q, padded, weights, sums, stride);
  if (rows == 3) tile<3, B>(q, padded, weights, sums, stride);
  if (rows == 2) tile<2, B>(q, padded, weights, sums, stride);
  if (rows == 1) tile<1, B>(q, padded, weights, sums, stride);
}

void product(const int8_t* q, int64_t rows, int64_t padded, const uint8_t* weights, int64_t blocks, int32_t* sums,
             int64_t stride) {
  for (; blocks >= 4; blocks -= 4, weights += 4 * padded * kBlock, sums += 4 * kBlock) {
    columns<4>(q, rows, padded, weights, sums, stride);
  }
  if (blocks == 3) columns<3>(q, rows, padded, weights, sums, stride);
  if (blocks == 2) columns<2>(q, rows, padded, weights, sums, stride);
  if (blocks == 1) columns<1>(q, rows, padded, weights, sums, stride);
}

constexpr Kernels kKernels = {"avx512-vnni", quantize_row, product, finish_row, advance_cells};

}  // namespace
}  // namespace nightquant
END_TARGET

namespace nightquant {
const Kernels* avx512_vnni_kernels() {
  const bool here = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                    __builtin_cpu_supports("avx512vnni");
  return here ? &kKernels : nullptr;
}
}  // namespace nightquant
#else
namespace nightquant {
const Kernels* avx512_vnni_kernels() { return nullptr; }
}  // namespace nightquant
#endif
