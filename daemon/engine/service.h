// SPDX-License-Identifier: Apache-2.0
// Each request is carried out, or begun.
#pragma once

#include "engine/admission/admissions.h"
#include "engine/admission/ahead.h"
#include "engine/admission/creation.h"
#include "engine/admission/queues.h"
#include "engine/admission/session.h"
#include "engine/admission/sessions.h"
#include "engine/budget/budget.h"
#include "engine/catalog/memory.h"
#include "engine/opening.h"
#include "engine/reports.h"
#include "engine/requests/requests.h"
#include "engine/residency/ledger.h"
#include "engine/residency/lives.h"
#include "engine/residency/lookup.h"
#include "engine/residency/records.h"
#include "engine/residency/tiers.h"
#include "engine/residency/wakes.h"
#include "engine/residency/words.h"
#include "engine/space/departures.h"
#include "engine/steps/steps.h"
#include "engine/tensors.h"
#include "engine/values/counts.h"
#include "engine/values/options.h"

namespace terrace::engine {

class Service {
 public:
  Service(const Options& options, CatalogMemory& catalog, Counts& counts, Ledger& ledger, Registry& registry,
          Requests& requests, Tiers& tiers, Wakes& wakes, Records& records, Lookup& lookup, Words& words, Lives& lives,
          Budget& budget, Steps& steps, Departures& departures, Sessions& sessions, Queues& queues, Creation& creation,
          Admissions& admissions, Ahead& ahead, Tensors& tensors, Opening& opening, Reports& reports)
      : options_(options),
        catalog_(catalog),
        counts_(counts),
        ledger_(ledger),
        registry_(registry),
        requests_(requests),
        tiers_(tiers),
        wakes_(wakes),
        records_(records),
        lookup_(lookup),
        words_(words),
        lives_(lives),
        budget_(budget),
        steps_(steps),
        departures_(departures),
        sessions_(sessions),
        queues_(queues),
        creation_(creation),
        admissions_(admissions),
        ahead_(ahead),
        tensors_(tensors),
        opening_(opening),
        reports_(reports) {}

  void on(const Request& request, const OpenSession& body);
  void on(const Request& request, const CloseSession& body);
  void on(const Request& request, CreateTensors&& body);
  void on(const Request& request, const DeleteTensors& body);
  void on(const Request& request, const DontNeed& body);
  void on(const Request& request, const ListTensors& body);
  void on(const Request& request, const FindTensors& body);
  void on(const Request& request, const Release& body);
  void on(const Request& request, const Unpin& body);
  void on(const Request& request, Acquire&& body);
  void on(const Request& request, Move&& body);
  void on(const Request& request, Pin&& body);
  void on(const Request& request, const Evict& body);
  void on(const Request& request, const DeclareStep& body);
  void on(const Request& request, const Prefetch& body);
  void on(const Request& request, const MarkStep& body);
  void on(const Request& request, const GetStatus& body);
  void on(const Request& request, const Drain& body);

 private:
  Result<void> check_declared(Session& session, const DeclareStep& step);

  const Options& options_;
  CatalogMemory& catalog_;
  Counts& counts_;
  Ledger& ledger_;
  Registry& registry_;
  Requests& requests_;
  Tiers& tiers_;
  Wakes& wakes_;
  Records& records_;
  Lookup& lookup_;
  Words& words_;
  Lives& lives_;
  Budget& budget_;
  Steps& steps_;
  Departures& departures_;
  Sessions& sessions_;
  Queues& queues_;
  Creation& creation_;
  Admissions& admissions_;
  Ahead& ahead_;
  Tensors& tensors_;
  Opening& opening_;
  Reports& reports_;
};

}  // namespace terrace::engine
