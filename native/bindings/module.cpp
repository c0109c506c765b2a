// The one compiled module: argument checks and array conversion only.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_program(nb::module_& m);
void bind_memory(nb::module_& m);
void bind_bench(nb::module_& m);

NB_MODULE(_native, m) {
  m.doc() = "Native kernels of the CPU backend.";
  bind_memory(m);
  bind_program(m);
  bind_bench(m);
}
