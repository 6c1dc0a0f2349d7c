// SPDX-License-Identifier: Apache-2.0
// Messages as JSON for programs: every field there, named as in the .proto, numbers as numbers (protobuf's own form
// writes 64-bit ones as strings), places as "host", "device:0", "block" or "nowhere".
#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>
#include <string>

#include "terrace/v1/status.pb.h"

namespace terrace::ctl {

nlohmann::ordered_json to_json(const google::protobuf::Message& message);

// "host", "device:0", "block", "nowhere".
std::string place_name(const v1::Place& place);

}  // namespace terrace::ctl
