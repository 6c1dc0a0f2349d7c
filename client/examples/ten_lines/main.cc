// SPDX-License-Identifier: Apache-2.0
// Ten lines: a tensor of a million floats, written, sent to the bottom of the hierarchy, and read back from there.
#include <terrace/client.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

int main() {
  auto client = terrace::Client::connect();
  if (!client) return std::fprintf(stderr, "%s\n", client.error().message.c_str()), 1;
  auto tensor = client->create({.name = "numbers", .dtype = terrace::DType::kFloat32, .shape = {1000, 1000}}).value();
  auto write = client->acquire(tensor, {.mode = terrace::Mode::kOverwrite}).value();
  std::ranges::fill(write.span<float>(), 0.5f);
  write.release().value();
  client->swap_out({&tensor, 1}).value();
  auto read = client->acquire(tensor).value();
  auto numbers = read.span<const float>();
  std::printf("sum of %zu numbers: %.1f\n", numbers.size(), std::accumulate(numbers.begin(), numbers.end(), 0.0));
}
