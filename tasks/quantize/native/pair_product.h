// The product on instruction sets without VNNI, with 16-bit multiply-adds over pairs of features. vpmaddubsw would need
// fewer instructions, but adds two products in 16 bits with saturation.
//
// A 32-bit lane of packed weights has four features of one channel. A mask leaves features 0 and 2 as 16-bit numbers,
// and a shift leaves features 1 and 3, both without a shuffle. Rows are widened to the same order once for all blocks.
//
// An instruction set's file sets a target, defines `Lanes`, and then includes this file.
#pragma once

#include <cstdint>

#include "kernels.h"

namespace nightquant {
namespace {

// The widened rows (16 KiB) stay in the L1 cache together with a block of weights.
constexpr int64_t kRowsAtOnce = 32, kFeaturesAtOnce = 256;

// Multiplies R rows by V vectors of channels, and adds the products to `sums`, which the first features overwrite.
template <int R, int V>
inline void pair_tile(const int16_t* pairs, int64_t features, const uint8_t* weights, int64_t padded, bool first,
                      int32_t* sums, int64_t stride) {
  constexpr int64_t kVectors = kBlock / Lanes::kChannels;  // per block
  typename Lanes::Vector totals[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) {
      totals[r][v] = first ? Lanes::zero() : Lanes::load(sums + r * stride + v * Lanes::kChannels);
    }
  }
  for (int64_t k = 0; k < features; k += 4) {
    typename Lanes::Vector even[V], odd[V];
    for (int v = 0; v < V; ++v) {
      const uint8_t* const block = weights + (v / kVectors) * padded * kBlock;
      const auto bytes = Lanes::load(block + k * kBlock + (v % kVectors) * 4 * Lanes::kChannels);
      even[v] = Lanes::even(bytes);
      odd[v] = Lanes::odd(bytes);
    }
    for (int r = 0; r < R; ++r) {
      const auto row_even = Lanes::broadcast(pairs + r * kFeaturesAtOnce + k);
      const auto row_odd = Lanes::broadcast(pairs + r * kFeaturesAtOnce + k + 2);
      for (int v = 0; v < V; ++v) {
        totals[r][v] = Lanes::add_products(totals[r][v], row_even, even[v]);
        totals[r][v] = Lanes::add_products(totals[r][v], row_odd, odd[v]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) Lanes::store(sums + r * stride + v * Lanes::kChannels, totals[r][v]);
  }
}

template <int R, int V>
inline void pair_tile_of(int64_t rows, const int16_t* pairs, int64_t features, const uint8_t* weights, int64_t padded,
                         bool first, int32_t* sums, int64_t stride) {
  if constexpr (R > 1) {
    if (rows < R) return pair_tile_of<R - 1, V>(rows, pairs, features, weights, padded, first, sums, stride);
  }
  pair_tile<R, V>(pairs, features, weights, padded, first, sums, stride);
}

// Splits the rows into tiles of nearly equal heights of at most R, because a last tile of one row would be slow.
template <int R, int V>
void pair_columns(int64_t rows, const int16_t* pairs, int64_t features, const uint8_t* weights, int64_t padded,
                  bool first, int32_t* sums, int64_t stride) {
  for (int64_t tiles = (rows + R - 1) / R; tiles > 0; --tiles) {
    const int64_t height = (rows + tiles - 1) / tiles;
    pair_tile_of<R, V>(height, pairs, features, weights, padded, first, sums, stride);
    rows -= height;
    pairs += height * kFeaturesAtOnce;
    sums += height * stride;
  }
}

template <int R, int V>
void pair_blocks(int64_t rows, const int16_t* pairs, int64_t features, const uint8_t* weights, int64_t padded,
                 int64_t blocks, bool first, int32_t* sums, int64_t stride) {
  constexpr int64_t kBlocks = V * Lanes::kChannels / kBlock;
  for (; blocks >= kBlocks; blocks -= kBlocks, weights += kBlocks * padded * kBlock, sums += kBlocks * kBlock) {
    pair_columns<R, V>(rows, pairs, features, weights, padded, first, sums, stride);
  }
  if constexpr (kBlocks > 1) {
    pair_blocks<R, kBlock / Lanes::kChannels>(rows, pairs, features, weights, padded, blocks, first, sums, stride);
  }
}

void pair_product(const int8_t* q, int64_t rows, int64_t padded, const uint8_t* weights, int64_t blocks, int32_t* sums,
                  int64_t stride) {
  alignas(64) int16_t pairs[kRowsAtOnce * kFeaturesAtOnce];
  for (; rows > 0; rows -= kRowsAtOnce, q += kRowsAtOnce * padded, sums += kRowsAtOnce * stride) {
    const int64_t height = rows < kRowsAtOnce ? rows : kRowsAtOnce;
    for (int64_t start = 0; start < padded; start += kFeaturesAtOnce) {
      const int64_t features = padded - start < kFeaturesAtOnce ? padded - start : kFeaturesAtOnce;
      for (int64_t r = 0; r < height; ++r) {
        Lanes::widen(q + r * padded + start, features, pairs + r * kFeaturesAtOnce);
      }
      // For a single row, loads are the bottleneck, so more vectors of channels share the loads of features.
      const auto all = height == 1 ? pair_blocks<1, 2 * Lanes::kVectors> : pair_blocks<Lanes::kRows, Lanes::kVectors>;
      all(height, pairs, features, weights + start * kBlock, padded, blocks, start == 0, sums, stride);
    }
  }
}

}  // namespace
}  // namespace nightquant
