// AMX multiplies a tile of 16 rows by a tile of 16 channels over 64 features in one instruction. AMX is faster only
// from a few rows on. For fewer rows and for other operations, the AVX-512 kernels are used.
#include "kernels.h"

// These are the first compiler versions that support the AMX intrinsics.
#if defined(__x86_64__) && defined(__linux__) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <initializer_list>

#include "target.h"

namespace nightquant {
namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kFewestRows = 3;

// Operand of ldtilecfg.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t first_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int64_t count) {
    bytes[tile] = 64;
    rows[tile] = static_cast<uint8_t>(count);
  }
};

}  // namespace
}  // namespace nightquant

BEGIN_TARGET("amx-tile,amx-int8")
namespace nightquant {
namespace {

// Tiles 0-3 are sums [row tile][block], 4-5 rows, 6-7 weights. `upper` and `lower` are the row tiles' numbers of rows.
void shape_tiles(int64_t upper, int64_t lower) {
  TileShapes shapes;
  for (int tile : {0, 1, 4}) shapes.set(tile, upper);
  if (lower > 0) {
    for (int tile : {2, 3, 5}) shapes.set(tile, lower);
  }
  for (int tile : {6, 7}) shapes.set(tile, kTileRows);
  _tile_loadconfig(&shapes);
}

// Multiplies up to 32 rows by one or two blocks. Tile numbers must be constants.
template <bool lower, bool second>
inline void tiles(const int8_t* q, int64_t padded, const uint8_t* weights, int32_t* sums, int64_t stride) {
  _tile_zero(0);
  if (second) _tile_zero(1);
  if (lower) _tile_zero(2);
  if (lower && second) _tile_zero(3);
  for (int64_t k = 0; k < padded; k += kFeatures) {
    _tile_loadd(4, q + k, padded);
    _tile_loadd(6, weights + k * kBlock, 64);
    _tile_dpbsud(0, 4, 6);
    if (second) {
      _tile_loadd(7, weights + (padded + k) * kBlock, 64);
      _tile_dpbsud(1, 4, 7);
    }
    if (lower) {
      _tile_loadd(5, q + kTileRows * padded + k, padded);
      _tile_dpbsud(2, 5, 6);
      if (second) _tile_dpbsud(3, 5, 7);
    }
  }
  const int64_t pitch = stride * 4;
  _tile_stored(0, sums, pitch);
  if (second) _tile_stored(1, sums + kBlock, pitch);
  if (lower) _tile_stored(2, sums + kTileRows * stride, pitch);
  if (lower && second) _tile_stored(3, sums + kTileRows * stride + kBlock, pitch);
}

template <bool lower>
void all_blocks(const int8_t* q, int64_t padded, const uint8_t* weights, int64_t blocks, int32_t* sums, int64_t stride) {
  for (; blocks >= 2; blocks -= 2, weights += 2 * padded * kBlock, sums += 2 * kBlock) {
    tiles<lower, true>(q, padded, weights, sums, stride);
  }
  if (blocks > 0) tiles<lower, false>(q, padded, weights, sums, stride);
}

void product(const int8_t* q, int64_t rows, int64_t padded, const uint8_t* weights, int64_t blocks, int32_t* sums,
             int64_t stride) {
  if (rows < kFewestRows) return avx512_vnni_kernels()->product(q, rows, padded, weights, blocks, sums, stride);
  while (rows > 0) {
    const int64_t upper = rows < kTileRows ? rows : kTileRows;
    const int64_t rest = rows - upper;
    const int64_t lower = rest < kTileRows ? rest : kTileRows;
    shape_tiles(upper, lower);
    if (lower > 0) {
      all_blocks<true>(q, padded, weights, blocks, sums, stride);
    } else {
      all_blocks<false>(q, padded, weights, blocks, sums, stride);
    }
    rows -= upper + lower;
    q += (upper + lower) * padded;
    sums += (upper + lower) * stride;
  }
  // Release the tiles, because every context switch would have to save them.
  _tile_release();
}

}  // namespace
}  // namespace nightquant
END_TARGET

namespace nightquant {
namespace {

// On Linux, a process must request permission to use tiles.
bool have_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return (d & kTile) != 0 && (d & kInt8) != 0 && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

Kernels with_tiles() {
  Kernels kernels = *avx512_vnni_kernels();
  kernels.name = "amx";
  kernels.product = product;
  return kernels;
}

}  // namespace

const Kernels* amx_kernels() {
  if (avx512_vnni_kernels() == nullptr) return nullptr;
  static const bool here = have_tiles();
  if (!here) return nullptr;
  static const Kernels kernels = with_tiles();
  return &kernels;
}

}  // namespace nightquant
#else
namespace nightquant {
const Kernels* amx_kernels() { return nullptr; }
}  // namespace nightquant
#endif
