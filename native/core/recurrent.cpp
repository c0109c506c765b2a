// Nodes of recurrent layers: which rows a sequence advances its state by, from where and to where.
#include <algorithm>
#include <cstring>

#include "core/program.h"

namespace ninfer {

// Threads share channels, not rows: whoever has a channel has read its window before it writes a new one.
void Program::exec(const CausalConvNode& n, int, int thread) {
  const auto [first, last] = share((n.u.width + kLanes - 1) / kLanes, thread);
  const int end = std::min(last * kLanes, n.u.width);
  float* scratch = reinterpret_cast<float*>(thread_scratch_ + thread_bytes_ * thread);
  for (const StepSequence& s : step_->sequences)
    for (int c = first * kLanes; c < end; c += kConvChannels)
      conv_channels(n, s, c, std::min(c + kConvChannels, end), scratch);
}

void Program::conv_channels(const CausalConvNode& n, const StepSequence& s, int begin, int end, float* window) {
  const StateLayer& layer = state_.layers()[n.layer];
  const StateAccess& access = s.state;
  const int kept = layer.taps - 1, channels = end - begin;
  const std::size_t bytes = sizeof(float) * channels;
  const float* u = at(n.u) + s.start * stride(n.u) + begin;
  // Row r of those seen so far: rows of the step from 0 on, the window before them.
  const auto row = [&](int r) { return r < 0 ? window + (kept + r) * kConvChannels : u + r * stride(n.u); };
  const float* stored = access.read < 0 ? nullptr : state_.window(access.read, n.layer) + begin;
  const std::size_t journal_stride = state_.journal_stride(n.layer, StateStore::kInputs);
  for (int r = -kept; r < 0; ++r) {
    const int replayed = r + access.replay_rows;  // row of the journal, or of the stored window when negative
    float* to = window + (kept + r) * kConvChannels;
    if (replayed >= 0)
      std::memcpy(to, state_.journal(access.replay, n.layer, StateStore::kInputs) + replayed * journal_stride + begin,
                  bytes);
    else if (stored != nullptr)
      std::memcpy(to, stored + (kept + replayed) * layer.window_stride, bytes);
    else
      std::memset(to, 0, bytes);
  }
  kernels_.causal_conv({u, stride(n.u), window, kConvChannels, vectors_[n.vector].first + begin,
                        static_cast<std::size_t>(layer.channels), at(n.out) + s.start * stride(n.out) + begin,
                        stride(n.out), s.count, channels, layer.taps});
  for (int i = 0; i < access.saves; ++i) {
    const StateSave& save = step_->saves[access.first_save + i];
    float* to = state_.window(save.slot, n.layer) + begin;
    for (int r = -kept; r < 0; ++r) std::memcpy(to + (kept + r) * layer.window_stride, row(save.rows + r), bytes);
  }
  if (access.journal >= 0)
    for (int r = 0; r < s.count; ++r)
      std::memcpy(state_.journal(access.journal, n.layer, StateStore::kInputs) + r * journal_stride + begin, row(r),
                  bytes);
}

// Threads share tiles of columns, each over all rows of a sequence: a tile stays in the first cache, and a thread walks
// through memory in one direction. Narrower tiles where there are more threads than tiles.
void Program::exec(const DeltaRuleNode& n, int, int thread) {
  const StateLayer& layer = state_.layers()[n.layer];
  float* scratch = reinterpret_cast<float*>(thread_scratch_ + thread_bytes_ * thread);
  int width = kStateBlocks;
  const auto tiles = [&] { return (layer.blocks + width - 1) / width; };
  if (layer.v_heads * tiles() < threads_) width = 1;
  for (const StepSequence& s : step_->sequences) {
    const auto [begin, end] = share(layer.v_heads * tiles(), thread);
    for (int i = begin; i < end; ++i) delta_tile(n, s, {i / tiles(), i % tiles() * width, width}, scratch);
    if (s.state.journal >= 0) keep_rows(n, s, thread);
  }
}

// This thread's share of a sequence's rows into its journal; another journal than the one that is replayed.
void Program::keep_rows(const DeltaRuleNode& n, const StepSequence& s, int thread) {
  const auto [begin, end] = share(s.count, thread);
  const auto keep = [&, begin = begin, end = end](const View& view, StateStore::JournalPart part) {
    float* to = state_.journal(s.state.journal, n.layer, part);
    for (int r = begin; r < end; ++r)
      std::memcpy(to + r * state_.journal_stride(n.layer, part), at(view) + (s.start + r) * stride(view),
                  sizeof(float) * view.width);
  };
  keep(n.k, StateStore::kKeys);
  keep(n.v, StateStore::kValues);
  keep(n.gates, StateStore::kGates);
}

void Program::delta_tile(const DeltaRuleNode& n, const StepSequence& s, const StateTile& tile, float* scratch) {
  const StateLayer& layer = state_.layers()[n.layer];
  const StateAccess& access = s.state;
  const int head = tile.head, block = tile.block;
  const int k_offset = head / (layer.v_heads / n.num_k_heads) * layer.key_dim;
  const int v_offset = head * layer.value_dim + block * kLanes;
  const int blocks = std::min(tile.blocks, layer.blocks - block);
  const std::size_t tile_bytes = sizeof(float) * layer.block_floats * blocks;
  const float* current = access.read < 0 ? nullptr : state_.matrix(access.read, n.layer, head, block);
  DeltaArgs args{};
  args.key_dim = layer.key_dim;
  args.columns = std::min(blocks * kLanes, layer.value_dim - block * kLanes);
  if (access.read >= 0 && head + 1 < layer.v_heads) args.next = current + layer.block_floats * blocks;
  const auto advance = [&](int rows, float* to) {
    args.rows = rows;
    args.from = current;
    args.to = to;
    kernels_.delta_rule(args);
    current = to;
  };

  const StateSave* saves = step_->saves.data() + access.first_save;
  if (access.replay >= 0) {
    args.k = state_.journal(access.replay, n.layer, StateStore::kKeys) + k_offset;
    args.ldk = state_.journal_stride(n.layer, StateStore::kKeys);
    args.v = state_.journal(access.replay, n.layer, StateStore::kValues) + v_offset;
    args.ldv = state_.journal_stride(n.layer, StateStore::kValues);
    args.decay = state_.journal(access.replay, n.layer, StateStore::kGates) + head;
    args.ldg = state_.journal_stride(n.layer, StateStore::kGates);
    args.beta = args.decay + layer.v_heads;
    const bool saved = access.saves > 0 && saves[0].rows == 0;
    advance(access.replay_rows, saved ? state_.matrix(saves[0].slot, n.layer, head, block) : scratch);
  }
  const auto go_to_row = [&](int row) {
    const std::size_t r = static_cast<std::size_t>(s.start + row);
    args.q = at(n.q) + r * stride(n.q) + k_offset;
    args.ldq = stride(n.q);
    args.k = at(n.k) + r * stride(n.k) + k_offset;
    args.ldk = stride(n.k);
    args.v = at(n.v) + r * stride(n.v) + v_offset;
    args.ldv = stride(n.v);
    args.decay = at(n.gates) + r * stride(n.gates) + head;
    args.ldg = stride(n.gates);
    args.beta = args.decay + layer.v_heads;
    args.o = at(n.out) + r * stride(n.out) + v_offset;
    args.ldo = stride(n.out);
  };
  int done = 0;
  for (int i = 0; i < access.saves; ++i) {
    float* slot = state_.matrix(saves[i].slot, n.layer, head, block);
    if (saves[i].rows > done) {
      go_to_row(done);
      advance(saves[i].rows - done, slot);
      done = saves[i].rows;
    } else if (current == nullptr) {
      std::memset(slot, 0, tile_bytes);
    } else if (current != slot) {
      std::memcpy(slot, current, tile_bytes);
    }
  }
  if (done < s.count) {
    go_to_row(done);
    advance(s.count - done, scratch);
  }
}

}  // namespace ninfer
