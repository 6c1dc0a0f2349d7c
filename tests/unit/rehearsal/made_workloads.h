// SPDX-License-Identifier: Apache-2.0
// Small workloads whose best schedule is known.
#pragma once

#include "workload/node.h"
#include "workload/workload.h"

namespace terrace::rehearsal {

// Tensors that are read, and with `writes` written, one after the other, `compute` each, over and over.
workload::Workload loop(std::uint32_t tensors, std::uint64_t bytes, Duration compute, workload::Place place,
                        bool writes);

// Forward and backward through layers: the weights are read twice and updated, the activations are born forward and
// die backward, first born last.
workload::Workload training(std::uint32_t layers, std::uint64_t weight_bytes, std::uint64_t activation_bytes,
                            Duration compute);

// HBM and host, and where `block_bytes` is not 0 a block tier; links of the given speed.
workload::Node node_of(std::uint64_t hbm_bytes, std::uint64_t host_bytes, std::uint64_t block_bytes,
                       std::uint64_t bytes_per_s);

}  // namespace terrace::rehearsal
