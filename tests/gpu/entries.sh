# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154
# The entries of tests/gpu/run's queue, which sources this: each prints what it does, rows of the table that begin with '| `',
# and 'result: ' with what is to stand in the summary. Whatever is started ends with the entry.

work=$TERRACE_TEST_FOLDER # the entry's own
sockets=$(mktemp -d)
daemon=
finish() {
  [ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true
  [ -z "$daemon" ] || wait "$daemon" || true
  rm -rf "$sockets"
}
trap finish EXIT
trap 'exit 1' TERM
terraced=$(program terraced)

# gib KIB: in whole GiB.
gib() { printf '%s' $(($1 / 1048576)); }

# configure: what the daemon is to own. Beside the set that comes from the disk lie 3 GiB of other tensors.
configure() {
  local disk_gib memory_gib sizes
  if [ -n "$small" ]; then
    sizes=(16MiB 32MiB 96MiB)
    measured=(--small)
  else
    disk_gib=$(gib "$(df --output=avail -k "$work" | tail -n 1)")
    memory_gib=$(gib "$(awk '/^MemAvailable/ { print $2 }' /proc/meminfo)")
    [ "$disk_gib" -ge 8 ] || fail "$work has $disk_gib GiB free, and the figures take 8 at least: run it in a folder on another disk"
    [ "$memory_gib" -ge 10 ] || fail "$memory_gib GiB of memory are free, and the figures take 10"
    if [ $((set_gib + 5)) -gt "$disk_gib" ]; then
      echo "the set from the disk is $((disk_gib - 5)) GiB instead of $set_gib: $work has $disk_gib GiB free"
      set_gib=$((disk_gib - 5))
    fi
    sizes=(4GiB 6GiB "$((set_gib + 4))GiB")
    measured=(--set "$set_gib")
  fi
  cat >"$work/terraced.toml" <<END
metrics_address = ""
[sockets]
data = "$sockets/data.sock"
grpc = "$sockets/terraced.sock"
admin = "$sockets/admin.sock"
[[tier]]
kind = "device"
device = "cuda:0"
capacity = "${sizes[0]}"
[[tier]]
kind = "memory"
capacity = "${sizes[1]}"
[[tier]]
kind = "block"
capacity = "${sizes[2]}"
paths = ["$work/block"]
END
}

# start ARGUMENT...: terraced in the background, and waits until it serves.
start() {
  "$terraced" "$@" >"$work/daemon" 2>&1 &
  daemon=$!
  for _ in $(seq 600); do
    [ -S "$sockets/data.sock" ] && return
    kill -0 "$daemon" 2>/dev/null || { cat "$work/daemon"; fail "terraced did not start"; }
    sleep 0.1
  done
  fail "terraced did not serve within a minute"
}
stop() {
  kill "$daemon"
  wait "$daemon" || { tail -n 20 "$work/daemon"; fail "terraced did not stop cleanly"; }
  daemon=
}

# with_torch: sets python to one with PyTorch for CUDA and the terrace package, its own or the bundle's; else says why not, and
# ends the entry. On the fake it is build/venv's, with the test device.
with_torch() {
  python=${PYTHON:-python3}
  if [ -n "$fake" ]; then
    python=$here/../../build/venv/bin/python
    [ -x "$python" ] || { echo "result: left out: there is no build/venv (deploy/venv test makes it)"; exit; }
    export FAKE_CUDA=$TERRACE_CUDA_LIBRARY TERRACE_BUILD=${TERRACE_BUILD:-$here/../../build/release}
    export PYTHONPATH=$here/torch_device:$here/../e2e
  elif ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    echo "result: left out: $python has no PyTorch for CUDA (name another in PYTHON)"
    exit
  elif ! "$python" -c 'import terrace' 2>/dev/null; then
    if ! "$python" -m pip install -q --no-deps --target "$work/site" "$here"/python/*.whl; then
      echo "result: left out: the terrace package does not fit $python (name another in PYTHON)"
      exit
    fi
    export PYTHONPATH=$work/site
  fi
  export PYTHONDONTWRITEBYTECODE=1
}

# row NAME BAR FIGURE VALUE REFERENCE: one of the table; the bar holds where FIGURE is no more than BAR.
row() {
  local holds
  holds=$(awk -v bar="$2" -v figure="$3" 'BEGIN { print figure == "" ? "not measured" : figure + 0 <= bar + 0 ? "ratio" : "**missed**" }')
  printf "| \`%s\` | <= %s | %s | %s | %s | | | %s |\n" "$1" "$2" "$3" "$4" "$5" "$holds"
}

# The entries ------------------------------------------------------------------------------------------------------------

entry_torch() {
  with_torch
  local tests=("$here"/python_gpu.py "$here"/python_gpu_training.py "$here"/python_gpu_masters.py)
  [ -z "$fake" ] || tests=("$here"/python_cuda.py)
  "$python" -c 'import pytest' 2>/dev/null || { echo "result: left out: $python has no pytest"; exit; }
  TERRACED=$terraced TERRACE_WHAT=all TERRACE_TEST_FOLDER=$work env ${fake:+-u TERRACE_FAKE_CUDA_CONTROL} "$python" -m pytest -o addopts= -q -p no:cacheprovider --tb=short "${tests[@]}" | tee "$work/said" ||
    fail "the tests failed: $(grep -E '^(FAILED|ERROR)' "$work/said" | head -n 3 | tr '\n' ' ')"
  echo "result: $(tail -n 1 "$work/said")"
}

entry_conformance() {
  TERRACE_TEST_FOLDER=$work "$(program cuda_conformance_test)" --gtest_brief=1 >"$work/said" 2>&1 ||
    { tail -n 40 "$work/said"; fail "conformance failed"; }
  echo "result: $(grep -E 'PASSED|SKIPPED' "$work/said" | sed 's/^\[ *\([A-Z]*\) *\] *\(.*\)\.$/\L\1 \2/' | paste -sd, | sed 's/,/, /g')"
}

entry_links() {
  configure
  start --config "$work/terraced.toml"
  grep '^tier' "$work/daemon"
  "$(program cuda_bench)" "$sockets/data.sock" "$work/block" "${measured[@]}" >"$work/figures" ||
    { tail -n 20 "$work/daemon"; fail "the benchmark failed"; }
  local context
  context=$("$(program terracectl)" --socket "$sockets/admin.sock" --json status |
    sed -n 's/.*"context_bytes": *"\{0,1\}\([1-9][0-9]*\).*/\1/p' | head -n 1) # 0: NVML does not say
  "$(program terracectl)" --socket "$sockets/admin.sock" status >"$work/status" || fail "terracectl does not answer"
  stop
  grep '^| `' "$work/figures"
  row hbm.context 300 "${context:+$((context / 1048576))}" "${context:+$((context / 1048576)) MiB of HBM that the daemon takes itself}" ""
  echo "result: $(tail -n 1 "$work/figures")"
}

entry_training() {
  with_torch
  local device=cuda:0
  [ -z "$fake" ] || device=fakegpu:0
  "$python" "$here/train_bars.py" --terraced "$terraced" --folder "$work" --device "$device" ${small:+--small} | tee "$work/said"
  echo "result: $(grep -c '| ratio |$' "$work/said" || true) of $(grep -c '^| `' "$work/said") bars hold, losses equal in $(grep -c 'losses equal' "$work/said" || true)"
}

entry_survival() {
  configure
  sed -i 's/^device = .*/&\nwrite_back = "late"/' "$work/terraced.toml" # so that nothing else has the bytes
  start supervise --program "$terraced" --config "$work/terraced.toml"
  local served
  read -r served _ <"/proc/$daemon/task/$daemon/children" || true # which ends without a newline
  [ -n "$served" ] || fail "the supervisor has no daemon"
  "$(program cuda_survival)" "$sockets/data.sock" "$served" | tee "$work/said" || { tail -n 20 "$work/daemon"; fail "survival could not be tried"; }
  stop
  echo "result: $(sed 's/.*: //' "$work/said" | paste -sd, | sed 's/,/, /g')"
}

entry_demo() {
  local example=$here/examples/train_gpt.py overhead
  [ -e "$example" ] || example=$here/../../client/python/examples/train_gpt.py
  [ -z "$small" ] || { echo "result: left out: it is not small"; exit; }
  with_torch
  "$python" "$example" --terraced "$terraced" --gpu cuda:0 --memory 1GiB --block "$work" --json "$work/demo.json" || fail "the demo failed"
  overhead=$(sed -n 's/.*"overhead": *\([0-9.]*\).*/\1/p' "$work/demo.json")
  row hbm.train 1.10 "$overhead" "train_gpt, HBM for a quarter of its tensors" "all in HBM, without Terrace"
  echo "result: $overhead"
}

entry_sanitizer() {
  command -v compute-sanitizer >/dev/null || { echo "result: left out: compute-sanitizer is not installed"; exit; }
  small=1
  configure
  start --config "$work/terraced.toml"
  compute-sanitizer --error-exitcode 9 "$(program cuda_bench)" "$sockets/data.sock" "$work/block" --small >"$work/said" 2>&1 ||
    { tail -n 40 "$work/said"; fail "compute-sanitizer found something"; }
  stop
  echo "result: $(tail -n 1 "$work/said")"
}
