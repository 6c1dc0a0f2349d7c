// SPDX-License-Identifier: Apache-2.0
// What lies on a block device, as far as its first and last bytes tell.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace terrace::tier {

// For people: "a partition table (GPT)", "an ext2, ext3 or ext4 file system"; "something" for bytes that are none that
// we know; empty where there are only zeros. `first`: from the device's begin, a mebibyte; `last`: up to its end.
std::string what_is_there(std::span<const std::byte> first, std::span<const std::byte> last);

}  // namespace terrace::tier
