#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Shows that tests/gpu/run says what is missing where there is no GPU, works through its queue on the fake driver, within its
# time and with whole results, and runs from an unpacked bundle: run_test.sh CASE BUILD_FOLDER FAKE_DRIVER
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export TERRACE_BUILD=$2
export TERRACE_TEST_FOLDER=$2/tests
unset TERRACE_CUDA_LIBRARY
control=$(mktemp)
said=$(mktemp)
results=$(mktemp -d)
trap 'rm -rf "$control" "$said" "$results"' EXIT
head -c 4096 /dev/zero >"$control"
export TERRACE_FAKE_CUDA_CONTROL=$control

# was_called: the fake counted something.
was_called() { cmp -s "$control" <(head -c 4096 /dev/zero) && { echo "the fake driver was not called" >&2; exit 1; }; return 0; }

case $1 in
  says_there_is_no_gpu)
    # With a driver that gives no device, whatever this machine has.
    printf '\x09' | dd of="$control" conv=notrunc status=none
    if TERRACE_CUDA_LIBRARY=$3 "$here/run" --small --only conformance --only links --results "$results" >"$said" 2>&1; then
      echo "it ran without a GPU" >&2
      exit 1
    fi
    cat "$said"
    grep -q 'CUDA_ERROR_NO_DEVICE (100)' "$said"
    if [ ! -e /dev/nvidiactl ]; then
      if "$here/run" --small --results "$results" >"$said" 2>&1; then exit 1; fi
      grep -q 'there is no NVIDIA GPU here' "$said"
    fi
    ;;
  works_through_its_queue_on_the_fake)
    "$here/run" --fake --minutes 5 --results "$results" 2>&1 | tee "$said"
    summary=$results/summary.md
    "$here/run" --list | grep -o '^[a-z]*' | while read -r entry; do
      [ "$(grep -c "^| $entry | [0-9]* | [^*]" "$summary")" = 1 ] || { echo "not one good result: $entry" >&2; exit 1; }
      [ -s "$results/$entry.txt" ] || { echo "no output: $entry" >&2; exit 1; }
    done
    for row in up down both small lease miss block context train.fp32 train.backward train.masters train.host; do
      [ "$(grep -c "^| .hbm.$row. |" "$summary")" = 1 ] || { echo "not one row: hbm.$row" >&2; exit 1; }
    done
    for row in up down both small block; do # beside its reference, which was measured several times
      grep "^| .hbm.$row. |" "$summary" | grep -Eq '[0-9] to [0-9]' || { echo "no interval: hbm.$row" >&2; exit 1; }
    done
    [ "$(grep '^|' "$summary" | tail -n 14 | sed 's/[^|]//g' | sort -u | wc -l)" = 1 ] || { echo "rows of different lengths" >&2; exit 1; }
    [ "$(grep -c '^a trainer.s lease in HBM, after the daemon was killed: kept$' "$results/survival.txt")" = 1 ]
    [ "$(grep -c '^what was in HBM alone, served by the next daemon: kept$' "$results/survival.txt")" = 1 ]
    grep -q '^run: ok$' "$said"
    ;;
  keeps_to_its_time_and_says_what_failed)
    TERRACE_CUDA_LIBRARY=$3 "$here/run" --minutes 1 --only torch --only links --results "$results" >"$said" 2>&1
    grep -q '^| links | | left out: it may take 150 s, and [0-9]* are left |$' "$results/summary.md"
    # A driver whose copies fail.
    if TERRACE_CUDA_LIBRARY=/no/such/driver "$here/run" --small --only conformance --results "$results" >"$said" 2>&1; then exit 1; fi
    grep -q '^| conformance | [0-9]* | \*\*failed\*\*: ' "$results/summary.md"
    grep -q 'run: failed: conformance' "$said"
    for name in nothing 'link.'; do
      if "$here/run" --only "$name" >"$said" 2>&1; then exit 1; fi
      grep -qF "there is no entry $name: --list names them" "$said"
    done
    # It is stopped: what ran is gone, and so is what it had on the disk.
    export TERRACE_TEST_FOLDER=$results/disk
    mkdir "$results/disk" "$results/stopped"
    echo mine | tee "$results/stopped/mine.txt" >"$results/stopped/summary.md"
    "$here/run" --fake --only conformance --results "$results/stopped" >"$said" 2>&1 &
    run=$!
    for _ in $(seq 600); do
      [ ! -e "$results/stopped/conformance.txt" ] || break
      sleep 0.1
    done
    if grep mine "$results/stopped/summary.md"; then exit 1; fi # an earlier run's
    kill "$run"
    if wait "$run"; then exit 1; fi
    grep -q '^| conformance | [0-9]* | \*\*stopped\*\* |$' "$results/stopped/summary.md"
    [ -e "$results/stopped/mine.txt" ]
    rmdir "$results/disk"
    exit # the fake is not called
    ;;
  runs_from_a_bundle)
    # The folder is moved away from where it was made.
    "$here/../../deploy/bundle"
    elsewhere=$(mktemp -d "$TERRACE_TEST_FOLDER/bundle-XXXXXX")
    trap 'rm -rf "$control" "$said" "$results" "$elsewhere"' EXIT
    tar -xzf "$here"/../../build/bundle/terrace-*.tar.gz -C "$elsewhere"
    unset TERRACE_BUILD
    TERRACE_CUDA_LIBRARY=$3 "$elsewhere/terrace/run-on-gpu" --small --results "$results" 2>&1 | tee "$said"
    grep -q '^run: ok$' "$said"
    "$elsewhere/terrace/bin/terrace-bench" engine copy --quick --force --dir "$elsewhere" >"$said"
    grep -q '^copy.down ' "$said"
    ;;
esac
was_called
