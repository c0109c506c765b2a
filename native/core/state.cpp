#include "core/state.h"

#include <stdexcept>
#include <string>

namespace ninfer {

namespace {

std::size_t whole_lines(std::size_t floats) { return (floats + kLanes - 1) / kLanes * kLanes; }

}  // namespace

void StateStore::add_layer(int channels, int taps, int v_heads, int key_dim, int value_dim, int key_width) {
  if (taps > kMaxTaps)
    throw std::invalid_argument("a convolution of " + std::to_string(taps) + " taps is over the limit of " +
                                std::to_string(kMaxTaps));
  StateLayer l{channels, taps, v_heads, key_dim, value_dim, key_width, (value_dim + kLanes - 1) / kLanes, 0, 0, 0, 0};
  l.block_floats = static_cast<std::size_t>(key_dim) * kLanes;
  l.window_stride = whole_lines(channels);
  l.window_offset = slot_floats_;
  l.matrix_offset = l.window_offset + l.window_stride * (taps - 1);
  slot_floats_ = l.matrix_offset + l.block_floats * l.blocks * v_heads;
  layers_.push_back(l);
  Parts p{};
  p.width[kInputs] = channels;
  p.width[kKeys] = key_width;
  p.width[kValues] = static_cast<std::size_t>(v_heads) * value_dim;
  p.width[kGates] = 2 * static_cast<std::size_t>(v_heads);
  parts_.push_back(p);
}

std::size_t StateStore::plan(int slots, int journals, int journal_rows) {
  slots_ = slots;
  journals_ = journals;
  journal_rows_ = journal_rows;
  journal_floats_ = 0;
  for (Parts& p : parts_)
    for (int part = 0; part < kJournalParts; ++part) {
      p.stride[part] = whole_lines(p.width[part]);
      p.offset[part] = journal_floats_;
      journal_floats_ += p.stride[part] * journal_rows;
    }
  journals_offset_ = slot_floats_ * slots;
  return 4 * (journals_offset_ + journal_floats_ * journals);
}

}  // namespace ninfer
