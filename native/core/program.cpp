#include "core/program.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "core/cpu_features.h"
#include "core/weight.h"

namespace ninfer {

namespace {

// Up to this many (row, group) pairs every thread quantises all of a product's input for itself: that takes a microsecond
// or two, and meeting at a barrier to share lines that another core wrote takes longer.
constexpr int kOwnTilePairs = 512;

// What multiplies the sums of a product at last (ops/linear.py): kernels hold E2M1 numbers doubled.
float output_factor(const Weight& w, InputCodec codec) {
  if (w.format != WeightFormat::nvfp4) return 1.0f;
  if (codec == InputCodec::nvfp4) return static_cast<float>(w.factor / (4.0 * static_cast<double>(w.input_scale)));
  return static_cast<float>(w.factor / 2.0);
}

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

}  // namespace

Program::Program(int threads, const std::string& isa, Numerics numerics, int max_rows, int max_logit_rows)
    : threads_(threads), kernels_(select_target(isa)), numerics_(numerics), max_rows_(max_rows),
      max_logit_rows_(max_logit_rows) {}

int Program::add_weight(const std::uint8_t* data, std::size_t bytes, WeightFormat format, int n, int k) {
  weights_.push_back(make_weight(data, bytes, format, n, k));
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

void Program::add_node(Node node) {
  if (const auto* e = std::get_if<EmbeddingNode>(&node)) vocab_size_ = weights_[e->weight].n;
  if (auto* l = std::get_if<LinearNode>(&node)) l->passes = passes(*l);
  if (auto* a = std::get_if<AttentionNode>(&node)) a->plan = attention_plan(*a);
  nodes_.push_back(std::move(node));
}

void Program::share_threads(const Program& other) {
  if (other.threads_ != threads_) throw std::invalid_argument("threads are shared by programs of as many threads only");
  pool_ = other.pool_;
}

void Program::plan(int num_pages) {
  workspace_bytes_ = 0;
  for (Slot& s : slots_) {
    s.offset = workspace_bytes_;
    workspace_bytes_ += align64(static_cast<std::size_t>(s.stride) * 4 * (s.logit_rows ? max_logit_rows_ : max_rows_));
  }
  tiles_bytes_ = 0;
  partial_floats_ = 0;
  int most_groups = 0;
  for (const Weight& w : weights_) most_groups = std::max(most_groups, w.groups);
  std::size_t product_bytes = product_scratch_bytes(most_groups);
  for (const Node& node : nodes_) {
    if (const auto* l = std::get_if<LinearNode>(&node)) {
      const std::size_t rows = slots_[l->x.slot].logit_rows ? max_logit_rows_ : max_rows_;
      const std::size_t tiles = (rows + kernels_.tile_rows - 1) / kernels_.tile_rows;
      for (const LinearPass& pass : l->passes) {
        if (pass.codec == InputCodec::exact) product_bytes = std::max(product_bytes, float_scratch_bytes(l->x.width));
        else tiles_bytes_ = std::max(tiles_bytes_, tiles * tile_bytes(kernels_.tile_rows, activation_groups(l->x.width)));
      }
    }
    if (const auto* a = std::get_if<AttentionNode>(&node))
      partial_floats_ = std::max(partial_floats_, most_partial_floats(*a, num_pages));
  }
  own_tile_offset_ = std::max(attention_scratch_bytes(), product_bytes);
  for (const StateLayer& l : state_.layers())  // the window of some channels, or a tile of a matrix
    own_tile_offset_ = std::max({own_tile_offset_, sizeof(float) * kConvChannels * kMaxTaps,
                                 sizeof(float) * l.block_floats * kStateBlocks});
  own_tile_offset_ = align64(own_tile_offset_);
  thread_bytes_ = own_tile_offset_ + (tiles_bytes_ > 0 ? tile_bytes(1, kOwnTilePairs) : 0);
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
  if (!pool_) pool_ = std::make_shared<ThreadPool>(threads_);
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

// What each weight of a product sees of the input, those that see the same together.
std::vector<LinearPass> Program::passes(const LinearNode& n) const {
  std::vector<LinearPass> passes;
  int column = 0;
  for (int index : n.weights) {
    const Weight& w = weights_[index];
    LinearPass pass{};
    if (numerics_ != Numerics::f32 && is_packed(w.format))
      pass.codec = numerics_ == Numerics::a8g32 ? InputCodec::one_digit : InputCodec::two_digits;
    if (numerics_ == Numerics::w4a4 && w.input_scale > 0) {
      pass.codec = InputCodec::nvfp4;
      pass.input_scale = w.input_scale;
    }
    const auto same = [&](const LinearPass& p) { return p.codec == pass.codec && p.input_scale == pass.input_scale; };
    auto found = std::find_if(passes.begin(), passes.end(), same);
    if (found == passes.end()) found = passes.insert(passes.end(), pass);
    found->weights.push_back({index, column, output_factor(w, pass.codec)});
    column += w.n;
  }
  return passes;
}

auto Program::product_of(InputCodec codec) const -> void (*)(const ProductArgs&) {
  switch (codec) {
    case InputCodec::exact: return kernels_.product_f32;
    case InputCodec::one_digit: return kernels_.product_a8g32;
    case InputCodec::nvfp4: return kernels_.product_w4a4;
    case InputCodec::two_digits: break;
  }
  return kernels_.product_a8;
}

void Program::exec(const LinearNode& n, int, int thread) {
  bool tiles_in_use = false;  // by threads that are still in the pass before
  for (const LinearPass& pass : n.passes) {
    std::uint8_t* tiles = nullptr;
    if (pass.codec != InputCodec::exact) tiles = quantize_input(n.x, pass, thread, tiles_in_use);
    int records = 0;
    for (const LinearPass::Part& part : pass.weights) records += weights_[part.weight].records;
    const auto [begin, end] = share(records, thread);
    int first = 0;
    for (const LinearPass::Part& part : pass.weights) {
      const Weight& w = weights_[part.weight];
      const int from = std::max(begin - first, 0), to = std::min(end - first, w.records);
      first += w.records;
      if (from >= to) continue;
      ProductArgs args{&w, from, to, rows(n.x), kernels_.tile_rows, tiles, at(n.x), stride(n.x),
                       at(n.out) + part.column, stride(n.out), nullptr, 0, part.factor,
                       thread_scratch_ + thread_bytes_ * thread};
      if (n.has_residual) {
        args.residual = at(n.residual) + part.column;
        args.ldr = stride(n.residual);
      }
      product_of(pass.codec)(args);
    }
  }
}

// The rows of x as a pass wants them, in tiles of this thread or in those of all threads.
std::uint8_t* Program::quantize_input(const View& x, const LinearPass& pass, int thread, bool& tiles_in_use) {
  const int num_rows = rows(x);
  const long groups = activation_groups(x.width);
  const long total = groups * ((num_rows + kernels_.tile_rows - 1) / kernels_.tile_rows), threads = threads_;
  QuantizeArgs args{at(x), stride(x), x.width, num_rows, kernels_.tile_rows, tiles_, pass.input_scale};
  const auto quantize = pass.codec == InputCodec::nvfp4       ? kernels_.quantize_w4a4
                        : pass.codec == InputCodec::one_digit ? kernels_.quantize_a8g32
                                                              : kernels_.quantize;
  if (num_rows * groups <= kOwnTilePairs && num_rows <= kernels_.tile_rows) {
    args.tiles = thread_scratch_ + thread_bytes_ * thread + own_tile_offset_;
    quantize(args, 0, total);
    return args.tiles;
  }
  if (tiles_in_use) pool_->barrier();
  tiles_in_use = true;
  quantize(args, total * thread / threads, total * (thread + 1) / threads);
  pool_->barrier();
  return args.tiles;
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

void Program::exec(const GateNode& n, int, int thread) {
  const auto [begin, end] = share(rows(n.x), thread);
  (n.kind == Gate::silu ? kernels_.silu_mul : kernels_.sigmoid_mul)(
      {at(n.x), stride(n.x), at(n.gate), stride(n.gate), at(n.out), stride(n.out), n.out.width}, begin, end);
}

// Rows of other sequences, and of other steps, are not seen: the block of a sequence begins with its first row.
void Program::exec(const DynamicConvNode& n, int, int thread) {
  const auto [begin, end] = share(step_->rows, thread);
  for (int r = begin; r < end; ++r)
    kernels_.dynamic_conv({at(n.z) + r * stride(n.z), stride(n.z), at(n.d) + r * stride(n.d),
                           vectors_[n.vector].first + n.first,
                           n.has_residual ? at(n.residual) + r * stride(n.residual) : nullptr,
                           at(n.out) + r * stride(n.out), n.z.width,
                           n.d.width / n.taps, std::min(n.taps, r - step_->sequences[sequence_of_row_[r]].start + 1)});
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
