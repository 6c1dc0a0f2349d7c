// SPDX-License-Identifier: Apache-2.0
// A node from a file, and to one: the daemon's own configuration, with the section [links].
#pragma once

#include <iosfwd>
#include <string>

#include "config/config.h"
#include "terrace/error.h"
#include "workload/node.h"

namespace terrace::workload {

// The share of one GPU in the node that `config` describes: the capacities of its tiers as they are written, not looked
// up on this machine, and the speeds of [links]. Several device tiers are as many GPUs, which share the rest equally.
// InvalidArgument naming file, line and key where a capacity is written in percent, where there is no device tier,
// where device tiers differ, or where the speed of a link between two tiers is missing.
Result<Node> node_of(const config::Config& config);

// One of kReferenceNodes, or node_of() the file of that path. NotFound, PermissionDenied or InvalidArgument, with every
// problem of the file.
Result<Node> load_node(const std::string& name_or_path);

// A configuration that load_node() reads back as `node`, of one GPU and whole capacities (aborts else), speeds to the
// kilobyte and latencies to the microsecond. `block_path`, absolute, is the block tier's file. Errors are the stream's.
void write_node(const Node& node, const std::string& block_path, std::ostream& out);
// Of it, the section [links] alone.
void write_links(const Node& node, std::ostream& out);

}  // namespace terrace::workload
