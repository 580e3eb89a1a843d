// The two layers, on plain memory. Weights are packed as tasks/quantize/int8_modules.py says.
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

// Packed weights with what makes floats of their sums.
struct Weights {
  const uint8_t* values;
  const float* scale;
  const float* bias;
  int64_t blocks;
};

// y[r][j] for j < width, `width` being at most 16 * blocks; `stride` is that of y.
void project(const Kernels& kernels, const QuantizedRows& x, const Weights& weights, int64_t width, float* y,
             int64_t stride);

struct LinearShape {
  int64_t rows, in_features, out_features;

  int64_t padded() const { return round_up(in_features, kFeatures); }
  int64_t blocks() const { return round_up(out_features, kBlock) / kBlock; }
  int64_t packed_bytes() const;
  int64_t scratch_bytes() const;
};

// x[rows][in_features] to y[rows][out_features].
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

// x[steps][batch][input] to y[steps][batch][hidden]; h and c, both [layers][batch][hidden], are the state before and are
// overwritten by the one after.
void lstm(const Kernels& kernels, const LstmShape& shape, const float* x, const uint8_t* packed, uint8_t* scratch,
          float* h, float* c, float* y);

}  // namespace nightquant
