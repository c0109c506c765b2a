// The C++ face of the op contracts: argument structs and the table of kernels that each instruction-set target fills.
//
// Every kernel is a pure function of its arguments: it allocates nothing, throws nothing and keeps no globals. A kernel's
// result for one row never depends on how many rows it was called with (decision 6, the determinism law): the reduction
// order over K and over KV positions is part of the contract.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ninfer {

constexpr int kLanes = 16;        // output rows of a weight record; virtual vector width of every target
constexpr int kGroup = 32;        // columns of a block of packed weights and of an activation record
constexpr int kNvfp4Group = 16;   // columns that share a scale of nvfp4
constexpr int kPageTokens = 64;   // tokens of one KV page
constexpr int kSegmentTokens = 256;  // KV positions reduced together; segments are aligned to absolute positions
constexpr int kKVGroup = 64;      // head dims that share a KV scale
constexpr int kMaxHeadDim = 256;
constexpr int kMaxTaps = 8;       // of a causal convolution
constexpr int kConvChannels = 2048;  // most channels of one ConvArgs
// Blocks of 16 columns in a tile of a recurrent matrix: 16 KiB at a key width of 128, half of a first cache. Tiles of 32
// KiB are no faster alone and up to 1.8 times slower where another thread shares the cache (Zen 5, November 2026).
constexpr int kStateBlocks = 2;
// Query rows (token rows x heads of one KV head) of one attention tile: a segment of keys and values is read from memory
// once for all of them, then from the second cache by blocks of kQueryBlock rows.
constexpr int kQueryTile = 128;
constexpr int kQueryBlock = 16;

enum class WeightFormat : int {
  f32 = 0, bf16 = 1, q8g32 = 2, q4g32 = 3, q4g32m = 4, q4g64 = 5, q5g64 = 6, q6g64 = 7, nvfp4 = 8, fp8 = 9
};
enum class KVFormat : int { bf16 = 0, int8 = 1 };

// Whether products meet quantised activations under a8; the other formats meet float32 under every profile.
inline constexpr bool is_packed(WeightFormat f) { return f >= WeightFormat::q8g32 && f != WeightFormat::fp8; }
constexpr std::size_t align64(std::size_t n) { return (n + 63) & ~std::size_t{63}; }
constexpr int round_up(int n, int to) { return (n + to - 1) / to * to; }

// One matrix [N, K] in layout n16: NB records of 16 output rows each (docs/formats.md).
struct Weight {
  WeightFormat format;
  int n, k;
  int groups;                 // blocks of 32 columns for packed formats, an even number where 64 share a scale; else 0
  int records;                // ceil(N / 16)
  std::size_t record_bytes;
  std::size_t block_bytes;    // record_bytes / groups, or 0
  std::size_t mins_offset;    // inside a record; scales are at 0
  std::size_t codes_offset, high_offset;
  double factor;              // of the whole tensor (nvfp4); else 1
  float input_scale;          // of activations under w4a4; 0 where there is none
  const std::uint8_t* data;
};

// Activation records of a row, an even number because some weights share scales among 64 columns.
constexpr int activation_groups(int k) { return 2 * ((k + 2 * kGroup - 1) / (2 * kGroup)); }

// Rows of float32 activations as 16-bit fixed point in two int8 digits (ops/two_digits.py), in tiles of as many rows as
// the target likes (KernelTable::tile_rows, at most kMaxTileRows). A tile of R rows holds the row scales, padded to
// kTileHeaderBytes, then one record per group of 32 columns: high digits [R][32] int8, low digits [R][32] int8, sum of
// codes [R] f32, -8 * sum [R] i32, -16 * sum of the first 16 codes [R] i32.
constexpr std::size_t kTileHeaderBytes = 64;
constexpr std::size_t kActBytesPerRowGroup = 76;
constexpr int kActSum = 64, kActMinus8 = 68, kActMinus16First = 72;  // offsets inside a record, per row of the tile
constexpr int kMaxTileRows = 16;

// Under a8g32 (ops/one_digit.py) the header is unused and a record holds, of each row: codes as int8 [R][32], scale [R]
// f32, scale times the sum of codes [R] f32, -8 * sum [R] i32, -16 * sum of the first 16 codes [R] i32.
constexpr std::size_t kOneDigitBytesPerRowGroup = 48;
constexpr int kOneDigitScale = 32, kOneDigitSum = 36, kOneDigitMinus8 = 40, kOneDigitMinus16First = 44;

// Under w4a4 (ops/nvfp4_rows.py) the header is unused and a record holds, of each row: 2 * E2M1 as int8 [R][32], scales of
// both halves f32 [2][R], -16 * sum of the codes of both halves i32 [2][R].
constexpr std::size_t kNvfp4BytesPerRowGroup = 48;
constexpr int kNvfp4Scale = 32, kNvfp4Minus16 = 40;
// Any kind of tile fits.
static_assert(kOneDigitBytesPerRowGroup <= kActBytesPerRowGroup && kNvfp4BytesPerRowGroup <= kActBytesPerRowGroup);

constexpr std::size_t tile_bytes(int rows, int groups) {
  return align64(kTileHeaderBytes + kActBytesPerRowGroup * static_cast<std::size_t>(rows) * groups);
}

struct QuantizeArgs {
  const float* x;             // [rows, ldx]
  std::size_t ldx;
  int k;                      // columns; the last group is padded with zeros
  int rows;
  int tile_rows;              // rows per tile; the last tile may have fewer; tiles are tile_bytes(tile_rows, groups) apart
  std::uint8_t* tiles;
  float input_scale;          // w4a4 only
};

// y[r, n] = sum_k x[r, k] W[n, k] (+ residual[r, n]) for the records [record_begin, record_end).
struct ProductArgs {
  const Weight* weight;
  int record_begin, record_end;
  int rows;
  int tile_rows;
  const std::uint8_t* tiles;  // quantised activations
  const float* x;             // float products
  std::size_t ldx;
  float* y;                   // column 0 of this weight's output
  std::size_t ldy;
  const float* residual;      // same shape as y, or null
  std::size_t ldr;
  float factor;               // multiplies the outputs; 1 for formats without a tensor scale
  void* scratch;              // of this thread, 64-byte aligned: product_scratch_bytes(most groups of a weight) for
                              // quantised activations, float_scratch_bytes(most columns) for float ones
};

// Most rows of a block of a float product; it keeps its activations side by side in scratch memory.
constexpr int kMostFloatRows = 12;
constexpr std::size_t float_scratch_bytes(int k) { return sizeof(float) * kMostFloatRows * static_cast<std::size_t>(k); }

// Room for partial sums and fresh tiles, then for one record of weights spread out to bytes.
constexpr std::size_t kProductScratchHeader = 24576;
constexpr std::size_t product_scratch_bytes(int groups) {
  return kProductScratchHeader + std::size_t{512} * static_cast<std::size_t>(groups);
}

// Norms of heads that lie side by side: rms_norm (w), gated_rms_norm (w, z), l2_norm (scale).
struct NormArgs {
  const float* x;
  std::size_t ldx;
  const float* z;
  std::size_t ldz;
  const float* w;
  float* y;
  std::size_t ldy;
  int num_heads, head_dim;
  float eps, scale;
};

struct RopeArgs {
  const float* x;
  std::size_t ldx;
  const float* angles;        // [rows, rotary_dim]: cosines then sines
  std::size_t lda;
  float* y;
  std::size_t ldy;
  int num_heads, head_dim, rotary_dim;
};

struct GateArgs {
  const float* x;
  std::size_t ldx;
  const float* gate;
  std::size_t ldg;
  float* y;
  std::size_t ldy;
  int width;
};

struct DeltaGatesArgs {
  const float* a;
  std::size_t lda;
  const float* b;
  std::size_t ldb;
  const float* decay;         // [heads], positive
  const float* dt_bias;
  float* y;                   // [rows, 2 heads]: factors, then strengths
  std::size_t ldy;
  int heads;
};

// Some channels of the rows of one sequence.
struct ConvArgs {
  const float* u;             // [rows, ldu]
  std::size_t ldu;
  const float* window;        // [taps - 1, window_stride]: the rows before
  std::size_t window_stride;
  const float* w;             // [taps, ldw]
  std::size_t ldw;
  float* y;
  std::size_t ldy;
  int rows, channels, taps;
};

// One row of a dynamic convolution, and the rows before it as far as `taps` sees them.
struct DynamicConvArgs {
  const float* z;  // the row; those before lie ldz floats apart
  std::size_t ldz;
  const float* d;  // [taps][groups]
  const float* w;  // [taps][channels]
  const float* residual;  // or null
  float* y;
  int channels, groups, taps;
};

// Some columns of the matrix of one value head, over one or more rows of one sequence.
struct DeltaArgs {
  const float* q;             // [rows, key_dim] of the head; unused without o
  std::size_t ldq;
  const float* k;
  std::size_t ldk;
  const float* v;             // [rows, columns]
  std::size_t ldv;
  const float* decay;         // one per row, ldg apart, like beta
  const float* beta;
  std::size_t ldg;
  float* o;                   // [rows, columns], or null: the rows only change the state
  std::size_t ldo;
  int rows, key_dim;
  int columns;                // at most 16 * kStateBlocks
  const float* from;          // state before the rows [blocks, key_dim, 16]; null is zero
  float* to;                  // state after them; may be `from`
  const float* next;          // what is likely read next, at least as much again, or null
};

// Byte layout of one layer's part of a KV page (docs/formats.md, "KV pages").
struct KVLayout {
  KVFormat format;
  int num_kv_heads, head_dim;
  int padded_dim;             // head_dim rounded up to 16; padding is zero
  int groups;                 // ceil(head_dim / 64)
  std::size_t k_scales_offset, v_offset, v_scales_offset;  // inside one head's block; keys are at 0
  std::size_t head_bytes;
  std::size_t layer_bytes;    // num_kv_heads * head_bytes
};

// Where the code of a token lies in its page's values of kv_int8, [16][width][4]. Bytes of four blocks of 16 tokens lie side
// by side, in the order in which vectors of codes are most easily cut into bytes.
constexpr int value_row(int slot) { return slot % 16; }
constexpr int value_byte(int slot) { return slot / 16 == 1 ? 2 : slot / 16 == 2 ? 1 : slot / 16; }

struct KVAppendArgs {
  const KVLayout* layout;
  const float* k;             // one row: [num_kv_heads * head_dim]
  const float* v;
  std::uint8_t* page;         // this layer's part of the page that holds the token
  int slot;                   // token index inside the page
  int head_begin, head_end;
};

// Positions, or segments of them: [begin, end).
struct TokenRange {
  int begin, end;
  int count() const { return end - begin; }
};

// One tile of query rows against one segment range of one KV head.
struct AttentionTile {
  const KVLayout* layout;
  const std::uint8_t* kv_layer;      // this layer's part of page 0
  std::size_t page_bytes;            // distance between pages
  const std::int32_t* page_ids;      // pages of the sequence in token order
  int kv_head;
  int num_queries;            // <= kQueryTile
  const float* const* q;      // [num_queries] -> head_dim floats
  const TokenRange* visible;  // [num_queries]: the positions that the query sees, at least one
  float scale;
  bool integers;              // integer scores and weighted sums (a8 with int8 KV)
  TokenRange segments;
  // Whole queries: out[i] takes head_dim finished floats. Split queries: partials[i] takes the segments of the range one
  // after the other, partial_floats() each, for a later merge; those that the query sees nothing of stay as they are.
  bool split;
  float* const* out;
  float* const* partials;
  void* scratch;              // attention_scratch_bytes(), 64-byte aligned
};

struct MergeArgs {
  const float* partials;      // segments of one query, as written by an AttentionTile
  int segments;
  int head_dim, padded_dim;
  float* out;
};

// A line with the maximum and the sum of weights, then weighted values.
constexpr std::size_t partial_floats(int padded_dim) { return static_cast<std::size_t>(padded_dim) + kLanes; }

struct KernelTable {
  const char* name;
  int tile_rows;              // rows per activation tile that this target likes best
  // Quantise the (tile, group) pairs [begin, end), numbered tile by tile. Threads then write different lines.
  void (*quantize)(const QuantizeArgs&, long begin, long end);
  void (*quantize_a8g32)(const QuantizeArgs&, long begin, long end);
  void (*quantize_w4a4)(const QuantizeArgs&, long begin, long end);
  void (*product_a8)(const ProductArgs&);    // packed weights, activations of two digits
  void (*product_a8g32)(const ProductArgs&); // packed weights, activations of one digit
  void (*product_w4a4)(const ProductArgs&);  // nvfp4 weights, nvfp4 activations
  void (*product_f32)(const ProductArgs&);   // any weights, float activations
  void (*rms_norm)(const NormArgs&, int row_begin, int row_end);
  void (*gated_rms_norm)(const NormArgs&, int row_begin, int row_end);
  void (*l2_norm)(const NormArgs&, int row_begin, int row_end);
  void (*rope)(const RopeArgs&, int row_begin, int row_end);
  void (*silu_mul)(const GateArgs&, int row_begin, int row_end);
  void (*sigmoid_mul)(const GateArgs&, int row_begin, int row_end);
  void (*delta_gates)(const DeltaGatesArgs&, int row_begin, int row_end);
  void (*causal_conv)(const ConvArgs&);
  void (*dynamic_conv)(const DynamicConvArgs&);
  void (*delta_rule)(const DeltaArgs&);
  void (*kv_append)(const KVAppendArgs&);
  void (*attention)(const AttentionTile&);
  void (*merge)(const MergeArgs&);
};

std::size_t attention_scratch_bytes();

// Null where this build or this CPU has no such target.
const KernelTable* scalar_kernels();
const KernelTable* avx2_kernels();
const KernelTable* avx512_vnni_kernels();
const KernelTable* amx_kernels();

}  // namespace ninfer
