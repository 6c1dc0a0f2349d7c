// SPDX-License-Identifier: Apache-2.0
// The extension module terrace._terrace. The package's Python files add what needs no C++; _terrace.pyi documents both.
#include <nanobind/nanobind.h>

#include "client.h"
#include "lease.h"
#include "placeholder.h"

NB_MODULE(_terrace, module) {
  // Leases and clients may well live to the interpreter's end: the daemon sees the process go.
  nanobind::set_leak_warnings(false);
  module.attr("SOURCE_TREE") = TERRACE_SOURCE_TREE;
  terrace::python::bind_lease(module);
  terrace::python::bind_client(module);
  terrace::python::bind_placeholder(module);
}
