// Portable kernels for every compiler and processor.
#include <cstdint>
#include <cstring>

#include "arithmetic.h"
#include "kernels.h"

namespace nightquant {
namespace {

void product(const int8_t* q, int64_t rows, int64_t padded, const uint8_t* weights, int64_t blocks, int32_t* sums,
             int64_t stride) {
  for (int64_t b = 0; b < blocks; ++b, weights += padded * kBlock) {
    for (int64_t r = 0; r < rows; ++r) {
      const int8_t* row = q + r * padded;
      int32_t block[kBlock] = {};
      for (int64_t k = 0; k < padded; k += 4) {
        const uint8_t* quad = weights + k * kBlock;
        for (int64_t j = 0; j < kBlock; ++j) {
          for (int64_t i = 0; i < 4; ++i) {
            block[j] += row[k + i] * quad[4 * j + i];
          }
        }
      }
      std::memcpy(sums + r * stride + b * kBlock, block, sizeof block);
    }
  }
}

constexpr Kernels kKernels = {"scalar", quantize_row, product, finish_row, advance_cells};

}  // namespace

const Kernels* scalar_kernels() { return &kKernels; }

}  // namespace nightquant
