// SPDX-License-Identifier: Apache-2.0
// [sockets] and [[tenant]]
#include <fmt/format.h>

#include <map>
#include <utility>

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
  Section section(table, fmt::format("tenant[{}].", index), problems);
  TenantConfig tenant;
  tenant.line = section.line();
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
  section.finish();
  return tenant;
}

// Gives the sockets that have no path one, and sees that no two are the same file.
class SocketPaths {
 public:
  SocketPaths(const std::string& runtime_dir, Problems& problems) : runtime_dir_(runtime_dir), problems_(problems) {}

  void fill(Config& config) {
    for (std::size_t i = 0; i < config.tenants.size(); ++i) {
      TenantConfig& tenant = config.tenants[i];
      take(tenant.data_socket, config.sockets.data, {tenant.line, fmt::format("tenant[{}].data_socket", i)},
           "data.sock");
      take(tenant.grpc_socket, config.sockets.grpc, {tenant.line, fmt::format("tenant[{}].grpc_socket", i)},
           "terraced.sock");
    }
    std::string admin;
    take(admin, config.sockets.admin, {0, "sockets.admin"}, "admin.sock");
  }

 private:
  struct Origin {
    std::uint32_t line;
    std::string key;
  };

  // `own` stays if it is set; else it becomes `shared`, which is made up from the folder if it has no path either.
  void take(std::string& own, std::string& shared, const Origin& origin, std::string_view file) {
    if (own.empty()) {
      if (shared.empty()) shared = default_path(file);
      own = shared;
    }
    if (own.empty()) return;
    const auto [other, is_new] = taken_.emplace(own, origin.key);
    if (is_new) return;
    problems_.add(origin.line, origin.key,
                  fmt::format("\"{}\" is {} already; give each a path of its own", own, other->second));
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
  std::map<std::string, std::string> taken_;
};

}  // namespace

void read_tenants(Section& root, Problems& problems, Config& config) {
  for (const toml::table* table : root.tables("tenant")) {
    config.tenants.push_back(read_tenant(*table, config.tenants.size(), problems));
    for (std::size_t i = 0; i + 1 < config.tenants.size(); ++i) {
      if (config.tenants[i].name != config.tenants.back().name) continue;
      problems.add(config.tenants.back().line, fmt::format("tenant[{}].name", config.tenants.size() - 1),
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
  Section section(*table, "sockets.", problems);
  read_path(section, "data", sockets.data);
  read_path(section, "grpc", sockets.grpc);
  read_path(section, "admin", sockets.admin);
  section.finish();
}

void fill_sockets(const std::string& runtime_dir, Problems& problems, Config& config) {
  SocketPaths(runtime_dir, problems).fill(config);
}

}  // namespace terrace::config
