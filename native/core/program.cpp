#include "core/program.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "core/cpu_features.h"

namespace ninfer {

namespace {

constexpr std::size_t kNotSplit = ~std::size_t{0};
// Query rows that may have their segments spread over threads at once; more rows are parallel enough by themselves.
constexpr int kSplitRows = 4;
// Up to this many (row, group) pairs every thread quantises all of a product's input for itself: that takes a microsecond
// or two, and meeting at a barrier to share lines that another core wrote takes longer.
constexpr int kOwnTilePairs = 512;

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

int round_up(int n, int to) { return (n + to - 1) / to * to; }

float half_to_float(std::uint16_t h) {
  const std::uint32_t sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 1023u;
  std::uint32_t bits;
  if (exponent == 0) return (sign ? -1.0f : 1.0f) * static_cast<float>(mantissa) * 0x1p-24f;
  bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | (mantissa << 13);
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

// Row `id` of a matrix in layout n16, decoded to float.
void decode_row(const Weight& w, int id, float* out) {
  const std::uint8_t* record = w.data + w.record_bytes * (id / kLanes);
  const int lane = id % kLanes;
  if (w.format == WeightFormat::f32) {
    const float* p = reinterpret_cast<const float*>(record);
    for (int k = 0; k < w.k; ++k) out[k] = p[k * kLanes + lane];
    return;
  }
  if (w.format == WeightFormat::bf16) {
    const std::uint16_t* p = reinterpret_cast<const std::uint16_t*>(record);
    for (int k = 0; k < w.k; ++k) {
      const std::uint32_t bits = static_cast<std::uint32_t>(p[k * kLanes + lane]) << 16;
      std::memcpy(&out[k], &bits, 4);
    }
    return;
  }
  const std::uint16_t* scales = reinterpret_cast<const std::uint16_t*>(record);
  const std::uint16_t* mins = reinterpret_cast<const std::uint16_t*>(record + w.mins_offset);
  const std::uint8_t* codes = record + w.codes_offset;
  for (int k = 0; k < w.k; ++k) {
    const int g = k / kGroup, e = k % kGroup;
    const float scale = half_to_float(scales[g * kLanes + lane]);
    if (w.format == WeightFormat::q8g32) {
      out[k] = scale * static_cast<float>(codes[g * 512 + (e / 4) * 64 + lane * 4 + e % 4] - 128);
      continue;
    }
    const std::uint8_t byte = codes[g * 256 + ((e % 16) / 4) * 64 + lane * 4 + e % 4];
    const float nibble = static_cast<float>(e < 16 ? byte & 15 : byte >> 4);
    // The product is exact in float32 (11 + 4 bits), so this rounds once, like the fused form in the kernels.
    out[k] = w.format == WeightFormat::q4g32m ? scale * nibble + half_to_float(mins[g * kLanes + lane])
                                              : scale * (nibble - 8.0f);
  }
}

KVLayout make_layout(KVFormat format, int num_kv_heads, int head_dim) {
  KVLayout l{};
  l.format = format;
  l.num_kv_heads = num_kv_heads;
  l.head_dim = head_dim;
  l.padded_dim = round_up(head_dim, kLanes);
  l.groups = (head_dim + kKVGroup - 1) / kKVGroup;
  const std::size_t values = static_cast<std::size_t>(l.padded_dim) * kPageTokens;
  if (format == KVFormat::bf16) {
    l.v_offset = 2 * values;
    l.head_bytes = 4 * values;
  } else {
    const std::size_t scales = static_cast<std::size_t>(l.groups) * kPageTokens * 2;
    l.k_scales_offset = values;
    l.v_offset = values + scales;
    l.v_scales_offset = l.v_offset + values;
    l.head_bytes = 2 * (values + scales);
  }
  l.layer_bytes = l.head_bytes * num_kv_heads;
  return l;
}

}  // namespace

Program::Program(int threads, const std::string& isa, bool a8, int max_rows, int max_logit_rows)
    : threads_(threads), kernels_(select_target(isa)), a8_(a8), max_rows_(max_rows), max_logit_rows_(max_logit_rows) {}

int Program::add_weight(const std::uint8_t* data, std::size_t bytes, WeightFormat format, int n, int k) {
  Weight w{};
  w.format = format;
  w.n = n;
  w.k = k;
  w.records = (n + kLanes - 1) / kLanes;
  w.data = data;
  if (is_packed(format)) {
    w.groups = (k + kGroup - 1) / kGroup;
    const std::size_t plane = align64(static_cast<std::size_t>(w.groups) * kLanes * 2);
    const bool has_min = format == WeightFormat::q4g32m;
    w.mins_offset = has_min ? plane : 0;
    w.codes_offset = has_min ? 2 * plane : plane;
    w.record_bytes = w.codes_offset + static_cast<std::size_t>(w.groups) * (format == WeightFormat::q8g32 ? 512 : 256);
  } else {
    w.record_bytes = align64(static_cast<std::size_t>(k) * kLanes * (format == WeightFormat::f32 ? 4 : 2));
  }
  if (bytes < w.record_bytes * w.records)
    throw std::invalid_argument("a weight of " + std::to_string(bytes) + " bytes where " +
                                std::to_string(w.record_bytes * w.records) + " are needed");
  weights_.push_back(w);
  return static_cast<int>(weights_.size()) - 1;
}

int Program::add_vector(const float* data, int width) {
  vectors_.emplace_back(data, width);
  return static_cast<int>(vectors_.size()) - 1;
}

int Program::add_slot(int width, bool logit_rows) {
  slots_.push_back({width, round_up(width, kLanes), logit_rows, 0});
  return static_cast<int>(slots_.size()) - 1;
}

std::size_t Program::set_kv(KVFormat format, const std::vector<std::pair<int, int>>& heads_and_dims) {
  page_bytes_ = 0;
  for (const auto& [heads, dim] : heads_and_dims) {
    if (dim > kMaxHeadDim)
      throw std::invalid_argument("head_dim " + std::to_string(dim) + " is over the limit of " +
                                  std::to_string(kMaxHeadDim));
    layouts_.push_back(make_layout(format, heads, dim));
    layer_offset_.push_back(page_bytes_);
    page_bytes_ += align64(layouts_.back().layer_bytes);
  }
  return page_bytes_;
}

void Program::add_node(Node node) {
  if (const auto* e = std::get_if<EmbeddingNode>(&node)) vocab_size_ = weights_[e->weight].n;
  if (auto* a = std::get_if<AttentionNode>(&node)) {
    const KVLayout& layout = layouts_[a->layer];
    const auto same = [&](const AttentionPlan& p) {
      return p.num_heads == a->num_heads && p.num_kv_heads == layout.num_kv_heads && p.padded_dim == layout.padded_dim;
    };
    const auto found = std::find_if(attention_plans_.begin(), attention_plans_.end(), same);
    a->plan = static_cast<int>(found - attention_plans_.begin());
    if (found == attention_plans_.end())
      attention_plans_.push_back({a->num_heads, layout.num_kv_heads, layout.padded_dim, {}, {}});
  }
  nodes_.push_back(std::move(node));
}

void Program::plan(int num_pages) {
  workspace_bytes_ = 0;
  for (Slot& s : slots_) {
    s.offset = workspace_bytes_;
    workspace_bytes_ += align64(static_cast<std::size_t>(s.stride) * 4 * (s.logit_rows ? max_logit_rows_ : max_rows_));
  }
  tiles_bytes_ = 0;
  partial_floats_ = 0;
  for (const Node& node : nodes_) {
    if (const auto* l = std::get_if<LinearNode>(&node)) {
      const std::size_t groups = (l->x.width + kGroup - 1) / kGroup;
      const std::size_t rows = slots_[l->x.slot].logit_rows ? max_logit_rows_ : max_rows_;
      const std::size_t tiles = (rows + kernels_.tile_rows - 1) / kernels_.tile_rows;
      if (a8_) tiles_bytes_ = std::max(tiles_bytes_, tiles * tile_bytes(kernels_.tile_rows, static_cast<int>(groups)));
    }
    if (const auto* a = std::get_if<AttentionNode>(&node)) {
      const std::size_t segments = static_cast<std::size_t>(num_pages) * kPageTokens / kSegmentTokens + 16;
      partial_floats_ = std::max(partial_floats_, segments * kSplitRows * a->num_heads *
                                                      partial_floats(layouts_[a->layer].padded_dim));
    }
  }
  int most_groups = 0;
  for (const Weight& w : weights_) most_groups = std::max(most_groups, w.groups);
  own_tile_offset_ = std::max(attention_scratch_bytes(), product_scratch_bytes(most_groups));
  for (const StateLayer& l : state_.layers())  // the window of some channels, or a tile of a matrix
    own_tile_offset_ = std::max({own_tile_offset_, sizeof(float) * kConvChannels * kMaxTaps,
                                 sizeof(float) * l.block_floats * kMaxStateBlocks});
  own_tile_offset_ = align64(own_tile_offset_);
  thread_bytes_ = own_tile_offset_ + (a8_ ? tile_bytes(1, kOwnTilePairs) : 0);
  scratch_bytes_ = tiles_bytes_ + align64(partial_floats_ * 4) + thread_bytes_ * threads_;
}

// Nodes that thread t of n does for rows of its own share only need no barrier between them: a row's values are written
// and read by one thread. The row space of a run of such nodes, or -1.
int Program::row_wise_space(const Node& node) const {
  const auto space = [&](const View& v) { return slots_[v.slot].logit_rows ? 1 : 0; };
  if (const auto* n = std::get_if<NormNode>(&node)) return space(n->out);
  if (const auto* n = std::get_if<GateNode>(&node)) return space(n->out);
  if (const auto* n = std::get_if<DeltaGatesNode>(&node)) return space(n->out);
  if (const auto* n = std::get_if<RopeNode>(&node)) return space(n->out);
  if (std::holds_alternative<EmbeddingNode>(node) || std::holds_alternative<RopeAnglesNode>(node)) return 0;
  return -1;
}

void Program::finish(std::uint8_t* kv, int num_pages, std::uint8_t* state) {
  plan(num_pages);
  kv_ = kv;
  state_.bind(reinterpret_cast<float*>(state));
  barrier_after_.assign(nodes_.size(), 1);
  for (std::size_t i = 0; i + 1 < nodes_.size(); ++i) {
    const int space = row_wise_space(nodes_[i]);
    barrier_after_[i] = space < 0 || space != row_wise_space(nodes_[i + 1]);
  }
  num_pages_ = num_pages;
  workspace_ = std::make_unique<Pages>(workspace_bytes_, false);
  scratch_ = std::make_unique<Pages>(scratch_bytes_, false);
  tiles_ = scratch_->data();
  partials_ = reinterpret_cast<float*>(tiles_ + tiles_bytes_);
  thread_scratch_ = tiles_ + tiles_bytes_ + align64(partial_floats_ * 4);
  pool_ = std::make_unique<ThreadPool>(threads_);
  cursors_ = std::make_unique<std::atomic<int>[]>(nodes_.size());
  positions_.reserve(max_rows_);
  sequence_of_row_.reserve(max_rows_);
}

float* Program::slot_data(int slot) {
  return reinterpret_cast<float*>(workspace_->data() + slots_[slot].offset);
}

float* Program::at(const View& v) const {
  return reinterpret_cast<float*>(workspace_->data() + slots_[v.slot].offset) + v.offset;
}

int Program::segments(const StepSequence& s) const {
  return (s.position + s.count + kSegmentTokens - 1) / kSegmentTokens;
}

std::pair<int, int> Program::share(int total, int thread) const {
  const long n = threads_;
  return {static_cast<int>(total * static_cast<long>(thread) / n), static_cast<int>(total * (thread + 1L) / n)};
}

void Program::run(const Step& step) {
  const std::uint64_t start = now_ns();
  step_ = &step;
  positions_.resize(step.rows);
  sequence_of_row_.resize(step.rows);
  for (std::size_t i = 0; i < step.sequences.size(); ++i) {
    const StepSequence& s = step.sequences[i];
    for (int r = 0; r < s.count; ++r) {
      positions_[s.start + r] = s.position + r;
      sequence_of_row_[s.start + r] = static_cast<int>(i);
    }
  }
  for (AttentionPlan& plan : attention_plans_) plan_attention(plan);
  for (std::size_t i = 0; i < nodes_.size(); ++i) cursors_[i].store(0, std::memory_order_relaxed);
  pool_->run([](void* self, int thread) { static_cast<Program*>(self)->thread_main(thread); }, this);
  step_ = nullptr;
  last_run_ns_ = now_ns() - start;
}

void Program::thread_main(int thread) {
  const bool profiling = thread == 0 && !node_ns_.empty();
  std::uint64_t last = profiling ? now_ns() : 0;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    std::visit([&](const auto& node) { exec(node, static_cast<int>(i), thread); }, nodes_[i]);
    if (barrier_after_[i]) pool_->barrier();
    if (profiling) {
      const std::uint64_t now = now_ns();
      node_ns_[i] += now - last;
      last = now;
    }
  }
}

void Program::exec(const EmbeddingNode& n, int, int thread) {
  const auto [begin, end] = share(step_->rows, thread);
  for (int r = begin; r < end; ++r) decode_row(weights_[n.weight], step_->token_ids[r], at(n.out) + r * stride(n.out));
}

void Program::exec(const NormNode& n, int, int thread) {
  const auto [begin, end] = share(rows(n.x), thread);
  const NormArgs args{at(n.x), stride(n.x), at(n.z), stride(n.z), n.vector < 0 ? nullptr : vectors_[n.vector].first,
                      at(n.out), stride(n.out), n.num_heads, n.x.width / n.num_heads, n.eps, n.scale};
  switch (n.kind) {
    case Norm::rms: return kernels_.rms_norm(args, begin, end);
    case Norm::gated_rms: return kernels_.gated_rms_norm(args, begin, end);
    case Norm::l2: return kernels_.l2_norm(args, begin, end);
  }
}

void Program::exec(const LinearNode& n, int, int thread) {
  const int num_rows = rows(n.x);
  const int k = n.x.width;
  const bool quantised =
      a8_ && std::any_of(n.weights.begin(), n.weights.end(), [&](int w) { return is_packed(weights_[w].format); });
  std::uint8_t* tiles = tiles_;
  if (quantised) {
    const long groups = (k + kGroup - 1) / kGroup;
    const long total = groups * ((num_rows + kernels_.tile_rows - 1) / kernels_.tile_rows), threads = threads_;
    if (num_rows * groups <= kOwnTilePairs && num_rows <= kernels_.tile_rows) {
      tiles = thread_scratch_ + thread_bytes_ * thread + own_tile_offset_;
      kernels_.quantize({at(n.x), stride(n.x), k, num_rows, kernels_.tile_rows, tiles}, 0, total);
    } else {
      kernels_.quantize({at(n.x), stride(n.x), k, num_rows, kernels_.tile_rows, tiles}, total * thread / threads,
                        total * (thread + 1) / threads);
      pool_->barrier();
    }
  }
  int records = 0;
  for (int w : n.weights) records += weights_[w].records;
  auto [begin, end] = share(records, thread);
  int first = 0, column = 0;
  for (int index : n.weights) {
    const Weight& w = weights_[index];
    const int from = std::max(begin - first, 0), to = std::min(end - first, w.records);
    if (from < to) {
      ProductArgs args{&w, from, to, num_rows, kernels_.tile_rows, tiles, at(n.x), stride(n.x), at(n.out) + column,
                       stride(n.out), nullptr, 0, thread_scratch_ + thread_bytes_ * thread};
      if (n.has_residual) {
        args.residual = at(n.residual) + column;
        args.ldr = stride(n.residual);
      }
      (quantised && is_packed(w.format) ? kernels_.product_a8 : kernels_.product_f32)(args);
    }
    first += w.records;
    column += w.n;
  }
}

void Program::exec(const RopeAnglesNode& n, int, int thread) {
  const auto [begin, end] = share(step_->rows, thread);
  const int half = static_cast<int>(n.frequencies.size());
  for (int r = begin; r < end; ++r) {
    float* out = at(n.out) + r * stride(n.out);
    for (int i = 0; i < half; ++i) {
      const double angle = positions_[r] * n.frequencies[i];
      out[i] = static_cast<float>(n.magnitude * std::cos(angle));
      out[half + i] = static_cast<float>(n.magnitude * std::sin(angle));
    }
  }
}

void Program::exec(const RopeNode& n, int, int thread) {
  const auto [begin, end] = share(rows(n.x), thread);
  kernels_.rope({at(n.x), stride(n.x), at(n.angles), stride(n.angles), at(n.out), stride(n.out), n.num_heads, n.head_dim,
                 n.angles.width},
                begin, end);
}

void Program::exec(const KVAppendNode& n, int, int thread) {
  // Head by head: neighbouring tokens of a head share lines, which two threads should not write.
  const auto [begin, end] = share(step_->rows * layouts_[n.layer].num_kv_heads, thread);
  for (int i = begin; i < end; ++i) {
    const int r = i % step_->rows, head = i / step_->rows;
    const StepSequence& s = step_->sequences[sequence_of_row_[r]];
    const std::size_t page = static_cast<std::size_t>(s.page_ids[positions_[r] / kPageTokens]);
    kernels_.kv_append({&layouts_[n.layer], at(n.k) + r * stride(n.k), at(n.v) + r * stride(n.v),
                        kv_ + page_bytes_ * page + layer_offset_[n.layer], positions_[r] % kPageTokens, head, head + 1});
  }
}

// Long histories of few rows are split by segment so that all threads have work; everything else goes by tiles of rows,
// longest first. Either way gives the same bits, so the choice is free.
void Program::plan_attention(AttentionPlan& plan) const {
  plan.items.clear();
  plan.partial_base.assign(step_->sequences.size(), kNotSplit);
  const int group = plan.num_heads / plan.num_kv_heads;
  const int chunk = std::min(group, kQueryTile);
  const int tile_rows = kQueryTile / chunk;
  const std::size_t per_partial = partial_floats(plan.padded_dim);
  std::size_t used = 0;
  for (std::size_t i = 0; i < step_->sequences.size(); ++i) {
    const StepSequence& s = step_->sequences[i];
    const std::size_t needed = per_partial * s.count * plan.num_heads * segments(s);
    const bool split = threads_ > 1 && s.count <= tile_rows && segments(s) > 1 && used + needed <= partial_floats_;
    if (split) {
      plan.partial_base[i] = used;
      used += needed;
    }
    for (int row_end = s.count; row_end > 0; row_end -= tile_rows) {
      const int row = std::max(row_end - tile_rows, 0);
      for (int kv = 0; kv < plan.num_kv_heads; ++kv)
        for (int h = 0; h < group; h += chunk) {
          Item item{static_cast<int>(i), row, row_end - row, kv * group + h, std::min(chunk, group - h), kv, -1};
          if (!split) {
            plan.items.push_back(item);
            continue;
          }
          for (item.segment = 0; item.segment < segments(s); ++item.segment) plan.items.push_back(item);
        }
    }
  }
}

void Program::exec(const AttentionNode& n, int node, int thread) {
  const AttentionPlan& plan = attention_plans_[n.plan];
  const int total = static_cast<int>(plan.items.size());
  for (;;) {
    const int i = cursors_[node].fetch_add(1, std::memory_order_relaxed);
    if (i >= total) break;
    attention_item(n, plan.items[i], thread);
  }
  if (std::all_of(plan.partial_base.begin(), plan.partial_base.end(), [](std::size_t b) { return b == kNotSplit; }))
    return;
  pool_->barrier();
  const KVLayout& layout = layouts_[n.layer];
  const std::size_t per_partial = partial_floats(layout.padded_dim);
  for (std::size_t i = 0; i < step_->sequences.size(); ++i) {
    if (plan.partial_base[i] == kNotSplit) continue;
    const StepSequence& s = step_->sequences[i];
    const auto [begin, end] = share(s.count * n.num_heads, thread);
    for (int q = begin; q < end; ++q) {
      const int row = q / n.num_heads, head = q % n.num_heads;
      const int visible = (s.position + row) / kSegmentTokens + 1;
      kernels_.merge({partials_ + plan.partial_base[i] + per_partial * segments(s) * q, visible, layout.head_dim,
                      layout.padded_dim, at(n.out) + (s.start + row) * stride(n.out) + head * layout.head_dim});
    }
  }
}

void Program::attention_item(const AttentionNode& n, const Item& item, int thread) {
  const KVLayout& layout = layouts_[n.layer];
  const StepSequence& s = step_->sequences[item.sequence];
  const float* q[kQueryTile];
  float* out[kQueryTile];
  float* partials[kQueryTile];
  int visible[kQueryTile];
  const bool split = item.segment >= 0;
  const std::size_t per_partial = partial_floats(layout.padded_dim);
  int count = 0;
  for (int r = item.row; r < item.row + item.rows; ++r)
    for (int h = item.head0; h < item.head0 + item.heads; ++h) {
      const std::size_t row = static_cast<std::size_t>(s.start + r);
      q[count] = at(n.q) + row * stride(n.q) + h * layout.head_dim;
      out[count] = at(n.out) + row * stride(n.out) + h * layout.head_dim;
      partials[count] = split ? partials_ + attention_plans_[n.plan].partial_base[item.sequence] +
                                    per_partial * (segments(s) * static_cast<std::size_t>(r * n.num_heads + h) +
                                                   item.segment)
                              : nullptr;
      visible[count++] = s.position + r + 1;
    }
  kernels_.attention({&layout, kv_ + layer_offset_[n.layer], page_bytes_, s.page_ids, item.kv_head, count, q, visible,
                      n.scale, a8_ && layout.format == KVFormat::int8, split ? item.segment : 0,
                      split ? item.segment + 1 : segments(s), split, out, partials,
                      thread_scratch_ + thread_bytes_ * thread});
}

void Program::exec(const GateNode& n, int, int thread) {
  const auto [begin, end] = share(rows(n.x), thread);
  (n.kind == Gate::silu ? kernels_.silu_mul : kernels_.sigmoid_mul)(
      {at(n.x), stride(n.x), at(n.gate), stride(n.gate), at(n.out), stride(n.out), n.out.width}, begin, end);
}

void Program::exec(const DeltaGatesNode& n, int, int thread) {
  const auto [begin, end] = share(rows(n.a), thread);
  kernels_.delta_gates({at(n.a), stride(n.a), at(n.b), stride(n.b), vectors_[n.decay].first, vectors_[n.dt_bias].first,
                        at(n.out), stride(n.out), n.a.width},
                       begin, end);
}

void Program::exec(const SelectRowsNode& n, int, int thread) {
  const auto [begin, end] = share(step_->logit_rows, thread);
  for (int r = begin; r < end; ++r)
    std::memcpy(at(n.out) + r * stride(n.out), at(n.x) + step_->logit_row_ids[r] * stride(n.x),
                sizeof(float) * n.x.width);
}

}  // namespace ninfer
