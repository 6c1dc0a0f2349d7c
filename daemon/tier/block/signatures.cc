// SPDX-License-Identifier: Apache-2.0
#include "tier/block/signatures.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

namespace terrace::tier {
namespace {

using namespace std::string_view_literals;

struct Signature {
  std::size_t offset;
  std::string_view bytes;
  const char* name;
};

// As their own documentation has them; the more telling first, since a boot sector's mark is in several of them.
constexpr std::array kSignatures = {
    Signature{0, "LUKS\xba\xbe"sv, "a LUKS volume"},
    Signature{0, "XFSB"sv, "an xfs file system"},
    Signature{0, "hsqs"sv, "a squashfs file system"},
    Signature{3, "NTFS    "sv, "an NTFS file system"},
    Signature{3, "EXFAT   "sv, "an exFAT file system"},
    Signature{54, "FAT"sv, "a FAT file system"},
    Signature{82, "FAT32"sv, "a FAT file system"},
    Signature{512, "EFI PART"sv, "a partition table (GPT)"},
    Signature{4096, "EFI PART"sv, "a partition table (GPT)"},
    Signature{512, "LABELONE"sv, "an LVM volume"},
    Signature{1024, "\x10\x20\xf5\xf2"sv, "an f2fs file system"},
    Signature{1080, "\x53\xef"sv, "an ext2, ext3 or ext4 file system"},
    Signature{4086, "SWAPSPACE2"sv, "swap space"},
    Signature{4120, "\xc6\x85\x73\xf6"sv, "a bcache device"},
    Signature{4096, "\xfc\x4e\x2b\xa9"sv, "a part of an md array"},
    Signature{0, "\xfc\x4e\x2b\xa9"sv, "a part of an md array"},
    Signature{32769, "CD001"sv, "an ISO 9660 file system"},
    Signature{65600, "_BHRfS_M"sv, "a btrfs file system"},
    Signature{131072, "\x0c\xb1\xba\x00\x00\x00\x00\x00"sv, "a ZFS pool"},
    Signature{510, "\x55\xaa"sv, "a partition table (MBR)"},
};

bool has(std::span<const std::byte> bytes, const Signature& signature) {
  return bytes.size() >= signature.offset + signature.bytes.size() &&
         std::memcmp(bytes.data() + signature.offset, signature.bytes.data(), signature.bytes.size()) == 0;
}

bool is_zero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{}; });
}

}  // namespace

std::string what_is_there(std::span<const std::byte> first, std::span<const std::byte> last) {
  if (is_zero(first) && is_zero(last)) return "";
  const auto known = std::ranges::find_if(kSignatures, [&](const Signature& one) { return has(first, one); });
  if (known != kSignatures.end()) return known->name;
  return is_zero(first) ? "something at its end, such as a copy of a partition table or a part of an md array"
                        : "something";
}

}  // namespace terrace::tier
