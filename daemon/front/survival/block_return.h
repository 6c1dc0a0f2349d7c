// SPDX-License-Identifier: Apache-2.0
// The block tier's return (DESIGN decision 8). A daemon that was killed holds its block files until the last read and
// write that it had begun are done, however long its disk takes for them. Its successor serves everything else
// meanwhile, looks for the locks now and then, and serves the block tier once it has them all.
#pragma once

#include <optional>
#include <string>

#include "base/time.h"
#include "front/node/node.h"
#include "front/reactor/engine_loop.h"
#include "front/reactor/service_notify.h"
#include "terrace/error.h"

namespace terrace::front {

// The reactor thread's. All are borrowed, and outlive it.
class BlockReturn {
 public:
  BlockReturn(Node& node, EngineLoop& loop, ServiceNotify& notify) : node_(node), loop_(loop), notify_(notify) {}

  // Before the engine is made, whose options are told. A daemon that goes on for another has sessions to serve, whoever
  // holds the files; one that begins afresh has none, and would wait in vain for somebody who lives and works with
  // them, perhaps where it cannot see that: it ends, and whoever started it may try again.
  Result<void> expect(bool goes_on);
  // The supervisor is told that the daemon serves, and whether all of it.
  void begin_serving();
  // How long the reactor may sleep.
  Duration until_next_look(Duration longest) const;
  // Looks for the locks, if it is time.
  void look();

 private:
  struct Awaited {
    Time since{};
    Time looked = since;
    std::string trouble{};  // the log has it
    bool told = false;      // that it takes long
  };

  Node& node_;
  EngineLoop& loop_;
  ServiceNotify& notify_;
  std::optional<Awaited> awaited_;  // while its files are not owned
};

}  // namespace terrace::front
