// SPDX-License-Identifier: Apache-2.0
// [sockets] and [[tenant]]
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/ids.h"
#include "config/parse.h"
#include "config/section.h"
#include "config/sections.h"

namespace terrace::config {
namespace {

void read_path(Section& section, std::string_view key, std::string& path) {
  std::optional<std::string> value = section.text(key);
  if (!value) return;
  if (value->empty() || value->front() != '/' || value->find('\0') != std::string::npos) {
    section.complain(key, fmt::format("is \"{}\"; it must be an absolute path, such as \"/run/terrace/x\"", *value));
  } else if (value->size() > kSocketPathBytesMax) {
    section.complain(key,
                     fmt::format("is {} bytes long; the path of a Unix socket has at most {}: choose a shorter one",
                                 value->size(), kSocketPathBytesMax));
  } else {
    path = *value;
  }
}

void read_uids(Section& section, TenantConfig& tenant) {
  const toml::node* node = section.node("uids");
  if (node == nullptr) return;
  if (const auto* text = node->as_string(); text != nullptr && text->get() == "any") {
    tenant.any_uid = true;
    return;
  }
  constexpr std::string_view kRight = "must be a list of user ids such as [1000, 1001], or \"any\"";
  const auto* list = node->as_array();
  if (list == nullptr) return section.complain("uids", kRight);
  for (const toml::node& element : *list) {
    const auto* uid = element.as_integer();
    // The last uid is (uid_t)-1, which the kernel keeps for "no change".
    if (uid == nullptr || uid->get() < 0 || uid->get() >= 0xffffffff) return section.complain("uids", kRight);
    tenant.uids.push_back(static_cast<std::uint32_t>(uid->get()));
  }
}

bool is_label(std::string_view text) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
  return !text.empty() && text.size() <= 64 && text.find_first_not_of(kAllowed) == std::string_view::npos;
}

TenantConfig read_tenant(const toml::table& table, std::size_t index, Problems& problems) {
  Section section(table, fmt::format("tenant[{}]", index), problems);
  TenantConfig tenant;
  tenant.origin = section.origin();
  tenant.name = section.text("name").value_or("");
  if (!is_label(tenant.name)) {
    section.complain("name", fmt::format("is \"{}\"; a tenant needs a name of 1 to 64 letters, digits, \"_\", \"-\" or "
                                         "\".\"",
                                         tenant.name));
  }
  read_path(section, "data_socket", tenant.data_socket);
  read_path(section, "grpc_socket", tenant.grpc_socket);
  read_uids(section, tenant);
  tenant.quota_bytes = section.bytes("quota").value_or(0);
  tenant.weight = static_cast<std::uint32_t>(section.integer("weight", 1, kTenantWeightMax).value_or(1));
  section.finish();
  return tenant;
}

// Gives the sockets that have no path one, and sees that no two are the same file.
class SocketPaths {
 public:
  SocketPaths(const std::string& runtime_dir, Problems& problems) : runtime_dir_(runtime_dir), problems_(problems) {}

  void fill(Config& config) {
    Sockets& shared = config.sockets;
    if (shared.origin.section.empty()) shared.origin.section = "sockets";
    for (const auto& [path, file] : {std::pair(&shared.data, "data.sock"), {&shared.grpc, "terraced.sock"}}) {
      const bool all_have_own = std::ranges::none_of(config.tenants, [&](const TenantConfig& tenant) {
        return (path == &shared.data ? tenant.data_socket : tenant.grpc_socket).empty();
      });
      if (path->empty() && !all_have_own) *path = default_path(file);
    }
    if (shared.admin.empty()) shared.admin = default_path("admin.sock");
    for (TenantConfig& tenant : config.tenants) {
      if (tenant.data_socket.empty()) tenant.data_socket = shared.data;
      if (tenant.grpc_socket.empty()) tenant.grpc_socket = shared.grpc;
    }
    for (const ConfiguredSocket& socket : configured_sockets(config)) take(socket);
  }

 private:
  // Of two that are one, the one that was written is wrong: the later, if both were.
  void take(const ConfiguredSocket& socket) {
    if (socket.path->empty()) return;
    const auto [taken, is_new] = taken_.emplace(*socket.path, socket);
    if (is_new) return;
    const bool by_default = socket.origin->section == "sockets" && !socket.origin->has(socket.key);
    const ConfiguredSocket& wrong = by_default ? taken->second : socket;
    const ConfiguredSocket& other = by_default ? socket : taken->second;
    problems_.add(wrong.origin->line_of(wrong.key), wrong.origin->name_of(wrong.key),
                  fmt::format("\"{}\" is {} already; give each a path of its own", *wrong.path,
                              other.origin->name_of(other.key)));
  }

  std::string default_path(std::string_view file) {
    if (runtime_dir_.empty()) {
      if (!std::exchange(complained_, true)) {
        problems_.add(0, "sockets",
                      "have no default place, as XDG_RUNTIME_DIR is not set; set it, or write "
                      "data, grpc and admin under [sockets]");
      }
      return "";
    }
    std::string path = fmt::format("{}/{}", runtime_dir_, file);
    if (path.size() > kSocketPathBytesMax) {
      problems_.add(0, "sockets",
                    fmt::format("\"{}\" is {} bytes long; the path of a Unix socket has at most {}: set "
                                "shorter ones under [sockets]",
                                path, path.size(), kSocketPathBytesMax));
    }
    return path;
  }

  const std::string& runtime_dir_;
  Problems& problems_;
  bool complained_ = false;
  std::map<std::string, ConfiguredSocket> taken_;
};

}  // namespace

void read_tenants(Section& root, Problems& problems, Config& config) {
  for (const toml::table* table : root.tables("tenant")) {
    config.tenants.push_back(read_tenant(*table, config.tenants.size(), problems));
    for (std::size_t i = 0; i + 1 < config.tenants.size(); ++i) {
      if (config.tenants[i].name != config.tenants.back().name) continue;
      const Origin& origin = config.tenants.back().origin;
      problems.add(origin.line_of("name"), origin.name_of("name"),
                   fmt::format("\"{}\" is the name of tenant[{}] already; choose another", config.tenants[i].name, i));
    }
  }
  if (config.tenants.empty()) {
    config.tenants.emplace_back();
    config.tenants.back().name = "default";
  }
}

void read_sockets(const toml::table* table, Problems& problems, Sockets& sockets) {
  if (table == nullptr) return;
  Section section(*table, "sockets", problems);
  sockets.origin = section.origin();
  read_path(section, "data", sockets.data);
  read_path(section, "grpc", sockets.grpc);
  read_path(section, "admin", sockets.admin);
  section.finish();
}

std::vector<ConfiguredSocket> configured_sockets(const Config& config) {
  std::vector<ConfiguredSocket> sockets;
  const Origin& shared = config.sockets.origin;
  std::set<std::string_view> given;  // keys of [sockets] whose path went to a tenant
  for (const TenantConfig& tenant : config.tenants) {
    const auto add = [&](const std::string& path, const char* key, const char* shared_key) {
      // The tenant that is there without any [[tenant]] is no section of the file.
      const bool in_file = tenant.origin.line != 0;
      const bool own = tenant.origin.has(key) || (in_file && (!shared.has(shared_key) || given.contains(shared_key)));
      if (!own) given.insert(shared_key);
      sockets.push_back({&path, own ? &tenant.origin : &shared, own ? key : shared_key});
    };
    add(tenant.data_socket, "data_socket", "data");
    add(tenant.grpc_socket, "grpc_socket", "grpc");
  }
  sockets.push_back({&config.sockets.admin, &shared, "admin"});
  return sockets;
}

void fill_sockets(const std::string& runtime_dir, Problems& problems, Config& config) {
  SocketPaths(runtime_dir, problems).fill(config);
}

}  // namespace terrace::config
