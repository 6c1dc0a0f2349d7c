// SPDX-License-Identifier: Apache-2.0
// What a doctor found, for people and for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "doctor/checks.h"

namespace terrace::ctl {

// The form of to_json(); raised when a field changes its meaning or goes, and not when one is added.
inline constexpr int kDoctorVersion = 1;

// A line for each finding, with what mends it below, and a last line that counts them.
std::string doctor_text(std::span<const doctor::Examined> examined);

// docs/reference/doctor.md has the fields.
nlohmann::ordered_json to_json(const doctor::Node& node, std::span<const doctor::Examined> examined);

}  // namespace terrace::ctl
