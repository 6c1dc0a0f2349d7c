# SPDX-License-Identifier: Apache-2.0
# The Python package against the real daemon: each file a test, run by build/venv's Python (deploy/venv test makes it).
# With a sanitizer, the daemon is what is tested; what hangs on Python alone, or takes long, the plain builds test.
set(python_suites leases lifetime sets fork serve shares guarantees)
if(NOT TERRACE_SANITIZE)
  list(APPEND python_suites docs activations activations_ahead activations_made_again activations_unseen demo stage typing torch torch_scripts
                            torch_states torch_compiled torch_interrupts torch_files torch_docs torch_step_in_backward
                            torch_refused torch_aliases torch_heap torch_init torch_matrix torch_steps torch_order
                            torch_progress torch_summary torch_places torch_parts torch_elementwise torch_casts torch_phases torch_grown
                            torch_odd_models torch_odd_optimizers torch_tried optimizers torch_gradients_set torch_transforms
                            torch_masters torch_masters_kept torch_autocast torch_autocast_kept quantized qlora
                            huggingface ranks ddp fsdp share_frozen)
endif()
# Suites run side by side: a thread of PyTorch's that waits is to sleep, and not to take another suite's core.
foreach(suite ${python_suites})
  add_test(NAME e2e.python_${suite}
    COMMAND ${PROJECT_SOURCE_DIR}/build/venv/bin/python -B -m pytest -q -p no:cacheprovider -rs
            ${CMAKE_CURRENT_LIST_DIR}/python_${suite}.py
    WORKING_DIRECTORY ${CMAKE_CURRENT_LIST_DIR})
  set_tests_properties(e2e.python_${suite} PROPERTIES TIMEOUT 600
    ENVIRONMENT "TERRACED=${CMAKE_BINARY_DIR}/terraced;TERRACE_BUILD=${CMAKE_BINARY_DIR};PYTHONDONTWRITEBYTECODE=1;OMP_WAIT_POLICY=passive")
endforeach()
if(NOT TERRACE_SANITIZE)
  set_tests_properties(e2e.python_demo PROPERTIES PROCESSORS 2 TIMEOUT 900)
  # Ranks that wait for each other.
  set_tests_properties(e2e.python_ddp e2e.python_docs e2e.python_fsdp e2e.python_share_frozen PROPERTIES PROCESSORS 2)
endif()
