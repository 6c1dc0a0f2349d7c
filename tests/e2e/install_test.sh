#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Shows that the installed client library is found by find_package(Terrace), and that a program of ten lines outside the
# tree builds against it and works with the daemon; that what is installed measures itself; and that a package is built
# without GoogleTest: install_test.sh SOURCE_FOLDER BUILD_FOLDER
set -euo pipefail
source_folder=$1
build=$2
work=$(mktemp -d "$build/install-XXXXXX")
sockets=$(mktemp -d)
daemon=
finish() {
  [ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true
  [ -z "$daemon" ] || wait "$daemon" || true
  rm -rf "$work" "$sockets"
}
trap finish EXIT

cmake --install "$build" --component client --prefix "$work/prefix" >"$work/log"
if grep -r 'shm/' "$work/prefix/include"; then
  echo "an installed header shows the shared memory's layout" >&2
  exit 1
fi
cp -r "$source_folder/client/examples/ten_lines" "$work/program"
cmake -S "$work/program" -B "$work/out" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" >>"$work/log"
cmake --build "$work/out" >>"$work/log" || { cat "$work/log"; exit 1; }

# Without a daemon its error shows the command that starts one.
if TERRACE_SOCKET=$sockets/data.sock "$work/out/ten_lines" 2>"$work/error"; then exit 1; fi
grep -q 'terraced' "$work/error"

cat >"$work/terraced.toml" <<END
metrics_address = ""
[sockets]
data = "$sockets/data.sock"
grpc = "$sockets/terraced.sock"
admin = "$sockets/admin.sock"
[[tier]]
kind = "memory"
capacity = "16MiB"
[[tier]]
kind = "block"
capacity = "64MiB"
paths = ["$work/block"]
END
"$build/terraced" --config "$work/terraced.toml" >"$work/daemon" 2>&1 &
daemon=$!
for _ in $(seq 600); do
  [ -S "$sockets/data.sock" ] && break
  kill -0 "$daemon" || { cat "$work/daemon"; exit 1; }
  sleep 0.1
done
said=$(TERRACE_SOCKET=$sockets/data.sock "$work/out/ten_lines")
echo "$said"
[ "$said" = "sum of 1000000 numbers: 500000.0" ]

# What README.md installs on a node, by its own name and with nothing of the tree beside it.
cmake --install "$build" --prefix "$work/node" --strip >>"$work/log"
"$work/node/bin/terrace-bench" --version
(cd "$work" && node/bin/terrace-bench engine copy --quick --force --dir "$work" >bench 2>error) || { cat "$work/error"; exit 1; }
for row in engine.requests copy.up copy.down; do grep -q "^$row " "$work/bench"; done
[ -f "$work/node/share/terrace/examples/train_gpt.py" ]

cmake -S "$source_folder" -B "$work/package" -G Ninja -DTERRACE_TESTS=OFF -DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON >>"$work/log"
ninja -C "$work/package" -t targets all >"$work/targets"
grep -q '^terrace-bench: ' "$work/targets"
if grep -iE 'gtest|gmock|_test: ' "$work/targets"; then exit 1; fi
