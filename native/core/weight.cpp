#include "core/weight.h"

#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

namespace ninfer {

namespace {

constexpr std::size_t kTailBytes = 64;  // of a format with a tensor scale

struct FormatFacts {
  int blocks_per_scale;            // blocks of 32 columns; 0: one scale or none per row
  std::size_t scale_bytes;         // of one block or group of blocks and row
  bool has_min;
  std::size_t low_bytes, high_bytes;  // of a block
};

FormatFacts facts(WeightFormat format) {
  switch (format) {
    case WeightFormat::q8g32: return {1, 2, false, 512, 0};
    case WeightFormat::q4g32: return {1, 2, false, 256, 0};
    case WeightFormat::q4g32m: return {1, 2, true, 256, 0};
    case WeightFormat::q4g64: return {2, 2, false, 256, 0};
    case WeightFormat::q5g64: return {2, 2, false, 256, 64};
    case WeightFormat::q6g64: return {2, 2, false, 256, 128};
    case WeightFormat::nvfp4: return {1, 2, false, 256, 0};  // two scales of one byte
    case WeightFormat::f32:
    case WeightFormat::bf16:
    case WeightFormat::fp8: break;
  }
  return {};
}

float half_to_float(std::uint16_t h) {
  const std::uint32_t sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 1023u;
  std::uint32_t bits;
  if (exponent == 0) return (sign ? -1.0f : 1.0f) * static_cast<float>(mantissa) * 0x1p-24f;
  bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | (mantissa << 13);
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

float e4m3_to_float(std::uint8_t b) {
  if ((b & 0x7fu) == 0x7fu) return std::numeric_limits<float>::quiet_NaN();
  const std::uint32_t bits = (b & 0x80u) << 24 | (b & 0x7fu) << 20;
  float f;
  std::memcpy(&f, &bits, 4);
  return f * 0x1p120f;
}

// Element e (0..31) of block `c`, as its unsigned code.
int packed_code(const Weight& w, const std::uint8_t* record, int c, int e, int lane) {
  const FormatFacts f = facts(w.format);
  const std::uint8_t* low = record + w.codes_offset + f.low_bytes * c;
  const std::uint8_t* high = record + w.high_offset + f.high_bytes * c;
  const int j = (e % 16) / 4, half = e / 16, at = lane * 4 + e % 4;
  if (w.format == WeightFormat::q8g32) return low[256 * half + 64 * j + at];
  const int nibble = half == 0 ? low[64 * j + at] & 15 : low[64 * j + at] >> 4;
  if (w.format == WeightFormat::q5g64) return nibble | (high[at] >> (4 * half + j) & 1) << 4;
  if (w.format == WeightFormat::q6g64) return nibble | (high[64 * half + at] >> (2 * j) & 3) << 4;
  return nibble;
}

float packed_value(const Weight& w, const std::uint8_t* record, int k, int lane) {
  const int c = k / kGroup, e = k % kGroup, code = packed_code(w, record, c, e, lane);
  if (w.format == WeightFormat::nvfp4) {
    static constexpr float kMagnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    const float e4m3 = e4m3_to_float(record[kLanes * (2 * c + e / kNvfp4Group) + lane]);
    const float scale = static_cast<float>(static_cast<double>(e4m3) * w.factor);
    return (code & 8 ? -kMagnitudes[code & 7] : kMagnitudes[code]) * scale;
  }
  const int group = c / facts(w.format).blocks_per_scale;
  const float scale = half_to_float(reinterpret_cast<const std::uint16_t*>(record)[group * kLanes + lane]);
  // Products are exact in float32 (11 + 8 bits at most), so the sum rounds once, like the fused form in the kernels.
  switch (w.format) {
    case WeightFormat::q4g32m:
      return scale * static_cast<float>(code) +
             half_to_float(reinterpret_cast<const std::uint16_t*>(record + w.mins_offset)[group * kLanes + lane]);
    case WeightFormat::q8g32: return scale * static_cast<float>(code - 128);
    case WeightFormat::q5g64: return scale * static_cast<float>(code - 16);
    case WeightFormat::q6g64: return scale * static_cast<float>(code - 32);
    default: return scale * static_cast<float>(code - 8);
  }
}

}  // namespace

Weight make_weight(const std::uint8_t* data, std::size_t bytes, WeightFormat format, int n, int k) {
  Weight w{};
  w.format = format;
  w.n = n;
  w.k = k;
  w.records = (n + kLanes - 1) / kLanes;
  w.data = data;
  w.factor = 1.0;
  std::size_t tail = 0;
  if (is_packed(format)) {
    const FormatFacts f = facts(format);
    w.groups = (k + kGroup * f.blocks_per_scale - 1) / (kGroup * f.blocks_per_scale) * f.blocks_per_scale;
    const std::size_t groups = static_cast<std::size_t>(w.groups);
    const std::size_t plane = align64(groups / f.blocks_per_scale * kLanes * f.scale_bytes);
    w.mins_offset = f.has_min ? plane : 0;
    w.codes_offset = f.has_min ? 2 * plane : plane;
    w.high_offset = w.codes_offset + groups * f.low_bytes;
    w.record_bytes = w.high_offset + groups * f.high_bytes;
    w.block_bytes = w.record_bytes / groups;
    if (format == WeightFormat::nvfp4) tail = kTailBytes;
  } else if (format == WeightFormat::fp8) {
    w.codes_offset = sizeof(float) * kLanes;
    w.record_bytes = w.codes_offset + static_cast<std::size_t>(kLanes) * ((k + 3) / 4 * 4);
  } else {
    w.record_bytes = align64(static_cast<std::size_t>(k) * kLanes * (format == WeightFormat::f32 ? 4 : 2));
  }
  const std::size_t needed = w.record_bytes * w.records + tail;
  if (bytes != needed)
    throw std::invalid_argument("a weight of " + std::to_string(bytes) + " bytes; its format and shape take " +
                                std::to_string(needed));
  if (tail != 0) {
    std::memcpy(&w.factor, data + bytes - tail, sizeof w.factor);
    std::memcpy(&w.input_scale, data + bytes - tail + sizeof w.factor, sizeof w.input_scale);
  }
  return w;
}

void decode_row(const Weight& w, int id, float* out) {
  const std::uint8_t* record = w.data + w.record_bytes * (id / kLanes);
  const int lane = id % kLanes;
  const float* floats = reinterpret_cast<const float*>(record);
  for (int k = 0; k < w.k; ++k) {
    switch (w.format) {
      case WeightFormat::f32: out[k] = floats[k * kLanes + lane]; break;
      case WeightFormat::bf16: {
        const std::uint32_t bits = static_cast<std::uint32_t>(reinterpret_cast<const std::uint16_t*>(record)[k * kLanes + lane]) << 16;
        std::memcpy(&out[k], &bits, 4);
        break;
      }
      case WeightFormat::fp8:
        out[k] = e4m3_to_float(record[w.codes_offset + (k / 4) * 64 + lane * 4 + k % 4]) * floats[lane];
        break;
      default: out[k] = packed_value(w, record, k, lane);
    }
  }
}

}  // namespace ninfer
