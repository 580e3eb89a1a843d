// Products of many rows, and the linear layer.
#include <cstdint>

#include "kernels.h"
#include "layers.h"
#include "parallel.h"

namespace nightquant {
namespace {

// The sums of this many rows and blocks (16 KiB) stay in the L1 cache until they are converted to floats.
constexpr int64_t kRows = 32, kBlocks = 8;

}  // namespace

void project(const Kernels& kernels, const QuantizedRows& x, const Weights& weights, int64_t width, float* y,
             int64_t stride) {
  const int64_t group_work = kBlocks * kBlock * x.padded * x.count;
  parallel(round_up(weights.blocks, kBlocks) / kBlocks, grain_of(group_work), [&](int64_t begin, int64_t end) {
    alignas(64) int32_t sums[kRows * kBlocks * kBlock];
    // Loop over rows inside blocks, so that the weights, which are large, are read from memory only once.
    for (int64_t group = begin; group < end; ++group) {
      const int64_t block = group * kBlocks;
      const int64_t blocks = weights.blocks - block < kBlocks ? weights.blocks - block : kBlocks;
      const int64_t first = block * kBlock;
      const int64_t columns = width - first < blocks * kBlock ? width - first : blocks * kBlock;
      for (int64_t row = 0; row < x.count; row += kRows) {
        const int64_t rows = x.count - row < kRows ? x.count - row : kRows;
        kernels.product(x.values + row * x.padded, rows, x.padded, weights.values + first * x.padded, blocks, sums,
                        kBlocks * kBlock);
        for (int64_t r = 0; r < rows; ++r) {
          kernels.finish(sums + r * kBlocks * kBlock, x.rows[row + r], weights.scale + first, weights.bias + first,
                         columns, y + (row + r) * stride + first);
        }
      }
    }
  });
}

int64_t LinearShape::packed_bytes() const { return blocks() * kBlock * (padded() + 2 * int64_t{sizeof(float)}); }

int64_t LinearShape::scratch_bytes() const { return rows * (padded() + int64_t{sizeof(Row)}); }

void linear(const Kernels& kernels, const LinearShape& shape, const float* x, const uint8_t* packed, uint8_t* scratch,
            float* y) {
  const int64_t padded = shape.padded(), channels = shape.blocks() * kBlock;
  int8_t* const values = reinterpret_cast<int8_t*>(scratch);
  Row* const rows = reinterpret_cast<Row*>(scratch + shape.rows * padded);
  parallel(shape.rows, grain_of(4 * padded), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      rows[r] = kernels.quantize(x + r * shape.in_features, shape.in_features, padded, values + r * padded);
    }
  });
  const float* const scale = reinterpret_cast<const float*>(packed + channels * padded);
  const Weights weights = {packed, scale, scale + channels, shape.blocks()};
  project(kernels, {values, rows, shape.rows, padded}, weights, shape.out_features, y, shape.out_features);
}

}  // namespace nightquant
