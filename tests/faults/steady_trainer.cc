// SPDX-License-Identifier: Apache-2.0
// A trainer that works on and on while somebody else harms the daemon, and ends at the first call that fails and at the
// first wrong byte:
//   steady_trainer SOCKET REPORT MEBIBYTES     SOCKET: the daemon's data socket; MEBIBYTES: its tensors, of 1 MiB each
// A round overwrites one tensor, in host memory or on the device, sends every other one down to the disk, and reads
// another one back, comparing every byte. REPORT is replaced after every round:
//   rounds=N reconnects=N longest_ms=N         longest_ms: the longest round so far
// SIGTERM: every tensor is read and compared once more; "every byte right" is added to the report, and the status is 0.
// Else it adds "ended: " with the call and its error, or the tensor and the byte, and the status is 1.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "terrace/client.h"

namespace terrace::faults {
namespace {

constexpr std::uint64_t kTensorBytes = 1 << 20;

volatile std::sig_atomic_t told_to_end = 0;

// The word at `index` of that content of that tensor: to be told from all others.
std::uint64_t word_of(std::uint64_t tensor, std::uint64_t version, std::uint64_t index) {
  std::uint64_t mixed = (tensor * 1'000'003 + version) * 0x9E3779B97F4A7C15u + index;
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9u;
  return mixed ^ (mixed >> 27);
}

class SteadyTrainer {
 public:
  SteadyTrainer(Client client, std::string report) : client_(std::move(client)), report_(std::move(report)) {}

  // Why it could not go on; nothing where it was told to end and all was right.
  std::optional<std::string> work(std::uint64_t count) {
    std::vector<TensorSpec> specs;
    for (std::uint64_t i = 0; i < count; ++i)
      specs.push_back({.name = fmt::format("steady{}", i), .dtype = DType::kInt64, .shape = {kTensorBytes / 8}});
    auto created = client_.create(specs);
    if (!created) return said_of("create", created.error());
    tensors_ = std::move(*created);
    versions_.assign(count, 0);
    for (std::uint64_t round = 0; told_to_end == 0; ++round) {
      const auto begin = std::chrono::steady_clock::now();
      if (auto failed = work_round(round)) return failed;
      longest_ = std::max(longest_, std::chrono::steady_clock::now() - begin);
      rounds_ = round + 1;
      write_report("");
    }
    for (std::uint64_t i = 0; i < count; ++i)
      if (auto failed = read_back(i, Place::host())) return failed;
    return std::nullopt;
  }

  void write_report(const std::string& more) const {
    std::ofstream(report_ + ".next") << fmt::format(
        "rounds={} reconnects={} longest_ms={}\n{}", rounds_, client_.reconnects(),
        std::chrono::duration_cast<std::chrono::milliseconds>(longest_).count(), more);
    std::filesystem::rename(report_ + ".next", report_);
  }

 private:
  // Writes one, and reads the one that was written half a working set ago.
  std::optional<std::string> work_round(std::uint64_t round) {
    const std::uint64_t written = round % tensors_.size();
    const Place place = place_of(round);
    if (auto failed = overwrite(written, round + 1, place)) return failed;
    if (round % 2 == 0) {
      const auto down = client_.swap_out({&tensors_[written], 1});
      if (!down) return said_of("swap_out", down.error());
    }
    return read_back((round + tensors_.size() / 2) % tensors_.size(), place);
  }

  // The device in every other pair of rounds, so that both kinds of round see both places.
  Place place_of(std::uint64_t round) const {
    const std::vector<PlaceOffer> offers = client_.places();
    return offers.size() > 1 && (round / 2) % 2 == 1 ? offers[1].place : offers[0].place;
  }

  std::optional<std::string> overwrite(std::uint64_t tensor, std::uint64_t version, Place place) {
    auto lease = client_.acquire(tensors_[tensor], {.place = place, .mode = Mode::kOverwrite});
    if (!lease) return said_of("acquire to overwrite", lease.error());
    const std::span<std::uint64_t> words = lease->span<std::uint64_t>();
    for (std::uint64_t i = 0; i < words.size(); ++i) words[i] = word_of(tensor, version, i);
    versions_[tensor] = version;
    if (const auto released = lease->release(); !released) return said_of("release", released.error());
    return std::nullopt;
  }

  std::optional<std::string> read_back(std::uint64_t tensor, Place place) {
    if (versions_[tensor] == 0) return std::nullopt;
    const auto lease = client_.acquire(tensors_[tensor], {.place = place});
    if (!lease) return said_of("acquire to read", lease.error());
    const std::span<const std::uint64_t> words = lease->span<const std::uint64_t>();
    if (words.size_bytes() != kTensorBytes) return fmt::format("{} bytes leased", words.size_bytes());
    for (std::uint64_t i = 0; i < words.size(); ++i)
      if (words[i] != word_of(tensor, versions_[tensor], i))
        return fmt::format("wrong byte: {} of tensor {}, in {}", i * sizeof(words[i]), tensor, place.name());
    return std::nullopt;
  }

  static std::string said_of(const char* call, const Error& error) {
    return fmt::format("{}: {}: {}", call, name(error.code), error.message);
  }

  Client client_;
  std::string report_;
  std::vector<Tensor> tensors_;
  std::vector<std::uint64_t> versions_;  // of each one's content; 0: never written
  std::uint64_t rounds_ = 0;
  std::chrono::steady_clock::duration longest_{0};
};

int train(const std::string& socket, const std::string& report, std::uint64_t count) {
  auto client = Client::connect({.socket = socket, .label = "steady_trainer"});
  if (!client) {
    std::ofstream(report) << fmt::format("ended: connect: {}\n", client.error().message);
    return 1;
  }
  SteadyTrainer trainer(std::move(*client), report);
  const auto failed = trainer.work(count);
  trainer.write_report(failed ? "ended: " + *failed + "\n" : "every byte right\n");
  return failed ? 1 : 0;
}

}  // namespace
}  // namespace terrace::faults

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  struct sigaction told{};
  told.sa_handler = [](int) { terrace::faults::told_to_end = 1; };
  sigaction(SIGTERM, &told, nullptr);
  return terrace::faults::train(argv[1], argv[2], std::stoull(argv[3]));
}
