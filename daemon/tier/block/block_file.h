// SPDX-License-Identifier: Apache-2.0
// The block tier's storage: preallocated files opened with O_DIRECT, striped, and the checksums of what lies in them.
// Opens, places and remembers; the reads and writes are the mover's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/fd.h"
#include "terrace/error.h"
#include "tier/block/checksum_table.h"
#include "tier/extent.h"

namespace terrace::tier {

struct BlockOptions {
  std::vector<std::string> paths;    // at least one; regular files, made if they are not there, or formatted devices
  std::uint64_t capacity_bytes = 0;  // of all together; rounded down to whole stripes
  bool remove_on_close = false;      // regular files are unlinked when the tier goes (private daemons)
  bool may_wait = false;             // files that another process holds are no error: see owned()
};

// The space of one block tier. Its bytes mean something to the next daemon only with the catalog of what lies where.
// Ranges that tensors leave are not discarded: on a file that would give the space to others, against the promise that
// a home is reserved.
class BlockFile {
 public:
  // Consecutive MiBs of the tier lie in consecutive files.
  static constexpr std::uint64_t kStripeBytes = kChunkBytes;
  // No alignment that a device asks for may be coarser: extents begin and end on it.
  static constexpr std::uint64_t kAlignmentMax = 4096;

  // Takes an exclusive flock on each path and reserves its space in full. Errors name the path and what would do:
  // kFailedPrecondition (another process holds it, by name if that can be found; a path that is neither a regular
  // file nor a block device of ours; a file system without O_DIRECT or without fallocate, by name; too coarse an
  // alignment), kResourceExhausted (wanted and free bytes), kPermissionDenied, kInvalidArgument, kInternal; with
  // system_error.
  static Result<std::unique_ptr<BlockFile>> open(const BlockOptions& options);
  // What is not owned is left as it is.
  ~BlockFile();
  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;

  // Whether every file is this one's own. The lock of a daemon that was killed stays with the system until its last
  // read and write are done, so nothing of it comes later: until then nothing must be read from the files or written to
  // them.
  bool owned() const;
  // Tries to come by what is missing, without waiting; owned(). Errors as open(): of a file that can be had, and does
  // not do. May be called again.
  Result<bool> take();
  // Who holds one that is missing: "process 4711 (terraced)", or what it can only be where no such process lives.
  std::string holder() const;
  // Whether that is a process that lives, as far as this one can see.
  bool held_by_the_living() const;

  // Whether every path still leads to its file: not where a former owner removed it as it ended.
  bool in_place() const;

  std::uint64_t capacity_bytes() const { return stripes_ * kStripeBytes; }
  // The tier is taken into use: its files stay from now on, unless they are to go. A tier that ends without, of a start
  // that was refused, takes the files with it that it made, and leaves those that it found as large as they were.
  void keep();

  // The files, for Ring::set_files(): borrowed, valid as long as this.
  std::vector<int> descriptors() const;
  // What each direct read or write must be aligned to: the coarsest of the files' (STATX_DIOALIGN).
  std::uint64_t alignment() const { return alignment_; }

  // The first piece of [offset, offset + bytes): where it lies, and how much of it does in one run.
  struct Piece {
    std::size_t file = 0;  // index into descriptors()
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };
  Piece locate(std::uint64_t offset, std::uint64_t bytes) const;

  // Equal for the same files in the same order: of these the checksums of a former daemon are. Never 0.
  std::uint64_t identity() const;
  // What identity() would be of a tier on these paths; 0 if one of them is not there.
  static std::uint64_t identity_of(std::span<const std::string> paths);

  ChecksumTable& checksums() { return checksums_; }
  // The former daemon's: what it wrote is content again. Errors as ChecksumTable::adopt().
  Result<void> adopt_checksums(Fd memory);

 private:
  struct File {
    std::string path;
    Fd fd;
    bool made = false;  // by this very open()
    bool locked = false;
    bool owned = false;            // locked, marked, and its space reserved
    std::uint64_t size_found = 0;  // in bytes, where it was there
    bool is_device = false;
    Fd claim;  // of a device: nobody mounts it meanwhile
  };

  BlockFile() = default;
  Result<void> add(const std::string& path, bool may_wait);
  Result<void> own(File& file);
  Result<void> own_device(File& file) const;
  const File* missing() const;

  std::vector<File> files_;
  std::uint64_t stripes_ = 0;
  std::uint64_t file_bytes_ = 0;  // of each file
  std::uint64_t alignment_ = 512;
  bool remove_on_close_ = false;
  bool kept_ = false;
  ChecksumTable checksums_;
};

}  // namespace terrace::tier
