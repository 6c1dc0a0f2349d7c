// SPDX-License-Identifier: Apache-2.0
// Rows for people: on a terminal, and as the tables of docs/lab.
#pragma once

#include <string>
#include <vector>

#include "bench/row.h"

namespace terrace::bench {

// A figure with as many digits as say something: "0.973", "512", "1,234,567".
std::string figure(double value);

// One line with the bar and whether it holds, then one for the reference and its interval, and one a counted figure.
std::string to_text(const Row& row);

// A Markdown table: row, bar, figure, value and reference, interval, counts, by.
std::string to_markdown(const std::vector<Row>& rows);

// "17 rows: 14 bars hold, 2 of them by the interval; missed: scale.bytes_per_tensor".
std::string summary(const std::vector<Row>& rows);

}  // namespace terrace::bench
