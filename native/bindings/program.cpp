#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "core/cpu_features.h"
#include "core/program.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace ninfer;

namespace {

template <class T>
using Array1 = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Array2 = nb::ndarray<const std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void check(bool ok, const char* what, long value, long limit) {
  if (!ok)
    throw std::invalid_argument(std::string(what) + " is " + std::to_string(value) + "; the limit is " +
                                std::to_string(limit));
}

View view(const std::tuple<int, int, int>& v) { return {std::get<0>(v), std::get<1>(v), std::get<2>(v)}; }

constexpr int kSequenceColumns = 9;

// Slots and journals of one sequence, from columns 4 .. 8 of its row: read, replayed journal and rows, journal, saves.
StateAccess state_access(const StateStore& store, const Step& step, const std::int32_t* s, int first_save) {
  const StateAccess access{s[4], s[5], s[6], s[7], first_save, s[8]};
  if (store.layers().empty()) return access;
  const int count = s[1];
  check(access.read >= -1 && access.read < store.slots(), "state slot read", access.read, store.slots());
  check(access.replay >= -1 && access.replay < store.journals(), "journal replayed", access.replay, store.journals());
  check(access.replay_rows >= 0 && access.replay_rows <= store.journal_rows(), "rows replayed", access.replay_rows,
        store.journal_rows());
  check((access.replay < 0) == (access.replay_rows == 0), "rows replayed", access.replay_rows, store.journal_rows());
  check(access.journal >= -1 && access.journal < store.journals(), "journal", access.journal, store.journals());
  check(access.journal < 0 || count <= store.journal_rows(), "rows kept in a journal", count, store.journal_rows());
  const long left = static_cast<long>(step.saves.size()) - first_save;
  check(access.saves >= 0 && access.saves <= left, "saves of a sequence", access.saves, left);
  int before = 0;
  for (int i = first_save; i < first_save + access.saves; ++i) {
    check(step.saves[i].rows >= before && step.saves[i].rows <= count, "rows before a save", step.saves[i].rows, count);
    check(step.saves[i].slot >= 0 && step.saves[i].slot < store.slots(), "state slot saved to", step.saves[i].slot,
          store.slots());
    before = step.saves[i].rows;
  }
  return access;
}

// Everything that a wrong step could make the kernels read or write out of bounds is refused here.
void run(Program& program, Array1<std::int32_t> token_ids, Array2 sequences, Array1<std::int32_t> pages,
         Array1<std::int32_t> logit_rows, const std::vector<std::pair<int, int>>& saves) {
  Step step;
  step.rows = static_cast<int>(token_ids.shape(0));
  step.token_ids = token_ids.data();
  step.logit_rows = static_cast<int>(logit_rows.shape(0));
  step.logit_row_ids = logit_rows.data();
  check(step.rows >= 1 && step.rows <= program.max_rows(), "rows", step.rows, program.max_rows());
  check(step.logit_rows <= program.max_logit_rows(), "logit rows", step.logit_rows, program.max_logit_rows());
  check(sequences.shape(1) == kSequenceColumns, "columns of sequences", static_cast<long>(sequences.shape(1)),
        kSequenceColumns);
  for (const auto& [rows, slot] : saves) step.saves.push_back({rows, slot});
  for (int i = 0; i < step.rows; ++i)
    if (program.vocab_size() > 0)
      check(step.token_ids[i] >= 0 && step.token_ids[i] < program.vocab_size(), "token id", step.token_ids[i],
            program.vocab_size());
  for (int i = 0; i < step.logit_rows; ++i)
    check(step.logit_row_ids[i] >= 0 && step.logit_row_ids[i] < step.rows, "logit row", step.logit_row_ids[i],
          step.rows);
  for (std::size_t i = 0; i < pages.shape(0); ++i)
    check(pages.data()[i] >= 0 && pages.data()[i] < program.num_pages(), "page id", pages.data()[i],
          program.num_pages());
  int next = 0, next_save = 0;
  for (std::size_t i = 0; i < sequences.shape(0); ++i) {
    const std::int32_t* s = sequences.data() + kSequenceColumns * i;
    const long start = s[0], count = s[1], position = s[2], first_page = s[3];
    check(start == next, "first row of a sequence", start, next);
    check(count >= 1 && count <= step.rows - start, "rows of a sequence", count, step.rows - start);
    check(position >= 0, "position of a sequence", position, 0);
    const long needed = (position + count + kPageTokens - 1) / kPageTokens;
    const long given = static_cast<long>(pages.shape(0)) - first_page;
    if (program.num_pages() > 0)
      check(first_page >= 0 && needed <= given, "pages needed by a sequence", needed, given);
    step.sequences.push_back(
        {s[0], s[1], s[2], pages.data() + first_page, state_access(program.state(), step, s, next_save)});
    next_save += s[8];
    next = static_cast<int>(start + count);
  }
  check(next == step.rows, "rows owned by sequences", next, step.rows);
  nb::gil_scoped_release release;
  program.run(step);
}

nb::ndarray<nb::numpy, float, nb::ndim<2>> slot_array(nb::handle self, int slot) {
  Program& program = nb::cast<Program&>(self);
  const std::size_t stride = program.slot_stride(slot);
  const std::size_t rows = program.slot_is_logit(slot) ? program.max_logit_rows() : program.max_rows();
  return {program.slot_data(slot), {rows, stride}, self};
}

nb::ndarray<nb::numpy, float> owned(std::vector<float> values, std::vector<std::size_t> shape) {
  auto* memory = new std::vector<float>(std::move(values));
  const nb::capsule owner(memory, [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  return {memory->data(), shape.size(), shape.data(), owner};
}

// What a slot holds of a layer: window [taps - 1, channels] and matrices [v_heads, key_dim, value_dim].
nb::tuple read_state(Program& program, int slot, int layer) {
  const StateStore& store = program.state();
  check(slot >= 0 && slot < store.slots(), "state slot", slot, store.slots());
  check(layer >= 0 && layer < static_cast<int>(store.layers().size()), "recurrent layer", layer,
        static_cast<long>(store.layers().size()));
  const StateLayer& l = store.layers()[layer];
  const auto size = [](int n) { return static_cast<std::size_t>(n); };
  std::vector<float> window, matrix;
  for (int r = 0; r + 1 < l.taps; ++r) {
    const float* row = store.window(slot, layer) + size(r) * l.window_stride;
    window.insert(window.end(), row, row + l.channels);
  }
  for (int head = 0; head < l.v_heads; ++head)
    for (int i = 0; i < l.key_dim; ++i)
      for (int column = 0; column < l.value_dim; column += kLanes) {
        const float* block = store.matrix(slot, layer, head, column / kLanes) + size(i) * kLanes;
        matrix.insert(matrix.end(), block, block + std::min(kLanes, l.value_dim - column));
      }
  return nb::make_tuple(owned(std::move(window), {size(l.taps - 1), size(l.channels)}),
                        owned(std::move(matrix), {size(l.v_heads), size(l.key_dim), size(l.value_dim)}));
}

}  // namespace

void bind_program(nb::module_& m) {
  using V3 = std::tuple<int, int, int>;
  m.attr("PAGE_TOKENS") = kPageTokens;
  m.attr("MAX_HEAD_DIM") = kMaxHeadDim;
  m.def(
      "targets",
      [] {
        nb::list out;
        for (const Target& t : targets())
          out.append(nb::make_tuple(t.name, t.table == nullptr ? std::string("not built for this architecture")
                                                               : t.missing));
        return out;
      },
      "Instruction-set targets, slowest first: (name, empty or the reason why it cannot run here).");
  nb::class_<Program>(m, "Program", "A recorded graph bound to kernels, weights and buffers; see native/core/program.h.")
      .def("__init__",
           [](Program* p, int threads, const std::string& isa, int numerics, int max_rows, int max_logit_rows) {
             check(numerics >= 0 && numerics <= static_cast<int>(Numerics::a8g32), "numerics", numerics,
                   static_cast<long>(Numerics::a8g32));
             new (p) Program(threads, isa, static_cast<Numerics>(numerics), max_rows, max_logit_rows);
           },
           "threads"_a, "isa"_a, "numerics"_a, "max_rows"_a, "max_logit_rows"_a)
      .def("add_weight",
           [](Program& p, Array1<std::uint8_t> data, int format, int n, int k) {
             check(format >= 0 && format <= static_cast<int>(WeightFormat::fp8), "weight format", format,
                   static_cast<long>(WeightFormat::fp8));
             return p.add_weight(data.data(), data.size(), static_cast<WeightFormat>(format), n, k);
           },
           "data"_a.noconvert(), "format"_a, "n"_a, "k"_a, nb::keep_alive<1, 2>())
      .def("add_vector", [](Program& p, Array1<float> data) { return p.add_vector(data.data(), static_cast<int>(data.size())); },
           "data"_a.noconvert(), nb::keep_alive<1, 2>())
      .def("add_slot", &Program::add_slot, "width"_a, "logit_rows"_a)
      .def("set_kv",
           [](Program& p, int format, const std::vector<std::pair<int, int>>& layers) {
             return p.set_kv(static_cast<KVFormat>(format), layers);
           },
           "format"_a, "heads_and_dims"_a)
      .def("add_state_layer",
           [](Program& p, int channels, int taps, int v_heads, int key_dim, int value_dim, int key_width) {
             p.state().add_layer(channels, taps, v_heads, key_dim, value_dim, key_width);
           },
           "channels"_a, "taps"_a, "v_heads"_a, "key_dim"_a, "value_dim"_a, "key_width"_a)
      .def("plan_state",
           [](Program& p, int slots, int journals, int rows) { return p.state().plan(slots, journals, rows); },
           "slots"_a, "journals"_a, "journal_rows"_a, "Bytes of so many state slots and journals.")
      .def("read_state", &read_state, "slot"_a, "layer"_a)
      .def("embedding", [](Program& p, int weight, V3 out) { p.add_node(EmbeddingNode{weight, view(out)}); })
      .def("rms_norm", [](Program& p, V3 x, int vector, int heads, float eps, V3 out) {
        p.add_node(NormNode{Norm::rms, view(x), view(x), vector, heads, eps, 1.0f, view(out)});
      })
      .def("gated_rms_norm", [](Program& p, V3 x, V3 z, int vector, int heads, float eps, V3 out) {
        p.add_node(NormNode{Norm::gated_rms, view(x), view(z), vector, heads, eps, 1.0f, view(out)});
      })
      .def("l2_norm", [](Program& p, V3 x, int heads, float eps, float scale, V3 out) {
        p.add_node(NormNode{Norm::l2, view(x), view(x), -1, heads, eps, scale, view(out)});
      })
      .def("linear",
           [](Program& p, V3 x, std::vector<int> weights, V3 out, std::optional<V3> residual) {
             p.add_node(LinearNode{view(x), std::move(weights), view(out), residual.has_value(),
                                   residual ? view(*residual) : View{}, {}});
           },
           "x"_a, "weights"_a, "out"_a, "residual"_a.none())
      .def("rope_angles", [](Program& p, std::vector<double> frequencies, double magnitude, V3 out) {
        p.add_node(RopeAnglesNode{std::move(frequencies), magnitude, view(out)});
      })
      .def("rope", [](Program& p, V3 x, V3 angles, int heads, int dim, V3 out) {
        p.add_node(RopeNode{view(x), view(angles), heads, dim, view(out)});
      })
      .def("kv_append", [](Program& p, int layer, V3 k, V3 v) { p.add_node(KVAppendNode{layer, view(k), view(v)}); })
      .def("paged_attention", [](Program& p, int layer, V3 q, int heads, float scale, bool causal, int window, V3 out) {
        p.add_node(AttentionNode{layer, view(q), heads, scale, causal, window, view(out)});
      })
      .def("silu_mul", [](Program& p, V3 x, V3 gate, V3 out) {
        p.add_node(GateNode{Gate::silu, view(x), view(gate), view(out)});
      })
      .def("sigmoid_mul", [](Program& p, V3 x, V3 gate, V3 out) {
        p.add_node(GateNode{Gate::sigmoid, view(x), view(gate), view(out)});
      })
      .def("delta_gates", [](Program& p, V3 a, V3 b, int decay, int dt_bias, V3 out) {
        p.add_node(DeltaGatesNode{view(a), view(b), decay, dt_bias, view(out)});
      })
      .def("causal_conv", [](Program& p, int layer, V3 u, int vector, V3 out) {
        p.add_node(CausalConvNode{layer, view(u), vector, view(out)});
      })
      .def("dynamic_conv",
           [](Program& p, V3 z, V3 d, int vector, int first, int taps, V3 out, std::optional<V3> residual) {
             p.add_node(DynamicConvNode{view(z), view(d), vector, first, taps, view(out), residual.has_value(),
                                        residual ? view(*residual) : View{}});
           },
           "z"_a, "d"_a, "vector"_a, "first"_a, "taps"_a, "out"_a, "residual"_a.none())
      .def("gated_delta_rule", [](Program& p, int layer, V3 q, V3 k, V3 v, V3 gates, int k_heads, V3 out) {
        p.add_node(DeltaRuleNode{layer, view(q), view(k), view(v), view(gates), k_heads, view(out)});
      })
      .def("select_rows", [](Program& p, V3 x, V3 out) { p.add_node(SelectRowsNode{view(x), view(out)}); })
      .def("share_threads", &Program::share_threads, "other"_a, "Use the threads of a program that never runs at once.")
      .def("plan", &Program::plan, "num_pages"_a)
      .def("finish",
           [](Program& p, nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> kv, std::size_t page_bytes,
              int num_pages, nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> state) {
             check(kv.size() >= page_bytes * static_cast<std::size_t>(num_pages), "KV bytes", static_cast<long>(kv.size()),
                   static_cast<long>(page_bytes * num_pages));
             const StateStore& store = p.state();
             const std::size_t needed = p.state().plan(store.slots(), store.journals(), store.journal_rows());
             check(state.size() >= needed, "state bytes", static_cast<long>(state.size()), static_cast<long>(needed));
             p.finish(kv.data(), num_pages, state.data());
           },
           "kv"_a.noconvert(), "page_bytes"_a, "num_pages"_a, "state"_a.noconvert(), nb::keep_alive<1, 2>(),
           nb::keep_alive<1, 5>())
      .def("run", &run, "token_ids"_a.noconvert(), "sequences"_a.noconvert(), "pages"_a.noconvert(),
           "logit_rows"_a.noconvert(), "saves"_a)
      .def("slot_array", &slot_array, "slot"_a)
      .def_prop_ro("isa", &Program::isa)
      .def_prop_ro("workspace_bytes", &Program::workspace_bytes)
      .def_prop_ro("scratch_bytes", &Program::scratch_bytes)
      .def("set_profiling", &Program::set_profiling, "on"_a,
           "Start (from zero) or stop adding up the nanoseconds of every node on thread 0, barriers included.")
      .def_prop_ro("node_ns", &Program::node_ns, "Nanoseconds by node, in the order the nodes were added.")
      .def_prop_ro("last_run_ns", &Program::last_run_ns);
}
