// SPDX-License-Identifier: Apache-2.0
// terracectl: administration of one daemon over its admin socket.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "ctl/connection.h"
#include "ctl/doctor_command.h"
#include "ctl/init_command.h"
#include "ctl/json.h"
#include "ctl/plan_command.h"
#include "ctl/top.h"
#include "ctl/upgrade.h"
#include "ctl/views.h"
#include "tier/block/raw_device.h"

namespace terrace::ctl {
namespace {

struct Arguments {
  std::string socket;
  bool json = false;
  TopOptions top;
  UpgradeOptions upgrade;
  std::uint32_t session = 0;
  std::string prefix;
  std::string device;
};

std::string line(const nlohmann::ordered_json& json) { return json.dump(2) + '\n'; }

Result<std::string> status(Connection& connection, const Arguments& arguments) {
  const auto answer = connection.call(&v1::Admin::Stub::GetStatus, v1::AdminGetStatusRequest());
  if (!answer) return std::unexpected(answer.error());
  return arguments.json ? line(to_json(answer->status())) : status_text(answer->status());
}

Result<std::string> sessions(Connection& connection, const Arguments& arguments) {
  const auto answer = connection.call(&v1::Admin::Stub::ListSessions, v1::ListSessionsRequest());
  if (!answer) return std::unexpected(answer.error());
  return arguments.json ? line(to_json(*answer)) : sessions_text(answer->sessions());
}

Result<std::string> tensors(Connection& connection, const Arguments& arguments) {
  v1::AdminListTensorsRequest request;
  request.set_session(arguments.session);
  request.set_prefix(arguments.prefix);
  const auto answer = connection.call(&v1::Admin::Stub::ListTensors, request);
  if (!answer) return std::unexpected(answer.error());
  return arguments.json ? line(to_json(*answer)) : tensors_text(*answer);
}

Result<std::string> topology(Connection& connection, const Arguments& arguments) {
  const auto answer = connection.call(&v1::Admin::Stub::GetTopology, v1::GetTopologyRequest());
  if (!answer) return std::unexpected(answer.error());
  if (!arguments.json) return answer->start_report();
  const auto parsed = nlohmann::ordered_json::parse(answer->topology_json(), nullptr, false);
  if (parsed.is_discarded()) return fail(ErrorCode::kInternal, "the daemon's topology is not JSON");
  return line(parsed);
}

Result<std::string> drain(Connection& connection, const Arguments& arguments) {
  const auto answer = connection.call(&v1::Admin::Stub::Drain, v1::DrainRequest());
  if (!answer) return std::unexpected(answer.error());
  if (arguments.json) return line(to_json(*answer));
  return fmt::format("draining: no new sessions; {} still open\n", answer->sessions());
}

Result<std::string> top(Connection& connection, const Arguments& arguments) {
  TopOptions options = arguments.top;
  options.json = arguments.json;
  if (auto ran = run_top(connection, options); !ran) return std::unexpected(ran.error());
  return std::string();
}

Result<std::string> upgrade(Connection& connection, const Arguments& arguments) {
  UpgradeOptions options = arguments.upgrade;
  options.json = arguments.json;
  return upgrade(connection, options);
}

// Needs no daemon.
Result<std::string> format(const Arguments& arguments) {
  if (const auto formatted = tier::format_device(arguments.device); !formatted)
    return std::unexpected(formatted.error());
  if (arguments.json) return line({{"device", arguments.device}, {"formatted", true}});
  return fmt::format("{} is formatted: name it in `paths` of a block tier\n", arguments.device);
}

using Command = Result<std::string> (*)(Connection&, const Arguments&);

int report(const Error& error) {
  fmt::print(stderr, "terracectl: {}\n", error.message);
  return 1;
}

// 0 only if all of it was written: on a full disk, half an answer is none.
int print(const std::string& text) {
  if (std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0) return 0;
  const int error = errno;
  return report({ErrorCode::kInternal, fmt::format("standard output: {}", std::strerror(error)), error});
}

int finish(const Result<std::string>& text) { return text ? print(*text) : report(text.error()); }

// Its status is the verdict; what could not be looked at, or not be said, is as bad as a failure.
int diagnose(const DoctorCommand& doctor, bool json) {
  constexpr int kFailed = 2;
  const auto diagnosis = doctor.run(json);
  if (!diagnosis) {
    report(diagnosis.error());
    return kFailed;
  }
  return print(diagnosis->text) == 0 ? diagnosis->status : kFailed;
}

// The commands that ask a daemon; the one that was given is found in `command`.
void add_asking(CLI::App& app, Arguments& arguments, Command& command) {
  const auto add = [&](const char* name, const char* help, Command what) {
    CLI::App* sub = app.add_subcommand(name, help);
    sub->callback([&command, what] { command = what; });
    return sub;
  };
  add("status", "Tiers, links, places and what the daemon lacks", status);
  CLI::App* live = add("top", "The same with sessions, live", top);
  live->add_flag("--once", arguments.top.once, "One screen, with totals instead of rates");
  live->add_option("--interval", arguments.top.interval_seconds, "Seconds between screens")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  add("sessions", "Open sessions of every tenant", sessions);
  CLI::App* list = add("tensors", "Tensors of every session", tensors);
  list->add_option("--session", arguments.session, "Of this session alone");
  list->add_option("--prefix", arguments.prefix, "Whose names begin so");
  add("topology", "The machine as the daemon found it", topology);
  add("drain", "Open no new sessions from now on", drain);
  CLI::App* next =
      add("upgrade", "Replace the daemon by the program that now lies in its place; trainers go on", upgrade);
  next->add_flag("--check", arguments.upgrade.check_only, "Only ask that program whether it could go on");
}

int run(int argc, char** argv) {
  Arguments arguments;
  Command command = nullptr;
  CLI::App app(
      "Asks a terraced how it is, drains it, upgrades it, and plans for one; says how a node is, and what would suit "
      "it.",
      "terracectl");
  app.set_version_flag("--version", TERRACE_VERSION);
  app.add_option("--socket", arguments.socket,
                 "Admin socket (default: TERRACE_ADMIN_SOCKET, $XDG_RUNTIME_DIR/terrace/admin.sock, "
                 "/run/terrace/admin.sock)");
  app.add_flag("--json", arguments.json, "For programs: JSON instead of text");
  app.require_subcommand(1);
  app.fallthrough();  // options may come before or after the command
  add_asking(app, arguments, command);
  CLI::App* forecast = app.add_subcommand(
      "plan",
      "What a model takes of a node: tiers, step time, drives, and what more DRAM would change. Needs no daemon");
  const PlanCommand plan(*forecast);
  CLI::App* health = app.add_subcommand(
      "doctor", "What keeps a daemon from running well on this node, and the command that mends it. Needs no daemon");
  const DoctorCommand doctor(*health);
  CLI::App* first = app.add_subcommand(
      "init", "A first configuration for this machine, with the reason for each value. Needs no daemon");
  const InitCommand init(*first);
  CLI::App* raw = app.add_subcommand(
      "format",
      "Make an empty block device a block tier's. Refuses what is mounted or may be somebody's. Needs no daemon");
  raw->add_option("device", arguments.device, "Such as /dev/disk/by-id/nvme-...")->required();
  CLI11_PARSE(app, argc, argv);

  if (health->parsed()) return diagnose(doctor, arguments.json);
  if (first->parsed()) return finish(init.run(arguments.json));
  if (raw->parsed()) return finish(format(arguments));
  if (forecast->parsed()) return finish(plan.run(arguments.json));
  auto socket = find_socket(arguments.socket);
  if (!socket) return report(socket.error());
  Connection connection(std::move(*socket));
  return finish(command(connection, arguments));
}

}  // namespace
}  // namespace terrace::ctl

int main(int argc, char** argv) { return terrace::ctl::run(argc, argv); }
