# SPDX-License-Identifier: Apache-2.0
# The gRPC API, terracectl and /metrics of the real daemon, from programs that have nothing of ours but the .proto files.
foreach(suite grpc_service grpc_bad_input grpc_lifecycle terracectl terracectl_plan prometheus)
  add_test(NAME e2e.${suite}
    COMMAND ${PROJECT_SOURCE_DIR}/build/venv/bin/python -B -m pytest -q -p no:cacheprovider -rs
            ${CMAKE_CURRENT_LIST_DIR}/${suite}.py
    WORKING_DIRECTORY ${CMAKE_CURRENT_LIST_DIR})
  set_tests_properties(e2e.${suite} PROPERTIES TIMEOUT 300
    ENVIRONMENT "TERRACE_BUILD=${CMAKE_BINARY_DIR};PYTHONDONTWRITEBYTECODE=1")
endforeach()
