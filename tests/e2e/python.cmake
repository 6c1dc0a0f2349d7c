# SPDX-License-Identifier: Apache-2.0
# The Python package against the real daemon, and what speaks to it with nothing of ours but the .proto files.
# With a sanitizer, the daemon is what is tested; what hangs on Python alone the plain builds test.
set(suites python_leases python_lifetime python_sets python_fork python_serve python_shares python_guarantees
           grpc_service grpc_bad_input grpc_lifecycle terracectl terracectl_first_steps prometheus dashboards)
if(NOT TERRACE_SANITIZE)
  list(APPEND suites python_docs python_demo python_typing terracectl_plan)
endif()
foreach(suite ${suites})
  terrace_pytest(e2e.${suite} ${suite}.py)
endforeach()
if(NOT TERRACE_SANITIZE)
  set_tests_properties(e2e.python_demo PROPERTIES COST 500 PROCESSORS 2 TIMEOUT 900)
  set_tests_properties(e2e.python_docs PROPERTIES COST 500 PROCESSORS 2) # ranks that wait for each other
endif()
