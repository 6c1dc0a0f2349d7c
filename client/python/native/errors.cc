// SPDX-License-Identifier: Apache-2.0
#include "errors.h"

#include <nanobind/stl/string.h>

#include <cstdint>

namespace terrace::python {

namespace nb = nanobind;

void raise(const Error& error) {
  const nb::object made =
      nb::module_::import_("terrace._errors")
          .attr("from_code")(static_cast<std::uint32_t>(error.code), error.message, error.system_error);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
  throw nb::python_error();
}

}  // namespace terrace::python
