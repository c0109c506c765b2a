// A recorded graph with everything bound: kernels, weights, buffers. Running a step follows the list and decides nothing
// but how rows, records and segments are spread over threads, which never changes a result.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "core/kernels.h"
#include "core/memory.h"
#include "core/state.h"
#include "core/thread_pool.h"

namespace ninfer {

// Columns of a slot.
struct View {
  int slot;
  int offset;
  int width;
};

struct EmbeddingNode { int weight; View out; };
// Norms of heads side by side. Vector -1: none.
enum class Norm { rms, gated_rms, l2 };
struct NormNode { Norm kind; View x; View z; int vector; int num_heads; float eps, scale; View out; };
// The weights of a product that see the same of its input.
enum class InputCodec { exact, two_digits, one_digit, nvfp4 };
struct LinearPass {
  struct Part { int weight, column; float factor; };
  InputCodec codec;
  float input_scale;
  std::vector<Part> weights;
};
struct LinearNode {
  View x;
  std::vector<int> weights;
  View out;
  bool has_residual;
  View residual;
  std::vector<LinearPass> passes = {};  // add_node() fills them
};
struct RopeAnglesNode { std::vector<double> frequencies; double magnitude; View out; };
struct RopeNode { View x; View angles; int num_heads, head_dim; View out; };
struct KVAppendNode { int layer; View k; View v; };
// window 0: none.
struct AttentionNode { int layer; View q; int num_heads; float scale; bool causal; int window; View out; int plan = 0; };
enum class Gate { silu, sigmoid };
struct GateNode { Gate kind; View x; View gate; View out; };
struct DeltaGatesNode { View a; View b; int decay, dt_bias; View out; };
struct CausalConvNode { int layer; View u; int vector; View out; };
// first: value of the vector at which the taps begin.
struct DynamicConvNode { View z; View d; int vector, first, taps; View out; bool has_residual; View residual; };
struct DeltaRuleNode { int layer; View q; View k; View v; View gates; int num_k_heads; View out; };
struct SelectRowsNode { View x; View out; };

using Node = std::variant<EmbeddingNode, NormNode, LinearNode, RopeAnglesNode, RopeNode, KVAppendNode, AttentionNode,
                          GateNode, DeltaGatesNode, CausalConvNode, DynamicConvNode, DeltaRuleNode, SelectRowsNode>;

// Numeric profiles, in the numbers that Python uses for them.
enum class Numerics : int { f32 = 0, a8 = 1, w4a4 = 2, a8g32 = 3 };

struct StepSequence {
  int start, count, position;
  const std::int32_t* page_ids;
  StateAccess state;
};

struct Step {
  int rows;
  const std::int32_t* token_ids;
  std::vector<StepSequence> sequences;
  std::vector<StateSave> saves;
  int logit_rows;
  const std::int32_t* logit_row_ids;
};

class Program {
 public:
  Program(int threads, const std::string& isa, Numerics numerics, int max_rows, int max_logit_rows);

  int add_weight(const std::uint8_t* data, std::size_t bytes, WeightFormat format, int n, int k);
  int add_vector(const float* data, int width);
  int add_slot(int width, bool logit_rows);
  // One KV layout per layer; returns the bytes of one page (all layers).
  std::size_t set_kv(KVFormat format, const std::vector<std::pair<int, int>>& heads_and_dims);
  // Recurrent layers are added before the nodes that use them.
  StateStore& state() { return state_; }
  void add_node(Node node);
  // Use the threads of a program that never runs at the same time; before finish(). Both outlive no thread of theirs.
  void share_threads(const Program& other);
  // Allocates buffers and scratch; after this only run() may be called. `state` is as large as state().plan() said.
  void finish(std::uint8_t* kv, int num_pages, std::uint8_t* state);

  void run(const Step& step);

  float* slot_data(int slot);
  int slot_stride(int slot) const { return slots_[slot].stride; }
  bool slot_is_logit(int slot) const { return slots_[slot].logit_rows; }
  int max_rows() const { return max_rows_; }
  int max_logit_rows() const { return max_logit_rows_; }
  int num_pages() const { return num_pages_; }
  int vocab_size() const { return vocab_size_; }
  const char* isa() const { return kernels_.name; }
  std::size_t workspace_bytes() const { return workspace_bytes_; }
  std::size_t scratch_bytes() const { return scratch_bytes_; }
  // Buffers and scratch that finish() will allocate for `num_pages` pages; callable before it.
  void plan(int num_pages);
  std::uint64_t last_run_ns() const { return last_run_ns_; }
  // While on, thread 0 adds up the time of every node, waiting for the other threads included.
  void set_profiling(bool on) { node_ns_.assign(on ? nodes_.size() : 0, 0); }
  const std::vector<std::uint64_t>& node_ns() const { return node_ns_; }

 private:
  struct Slot { int width, stride; bool logit_rows; std::size_t offset; };
  struct Item { int sequence, row, rows, head0, heads, kv_head; TokenRange segments; };
  // Where the segments of a sequence's queries go while threads share them: `segments` partials per query, the first one
  // of segment `first`.
  struct Split {
    bool used = false;
    std::size_t base = 0;  // in partials_
    int first = 0, segments = 0;
    std::size_t index(int query, int segment) const {
      return static_cast<std::size_t>(query) * segments + static_cast<std::size_t>(segment - first);
    }
  };
  struct StateTile { int head, block, blocks; };  // columns 16 * block .. of the matrix of a head
  // How the attention of layers with these heads is cut into work items in the current step.
  struct AttentionPlan {
    int num_heads, num_kv_heads, padded_dim;
    bool causal;
    int window;
    std::vector<Item> items;
    std::vector<Split> splits;  // per sequence
  };

  void thread_main(int thread);
  void exec(const EmbeddingNode&, int node, int thread);
  void exec(const NormNode&, int node, int thread);
  void exec(const LinearNode&, int node, int thread);
  void exec(const RopeAnglesNode&, int node, int thread);
  void exec(const RopeNode&, int node, int thread);
  void exec(const KVAppendNode&, int node, int thread);
  void exec(const AttentionNode&, int node, int thread);
  void exec(const GateNode&, int node, int thread);
  void exec(const DeltaGatesNode&, int node, int thread);
  void exec(const CausalConvNode&, int node, int thread);
  void exec(const DynamicConvNode&, int node, int thread);
  void exec(const DeltaRuleNode&, int node, int thread);
  void exec(const SelectRowsNode&, int node, int thread);
  std::vector<LinearPass> passes(const LinearNode&) const;
  auto product_of(InputCodec codec) const -> void (*)(const ProductArgs&);
  std::uint8_t* quantize_input(const View& x, const LinearPass& pass, int thread, bool& tiles_in_use);
  int attention_plan(const AttentionNode&);
  std::size_t most_partial_floats(const AttentionNode&, int num_pages) const;
  int item_rows(const AttentionPlan&, int rows) const;
  void plan_attention(AttentionPlan&) const;
  TokenRange visible(const AttentionPlan&, const StepSequence&, int row) const;
  TokenRange segments(const AttentionPlan&, const StepSequence&, int row_begin, int row_end) const;
  void attention_item(const AttentionNode&, const Item&, int thread);
  void conv_channels(const CausalConvNode&, const StepSequence&, int begin, int end, float* scratch);
  void delta_tile(const DeltaRuleNode&, const StepSequence&, const StateTile&, float* scratch);
  void keep_rows(const DeltaRuleNode&, const StepSequence&, int thread);
  int row_wise_space(const Node&) const;

  float* at(const View& v) const;
  std::size_t stride(const View& v) const { return static_cast<std::size_t>(slots_[v.slot].stride); }
  int rows(const View& v) const { return slots_[v.slot].logit_rows ? step_->logit_rows : step_->rows; }
  std::pair<int, int> share(int total, int thread) const;

  int threads_;
  std::shared_ptr<ThreadPool> pool_;  // started by finish() unless it is another program's
  const KernelTable& kernels_;
  Numerics numerics_;
  int max_rows_, max_logit_rows_;
  int num_pages_ = 0;
  int vocab_size_ = 0;
  std::vector<Weight> weights_;
  std::vector<std::pair<const float*, int>> vectors_;
  std::vector<Slot> slots_;
  std::vector<KVLayout> layouts_;
  std::vector<std::size_t> layer_offset_;
  std::size_t page_bytes_ = 0;
  std::uint8_t* kv_ = nullptr;
  StateStore state_;
  std::vector<Node> nodes_;
  std::vector<char> barrier_after_;   // of each node

  std::size_t workspace_bytes_ = 0, scratch_bytes_ = 0;
  std::size_t tiles_bytes_ = 0, partial_floats_ = 0, thread_bytes_ = 0, own_tile_offset_ = 0;
  std::unique_ptr<Pages> workspace_;
  std::unique_ptr<Pages> scratch_;
  std::uint8_t* tiles_ = nullptr;
  float* partials_ = nullptr;
  std::uint8_t* thread_scratch_ = nullptr;

  const Step* step_ = nullptr;
  std::vector<int> positions_;       // of each row
  std::vector<int> sequence_of_row_;
  std::vector<AttentionPlan> attention_plans_;
  std::unique_ptr<std::atomic<int>[]> cursors_;  // one work queue per node
  std::uint64_t last_run_ns_ = 0;
  std::vector<std::uint64_t> node_ns_;  // empty while profiling is off
};

}  // namespace ninfer
