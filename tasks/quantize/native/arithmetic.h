// The float formulas as plain loops. Each instruction set's file sets a target and then includes this file, so that
// the compiler generates vectors of the target's width. These files must not share any function defined here.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels.h"

namespace nightquant {
namespace {

inline float as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t as_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// 1.5 * 2^23: adding it to a float below 2^22 leaves the nearest integer, with ties to even, in the low bits.
constexpr float kRounder = 12582912.0f;

Row quantize_row(const float* __restrict x, int64_t width, int64_t padded, int8_t* __restrict q) {
  // Compare magnitudes as integers, so that NaN is above infinity, and infinity is above all numbers.
  int32_t largest = 0;
  for (int64_t k = 0; k < width; ++k) {
    const int32_t magnitude = static_cast<int32_t>(as_bits(x[k]) & 0x7fffffffu);
    largest = magnitude > largest ? magnitude : largest;
  }
  const float peak = as_float(static_cast<uint32_t>(largest));
  // If the peak is below this value, 127 / peak may overflow. Treat such a row as zero.
  const float inverse = peak > 1e-30f ? 127.0f / peak : 0.0f;
  int32_t sum = 0;
  for (int64_t k = 0; k < width; ++k) {
    const uint32_t bits = as_bits(x[k] * inverse + kRounder) - as_bits(kRounder);
    const int8_t value = static_cast<int8_t>(static_cast<uint8_t>(bits));
    q[k] = value;
    sum += value;
  }
  std::memset(q + width, 0, static_cast<size_t>(padded - width));
  return {peak / 127.0f, 128 * sum};
}

void finish_row(const int32_t* __restrict sums, Row row, const float* __restrict scale, const float* __restrict bias,
                int64_t width, float* __restrict y) {
  for (int64_t j = 0; j < width; ++j) {
    y[j] = static_cast<float>(sums[j] - row.shift) * (row.scale * scale[j]) + bias[j];
  }
}

// NaN stays NaN.
inline float clamp(float x, float bound) {
  const float low = x < -bound ? -bound : x;
  return low > bound ? bound : low;
}

// e^x for |x| < 80, with a relative error of 1e-7: 2^n * e^r with |r| <= ln(2) / 2, and the Taylor polynomial for e^r.
// n * ln(2) is subtracted in two parts; the first part has so few bits that its product with n is exact.
inline float exponential(float x) {
  const float shifted = x * 1.44269504f + kRounder;
  const float n = shifted - kRounder;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  // Evaluate in pairs (Estrin's scheme), because each of eight chained steps would wait for the previous step.
  const float r2 = r * r;
  const float low = (1.0f + r) + (0.5f + r * (1.0f / 6)) * r2;
  const float high = (1.0f / 24 + r * (1.0f / 120)) + (1.0f / 720 + r * (1.0f / 5040)) * r2;
  const float p = low + high * (r2 * r2);
  return p * as_float((as_bits(shifted) - as_bits(kRounder) + 127u) << 23);
}

// Beyond these values, the sigmoid and the hyperbolic tangent differ from their limits by less than 5e-8.
constexpr float kSigmoidEnd = 17.0f, kTanhEnd = 9.0f;

// Uses sigmoid(x) = 1 / (1 + e^-x) and tanh(x) = (1 - e^-2x) / (1 + e^-2x) over common denominators. A cell then needs
// two divisions instead of five; divisions are the most expensive operations here.
inline void advance_block(const float* __restrict gates, float* __restrict c, float* __restrict h) {
  for (int64_t j = 0; j < kBlock; ++j) {
    const float input_gate = 1.0f + exponential(-clamp(gates[j], kSigmoidEnd));
    const float forget_gate = 1.0f + exponential(-clamp(gates[kBlock + j], kSigmoidEnd));
    const float candidate = exponential(-2.0f * clamp(gates[2 * kBlock + j], kTanhEnd));
    const float output_gate = 1.0f + exponential(-clamp(gates[3 * kBlock + j], kSigmoidEnd));
    const float taken = input_gate * (1.0f + candidate);
    const float state = (c[j] * taken + (1.0f - candidate) * forget_gate) / (forget_gate * taken);
    const float squashed = exponential(-2.0f * clamp(state, kTanhEnd));
    c[j] = state;
    h[j] = (1.0f - squashed) / (output_gate * (1.0f + squashed));
  }
}

void advance_cells(int64_t count, const int32_t* sums, Row row, const float* scale, const float* input, float* c,
                   float* h) {
  // The iterations are independent, so a processor can execute several at once.
  for (int64_t block = 0; block < count; ++block) {
    const int64_t gate = 4 * kBlock * block;
    float gates[4 * kBlock];
    finish_row(sums + gate, row, scale + gate, input + gate, 4 * kBlock, gates);
    advance_block(gates, c + block * kBlock, h + block * kBlock);
  }
}

}  // namespace
}  // namespace nightquant
