// SPDX-License-Identifier: Apache-2.0
// terrace-bench: what this node's Terrace delivers of the hardware, each figure beside a reference of the same run.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "bench/bench.h"
#include "bench/command_options.h"
#include "bench/commands.h"
#include "bench/folder_check.h"
#include "bench/leftovers.h"
#include "bench/neighbours.h"
#include "bench/plot.h"
#include "bench/suite.h"
#include "bench/table.h"
#include "picture/picture.h"

namespace terrace::bench {
namespace {

struct Arguments {
  std::vector<std::string> suites;
  std::vector<std::string> without;
  Settings settings{};
  std::string disk_max = "16GiB";
  bool json = false;
  bool markdown = false;
  bool force = false;
  std::string picture;
};

int refuse(const std::vector<std::string>& reasons) {
  for (const std::string& reason : reasons) tell("terrace-bench: " + reason);
  return 1;
}

std::vector<Suite> chosen(const Arguments& arguments) {
  std::vector<Suite> found;
  for (const Suite& suite : suites()) {
    const auto named = [&](const std::string& name) { return name == "all" || name == suite.name; };
    if (std::ranges::any_of(arguments.suites, named) && std::ranges::none_of(arguments.without, named))
      found.push_back(suite);
  }
  return found;
}

std::uint64_t disk_bytes(const Suite& suite, const Settings& settings) {
  return settings.quick ? suite.disk.quick : suite.disk.full;
}

// What the suites' files lack on the disk: leave to take so much, and room.
std::vector<std::string> lacks_disk(const Settings& settings, const std::vector<Suite>& to_run) {
  if (const std::string lack = cannot_take(settings.disk, 0); !lack.empty()) return {lack};
  std::vector<std::string> missing;
  const auto takes_some = [&](const Suite& suite) { return disk_bytes(suite, settings) > 0; };
  if (std::ranges::any_of(to_run, takes_some))
    if (const std::string lack = cannot_hold_block_files(settings.disk); !lack.empty()) missing.push_back(lack);
  for (const Suite& suite : to_run) {
    const std::uint64_t takes = disk_bytes(suite, settings);
    if (takes > settings.disk_bytes_max)
      missing.push_back(fmt::format("{}: takes up to {} in {}, more than the {} that --disk-max allows", suite.name,
                                    format_bytes(takes), settings.disk.string(),
                                    format_bytes(settings.disk_bytes_max)));
    else if (const std::string lack = cannot_take(settings.disk, takes); !lack.empty())
      missing.push_back(fmt::format("{}: {}", suite.name, lack));
  }
  return missing;
}

// All that is missing, before anything is measured.
std::vector<std::string> lacks(const Arguments& arguments, const std::vector<Suite>& to_run) {
  std::vector<std::string> missing;
  for (const Suite& suite : to_run)
    if (suite.lacks != nullptr)
      for (const std::string& lack : suite.lacks(arguments.settings))
        missing.push_back(fmt::format("{}: {}", suite.name, lack));
  const std::vector<std::string> on_disk = lacks_disk(arguments.settings, to_run);
  missing.insert(missing.end(), on_disk.begin(), on_disk.end());
  if (!missing.empty())
    missing.emplace_back("a suite is left out with --without, as in: terrace-bench all --without train");
  if (!arguments.picture.empty()) {
    if (const std::string lack = picture::cannot_draw(arguments.settings.python); !lack.empty())
      missing.push_back(lack);
    if (const std::string lack = picture::cannot_write(arguments.picture); !lack.empty())
      missing.push_back("--plot: " + lack);
  }
  return missing;
}

void print_rows(const std::vector<Row>& rows, const Arguments& arguments) {
  std::string text;
  if (arguments.json) {
    for (const Row& row : rows) {
      auto json = to_json(row);
      json["quick"] = arguments.settings.quick;
      text += (text.empty() ? "[\n" : ",\n") + json.dump();
    }
    text = (text.empty() ? "[" : text) + "\n]\n";
  } else if (arguments.markdown) {
    text = to_markdown(rows);
  } else {
    for (const Row& row : rows) text += to_text(row);
    text += fmt::format("{}{}\n", summary(rows), arguments.settings.quick ? " (--quick: figures that say little)" : "");
  }
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

// The rows are printed once: at the end, or by the thread that hears a signal.
struct Output {
  std::mutex mutex;
  const Bench* bench = nullptr;  // while it measures
  const Arguments* arguments = nullptr;
};

Output& output() {
  static auto* const output = new Output();  // NOLINT: never destroyed, since that thread outlives main()
  return *output;
}

void begin_output(const Bench& bench, const Arguments& arguments) {
  const std::lock_guard lock(output().mutex);
  output().bench = &bench;
  output().arguments = &arguments;
}

void print_at_end() {
  const std::lock_guard lock(output().mutex);
  print_rows(output().bench->rows(), *output().arguments);
  output().bench = nullptr;
}

void print_at_signal() {
  output().mutex.lock();  // never given back: the program ends
  if (output().bench == nullptr) return;
  const std::vector<Row> rows = output().bench->rows();
  tell(fmt::format("terrace-bench: interrupted: these are the {} rows that were measured", rows.size()));
  print_rows(rows, *output().arguments);
}

// Whether the suite came to its end, with the rows that it says it has.
bool run_suite(Bench& bench, const Suite& suite) {
  bench.say(fmt::format("suite {}", suite.name));
  bench.limit_disk(disk_bytes(suite, bench.settings()));
  const std::size_t before = bench.rows().size();
  const int unmeasured = bench.unmeasured();
  if (const auto ran = suite.run(bench); !ran) {
    tell(fmt::format("terrace-bench: {}: {}: {}", suite.name, name(ran.error().code), ran.error().message));
    return false;
  }
  if (bench.unmeasured() != unmeasured) return false;
  const std::vector<Row> rows = bench.rows();
  TERRACE_CHECK(std::ranges::equal(rows.begin() + static_cast<std::ptrdiff_t>(before), rows.end(), suite.rows.begin(),
                                   suite.rows.end(), {}, &Row::bench));
  return true;
}

bool run_suites(Bench& bench, const std::vector<Suite>& to_run) {
  bool all = true;
  for (const Suite& suite : to_run) all = run_suite(bench, suite) && all;
  return all;
}

int run(Arguments arguments) {
  const auto disk_max = parse_bytes(arguments.disk_max);
  if (!disk_max) return refuse({"--disk-max: " + disk_max.error().message});
  arguments.settings.disk_bytes_max = *disk_max;
  if (const auto ready = prepare(arguments.settings); !ready) return refuse({ready.error().message});
  const std::vector<Suite> to_run = chosen(arguments);
  if (to_run.empty()) return refuse({"--without leaves nothing to measure"});
  if (const auto missing = lacks(arguments, to_run); !missing.empty()) return refuse(missing);
  if (const auto reasons = too_busy(arguments.settings, arguments.force); !reasons.empty()) return refuse(reasons);
  Bench bench(arguments.settings);
  begin_output(bench, arguments);
  const bool all = run_suites(bench, to_run);
  for (const std::string& what : neighbours_at_work())
    tell("terrace-bench: the figures may be its doing: at work at the end: " + what);
  print_at_end();
  if (arguments.picture.empty()) return all ? 0 : 1;
  const auto drawn = plot(bench.rows(), arguments.picture, arguments.settings.python);
  return drawn ? (all ? 0 : 1) : refuse({drawn.error().message});
}

// Installed beside the package's data, in a bundle, or in the tree.
std::filesystem::path examples_default(const std::filesystem::path& own_folder) {
  const std::filesystem::path above = own_folder.parent_path();
  for (const auto& examples : {above / "share" / "terrace" / "examples", above / "examples"})
    if (std::error_code ignored; std::filesystem::exists(examples, ignored)) return examples;
  return above.parent_path() / "client" / "python" / "examples";
}

void add_options(CLI::App& app, Arguments& arguments) {
  std::error_code ignored;
  const std::filesystem::path own_folder = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  std::vector<std::string> suite_names;
  std::string text = "What to measure: all";
  for (const Suite& suite : suites()) {
    suite_names.emplace_back(suite.name);
    text += fmt::format("; {}: {}", suite.name, suite.what);
  }
  std::vector<std::string> names = suite_names;
  names.emplace_back("all");
  Settings& settings = arguments.settings;
  settings.disk = ".";
  settings.python = picture::default_python();
  settings.examples = examples_default(own_folder);
  settings.fio = "fio";
  app.add_option("suites", arguments.suites, text)->required()->check(CLI::IsMember(names));
  app.add_option("--without", arguments.without, "A suite that is left out; may be given several times")
      ->check(CLI::IsMember(suite_names))
      ->allow_extra_args(false);
  app.add_flag("--quick", settings.quick, "Every row in under three minutes, with figures that say little");
  auto* const json = app.add_flag("--json", arguments.json, "An array with one object a row");
  app.add_flag("--markdown", arguments.markdown, "A table in Markdown")->excludes(json);
  app.add_option("--plot", arguments.picture, "Draw the rows into this PNG, by a Python with matplotlib");
  app.add_option("--dir", settings.disk, "Folder on the disk to be measured; what is made there is removed")
      ->capture_default_str();
  app.add_option("--disk-max", arguments.disk_max, "The most that a suite may take there at a time")
      ->capture_default_str();
  app.add_option("--terraced", settings.terraced, "The daemon to measure (default: the one beside this program)");
  app.add_option("--python", settings.python, "Python for --plot and for the suite train, with the terrace package")
      ->capture_default_str();
  app.add_option("--examples", settings.examples, "Folder of the Python examples, for the suite train")
      ->capture_default_str();
  app.add_option("--fio", settings.fio, "fio, for the suites block and pipeline")->capture_default_str();
  app.add_flag("--force", arguments.force, "Measure beside a loaded daemon, or on a busy machine");
}

int measure_command(int argc, char** argv) {
  Arguments arguments;
  CLI::App app(
      "Measures what Terrace delivers of this node's hardware, each figure beside a reference of the same run.",
      "terrace-bench");
  app.set_version_flag("--version", TERRACE_VERSION);
  add_options(app, arguments);
  app.footer(
      "Other commands, each with a --help: `terrace-bench calibrate` measures this machine's links into a node file; "
      "`terrace-bench replay` runs a workload on a live daemon and compares it with the simulator.");
  CLI11_PARSE(app, argc, argv);
  clean_up_at_signals(print_at_signal);
  return run(std::move(arguments));
}

int run_command(int argc, char** argv) {
  const std::string_view command = argc > 1 ? argv[1] : "";
  if (command != "calibrate" && command != "replay") return measure_command(argc, argv);
  clean_up_at_signals();
  return (command == "replay" ? replay_command : calibrate_command)(argc - 1, argv + 1);
}

// The status, or 1 where not all that was printed came to be written.
int printed(int status) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  return refuse({"not all could be written to standard output: is its disk full, or its reader gone?"});
}

}  // namespace
}  // namespace terrace::bench

int main(int argc, char** argv) {
  // What is caught here has taken its folders and children away, which the end of a program without a catch does not.
  try {
    return terrace::bench::printed(terrace::bench::run_command(argc, argv));
  } catch (const std::exception& error) {
    terrace::bench::tell(std::string("terrace-bench: ") + error.what());
    return 1;
  }
}
