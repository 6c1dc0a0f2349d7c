// SPDX-License-Identifier: Apache-2.0
// terraced: wires configuration, machine, reactor and sockets together, and nothing else.
#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "config/config.h"
#include "config/parse.h"
#include "config/resolve.h"
#include "front/grpc/server.h"
#include "front/holding/holding.h"
#include "front/host.h"
#include "front/survival/succession.h"
#include "log/limited_sink.h"
#include "metrics/exporter.h"
#include "supervise/supervisor.h"
#include "topology/json.h"
#include "topology/machine.h"
#include "topology/report.h"

namespace terrace {
namespace {

struct Arguments {
  std::string config_path;
  bool check_config = false;
  bool discard = false;
  int catalog = -1;                  // to be checked
  std::vector<std::string> command;  // that starts the next daemon
};

struct SuperviseArguments {
  std::string program;
  std::string config_path;
  std::vector<std::string> more;
  supervise::Options options;
};

// What start-up found and decided, before anything is taken.
struct Plan {
  topology::Machine machine;
  config::Config config;
  std::vector<topology::Lack> lacks;
  std::string report;
};

topology::Cuda look_for_gpus(const config::Config& config, const front::FormerGpus& former) {
  const auto is_wanted = [&](int ordinal, std::uint64_t identity) {
    if (!former || former->empty()) return config::asks_for_gpu(config, ordinal);
    return identity == topology::kUnknownGpu || std::ranges::find(*former, identity) != former->end();
  };
  topology::Cuda found = topology::probe_cuda(is_wanted);
  if (former) topology::go_on_with(found, *former);
  return found;
}

Result<Plan> make_plan(const Arguments& arguments, const front::FormerGpus& former) {
  topology::raise_limits();
  auto machine = topology::discover();
  if (!machine) return std::unexpected(machine.error());
  auto draft = arguments.config_path.empty() ? config::without_file() : config::load(arguments.config_path);
  if (!draft) return std::unexpected(draft.error());
  if (config::asks_for_gpus(draft->config)) machine->cuda = look_for_gpus(draft->config, former);
  auto config = config::resolve(std::move(*draft), *machine);
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

mover::Workers::Options workers_of(const topology::Machine& machine, const config::Config& config) {
  mover::Workers::Options options;
  for (const topology::NumaNode& node : machine.numa_nodes)
    if (!node.cpu_less()) options.node_processors.push_back(node.cpus);
  options.pinner_processors = config::processors_near_memory(config, machine);
  return options;
}

// The gRPC servers: one for tenants, one for the administrator; and their sockets.
struct Fronts {
  std::unique_ptr<front::GrpcServer> tenants;
  std::unique_ptr<front::GrpcServer> admin;
};

front::Adopt adopt_into(front::GrpcServer& server) {
  return [&server](Fd connection, const front::Peer& peer) {
    return server.adopt(std::move(connection), peer).has_value();
  };
}

Result<Fronts> open_fronts(front::Host& host, const config::Config& config, const std::vector<std::string>& command) {
  front::GrpcOptions options;
  options.request_timeout = std::chrono::milliseconds(config.limits.request_timeout_ms);
  options.idle_timeout = std::chrono::milliseconds(config.limits.session_idle_timeout_ms);
  for (const config::TenantConfig& tenant : config.tenants) options.tenant_names.push_back(tenant.name);
  auto tenants = front::GrpcServer::create(host.gateway(), options);
  if (!tenants) return std::unexpected(tenants.error());
  options.admin = true;
  options.on_drain = [server = tenants->get()] { server->set_serving(false); };
  options.ask_successor = [catalog = host.catalog(), &command]() -> Result<std::string> {
    if (catalog != nullptr) return front::ask_successor(command, *catalog);
    return fail(ErrorCode::kFailedPrecondition,
                "nobody would start the next daemon, or keep what this one has: run it under systemd, or by `terraced "
                "supervise`");
  };
  options.stop = [] { ::kill(::getpid(), SIGTERM); };
  auto admin = front::GrpcServer::create(host.gateway(), options);
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

// What a former daemon left with the supervisor.
Result<front::Inheritance> inherit() {
  auto store = service::DescriptorStore::from_environment();
  if (!store) return std::unexpected(store.error());
  auto adopted = store->adopt();
  if (!adopted) return std::unexpected(adopted.error());
  return front::Inheritance{std::move(*store), std::move(*adopted)};
}

Result<void> discard(front::Inheritance& inheritance) {
  for (const auto& [name, descriptor] : inheritance.adopted)
    if (const auto forgotten = inheritance.store.forget(name); !forgotten) return forgotten;
  inheritance.adopted.clear();
  return {};
}

Result<void> serve(const Plan& plan, const Arguments& arguments, front::Inheritance inheritance) {
  if (arguments.discard)
    if (const auto discarded = discard(inheritance); !discarded) return discarded;
  const bool inherits = !inheritance.adopted.empty();
  const config::Config config = front::continued(plan.config, inheritance.adopted);
  auto host = front::Host::create(config, workers_of(plan.machine, config), facts_of(plan), std::move(inheritance));
  if (!host && inherits && front::is_to_be_held(host.error())) return front::hold(config, facts_of(plan), host.error());
  if (!host) return std::unexpected(host.error());
  auto fronts = open_fronts(**host, config, arguments.command);
  if (!fronts) return std::unexpected(fronts.error());
  std::unique_ptr<metrics::Exporter> exporter;
  if (!plan.config.metrics_address.empty()) {
    auto opened = metrics::Exporter::create((*host)->gateway(), config);
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

// Signals come to the reactor alone: before there are threads, of which CUDA's driver starts some as it is asked for
// the GPUs. They would have the mask of who asked, and a signal would end the process in one of them.
void block_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // where files may not grow as far, that write fails, and the daemon goes on
}

// The kernel's table of a process's descriptors doubles when it is full, and with more than one thread whoever opened
// the one too many waits until all processors have been seen at rest: 20 ms in which the reactor would serve nobody.
// Before it serves, nobody waits for that.
void widen_descriptor_table(std::uint64_t descriptors) {
  const Fd any(::eventfd(0, EFD_CLOEXEC));
  if (!any) return;
  // The last of so many: one more may be beyond the limit, and then there would be none.
  static_cast<void>(Fd(::fcntl(any.get(), F_DUPFD_CLOEXEC, static_cast<int>(descriptors - 1))));
}

// Each line of what is wrong, by the program's name.
int report(std::string_view program, const Error& error) {
  std::istringstream lines(error.message);
  for (std::string line; std::getline(lines, line);) fmt::print(stderr, "{}: {}\n", program, line);
  return 1;
}

// Whoever asked did not get the answer, where it cannot be written.
int print_verdict(const std::string& report_text) {
  if (std::fputs((report_text + "configuration is good\n").c_str(), stdout) >= 0 && std::fflush(stdout) == 0) return 0;
  const int error = errno;
  return report("terraced", {ErrorCode::kUnavailable,
                             fmt::format("the configuration is good, and the report cannot be written: {}; give "
                                         "standard output somewhere to go",
                                         std::strerror(error)),
                             error});
}

// Whoever runs asks whether this program could go on with its catalog.
int answer_predecessor(const Arguments& arguments) {
  const auto plan = make_plan(arguments, front::former_gpus(arguments.catalog));
  if (!plan) return report("terraced", plan.error());
  const auto fits = front::check_succession(plan->config, arguments.catalog);
  if (!fits) return report("terraced", fits.error());
  fmt::print("{}{}\n", front::kGoesOn, TERRACE_VERSION);
  return std::fflush(stdout) == 0 ? 0 : 1;
}

int check_configuration(const Arguments& arguments) {
  const auto plan = make_plan(arguments, std::nullopt);
  return plan ? print_verdict(plan->report) : report("terraced", plan.error());
}

int run(const Arguments& arguments) {
  if (arguments.check_config) return check_configuration(arguments);
  if (arguments.catalog >= 0) return answer_predecessor(arguments);
  block_signals();
  auto inheritance = inherit();
  if (!inheritance) return report("terraced", inheritance.error());
  const auto plan = make_plan(arguments, arguments.discard ? std::nullopt : front::former_gpus(inheritance->adopted));
  if (!plan) return report("terraced", plan.error());
  widen_descriptor_table(config::descriptors_at_most(plan->config));
  const MonotonicClock clock;
  auto sink = std::make_shared<log::LimitedSink>(clock, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("terraced", std::move(sink)));
  spdlog::set_level(static_cast<spdlog::level::level_enum>(plan->config.log_level));
  fmt::print("{}", plan->report);
  std::fflush(stdout);
  const auto served = serve(*plan, arguments, std::move(*inheritance));
  spdlog::shutdown();  // while the clock is there
  return served ? 0 : report("terraced", served.error());
}

// The path by which this program was called, so that a new one may lie there at the next start.
std::string own_path(const char* called) {
  if (std::strchr(called, '/') != nullptr) return called;
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored).string();
}

// What would be started in this daemon's place: the same command, except that nothing is discarded twice.
std::vector<std::string> successor_of(int argc, char** argv) {
  std::vector<std::string> command(argv, argv + argc);
  command[0] = own_path(argv[0]);
  std::erase(command, "--discard");
  return command;
}

int run_supervisor(const SuperviseArguments& arguments) {
  supervise::Options options = arguments.options;
  options.command.push_back(arguments.program);
  if (!arguments.config_path.empty())
    options.command.insert(options.command.end(), {"--config", arguments.config_path});
  options.command.insert(options.command.end(), arguments.more.begin(), arguments.more.end());
  const auto status = supervise::supervise(options);
  return status ? *status : report("terraced supervise", status.error());
}

// No configuration is asked for by leaving it out: an empty name is a variable that was not set.
CLI::Validator not_empty() {
  return CLI::Validator(
      [](const std::string& path) { return path.empty() ? "is empty; name a TOML file, or leave it out" : ""; }, "");
}

void add_supervise(CLI::App& app, SuperviseArguments& arguments) {
  CLI::App& command =
      *app.add_subcommand("supervise", "Keep a daemon running, and what it holds, where there is no systemd");
  const auto add_milliseconds = [&command](const char* name, Duration& duration, const char* text) {
    const auto set = [&duration](std::uint32_t milliseconds) { duration = std::chrono::milliseconds(milliseconds); };
    const auto standard = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
    command.add_option_function<std::uint32_t>(name, set, text)->default_str(std::to_string(standard));
  };
  supervise::Options& options = arguments.options;
  command.add_option("--config", arguments.config_path, "The daemon's TOML file")->check(not_empty());
  command.add_option("--program", arguments.program, "The daemon to run; looked up anew at each start")
      ->capture_default_str();
  command.add_option("--store-max", options.store_max, "Descriptors kept for the daemon at once")
      ->capture_default_str();
  add_milliseconds("--watchdog-ms", options.watchdog, "Abort a daemon that reports nothing for so long; 0: never");
  add_milliseconds("--start-timeout-ms", options.start_timeout, "Abort one that is not ready by then; 0: never");
  add_milliseconds("--stop-timeout-ms", options.stop_timeout, "Kill one that has not ended by then; 0: never");
  add_milliseconds("--restart-delay-max-ms", options.restart_delay_max, "The longest wait before it is started again");
  command.add_option("arguments", arguments.more, "After --: more arguments of the daemon");
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  terrace::Arguments arguments;
  terrace::SuperviseArguments supervised{
      .program = terrace::own_path(argv[0]), .config_path = {}, .more = {}, .options = {}};
  CLI::App app("Owns this node's memory tiers and serves tensors to its training processes.", "terraced");
  app.add_option("--config,file", arguments.config_path,
                 "TOML file; without one, a quarter of the memory and no block tier")
      ->check(terrace::not_empty());
  app.add_flag("--check-config", arguments.check_config,
               "Say what is wrong with the configuration, or what it takes; take nothing");
  app.add_flag("--discard", arguments.discard,
               "Start cold: whatever a former daemon left with the supervisor is given up, sessions and tensors too");
  app.add_option(terrace::front::kCheckSuccession, arguments.catalog,
                 "Say whether this program could go on with the catalog that is open as this descriptor; take nothing")
      ->check(CLI::NonNegativeNumber);
  app.set_version_flag("--version", TERRACE_VERSION);
  terrace::add_supervise(app, supervised);
  CLI11_PARSE(app, argc, argv);
  if (app.got_subcommand("supervise")) return terrace::run_supervisor(supervised);
  arguments.command = terrace::successor_of(argc, argv);
  return terrace::run(arguments);
}
