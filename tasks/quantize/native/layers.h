// The two layers, which use plain memory. tasks/quantize/int8_modules.py describes the order of packed weights.
#pragma once

#include <cstdint>

#include "kernels.h"

namespace nightquant {

struct QuantizedRows {
  const int8_t* values;  // [count][padded]
  const Row* rows;
  int64_t count;
  int64_t padded;
};

// Packed weights, with the scales and biases that convert sums to floats.
struct Weights {
  const uint8_t* values;
  const float* scale;
  const float* bias;
  int64_t blocks;
};

// Computes y[r][j] for j < width, where width is at most 16 * blocks; `stride` is the stride of y.
void project(const Kernels& kernels, const QuantizedRows& x, const Weights& weights, int64_t width, float* y,
             int64_t stride);

struct LinearShape {
  int64_t rows, in_features, out_features;

  int64_t padded() const { return round_up(in_features, kFeatures); }
  int64_t blocks() const { return round_up(out_features, kBlock) / kBlock; }
  int64_t packed_bytes() const;
  int64_t scratch_bytes() const;
};

// Computes y[rows][out_features] from x[rows][in_features].
void linear(const Kernels& kernels, const LinearShape& shape, const float* x, const uint8_t* packed, uint8_t* scratch,
            float* y);

struct LstmShape {
  int64_t steps, batch, input, hidden, layers;

  int64_t units() const { return round_up(hidden, kBlock); }
  int64_t padded(int64_t layer) const { return round_up(layer == 0 ? input : hidden, kFeatures); }
  int64_t chunk_steps() const;
  int64_t packed_bytes() const;
  int64_t scratch_bytes() const;
};

// Computes y[steps][batch][hidden] from x[steps][batch][input]. Reads the initial state from h and c, both
// [layers][batch][hidden], and overwrites them with the final state.
void lstm(const Kernels& kernels, const LstmShape& shape, const float* x, const uint8_t* packed, uint8_t* scratch,
          float* h, float* c, float* y);

}  // namespace nightquant
