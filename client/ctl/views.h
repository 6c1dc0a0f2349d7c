// SPDX-License-Identifier: Apache-2.0
// The daemon's answers as text for people. Pure.
#pragma once

#include <string>

#include "terrace/v1/admin.pb.h"
#include "terrace/v1/status.pb.h"

namespace terrace::ctl {

std::string status_text(const v1::NodeStatus& status);
std::string sessions_text(const google::protobuf::RepeatedPtrField<v1::SessionStatus>& sessions);
std::string tensors_text(const v1::AdminListTensorsResponse& tensors);

// One screen of `top`: rates are over `seconds`, from `before` to `now`; 0: there is no before, totals alone.
std::string top_text(const v1::NodeStatus& now, const v1::NodeStatus& before, double seconds);

}  // namespace terrace::ctl
