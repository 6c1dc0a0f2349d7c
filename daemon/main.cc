// SPDX-License-Identifier: Apache-2.0
// terraced: wires configuration, machine, reactor and sockets together, and nothing else.
#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>

#include "config/config.h"
#include "config/parse.h"
#include "config/resolve.h"
#include "front/grpc_server.h"
#include "front/host.h"
#include "metrics/exporter.h"
#include "topology/json.h"
#include "topology/machine.h"
#include "topology/report.h"

namespace terrace {
namespace {

struct Arguments {
  std::string config_path;
  bool check_config = false;
};

// What start-up found and decided, before anything is taken.
struct Plan {
  topology::Machine machine;
  config::Config config;
  std::vector<topology::Lack> lacks;
  std::string report;
};

Result<Plan> make_plan(const Arguments& arguments) {
  topology::raise_memlock();
  auto machine = topology::discover();
  if (!machine) return std::unexpected(machine.error());
  auto config = arguments.config_path.empty() ? config::defaults(*machine) : config::load(arguments.config_path);
  if (config) config = config::resolve(*config, *machine);
  if (!config) return std::unexpected(config.error());
  const auto taken = config::taken(*config);
  if (!taken) return std::unexpected(taken.error());
  Plan plan{std::move(*machine), std::move(*config), {}, {}};
  plan.lacks = topology::lacks(plan.machine, *taken);
  plan.report = topology::describe(plan.machine, *taken, plan.lacks);
  for (const std::string& warning : plan.config.warnings) plan.report += "warning: " + warning + "\n";
  const auto usable = topology::require(plan.machine, *taken, plan.config.strict);
  if (!usable) return std::unexpected(usable.error());
  return plan;
}

front::NodeFacts facts_of(const Plan& plan) {
  front::NodeFacts facts{.version = TERRACE_VERSION,
                         .start_report = plan.report,
                         .topology_json = topology::to_json(plan.machine),
                         .lacks = {}};
  for (const topology::Lack& lack : plan.lacks) facts.lacks.push_back(lack.what + ": " + lack.cost);
  return facts;
}

mover::Workers::Options workers_of(const topology::Machine& machine) {
  mover::Workers::Options options;
  for (const topology::NumaNode& node : machine.numa_nodes)
    if (!node.cpu_less()) options.node_processors.push_back(node.cpus);
  return options;
}

// The gRPC servers: one for tenants, one for the administrator; and their sockets.
struct Fronts {
  std::unique_ptr<front::GrpcServer> tenants;
  std::unique_ptr<front::GrpcServer> admin;
};

front::Host::Adopt adopt_into(front::GrpcServer& server) {
  return [&server](Fd connection, const front::Peer& peer) {
    return server.adopt(std::move(connection), peer).has_value();
  };
}

Result<Fronts> open_fronts(front::Host& host, const config::Config& config) {
  front::GrpcOptions options;
  options.request_timeout = std::chrono::milliseconds(config.limits.request_timeout_ms);
  for (const config::TenantConfig& tenant : config.tenants) options.tenant_names.push_back(tenant.name);
  auto tenants = front::GrpcServer::create(host, options);
  if (!tenants) return std::unexpected(tenants.error());
  options.admin = true;
  options.on_drain = [server = tenants->get()] { server->set_serving(false); };
  auto admin = front::GrpcServer::create(host, options);
  if (!admin) return std::unexpected(admin.error());

  for (std::uint32_t tenant = 0; tenant < config.tenants.size(); ++tenant) {
    const auto listening = host.listen_stream(config.tenants[tenant].grpc_socket, config.tenants[tenant].door_mode(),
                                              {.tenant = {.socket = tenant}}, adopt_into(**tenants));
    if (!listening) return std::unexpected(listening.error());
  }
  front::Peer administrator;
  administrator.admin = true;
  const auto listening = host.listen_stream(config.sockets.admin, 0600, administrator, adopt_into(**admin));
  if (!listening) return std::unexpected(listening.error());
  host.count_connections([server = tenants->get()] { return server->connections(); });
  return Fronts{std::move(*tenants), std::move(*admin)};
}

Result<void> serve(const Plan& plan) {
  auto host = front::Host::create(plan.config, workers_of(plan.machine), facts_of(plan));
  if (!host) return std::unexpected(host.error());
  auto fronts = open_fronts(**host, plan.config);
  if (!fronts) return std::unexpected(fronts.error());
  std::unique_ptr<metrics::Exporter> exporter;
  if (!plan.config.metrics_address.empty()) {
    auto opened = metrics::Exporter::create(**host, plan.config);
    if (!opened) return std::unexpected(opened.error());
    exporter = std::move(*opened);
  }
  return (*host)->serve([&] {
    exporter.reset();
    const std::chrono::milliseconds patience(plan.config.limits.stop_timeout_ms / 4);
    fronts->tenants->shutdown(patience);
    fronts->admin->shutdown(patience);
  });
}

// Before there are threads: signals come to the reactor alone.
void block_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

int run(const Arguments& arguments) {
  const auto plan = make_plan(arguments);
  if (!plan) {
    fmt::print(stderr, "terraced: {}\n", plan.error().message);
    return 1;
  }
  if (arguments.check_config) {
    fmt::print("{}configuration is good\n", plan->report);
    return 0;
  }
  block_signals();
  spdlog::set_default_logger(spdlog::stderr_logger_mt("terraced"));
  spdlog::set_level(static_cast<spdlog::level::level_enum>(plan->config.log_level));
  fmt::print("{}", plan->report);
  std::fflush(stdout);
  const auto served = serve(*plan);
  if (!served) {
    fmt::print(stderr, "terraced: {}\n", served.error().message);
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  terrace::Arguments arguments;
  CLI::App app("Owns this node's memory tiers and serves tensors to its training processes.", "terraced");
  app.add_option("--config", arguments.config_path,
                 "TOML file; without one, a quarter of the memory and no block tier");
  app.add_flag("--check-config", arguments.check_config,
               "Say what is wrong with the configuration, or what it takes; take nothing");
  app.set_version_flag("--version", TERRACE_VERSION);
  CLI11_PARSE(app, argc, argv);
  return terrace::run(arguments);
}
