// Nodes over KV pages: how a page is laid out, what is written to it, and how the attention of a step is cut into tiles.
#include <algorithm>
#include <stdexcept>

#include "core/program.h"

namespace ninfer {

namespace {

// Rows of a sequence that may have their segments spread over threads; more rows are parallel enough by themselves.
constexpr int kSplitRows = 6;
// Work of threads that start late or wait is taken over by the others in pieces of this size.
constexpr int kItemsPerThread = 4;

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

// The positions that a row of a sequence sees: the one place of this rule. Segments and tiles follow from it.
TokenRange Program::visible(const AttentionPlan& plan, const StepSequence& s, int row) const {
  const int position = s.position + row;
  return {plan.window == 0 ? 0 : std::max(0, position - plan.window + 1),
          plan.causal ? position + 1 : s.position + s.count};
}

// The segments that rows [row_begin, row_end) of a sequence see any of.
TokenRange Program::segments(const AttentionPlan& plan, const StepSequence& s, int row_begin, int row_end) const {
  TokenRange all = visible(plan, s, row_begin);
  for (int row = row_begin + 1; row < row_end; ++row) {
    const TokenRange range = visible(plan, s, row);
    all = {std::min(all.begin, range.begin), std::max(all.end, range.end)};
  }
  return {all.begin / kSegmentTokens, (all.end + kSegmentTokens - 1) / kSegmentTokens};
}

// The plan of layers that are cut alike, a new one for the first of them.
int Program::attention_plan(const AttentionNode& n) {
  const KVLayout& layout = layouts_[n.layer];
  const auto same = [&](const AttentionPlan& p) {
    return p.num_heads == n.num_heads && p.num_kv_heads == layout.num_kv_heads && p.padded_dim == layout.padded_dim &&
           p.causal == n.causal && p.window == n.window;
  };
  const auto found = std::find_if(attention_plans_.begin(), attention_plans_.end(), same);
  const int index = static_cast<int>(found - attention_plans_.begin());
  if (found == attention_plans_.end())
    attention_plans_.push_back({n.num_heads, layout.num_kv_heads, layout.padded_dim, n.causal, n.window, {}, {}});
  return index;
}

// Room for the segments of kSplitRows rows at full context.
std::size_t Program::most_partial_floats(const AttentionNode& n, int num_pages) const {
  const std::size_t segments = static_cast<std::size_t>(num_pages) * kPageTokens / kSegmentTokens + 16;
  return segments * kSplitRows * n.num_heads * partial_floats(layouts_[n.layer].padded_dim);
}

// Rows of one item: as many as fit into a tile, but no fewer items than keep all threads busy.
int Program::item_rows(const AttentionPlan& plan, int rows) const {
  const int group = std::min(plan.num_heads / plan.num_kv_heads, kQueryTile);
  const int fewest = std::max(kQueryBlock / group, 1);
  int most = kQueryTile / group;
  while (most > fewest && rows * plan.num_kv_heads < most * kItemsPerThread * threads_) most = std::max(most / 2, fewest);
  return most;
}

// Long histories of few rows are split by segment so that all threads have work; everything else goes by tiles of rows,
// longest first. Either way gives the same bits, so the choice is free.
void Program::plan_attention(AttentionPlan& plan) const {
  plan.items.clear();
  plan.splits.assign(step_->sequences.size(), {});
  const int group = plan.num_heads / plan.num_kv_heads;
  const int chunk = std::min(group, kQueryTile);
  const std::size_t per_partial = partial_floats(plan.padded_dim);
  std::size_t used = 0;
  for (std::size_t i = 0; i < step_->sequences.size(); ++i) {
    const StepSequence& s = step_->sequences[i];
    const TokenRange all = segments(plan, s, 0, s.count);
    const std::size_t needed = per_partial * s.count * plan.num_heads * all.count();
    const bool split = threads_ > 1 && s.count <= kSplitRows && all.count() > 1 && used + needed <= partial_floats_;
    if (split) {
      plan.splits[i] = {true, used, all.begin, all.count()};
      used += needed;
    }
    const int run = std::max(all.count() * plan.num_kv_heads / (2 * kItemsPerThread * threads_), 1);
    const int rows = split ? kQueryTile / chunk : item_rows(plan, s.count);
    for (int row_end = s.count; row_end > 0; row_end -= rows) {
      const int row = std::max(row_end - rows, 0);
      const TokenRange seen = segments(plan, s, row, row_end);
      for (int kv = 0; kv < plan.num_kv_heads; ++kv)
        for (int h = 0; h < group; h += chunk) {
          Item item{static_cast<int>(i), row, row_end - row, kv * group + h, std::min(chunk, group - h), kv, seen};
          if (!split) {
            plan.items.push_back(item);
            continue;
          }
          for (int segment = seen.begin; segment < seen.end; segment += run) {
            item.segments = {segment, std::min(segment + run, seen.end)};
            plan.items.push_back(item);
          }
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
  if (std::none_of(plan.splits.begin(), plan.splits.end(), [](const Split& split) { return split.used; })) return;
  pool_->barrier();
  const KVLayout& layout = layouts_[n.layer];
  const std::size_t per_partial = partial_floats(layout.padded_dim);
  for (std::size_t i = 0; i < step_->sequences.size(); ++i) {
    const Split& split = plan.splits[i];
    if (!split.used) continue;
    const StepSequence& s = step_->sequences[i];
    const auto [begin, end] = share(s.count * n.num_heads, thread);
    for (int q = begin; q < end; ++q) {
      const int row = q / n.num_heads, head = q % n.num_heads;
      const TokenRange seen = segments(plan, s, row, row + 1);
      const std::size_t first = split.index(q, seen.begin);
      kernels_.merge({partials_ + split.base + per_partial * first, seen.count(), layout.head_dim, layout.padded_dim,
                      at(n.out) + (s.start + row) * stride(n.out) + head * layout.head_dim});
    }
  }
}

void Program::attention_item(const AttentionNode& n, const Item& item, int thread) {
  const AttentionPlan& plan = attention_plans_[n.plan];
  const KVLayout& layout = layouts_[n.layer];
  const StepSequence& s = step_->sequences[item.sequence];
  const Split& split = plan.splits[item.sequence];
  const float* q[kQueryTile];
  float* out[kQueryTile];
  float* partials[kQueryTile];
  TokenRange seen[kQueryTile];
  int count = 0;
  for (int r = item.row; r < item.row + item.rows; ++r)
    for (int h = item.head0; h < item.head0 + item.heads; ++h) {
      const std::size_t row = static_cast<std::size_t>(s.start + r);
      q[count] = at(n.q) + row * stride(n.q) + h * layout.head_dim;
      out[count] = at(n.out) + row * stride(n.out) + h * layout.head_dim;
      const std::size_t partial = split.used ? split.index(r * n.num_heads + h, item.segments.begin) : 0;
      partials[count] = split.used ? partials_ + split.base + partial_floats(layout.padded_dim) * partial : nullptr;
      seen[count++] = visible(plan, s, r);
    }
  kernels_.attention({&layout, kv_ + layer_offset_[n.layer], page_bytes_, s.page_ids, item.kv_head, count, q, seen,
                      n.scale, numerics_ != Numerics::f32 && layout.format == KVFormat::int8, item.segments, split.used,
                      out, partials, thread_scratch_ + thread_bytes_ * thread});
}

}  // namespace ninfer
