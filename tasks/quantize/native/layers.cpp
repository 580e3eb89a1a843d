// The two layers.
//
// For an LSTM, one product computes a layer's input part for many steps, and reads the weights once. Only the recurrent
// product is computed step by step, with weights in the L2 cache. A hidden state is quantized only once, for the next
// step and for the next layer.
#include "layers.h"

#include <ATen/Parallel.h>

#include <cstring>

namespace nightquant {
namespace {

// With fewer multiply-adds, dispatching work to another thread costs more than it saves.
constexpr int64_t kWork = 1 << 20;

inline int64_t grain_of(int64_t work_of_one) {
  const int64_t grain = kWork / (work_of_one > 0 ? work_of_one : 1);
  return grain > 0 ? grain : 1;
}

// The sums of this many rows and blocks (16 KiB) stay in the L1 cache until they are converted to floats.
constexpr int64_t kRows = 32, kBlocks = 8;

}  // namespace

void project(const Kernels& kernels, const QuantizedRows& x, const Weights& weights, int64_t width, float* y,
             int64_t stride) {
  const int64_t group_work = kBlocks * kBlock * x.padded * x.count;
  at::parallel_for(0, round_up(weights.blocks, kBlocks) / kBlocks, grain_of(group_work), [&](int64_t begin, int64_t end) {
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
  at::parallel_for(0, shape.rows, grain_of(4 * padded), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      rows[r] = kernels.quantize(x + r * shape.in_features, shape.in_features, padded, values + r * padded);
    }
  });
  const float* const scale = reinterpret_cast<const float*>(packed + channels * padded);
  const Weights weights = {packed, scale, scale + channels, shape.blocks()};
  project(kernels, {values, rows, shape.rows, padded}, weights, shape.out_features, y, shape.out_features);
}

namespace {

// The input products of this many rows fit into the L2 cache together with a layer's weights.
constexpr int64_t kChunkRows = 64;
constexpr int64_t kGates = 4;
// Like malloc, AOTInductor stores constants 16 bytes after the beginning of a cache line, so every load needs two cache
// lines. If recurrent weights are used for several steps, an aligned copy saves time.
constexpr int64_t kStepsForCopy = 8, kCacheLine = 64;

class Bytes {
 public:
  explicit Bytes(uint8_t* begin) : next_(begin) {}

  template <typename T>
  T* take(int64_t count) {
    uint8_t* const taken = next_;
    next_ += round_up(count * int64_t{sizeof(T)}, 64);
    return reinterpret_cast<T*>(taken);
  }

 private:
  uint8_t* next_;
};

// The rows of a layer's input, or its hidden states, beginning with the state before the chunk.
struct Rows {
  int8_t* values;
  Row* rows;
};

// The layout of the scratch memory. The pointers are meaningless if only the size is needed.
struct Scratch {
  float *h, *c;    // [layers][batch][units]
  float* projected;  // [steps of a chunk][batch][4 * units]
  Rows input, hidden, below;
  uint8_t* recurrent;  // a layer's weights [4 * units][padded]
  int64_t bytes;
};

Scratch lay_out(const LstmShape& shape, uint8_t* begin) {
  Bytes bytes(begin);
  const int64_t rows = shape.chunk_steps() * shape.batch;
  const int64_t wider = shape.padded(0) > shape.padded(1) ? shape.padded(0) : shape.padded(1);
  const auto take_rows = [&](int64_t count, int64_t padded) {
    int8_t* const values = bytes.take<int8_t>(count * padded);
    return Rows{values, bytes.take<Row>(count)};
  };
  Scratch scratch = {};
  scratch.h = bytes.take<float>(shape.layers * shape.batch * shape.units());
  scratch.c = bytes.take<float>(shape.layers * shape.batch * shape.units());
  scratch.projected = bytes.take<float>(rows * kGates * shape.units());
  scratch.input = take_rows(rows, wider);
  scratch.hidden = take_rows(rows + shape.batch, shape.padded(1));
  scratch.below = take_rows(rows + shape.batch, shape.padded(1));
  const bool may_copy = shape.chunk_steps() >= kStepsForCopy;
  scratch.recurrent = bytes.take<uint8_t>(may_copy ? kGates * shape.units() * shape.padded(1) : 0);
  scratch.bytes = bytes.take<uint8_t>(0) - begin;
  return scratch;
}

struct Layer {
  Weights input, recurrent;
};

// Returns the layer that begins at `next`, and advances `next` to the following layer.
Layer layer_at(const LstmShape& shape, int64_t layer, const uint8_t*& next) {
  const int64_t channels = kGates * shape.units();
  const uint8_t* const input = next;
  const uint8_t* const recurrent = input + channels * shape.padded(layer);
  const float* const floats = reinterpret_cast<const float*>(recurrent + channels * shape.padded(1));
  next = reinterpret_cast<const uint8_t*>(floats + 3 * channels);
  return {{input, floats, floats + 2 * channels, channels / kBlock},
          {recurrent, floats + channels, nullptr, channels / kBlock}};
}

void quantize(const Kernels& kernels, const float* x, int64_t stride, int64_t count, int64_t width, int64_t padded,
              Rows to) {
  at::parallel_for(0, count, grain_of(4 * padded), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      to.rows[r] = kernels.quantize(x + r * stride, width, padded, to.values + r * padded);
    }
  });
}

// Computes one step of one layer: h and c from the quantized hidden states [batch] and the input part of the gates.
void step(const Kernels& kernels, const LstmShape& shape, const Weights& weights, Rows hidden, const float* projected,
          float* h, float* c) {
  const int64_t units = shape.units(), padded = shape.padded(1), gates = kGates * kBlock;
  // The sums of 64 times 64 gates (16 KiB) stay in the L1 cache until the cells have used them.
  constexpr int64_t kBatch = 16, kPieces = 64;
  at::parallel_for(0, units / kBlock, grain_of(gates * padded * shape.batch), [&](int64_t begin, int64_t end) {
    alignas(64) int32_t sums[kPieces * kGates * kBlock];
    for (int64_t first = 0; first < shape.batch; first += kBatch) {
      const int64_t rows = shape.batch - first < kBatch ? shape.batch - first : kBatch;
      for (int64_t group = begin; group < end; group += kPieces / rows) {
        const int64_t count = end - group < kPieces / rows ? end - group : kPieces / rows;
        kernels.product(hidden.values + first * padded, rows, padded, weights.values + group * gates * padded,
                        count * kGates, sums, count * gates);
        for (int64_t r = 0; r < rows; ++r) {
          const int64_t row = first + r, at = row * units + group * kBlock;
          kernels.cells(count, sums + r * count * gates, hidden.rows[row], weights.scale + group * gates,
                        projected + (row * units + group * kBlock) * kGates, c + at, h + at);
        }
      }
    }
  });
}

Weights in_lines(const LstmShape& shape, const Weights& weights, int64_t steps, uint8_t* memory) {
  if (reinterpret_cast<uintptr_t>(weights.values) % kCacheLine == 0 || steps < kStepsForCopy) return weights;
  std::memcpy(memory, weights.values, static_cast<size_t>(kGates * shape.units() * shape.padded(1)));
  return {memory, weights.scale, weights.bias, weights.blocks};
}

void copy_rows(const float* from, int64_t from_stride, float* to, int64_t to_stride, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(to + r * to_stride, from + r * from_stride, static_cast<size_t>(width) * sizeof(float));
  }
}

}  // namespace

int64_t LstmShape::chunk_steps() const {
  const int64_t fitting = batch > 0 ? kChunkRows / batch : steps;
  const int64_t least = fitting > 1 ? fitting : 1;
  return least < steps ? least : steps;
}

int64_t LstmShape::packed_bytes() const {
  int64_t bytes = 0;
  for (int64_t layer = 0; layer < layers; ++layer) {
    bytes += kGates * units() * (padded(layer) + padded(1) + 3 * int64_t{sizeof(float)});
  }
  return bytes;
}

int64_t LstmShape::scratch_bytes() const { return lay_out(*this, nullptr).bytes; }

void lstm(const Kernels& kernels, const LstmShape& shape, const float* x, const uint8_t* packed, uint8_t* scratch,
          float* h, float* c, float* y) {
  const int64_t batch = shape.batch, hidden = shape.hidden, units = shape.units(), padded = shape.padded(1);
  const Scratch memory = lay_out(shape, scratch);
  const int64_t states = shape.layers * batch;
  // Padding units stay zero, because their weights and biases are zero.
  std::memset(memory.h, 0, static_cast<size_t>(states * units) * sizeof(float));
  std::memset(memory.c, 0, static_cast<size_t>(states * units) * sizeof(float));
  copy_rows(h, hidden, memory.h, units, states, hidden);
  copy_rows(c, hidden, memory.c, units, states, hidden);
  for (int64_t start = 0; start < shape.steps; start += shape.chunk_steps()) {
    const int64_t left = shape.steps - start;
    const int64_t steps = left < shape.chunk_steps() ? left : shape.chunk_steps();
    quantize(kernels, x + start * batch * shape.input, shape.input, steps * batch, shape.input, shape.padded(0),
             memory.input);
    QuantizedRows from = {memory.input.values, memory.input.rows, steps * batch, shape.padded(0)};
    Rows current = memory.hidden, other = memory.below;
    const uint8_t* next = packed;
    for (int64_t number = 0; number < shape.layers; ++number) {
      const Layer layer = layer_at(shape, number, next);
      float* const layer_h = memory.h + number * batch * units;
      float* const layer_c = memory.c + number * batch * units;
      project(kernels, from, layer.input, kGates * units, memory.projected, kGates * units);
      quantize(kernels, layer_h, units, batch, hidden, padded, current);
      const Weights recurrent = in_lines(shape, layer.recurrent, steps, memory.recurrent);
      for (int64_t t = 0; t < steps; ++t) {
        const Rows before = {current.values + t * batch * padded, current.rows + t * batch};
        const Rows after = {before.values + batch * padded, before.rows + batch};
        step(kernels, shape, recurrent, before, memory.projected + t * batch * kGates * units, layer_h, layer_c);
        const bool last = number + 1 == shape.layers;
        if (last) copy_rows(layer_h, units, y + (start + t) * batch * hidden, hidden, batch, hidden);
        if (!last || t + 1 < steps) quantize(kernels, layer_h, units, batch, hidden, padded, after);
      }
      from = {current.values + batch * padded, current.rows + batch, steps * batch, padded};
      const Rows swapped = current;
      current = other;
      other = swapped;
    }
  }
  copy_rows(memory.h, units, h, hidden, states, hidden);
  copy_rows(memory.c, units, c, hidden, states, hidden);
}

}  // namespace nightquant
