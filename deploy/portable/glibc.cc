// SPDX-License-Identifier: Apache-2.0
// Two functions that GCC's run-time libraries take from glibc where they were built on a newer one than 2.34. With
// these, which no other object sees, a program or extension that has those libraries inside runs on glibc 2.34 as well.
#include <dlfcn.h>
#include <link.h>
#include <sys/random.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>

namespace {

struct Search {
  std::uintptr_t address = 0;
  dl_find_object* found = nullptr;
};

bool holds(const dl_phdr_info& object, const ElfW(Phdr) & header, std::uintptr_t address) {
  return header.p_type == PT_LOAD && address - (object.dlpi_addr + header.p_vaddr) < header.p_memsz;
}

// Of dl_iterate_phdr(3): 1 ends the search.
int look_into(dl_phdr_info* object, std::size_t, void* data) {
  auto& search = *static_cast<Search*>(data);
  bool here = false;
  std::uintptr_t frames = 0;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = object->dlpi_phdr[i];
    if (header.p_type == PT_GNU_EH_FRAME) frames = object->dlpi_addr + header.p_vaddr;
    if (!holds(*object, header, search.address)) continue;
    here = true;
    search.found->dlfo_map_start = reinterpret_cast<void*>(object->dlpi_addr + header.p_vaddr);
    search.found->dlfo_map_end = reinterpret_cast<void*>(object->dlpi_addr + header.p_vaddr + header.p_memsz);
  }
  search.found->dlfo_eh_frame = reinterpret_cast<void*>(frames);
  return here && frames != 0 ? 1 : 0;
}

}  // namespace

extern "C" {

// Where the unwinding tables of the object around an address are: glibc 2.35's, by what glibc had before.
int _dl_find_object(void* address, dl_find_object* result) noexcept {
  *result = {};
  Search search{reinterpret_cast<std::uintptr_t>(address), result};
  return ::dl_iterate_phdr(look_into, &search) == 1 ? 0 : -1;
}

// glibc 2.36's random number, for std::random_device.
std::uint32_t arc4random() noexcept {
  std::uint32_t number = 0;
  while (::getrandom(&number, sizeof number, 0) != static_cast<ssize_t>(sizeof number)) {
    if (errno != EINTR) std::abort();
  }
  return number;
}
}
