// SPDX-License-Identifier: Apache-2.0
// terrace-sim: the real engine under virtual time.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <mutex>
#include <random>
#include <thread>

#include "engine/values/planted.h"
#include "sim/compare_command.h"
#include "sim/fuzz.h"
#include "sim/generate_command.h"
#include "sim/run_command.h"
#include "sim/schedule_command.h"

namespace {

using terrace::engine::kPlantNames;

#ifdef TERRACE_PLANTS
constexpr const char* kProgram = "terrace-sim-planted";
#else
constexpr const char* kProgram = "terrace-sim";
#endif

struct Arguments {
  terrace::sim::FuzzOptions fuzz;
  std::optional<std::uint64_t> seed;
  std::optional<std::uint64_t> round;
  std::string only;
  std::string plant = "none";
  bool trace = false;
  std::uint64_t minimise = 2'000;  // rounds, at most
};

// What a person types to have the same again.
std::string switches(const Arguments& arguments) {
  std::string text = fmt::format("--seed {} --events {}", arguments.fuzz.seed, arguments.fuzz.events);
  if (!arguments.fuzz.restarts) text += " --no-restarts";
  if (!arguments.fuzz.faults) text += " --no-faults";
  if (arguments.plant != "none") text += " --plant " + arguments.plant;
  return text;
}

void report(const Arguments& arguments, const terrace::sim::Finding& finding) {
  std::cout << fmt::format("violation: {}\n  in round {}, at event {} of it\n  replay: {} fuzz {} --round {} --trace\n",
                           finding.law, finding.round, finding.event, kProgram, switches(arguments), finding.round)
            << std::flush;
  if (arguments.minimise == 0) return;
  const auto fewest = terrace::sim::minimise(arguments.fuzz, finding, arguments.minimise);
  std::cout << fmt::format("  fewest events: {}\n  replay: {} fuzz {} --round {} --trace --only {}\n", fewest.size(),
                           kProgram, switches(arguments), finding.round, terrace::sim::list_of(fewest));
}

bool plant(const std::string& name) {
#ifdef TERRACE_PLANTS
  const auto found = std::ranges::find(kPlantNames, name);
  terrace::engine::planted_bug = static_cast<terrace::engine::Plant>(found - kPlantNames.begin());
  return true;
#else
  return name == kPlantNames[0];
#endif
}

terrace::sim::FuzzResult run(Arguments& arguments) {
  if (!arguments.round) {
    std::mutex mutex;
    std::uint64_t shown = 0;
    if (isatty(STDERR_FILENO) != 0)
      arguments.fuzz.progress = [&](std::uint64_t done) {
        const std::scoped_lock lock(mutex);
        if (done * 100 / arguments.fuzz.events == shown) return;
        shown = done * 100 / arguments.fuzz.events;
        std::cerr << fmt::format("\r{:3} %", shown) << (shown >= 100 ? "\n" : "") << std::flush;
      };
    return terrace::sim::fuzz(arguments.fuzz);
  }
  std::vector<std::uint64_t> only;
  if (!arguments.only.empty()) {
    auto events = terrace::sim::events_of(arguments.only);
    if (!events) throw CLI::ValidationError("--only", events.error().message);
    only = std::move(*events);
  }
  const std::uint64_t events = only.empty() ? terrace::sim::kRoundEvents : only.back() + 1;
  return terrace::sim::replay(arguments.fuzz, *arguments.round, events, only.empty() ? nullptr : &only,
                              arguments.trace ? &std::cout : nullptr);
}

int fuzz(Arguments& arguments) {
  arguments.fuzz.seed = arguments.seed.value_or(std::random_device{}());
  if (!plant(arguments.plant)) {
    std::cerr << "this terrace-sim has no plants: those are in test builds only (terrace-sim-planted)\n";
    return 2;
  }
  std::cout << "seed " << arguments.fuzz.seed << std::endl;
  const terrace::sim::FuzzResult result = run(arguments);
  if (result.finding) report(arguments, *result.finding);
  std::cout << fmt::format("{} leases granted, {} sets refused\n", result.counts.granted, result.counts.refused);
  std::cout << fmt::format("fuzz: seed={} events={} deaths={} restarts={} faults={} violations={} digest={:016x}\n",
                           arguments.fuzz.seed, result.events, result.counts.deaths, result.counts.restarts,
                           result.counts.faults, result.finding ? 1 : 0, result.digest);
  return result.finding ? 1 : 0;
}

// What was printed, if all of it was.
int written(int status) {
  std::cout.flush();
  if (std::cout || status != 0) return status;
  std::cerr << "what was found could not be written to the standard output\n";
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Runs the daemon's engine in virtual time, without a daemon.", "terrace-sim");
  app.set_version_flag("--version", TERRACE_VERSION);
  app.require_subcommand(1);
  Arguments arguments;
  CLI::App& command = *app.add_subcommand(
      "fuzz",
      "random trainers, deaths, restarts and faults; checks the laws after every event, and bytes against a model");
  command.add_option("--seed", arguments.seed, "what everything follows from (default: a fresh one, which is printed)")
      ->check(CLI::Range(std::int64_t{0}, INT64_MAX));
  command.add_option("--events", arguments.fuzz.events, "how many")
      ->default_val(1'000'000)
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 50));
  arguments.fuzz.threads = std::max(1u, std::thread::hardware_concurrency());
  command.add_option("--threads", arguments.fuzz.threads, "rounds at a time; the result does not depend on it")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command.add_flag("!--no-restarts", arguments.fuzz.restarts, "the daemon does not die");
  command.add_flag("!--no-faults", arguments.fuzz.faults, "no device fails, no trainer stops or scribbles");
  command
      .add_option("--minimise", arguments.minimise,
                  "rounds to run at most in search of the fewest events that break a law; 0: none")
      ->capture_default_str();
  command.add_option("--plant", arguments.plant, "switch on a known bug (test builds)")
      ->check(CLI::IsMember(std::vector<std::string>(kPlantNames.begin(), kPlantNames.end())));
  CLI::Option* round = command.add_option("--round", arguments.round, "only this round of the seed's");
  command.add_option("--only", arguments.only, "only these events of the round, such as 3,8-12,99")->needs(round);
  command.add_flag("--trace", arguments.trace, "print what happens, a line an action")->needs(round);
  terrace::sim::GenerateCommand generate(app);
  terrace::sim::RunCommand rehearse(app);
  terrace::sim::CompareCommand compare(app);
  terrace::sim::ScheduleCommand schedule(app);
  CLI11_PARSE(app, argc, argv);
  if (generate.chosen()) return generate.run();
  if (rehearse.chosen()) return written(rehearse.run());
  if (compare.chosen()) return written(compare.run());
  if (schedule.chosen()) return written(schedule.run());
  try {
    return fuzz(arguments);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
}
