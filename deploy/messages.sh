# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# How the scripts of this folder speak: sourced by each of them, never run.

# step WHAT TIME: announces a step and how long it should take.
step() { printf '\n==> %s (%s)\n' "$1" "$2"; }

# say TEXT: one line below a step.
say() { printf '    %s\n' "$1"; }

# fail TEXT...: says on stderr why the script stops, one line each, and stops it.
fail() {
  printf '%s: %s\n' "${0##*/}" "$1" >&2
  shift
  for line in "$@"; do printf '    %s\n' "$line" >&2; done
  exit 1
}

# logged LOG COMMAND...: runs a command with its output in LOG; on failure shows the log's end and fails.
logged() {
  local log=$1
  shift
  mkdir -p "$(dirname "$log")"
  if ! "$@" >"$log" 2>&1 </dev/null; then
    tail -n 12 "$log" >&2
    return 1
  fi
}

# free_mib PATH: what is free on the file system of PATH (or of its nearest ancestor that exists), in MiB.
free_mib() {
  local path=$1
  while [ ! -e "$path" ]; do path=$(dirname "$path"); done
  df --output=avail -BM "$path" | tail -n 1 | tr -dc 0-9
}
