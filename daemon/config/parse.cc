// SPDX-License-Identifier: Apache-2.0
#include "config/parse.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "config/section.h"
#include "config/sections.h"
#include "topology/text_file.h"

namespace terrace::config {
namespace {

void read_limits(const toml::table* table, Problems& problems, Limits& limits) {
  if (table == nullptr) return;
  Section section(*table, "limits.", problems);
  const auto read = [&](std::string_view key, std::uint32_t& value, std::int64_t min, std::int64_t max) {
    if (const auto given = section.integer(key, min, max)) value = static_cast<std::uint32_t>(*given);
  };
  read("sessions_max", limits.sessions_max, 1, 4096);
  read("tensors_per_session_max", limits.tensors_per_session_max, 1, 1 << 22);
  read("connections_max", limits.connections_max, 1, 65536);
  read("requests_queued_max", limits.requests_queued_max, 1, 1 << 20);
  read("request_timeout_ms", limits.request_timeout_ms, 1, 86'400'000);
  read("session_idle_timeout_ms", limits.session_idle_timeout_ms, 1, 86'400'000);
  read("stop_timeout_ms", limits.stop_timeout_ms, 1, 600'000);
  section.finish();
}

void read_metrics_address(Section& root, std::string& address) {
  const std::optional<std::string> value = root.text("metrics_address");
  if (!value) return;
  const std::size_t colon = value->rfind(':');
  unsigned port = 65536;
  if (colon != std::string::npos && colon > 0) {
    const char* end = value->data() + value->size();
    if (std::from_chars(value->data() + colon + 1, end, port).ptr != end) port = 65536;
  }
  if (!value->empty() && port > 65535) {
    return root.complain(
        "metrics_address",
        fmt::format("is \"{}\"; it must be HOST:PORT such as \"127.0.0.1:9464\", or \"\" for none", *value));
  }
  address = *value;
}

}  // namespace

std::string default_runtime_dir() {
  if (::geteuid() == 0) return "/run/terrace";
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  return runtime != nullptr && runtime[0] == '/' ? fmt::format("{}/terrace", runtime) : "";
}

Result<Config> parse(std::string_view text, std::string_view source, const std::string& runtime_dir) {
  Problems problems{std::string(source)};
  const toml::parse_result parsed = toml::parse(text, source);
  if (!parsed) {
    problems.add(parsed.error().source().begin.line, "",
                 fmt::format("this is not TOML: {}; see https://toml.io", parsed.error().description()));
    return std::unexpected(problems.error());
  }
  Config config;
  config.source = source;
  Section root(parsed.table(), "", problems);
  read_sockets(root.table("sockets"), problems, config.sockets);
  read_metrics_address(root, config.metrics_address);
  read_tiers(root, problems, config);
  read_tenants(root, problems, config);
  fill_sockets(runtime_dir, problems, config);
  read_limits(root.table("limits"), problems, config.limits);
  config.strict = root.flag("strict").value_or(false);
  if (const auto level = root.one_of("log_level", {"trace", "debug", "info", "warn", "error"})) {
    config.log_level = static_cast<LogLevel>(*level);
  }
  root.finish();
  if (!problems.none()) return std::unexpected(problems.error());
  return config;
}

Result<Config> load(const std::string& path, const std::string& runtime_dir) {
  const std::expected<std::string, int> text = topology::read_text(path);
  if (!text) {
    const int error = text.error();
    const ErrorCode code = error == ENOENT   ? ErrorCode::kNotFound
                           : error == EACCES ? ErrorCode::kPermissionDenied
                                             : ErrorCode::kInvalidArgument;
    return fail(
        code,
        fmt::format("{}: the configuration cannot be read: {}; name a readable TOML file", path, std::strerror(error)),
        error);
  }
  return parse(*text, path, runtime_dir);
}

}  // namespace terrace::config
