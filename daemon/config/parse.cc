// SPDX-License-Identifier: Apache-2.0
#include "config/parse.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/text.h"
#include "config/endpoint.h"
#include "config/section.h"
#include "config/sections.h"
#include "topology/text_file.h"

namespace terrace::config {
namespace {

void read_limits(const toml::table* table, Problems& problems, Limits& limits) {
  if (table == nullptr) return;
  Section section(*table, "limits", problems);
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
  if (!value->empty()) {
    const auto endpoint = parse_endpoint(*value);
    if (!endpoint) return root.complain("metrics_address", endpoint.error().message + ", or \"\" for none");
  }
  address = *value;
}

// The first line that holds what TOML has no place for anywhere, and its parser does not always survive; 0: none.
std::uint32_t line_without_text(std::string_view text) {
  const auto is_control = [](char c) {
    return (static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\r') || c == 0x7F;
  };
  for (std::uint32_t number = 1;; ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (!is_utf8(line) || std::ranges::any_of(line, is_control)) return number;
    if (line.size() == text.size()) return 0;
    text.remove_prefix(line.size() + 1);
  }
}

}  // namespace

std::string default_runtime_dir() {
  if (::geteuid() == 0) return "/run/terrace";
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  return runtime != nullptr && runtime[0] == '/' ? fmt::format("{}/terrace", runtime) : "";
}

Result<Draft> read(std::string_view text, std::string_view source, const std::string& runtime_dir) {
  Draft draft{{}, Problems{std::string(source)}};
  Config& config = draft.config;
  Problems& problems = draft.problems;
  if (const std::uint32_t line = line_without_text(text); line != 0) {
    problems.add(line, "", "this is not text: a control character, or not UTF-8; write it with a text editor");
    return std::unexpected(problems.error());
  }
  const toml::parse_result parsed = toml::parse(text, source);
  if (!parsed) {
    problems.add(parsed.error().source().begin.line, "",
                 fmt::format("this is not TOML: {}; see https://toml.io", parsed.error().description()));
    return std::unexpected(problems.error());
  }
  config.source = source;
  Section root(parsed.table(), "", problems);
  config.origin = root.origin();
  read_sockets(root.table("sockets"), problems, config.sockets);
  read_metrics_address(root, config.metrics_address);
  read_tiers(root, problems, config);
  read_tenants(root, problems, config);
  fill_sockets(runtime_dir, problems, config);
  read_links(root.table("links"), problems, config.links);
  read_limits(root.table("limits"), problems, config.limits);
  if (const auto policy = root.one_of("policy", {kPolicyNames.begin(), kPolicyNames.end()})) {
    config.policy = static_cast<Policy>(*policy);
  }
  config.strict = root.flag("strict").value_or(false);
  if (const auto level = root.one_of("log_level", {"trace", "debug", "info", "warn", "error"})) {
    config.log_level = static_cast<LogLevel>(*level);
  }
  root.finish();
  return draft;
}

Result<Config> parse(std::string_view text, std::string_view source, const std::string& runtime_dir) {
  Result<Draft> draft = read(text, source, runtime_dir);
  if (!draft) return std::unexpected(draft.error());
  if (!draft->problems.none()) return std::unexpected(draft->problems.error());
  return std::move(draft->config);
}

Result<Draft> load(const std::string& path, const std::string& runtime_dir) {
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
  return read(*text, path, runtime_dir);
}

}  // namespace terrace::config
