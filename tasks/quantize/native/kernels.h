// The kernels of an instruction set quantize rows to int8, multiply the rows by packed weights, and convert the sums.
//
// All instruction sets compute the same numbers, bit for bit. Sums are integers, and the float formulas (arithmetic.h)
// use the same IEEE operations in the same order, without contraction into fused multiply-adds.
#pragma once

#include <cstdint>

namespace nightquant {

// Output channels are in blocks of 16, and input features are padded with zeros to a multiple of 64, as in an AMX tile.
// 16 channels times 4 features fill an AVX-512 register. A block is [features / 4][16 channels][4].
// A weight w is stored as the unsigned byte w + 128, because VNNI multiplies unsigned by signed bytes.
constexpr int64_t kBlock = 16;
constexpr int64_t kFeatures = 64;

constexpr int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// A row x is scale * q. Products with w + 128 exceed products with w by `shift`, which is 128 * sum(q).
struct Row {
  float scale;
  int32_t shift;
};

struct Kernels {
  const char* name;

  // Quantizes x[width] to q[padded]. A row with a non-finite value gets a non-finite scale and non-finite outputs.
  Row (*quantize)(const float* x, int64_t width, int64_t padded, int8_t* q);

  // sums[r][16 * b + j] = sum over k of q[r][k] * (w + 128)[block b, channel j][k]; `stride` is the sums' stride.
  void (*product)(const int8_t* q, int64_t rows, int64_t padded, const uint8_t* weights, int64_t blocks, int32_t* sums,
                  int64_t stride);

  // y[j] = (sums[j] - shift) * (row.scale * scale[j]) + bias[j] for j < width.
  void (*finish)(const int32_t* sums, Row row, const float* scale, const float* bias, int64_t width, float* y);

  // Computes `count` times 16 units of a cell from the gates' recurrent sums [count][i, f, g, o][16] and the input part
  // in the same order. Updates the cell state c[count][16] and writes the hidden state h[count][16].
  void (*cells)(int64_t count, const int32_t* sums, Row row, const float* scale, const float* input, float* c, float* h);
};

const Kernels* scalar_kernels();
// Each function returns null if the processor, operating system or compiler does not support the instructions.
const Kernels* avx2_kernels();
const Kernels* avx512_vnni_kernels();
const Kernels* amx_kernels();

}  // namespace nightquant
