// SPDX-License-Identifier: Apache-2.0
// A plan for people, for programs, and as a picture. All bytes are those of one node, with all of its ranks.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "forecast/plan.h"
#include "terrace/error.h"

namespace terrace::ctl {

std::string plan_text(const forecast::Plan& plan);
nlohmann::ordered_json to_json(const forecast::Plan& plan);
// What DRAM does to the drives' traffic, a sentence each; none where there are no drives or nothing to tell.
std::vector<std::string> dram_sentences(const forecast::Plan& plan);
// Step time, traffic of the drives and their life over DRAM, into a PNG. Errors as picture::draw().
Result<void> draw_plan(const forecast::Plan& plan, const std::string& file, const std::string& python);

}  // namespace terrace::ctl
