// SPDX-License-Identifier: Apache-2.0
#include "base/nameless_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace terrace {

std::expected<Fd, int> nameless_file(const std::string& folder, int flags) {
  Fd nameless(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600));
  if (nameless) return nameless;
  // The file system has no O_TMPFILE, or none with these flags, which the second attempt tells.
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) return std::unexpected(errno);
  std::string name = folder + "/.terrace-trial-XXXXXX";
  const Fd made(::mkostemp(name.data(), O_CLOEXEC));
  if (!made) return std::unexpected(errno);
  Fd named(::open(name.c_str(), O_RDWR | O_CLOEXEC | flags));
  const int error = errno;
  ::unlink(name.c_str());
  if (!named) return std::unexpected(error);
  return named;
}

}  // namespace terrace
