// What every instruction set gives: rows to int8, products of them with packed weights, and what is done to the sums.
//
// All sets compute the same numbers, bit for bit: the sums are integers, and the float formulas (arithmetic.h) are the
// same single IEEE operations in the same order, compiled without contraction into fused multiply-adds.
#pragma once

#include <cstdint>

namespace nightquant {

// Output channels are kept in blocks of 16, input features padded with zeros to a multiple of 64: both are the sides of
// an AMX tile, and 16 channels times 4 features are one AVX-512 register. A block is [features / 4][16 channels][4].
// A weight w is kept as the unsigned byte w + 128, because VNNI multiplies unsigned by signed bytes.
constexpr int64_t kBlock = 16;
constexpr int64_t kFeatures = 64;

constexpr int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// A row x is scale * q. Products with w + 128 instead of w exceed those with w by `shift`, which is 128 * sum(q).
struct Row {
  float scale;
  int32_t shift;
};

struct Kernels {
  const char* name;

  // x[width] to q[padded]. A row that is not finite gets a scale that is not either, so that its outputs show it.
  Row (*quantize)(const float* x, int64_t width, int64_t padded, int8_t* q);

  // sums[r][16 * b + j] = sum over k of q[r][k] * (w + 128)[block b, channel j][k]; `stride` is that of the sums.
  void (*product)(const int8_t* q, int64_t rows, int64_t padded, const uint8_t* weights, int64_t blocks, int32_t* sums,
                  int64_t stride);

  // y[j] = (sums[j] - shift) * (row.scale * scale[j]) + bias[j] for j < width.
  void (*finish)(const int32_t* sums, Row row, const float* scale, const float* bias, int64_t width, float* y);

  // `count` times 16 units of a cell, from the recurrent sums of their gates [count][i, f, g, o][16] and the gates' input
  // part, in the same order; updates the cell state c[count][16] and writes the hidden state h[count][16].
  void (*cells)(int64_t count, const int32_t* sums, Row row, const float* scale, const float* input, float* c, float* h);
};

// The best set that this processor has, or the one that the environment variable NIGHTQUANT_ISA names; null where it
// names none that runs here.
const Kernels* choose_kernels();

const Kernels* scalar_kernels();
// Null where the processor, its operating system or the compiler lacks them.
const Kernels* avx2_kernels();
const Kernels* avx512_vnni_kernels();
const Kernels* amx_kernels();

}  // namespace nightquant
