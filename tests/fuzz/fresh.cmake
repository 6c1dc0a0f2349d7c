# SPDX-License-Identifier: Apache-2.0
# RUNS inputs of libFuzzer's making, beginning with CORPUS; new ones are left in FOUND, and an input that fails too.
file(REMOVE_RECURSE ${FOUND})
file(MAKE_DIRECTORY ${FOUND})
execute_process(COMMAND ${TARGET} ${LIMITS} -runs=${RUNS} -artifact_prefix=${FOUND}/failed- ${FOUND} ${CORPUS}
                RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "${TARGET}: failed; what it failed with lies in ${FOUND}")
endif()
