// Attention in codes on AMX tiles: the same exact sums as the vector kernels, so the same bits.
//
// A tile of query or weight codes is 16 rows of 64 bytes of one digit: 16 queries, and one group of head dimensions or one
// page of positions. A tile of keys or values is 16 rows of 16 lanes of four bytes, as pages hold them.
#pragma once

#include "kernels/amx_body.h"
#include "kernels/attention_body.h"

namespace {

using namespace ninfer;

constexpr int kFewestAmxQueries = 9;  // below this the vector kernels are faster

// All tiles whole: 0..3 sums, 4 and 5 the digits of codes, 6 and 7 keys or values.
inline void configure_attention_tiles() {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.column_bytes[i] = 64;
    config.rows[i] = 16;
  }
  load_config(config);
}

// Sums of 16 queries and 16 positions or dimensions, one C tile per digit. Products of one, the stores of the one before and
// the floats of the one before that go side by side: a vector load waits until a tile store has reached the cache.
struct TileProducts {
  using Codec = CodeKernels;
  static constexpr int kRing = 4;

  static inline V::F load(const std::int32_t* tile, int row) {
    const V::F high = V::to_float(V::load_i32(tile + row * kLanes));
    const V::F low = V::to_float(V::load_i32(tile + kSumsTile + row * kLanes));
    return V::fma(high, V::set1(256.0f), low);  // both are below 2^24, so this is the rounded sum
  }

  template <int Groups, class Finish>
  static void scores(const CodeBlock& b, Finish finish) {
    CodeScratch& s = b.s;
    run(b.pages * Groups * kBlocksPerPage, s,
        [&]<int Pair>(int i) {
          const int block = i % kBlocksPerPage, g = i / kBlocksPerPage % Groups, page = i / (kBlocksPerPage * Groups);
          if (block == 0) {
            _tile_loadd(4, s.q[b.block][g], kKVGroup);
            _tile_loadd(5, s.q[b.block][g] + kQueryBlock * kKVGroup, kKVGroup);
          }
          const std::uint8_t* keys = b.heads[page] + g * kKVGroup * kPageTokens + block * 64;
          if constexpr (Pair == 0) {
            _tile_loadd(6, keys, 4 * kPageTokens);
            _tile_loadd(0, s.bias[b.block][g][0], 64);
            _tile_loadd(1, s.bias[b.block][g][1], 64);
            _tile_dpbsud(0, 4, 6);
            _tile_dpbsud(1, 5, 6);
          } else {
            _tile_loadd(7, keys, 4 * kPageTokens);
            _tile_loadd(2, s.bias[b.block][g][0], 64);
            _tile_loadd(3, s.bias[b.block][g][1], 64);
            _tile_dpbsud(2, 4, 7);
            _tile_dpbsud(3, 5, 7);
          }
        },
        [&](int i, const std::int32_t* tile) {
          const int block = i % kBlocksPerPage, g = i / kBlocksPerPage % Groups, page = i / (kBlocksPerPage * Groups);
          finish(page * kPageTokens + block * kLanes, g, tile);
        });
  }

  template <int Groups, class Finish>
  static void values(const CodeBlock& b, Finish finish) {
    CodeScratch& s = b.s;
    constexpr int kVectors = kKVGroup / kLanes;
    run(Groups * kVectors, s,
        [&]<int Pair>(int i) {
          const int g = i / kVectors;
          const std::size_t offset = b.t.layout->v_offset + g * kKVGroup * kPageTokens + i % kVectors * 64;
          if constexpr (Pair == 0) {
            _tile_loadd(0, s.zero_tile, 64);
            _tile_loadd(1, s.zero_tile, 64);
          } else {
            _tile_loadd(2, s.zero_tile, 64);
            _tile_loadd(3, s.zero_tile, 64);
          }
          for (int page = 0; page < b.pages; ++page) {
            _tile_loadd(6, b.heads[page] + offset, 4 * kKVGroup);
            _tile_loadd(4, s.codes[page][g], kPageTokens);
            _tile_loadd(5, s.codes[page][g] + kQueryBlock * kPageTokens, kPageTokens);
            if constexpr (Pair == 0) {
              _tile_dpbusd(0, 4, 6);
              _tile_dpbusd(1, 5, 6);
            } else {
              _tile_dpbusd(2, 4, 6);
              _tile_dpbusd(3, 5, 6);
            }
          }
        },
        [&](int i, const std::int32_t* tile) { finish(i / kVectors, i % kVectors, tile); });
  }

 private:
  template <class Multiply, class Finish>
  static inline __attribute__((always_inline)) void run(int count, CodeScratch& s, Multiply multiply, Finish finish) {
    const auto step = [&]<int Pair>(int i) {
      asm volatile("" ::: "memory");  // the tile intrinsics of GCC 12 do not say that they touch memory
      if (i < count) multiply.template operator()<Pair>(i);
      if (i > 0 && i <= count) {
        std::int32_t* to = s.sums[2 * ((i - 1) % kRing)];
        if constexpr (Pair == 1) {
          _tile_stored(0, to, 64);
          _tile_stored(1, to + kSumsTile, 64);
        } else {
          _tile_stored(2, to, 64);
          _tile_stored(3, to + kSumsTile, 64);
        }
      }
      asm volatile("" ::: "memory");
      if (i > 1) finish(i - 2, s.sums[2 * ((i - 2) % kRing)]);
    };
    for (int i = 0; i < count + 2; i += 2) {
      step.template operator()<0>(i);
      step.template operator()<1>(i + 1);
    }
  }
};

void amx_attention(const AttentionTile& t) {
  if (!t.integers || t.num_queries < kFewestAmxQueries || t.layout->padded_dim % kKVGroup != 0) return attention(t);
  configure_attention_tiles();
  attend<TileProducts>(t);
  _tile_release();
}

}  // namespace
