#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

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

// Everything that a wrong step could make the kernels read or write out of bounds is refused here.
void run(Program& program, Array1<std::int32_t> token_ids, Array2 sequences, Array1<std::int32_t> pages,
         Array1<std::int32_t> logit_rows) {
  Step step;
  step.rows = static_cast<int>(token_ids.shape(0));
  step.token_ids = token_ids.data();
  step.logit_rows = static_cast<int>(logit_rows.shape(0));
  step.logit_row_ids = logit_rows.data();
  check(step.rows >= 1 && step.rows <= program.max_rows(), "rows", step.rows, program.max_rows());
  check(step.logit_rows <= program.max_logit_rows(), "logit rows", step.logit_rows, program.max_logit_rows());
  check(sequences.shape(1) == 4, "columns of sequences", static_cast<long>(sequences.shape(1)), 4);
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
  int next = 0;
  for (std::size_t i = 0; i < sequences.shape(0); ++i) {
    const std::int32_t* s = sequences.data() + 4 * i;
    const long start = s[0], count = s[1], position = s[2], first_page = s[3];
    check(start == next, "first row of a sequence", start, next);
    check(count >= 1 && count <= step.rows - start, "rows of a sequence", count, step.rows - start);
    check(position >= 0, "position of a sequence", position, 0);
    const long needed = (position + count + kPageTokens - 1) / kPageTokens;
    const long given = static_cast<long>(pages.shape(0)) - first_page;
    if (program.num_pages() > 0)
      check(first_page >= 0 && needed <= given, "pages needed by a sequence", needed, given);
    step.sequences.push_back({s[0], s[1], s[2], pages.data() + first_page});
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
      .def(nb::init<int, const std::string&, bool, int, int>(), "threads"_a, "isa"_a, "a8"_a, "max_rows"_a,
           "max_logit_rows"_a)
      .def("add_weight",
           [](Program& p, Array1<std::uint8_t> data, int format, int n, int k) {
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
      .def("embedding", [](Program& p, int weight, V3 out) { p.add_node(EmbeddingNode{weight, view(out)}); })
      .def("rms_norm", [](Program& p, V3 x, int vector, float eps, V3 out) {
        p.add_node(RmsNormNode{view(x), vector, eps, view(out)});
      })
      .def("linear",
           [](Program& p, V3 x, std::vector<int> weights, V3 out, std::optional<V3> residual) {
             p.add_node(LinearNode{view(x), std::move(weights), view(out), residual.has_value(),
                                   residual ? view(*residual) : View{}});
           },
           "x"_a, "weights"_a, "out"_a, "residual"_a.none())
      .def("rope_angles", [](Program& p, std::vector<double> inv_freq, V3 out) {
        p.add_node(RopeAnglesNode{std::move(inv_freq), view(out)});
      })
      .def("rope", [](Program& p, V3 x, V3 angles, int heads, int dim, V3 out) {
        p.add_node(RopeNode{view(x), view(angles), heads, dim, view(out)});
      })
      .def("kv_append", [](Program& p, int layer, V3 k, V3 v) { p.add_node(KVAppendNode{layer, view(k), view(v)}); })
      .def("paged_attention", [](Program& p, int layer, V3 q, int heads, float scale, V3 out) {
        p.add_node(AttentionNode{layer, view(q), heads, scale, view(out)});
      })
      .def("silu_mul", [](Program& p, V3 x, V3 out) { p.add_node(SiluMulNode{view(x), view(out)}); })
      .def("select_rows", [](Program& p, V3 x, V3 out) { p.add_node(SelectRowsNode{view(x), view(out)}); })
      .def("plan", &Program::plan, "num_pages"_a)
      .def("finish",
           [](Program& p, nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> kv, std::size_t page_bytes,
              int num_pages) {
             check(kv.size() >= page_bytes * static_cast<std::size_t>(num_pages), "KV bytes", static_cast<long>(kv.size()),
                   static_cast<long>(page_bytes * num_pages));
             p.finish(kv.data(), num_pages);
           },
           "kv"_a.noconvert(), "page_bytes"_a, "num_pages"_a, nb::keep_alive<1, 2>())
      .def("run", &run, "token_ids"_a.noconvert(), "sequences"_a.noconvert(), "pages"_a.noconvert(),
           "logit_rows"_a.noconvert())
      .def("slot_array", &slot_array, "slot"_a)
      .def_prop_ro("isa", &Program::isa)
      .def_prop_ro("workspace_bytes", &Program::workspace_bytes)
      .def_prop_ro("scratch_bytes", &Program::scratch_bytes)
      .def("set_profiling", &Program::set_profiling, "on"_a,
           "Start (from zero) or stop adding up the nanoseconds of every node on thread 0, barriers included.")
      .def_prop_ro("node_ns", &Program::node_ns, "Nanoseconds by node, in the order the nodes were added.")
      .def_prop_ro("last_run_ns", &Program::last_run_ns);
}
