#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Shows that tests/gpu/run says what is missing where there is no GPU, and runs through and prints its table on the fake
# driver, from a build and from an unpacked bundle: run_test.sh CASE BUILD_FOLDER FAKE_DRIVER
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export TERRACE_BUILD=$2
export TERRACE_TEST_FOLDER=$2/tests
unset TERRACE_CUDA_LIBRARY
control=$(mktemp)
said=$(mktemp)
trap 'rm -f "$control" "$said"' EXIT
head -c 4096 /dev/zero >"$control"
export TERRACE_FAKE_CUDA_CONTROL=$control

# was_called: the fake counted something.
was_called() { cmp -s "$control" <(head -c 4096 /dev/zero) && { echo "the fake driver was not called" >&2; exit 1; }; return 0; }

case $1 in
  says_there_is_no_gpu)
    # With a driver that gives no device, whatever this machine has.
    printf '\x09' | dd of="$control" conv=notrunc status=none
    if TERRACE_CUDA_LIBRARY=$3 "$here/run" --small >"$said" 2>&1; then
      echo "it ran without a GPU" >&2
      exit 1
    fi
    cat "$said"
    grep -q 'CUDA_ERROR_NO_DEVICE (100)' "$said"
    if [ ! -e /dev/nvidiactl ]; then
      if "$here/run" --small >"$said" 2>&1; then exit 1; fi
      grep -q 'there is no NVIDIA GPU here' "$said"
    fi
    ;;
  prints_its_table_on_the_fake)
    TERRACE_CUDA_LIBRARY=$3 "$here/run" --small 2>&1 | tee "$said"
    for row in up down both small lease miss block context train; do
      [ "$(grep -c "^| .hbm.$row. |" "$said")" = 1 ] || { echo "not one row: hbm.$row" >&2; exit 1; }
    done
    for row in up down both small block; do # beside its reference, which was measured several times
      grep "^| .hbm.$row. |" "$said" | grep -Eq '[0-9] to [0-9]' || { echo "no interval: hbm.$row" >&2; exit 1; }
    done
    [ "$(grep -c '^a trainer.s lease in HBM, after the daemon was killed: kept$' "$said")" = 1 ]
    [ "$(grep -c '^what was in HBM alone, served by the next daemon: kept$' "$said")" = 1 ]
    [ "$(grep -c '^|---' "$said")" = 1 ] || { echo "not one table" >&2; exit 1; }
    grep -q '^run: ok$' "$said"
    ;;
  runs_from_a_bundle)
    # The folder is moved away from where it was made.
    "$here/../../deploy/bundle"
    elsewhere=$(mktemp -d "$TERRACE_TEST_FOLDER/bundle-XXXXXX")
    trap 'rm -rf "$control" "$said" "$elsewhere"' EXIT
    tar -xzf "$here"/../../build/bundle/terrace-*.tar.gz -C "$elsewhere"
    unset TERRACE_BUILD
    TERRACE_CUDA_LIBRARY=$3 "$elsewhere/terrace/run-on-gpu" --small 2>&1 | tee "$said"
    grep -q '^run: ok$' "$said"
    "$elsewhere/terrace/bin/terrace-bench" engine copy --quick --force --dir "$elsewhere" >"$said"
    grep -q '^copy.down ' "$said"
    ;;
esac
was_called
