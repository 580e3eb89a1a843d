// The product on instruction sets without VNNI. vpmaddubsw multiplies unsigned weights by signed features and adds two
// products in 16 bits, with saturation. Two products fit if the sum of their features is between -128 and 128, because
// a weight is at most 255. Few pairs of features exceed these bounds; their halves are multiplied one after the other.
//
// An instruction set's file sets a target, defines `Lanes`, and then includes this file.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels.h"

namespace nightquant {
namespace {

// The rows (8 KiB) stay in the L1 cache together with a block of weights.
constexpr int64_t kRowsAtOnce = 32, kFeaturesAtOnce = 256;

// The second halves of four features, which begin at feature `start` of row `row`.
struct Excess {
  int16_t row, start;
  int8_t features[4];
};

// Rows of features whose pairs do not exceed the bounds, and what is left of the pairs that did.
struct Halved {
  alignas(64) int8_t rows[kRowsAtOnce * kFeaturesAtOnce];
  Excess excess[kRowsAtOnce * kFeaturesAtOnce / 4];
  int64_t count;

  // Entries of different rows alternate, because additions to one row would wait for each other.
  void fill(const int8_t* q, int64_t height, int64_t padded, int64_t features) {
    count = 0;
    for (int64_t r = 0; r < height; ++r) {
      std::memcpy(rows + r * kFeaturesAtOnce, q + r * padded, static_cast<size_t>(features));
    }
    for (int64_t k = 0; k < features; k += 4) {
      for (int64_t r = 0; r < height; ++r) halve(r, k);
    }
  }

 private:
  void halve(int64_t row, int64_t start) {
    int8_t* const q = rows + row * kFeaturesAtOnce + start;
    if (fits(q[0] + q[1]) && fits(q[2] + q[3])) return;
    Excess& half = excess[count++];
    half.row = static_cast<int16_t>(row);
    half.start = static_cast<int16_t>(start);
    for (int64_t j = 0; j < 4; ++j) {
      half.features[j] = static_cast<int8_t>(q[j] / 2);
      q[j] = static_cast<int8_t>(q[j] - half.features[j]);
    }
  }

  static bool fits(int sum) { return -128 <= sum && sum <= 128; }
};

// Loads the weights of vector `v` of channels for four features from `k`.
template <int V>
inline void load_weights(const uint8_t* weights, int64_t padded, int64_t k, typename Lanes::Vector (&to)[V]) {
  constexpr int64_t kVectors = kBlock / Lanes::kChannels;  // per block
  for (int v = 0; v < V; ++v) {
    to[v] = Lanes::load(weights + (v / kVectors * padded + k) * kBlock + v % kVectors * 4 * Lanes::kChannels);
  }
}

// Multiplies R rows by V vectors of channels, and adds the products to `sums`, which the first features overwrite.
template <int R, int V>
inline void pair_tile(const int8_t* rows, int64_t features, const uint8_t* weights, int64_t padded, bool first,
                      int32_t* sums, int64_t stride) {
  constexpr int64_t kVectors = kBlock / Lanes::kChannels;  // per block
  typename Lanes::Vector totals[R][V], bytes[V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) {
      totals[r][v] = first ? Lanes::zero() : Lanes::load(sums + r * stride + v * Lanes::kChannels);
    }
  }
  for (int64_t k = 0; k < features; k += 4) {
    load_weights<V>(weights, padded, k, bytes);
    if constexpr (R > 1) {  // the next channels' weights arrive while this tile computes
      for (int v = 0; v < V; v += kVectors) __builtin_prefetch(weights + ((V + v) / kVectors * padded + k) * kBlock);
    }
    for (int r = 0; r < R; ++r) {
      const auto four = Lanes::broadcast(rows + r * kFeaturesAtOnce + k);
      for (int v = 0; v < V; ++v) totals[r][v] = Lanes::add_products(totals[r][v], bytes[v], four);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) Lanes::store(sums + r * stride + v * Lanes::kChannels, totals[r][v]);
  }
}

template <int R, int V>
inline void pair_tile_of(int64_t height, const int8_t* rows, int64_t features, const uint8_t* weights, int64_t padded,
                         bool first, int32_t* sums, int64_t stride) {
  if constexpr (R > 1) {
    if (height < R) return pair_tile_of<R - 1, V>(height, rows, features, weights, padded, first, sums, stride);
  }
  pair_tile<R, V>(rows, features, weights, padded, first, sums, stride);
}

// Splits the rows into tiles of nearly equal heights of at most R, because a last tile of one row would be slow.
template <int R, int V>
void pair_columns(int64_t rows, const Halved& halved, int64_t features, const uint8_t* weights, int64_t padded,
                  bool first, int32_t* sums, int64_t stride) {
  for (int64_t tiles = (rows + R - 1) / R, done = 0; tiles > 0; --tiles) {
    const int64_t height = (rows - done + tiles - 1) / tiles;
    pair_tile_of<R, V>(height, halved.rows + done * kFeaturesAtOnce, features, weights, padded, first,
                       sums + done * stride, stride);
    done += height;
  }
  const Excess* const end = halved.excess + halved.count;
  for (const Excess* half = halved.excess; half < end;) {
    const int64_t row = half->row;
    typename Lanes::Vector totals[V], bytes[V];
    for (int v = 0; v < V; ++v) totals[v] = Lanes::load(sums + row * stride + v * Lanes::kChannels);
    do {
      load_weights<V>(weights, padded, half->start, bytes);
      const auto four = Lanes::broadcast(half->features);
      for (int v = 0; v < V; ++v) totals[v] = Lanes::add_products(totals[v], bytes[v], four);
    } while (++half < end && half->row == row);
    for (int v = 0; v < V; ++v) Lanes::store(sums + row * stride + v * Lanes::kChannels, totals[v]);
  }
}

template <int R, int V>
void pair_blocks(int64_t rows, const Halved& halved, int64_t features, const uint8_t* weights, int64_t padded,
                 int64_t blocks, bool first, int32_t* sums, int64_t stride) {
  constexpr int64_t kBlocks = V * Lanes::kChannels / kBlock;
  for (; blocks >= kBlocks; blocks -= kBlocks, weights += kBlocks * padded * kBlock, sums += kBlocks * kBlock) {
    pair_columns<R, V>(rows, halved, features, weights, padded, first, sums, stride);
  }
  if constexpr (kBlocks > 1) {
    pair_blocks<R, kBlock / Lanes::kChannels>(rows, halved, features, weights, padded, blocks, first, sums, stride);
  }
}

void pair_product(const int8_t* q, int64_t rows, int64_t padded, const uint8_t* weights, int64_t blocks, int32_t* sums,
                  int64_t stride) {
  Halved halved;
  for (; rows > 0; rows -= kRowsAtOnce, q += kRowsAtOnce * padded, sums += kRowsAtOnce * stride) {
    const int64_t height = rows < kRowsAtOnce ? rows : kRowsAtOnce;
    for (int64_t start = 0; start < padded; start += kFeaturesAtOnce) {
      const int64_t features = padded - start < kFeaturesAtOnce ? padded - start : kFeaturesAtOnce;
      halved.fill(q + start, height, padded, features);
      // For a single row, loads are the bottleneck, so more vectors of channels share the loads of features.
      const auto all = height == 1 ? pair_blocks<1, 2 * Lanes::kVectors> : pair_blocks<Lanes::kRows, Lanes::kVectors>;
      all(height, halved, features, weights + start * kBlock, padded, blocks, start == 0, sums, stride);
    }
  }
}

}  // namespace
}  // namespace nightquant
