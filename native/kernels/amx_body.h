// Products on AMX tiles. The tiles only compute the exact integer sums; what follows is the arithmetic of the vector
// kernels, operation by operation, so that the results are the same bits.
//
// One weight group is a B tile (8 rows of 16 lanes x 4 bytes), 16 activation rows are an A tile per digit (rows x 32
// bytes), and the two products are C tiles of 16 rows x 16 lanes.
#pragma once

#include <immintrin.h>

#include "kernels/linear_body.h"

namespace {

using namespace ninfer;

constexpr int kAmxRows = 16;
constexpr int kFewestAmxRows = 9;  // below this the vector kernels are faster
// Neither a tile load from fresh vector stores nor a vector load from a fresh tile store is forwarded: both wait until the
// store has reached the cache. So groups go in batches, and a batch is spread, multiplied and added up in three rounds.
constexpr int kAmxBatch = 2;
constexpr int kAmxRing = 2 * kAmxBatch;   // groups whose sums are kept
constexpr int kAmxFresh = 4 * kAmxBatch;  // groups whose nibbles are kept spread (three batches, as a power of two)
constexpr std::size_t kAmxSumBytes = 2 * 64 * kAmxRows;
static_assert(kAmxRing * kAmxSumBytes + kAmxFresh * 512 <= kProductScratchHeader);

struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t column_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

inline void load_config(const TileConfig& config) {
  // The intrinsic of GCC 12 declares only 8 of the 64 bytes as read, and the stores before would be dropped.
  asm volatile("ldtilecfg %0" ::"m"(config));
}

// Tiles 0..3: C, 4 and 5: A (high and low digits), 6: B.
inline void configure_tiles(int rows) {
  TileConfig config;
  for (int i = 0; i < 4; ++i) {
    config.column_bytes[i] = 64;
    config.rows[i] = static_cast<std::uint8_t>(rows);
  }
  for (int i = 4; i < 6; ++i) {
    config.column_bytes[i] = kGroup;
    config.rows[i] = static_cast<std::uint8_t>(rows);
  }
  config.column_bytes[6] = 64;
  config.rows[6] = kGroup / 4;
  load_config(config);
}

// Codes of q8g32 are stored as B tiles; nibbles are spread out to one first.
template <class Codes>
constexpr bool kSpread = Codes::kLow < 512;

inline void spread_nibbles(const std::uint8_t* codes, std::uint8_t* tile) {
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    V::B low, high;
    V::load_u4(codes + 64 * j, low, high);
    _mm512_store_si512(tile + 64 * j, low);
    _mm512_store_si512(tile + 256 + 64 * j, high);
  }
}

// Sums of one group for up to 16 rows into `c`: the high digits' tile, then the low digits'. Tile numbers are literals in
// the instructions, hence a macro with two instances.
#define NINFER_MULTIPLY_GROUP(NAME, C_HIGH, C_LOW)                                                              \
  inline void NAME(const std::uint8_t* weights, const std::uint8_t* digits, int rows, std::int32_t* c) {        \
    asm volatile("" ::: "memory"); /* the tile intrinsics of GCC 12 do not say that they touch memory */        \
    _tile_zero(C_HIGH);                                                                                         \
    _tile_zero(C_LOW);                                                                                          \
    _tile_loadd(6, weights, 64);                                                                                \
    _tile_loadd(4, digits, kGroup);                                                                             \
    _tile_loadd(5, digits + kGroup * rows, kGroup);                                                             \
    _tile_dpbsud(C_HIGH, 4, 6);                                                                                 \
    _tile_dpbsud(C_LOW, 5, 6);                                                                                  \
    _tile_stored(C_HIGH, c, 64);                                                                                \
    _tile_stored(C_LOW, c + 16 * kAmxRows, 64);                                                                 \
    asm volatile("" ::: "memory");                                                                              \
  }
NINFER_MULTIPLY_GROUP(multiply_even_group, 0, 1)
NINFER_MULTIPLY_GROUP(multiply_odd_group, 2, 3)
#undef NINFER_MULTIPLY_GROUP

template <class Codes, int R>
void amx_tile(const ProductArgs& a, const std::uint8_t* record, const std::uint8_t* spread, const std::uint8_t* tile,
              std::uint8_t* scratch, int row0, int column) {
  const Weight& w = *a.weight;
  const std::uint8_t* codes = record + w.codes_offset;
  const std::uint8_t* act = tile + kTileHeaderBytes;
  constexpr std::size_t act_bytes = kActBytesPerRowGroup * R;
  std::int32_t* sums = reinterpret_cast<std::int32_t*>(scratch);
  std::uint8_t* fresh = scratch + kAmxRing * kAmxSumBytes;

  Ahead<1> ahead(w, record, w.block_bytes, w.groups);
  const auto spread_batch = [&](int first) {
    if (!kSpread<Codes> || spread != nullptr) return;
    for (int g = first; g < first + kAmxBatch && g < w.groups; ++g)
      spread_nibbles(codes + 256 * g, fresh + 512 * (g % kAmxFresh));
  };
  const auto multiply_batch = [&](int first) {
    for (int g = first; g < first + kAmxBatch && g < w.groups; ++g) {
      const std::uint8_t* weights = !kSpread<Codes>      ? codes + 512 * g
                                    : spread != nullptr ? spread + 512 * g
                                                        : fresh + 512 * (g % kAmxFresh);
      ahead.next(fetch_block<Codes>);
      std::int32_t* c = sums + kAmxSumBytes / 4 * (g % kAmxRing);
      if (g % 2 == 0) multiply_even_group(weights, act + act_bytes * g, R, c);
      else multiply_odd_group(weights, act + act_bytes * g, R, c);
    }
  };

  V::F acc[R];
  for (int r = 0; r < R; ++r) acc[r] = V::zero();
  spread_batch(0);
  spread_batch(kAmxBatch);
  multiply_batch(0);
  for (int first = 0; first < w.groups; first += kAmxBatch) {
    spread_batch(first + 2 * kAmxBatch);
    multiply_batch(first + kAmxBatch);
    for (int g = first; g < first + kAmxBatch && g < w.groups; ++g) {
      const std::int32_t* c = sums + kAmxSumBytes / 4 * (g % kAmxRing);
      const std::uint8_t* group = act + act_bytes * g;
      const V::F scale = Codes::scale(w, record, g, 0);
      const V::F min = Codes::kHasMin ? Codes::min(w, record, g) : V::zero();
      const float* code_sums = reinterpret_cast<const float*>(group + kActSum * R);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        V::I dot = _mm512_add_epi32(_mm512_slli_epi32(_mm512_load_si512(c + 16 * r), 8),
                                    _mm512_load_si512(c + 16 * (kAmxRows + r)));
        if constexpr (!Codes::kHasMin) dot = V::add_i32(dot, block_bias<Codes>(group, R, r));
        acc[r] = V::fma(V::to_float(dot), scale, acc[r]);
        if (Codes::kHasMin) acc[r] = V::fma(min, V::set1(code_sums[r]), acc[r]);
      }
    }
  }
  const float* row_scales = reinterpret_cast<const float*>(tile);
  for (int r = 0; r < R; ++r) store_lanes(a, row0 + r, column, V::mul(acc[r], V::set1(row_scales[r])));
}

template <class Codes>
void amx_product(const ProductArgs& a) {
  const Weight& w = *a.weight;
  std::uint8_t* scratch = static_cast<std::uint8_t*>(a.scratch);
  std::uint8_t* spread = nullptr;
  const int tail = a.rows % kAmxRows;
  configure_tiles(a.rows < kAmxRows ? a.rows : kAmxRows);
  for (int rec = a.record_begin; rec < a.record_end; ++rec) {
    const std::uint8_t* record = w.data + w.record_bytes * rec;
    if (kSpread<Codes> && a.rows > kAmxRows) {  // several row tiles share the spread nibbles
      spread = scratch + kProductScratchHeader;
      for (int g = 0; g < w.groups; ++g) spread_nibbles(record + w.codes_offset + 256 * g, spread + 512 * g);
    }
    for (int row = 0; row < a.rows; row += kAmxRows) {
      const int rows = a.rows - row < kAmxRows ? a.rows - row : kAmxRows;
      const std::uint8_t* tile = a.tiles + tile_bytes(kAmxRows, activation_groups(w.k)) * (row / kAmxRows);
      if (rows < kAmxRows && row > 0) configure_tiles(rows);
      with_rows<kAmxRows>(rows,
                          [&]<int R>() { amx_tile<Codes, R>(a, record, spread, tile, scratch, row, rec * kLanes); });
    }
    if (tail != 0 && a.rows > kAmxRows) configure_tiles(kAmxRows);
  }
  _tile_release();
}

void amx_product_a8(const ProductArgs& a) {
  if (a.rows < kFewestAmxRows) return product_a8(a);
  switch (a.weight->format) {
    case WeightFormat::q8g32: return amx_product<CodesQ8>(a);
    case WeightFormat::q4g32: return amx_product<CodesQ4>(a);
    case WeightFormat::q4g32m: return amx_product<CodesQ4M>(a);
    default: return product_a8(a);
  }
}

}  // namespace
