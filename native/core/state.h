// Memory of recurrent layers: slots that hold whole states, journals that hold the inputs of some rows.
//
// A slot has, layer by layer, the window of the convolution [taps - 1][channels] and the recurrent matrices
// [v_heads][blocks][key_dim][16]: sixteen columns of a matrix lie together, so that any range of columns is one run of
// memory. A journal has, layer by layer, rows of convolution inputs, keys, values and gates. All float32; rows start on
// cache lines, padding is zero.
#pragma once

#include <cstddef>
#include <vector>

#include "core/kernels.h"

namespace ninfer {

struct StateLayer {
  int channels, taps, v_heads, key_dim, value_dim;
  int key_width;              // of all key heads together
  int blocks;                 // ceil(value_dim / 16)
  std::size_t block_floats;   // key_dim * 16
  std::size_t window_stride;
  std::size_t window_offset, matrix_offset;  // floats from the start of a slot
};

class StateStore {
 public:
  enum JournalPart { kInputs, kKeys, kValues, kGates, kJournalParts };

  // Throws std::invalid_argument for a number of taps that no kernel has.
  void add_layer(int channels, int taps, int v_heads, int key_dim, int value_dim, int key_width);
  // Room for so many slots and journals; returns the bytes that bind() needs.
  std::size_t plan(int slots, int journals, int journal_rows);
  // `memory` holds as many bytes as plan() said, zero at first, and starts on a cache line.
  void bind(float* memory) { memory_ = memory; }

  const std::vector<StateLayer>& layers() const { return layers_; }
  int slots() const { return slots_; }
  int journals() const { return journals_; }
  int journal_rows() const { return journal_rows_; }

  float* window(int slot, int layer) const { return memory_ + slot * slot_floats_ + layers_[layer].window_offset; }
  // Columns from 16 * block on of the matrix of a head.
  float* matrix(int slot, int layer, int head, int block) const {
    const StateLayer& l = layers_[layer];
    return memory_ + slot * slot_floats_ + l.matrix_offset +
           (static_cast<std::size_t>(head) * l.blocks + block) * l.block_floats;
  }
  float* journal(int journal, int layer, JournalPart part) const {
    return memory_ + journals_offset_ + journal * journal_floats_ + parts_[layer].offset[part];
  }
  std::size_t journal_stride(int layer, JournalPart part) const { return parts_[layer].stride[part]; }

 private:
  struct Parts {
    std::size_t width[kJournalParts], stride[kJournalParts], offset[kJournalParts];
  };

  std::vector<StateLayer> layers_;
  std::vector<Parts> parts_;
  int slots_ = 0, journals_ = 0, journal_rows_ = 0;
  std::size_t slot_floats_ = 0, journal_floats_ = 0, journals_offset_ = 0;
  float* memory_ = nullptr;
};

// How the rows of one sequence use slots and journals (StateAccess in ops/batch.py); -1 stands for none.
struct StateAccess {
  int read = -1;
  int replay = -1, replay_rows = 0;
  int journal = -1;
  int first_save = 0, saves = 0;  // in Step::saves
};

struct StateSave { int rows, slot; };

}  // namespace ninfer
