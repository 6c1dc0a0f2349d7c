// SPDX-License-Identifier: Apache-2.0
// The parts of parse() that have a file of their own. Internal to config.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "config/section.h"

namespace terrace::config {

// Reads every [[tier]] of the file into config.tiers, and checks their order.
void read_tiers(Section& root, Problems& problems, Config& config);

// Reads [sockets]; `table` may be null.
void read_sockets(const toml::table* table, Problems& problems, Sockets& sockets);

// Reads every [[tenant]] into config.tenants; without any, there is one named "default".
void read_tenants(Section& root, Problems& problems, Config& config);

// A socket that the daemon listens on, and the key that gave it its path: a tenant's own, or that of [sockets].
struct ConfiguredSocket {
  const std::string* path = nullptr;
  const Origin* origin = nullptr;
  std::string_view key;
};
// All of them, the administrator's last. They borrow the configuration.
std::vector<ConfiguredSocket> configured_sockets(const Config& config);

// Reads [links]; `table` may be null.
void read_links(const toml::table* table, Problems& problems, Links& links);

// Gives each socket without a path the default one in `runtime_dir`, and sees that no two are the same file. After the
// tenants and [sockets] are read.
void fill_sockets(const std::string& runtime_dir, Problems& problems, Config& config);

}  // namespace terrace::config
