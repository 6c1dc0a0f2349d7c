// SPDX-License-Identifier: Apache-2.0
// Text that came from outside.
#pragma once

#include <string>
#include <string_view>

namespace terrace {

// Whether it is UTF-8: no byte out of place, nothing longer than it need be, no surrogates.
bool is_utf8(std::string_view text);

// The same text as people's tools may be given it: '?' for each control character and each byte that is not UTF-8.
std::string printable(std::string_view text);

}  // namespace terrace
