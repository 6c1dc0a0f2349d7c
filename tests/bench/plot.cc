// SPDX-License-Identifier: Apache-2.0
#include "bench/plot.h"

#include "picture/picture.h"

namespace terrace::bench {
namespace {

// Every row on one scale: how far it is on the good side of its bar (1: on it), on a logarithmic axis.
constexpr const char* kScript = R"py(
import json, sys
import matplotlib
matplotlib.use("Agg")
from matplotlib import pyplot

rows = json.load(sys.stdin)[::-1]
good = lambda row, ratio: max(1e-9, ratio) / row["bar"] if row["better"] == "higher" else row["bar"] / max(1e-9, ratio)
figure, axes = pyplot.subplots(figsize=(10, 1 + 0.32 * len(rows)))
for at, row in enumerate(rows):
    colour = {"ratio": "tab:green", "interval": "tab:olive", None: "tab:red"}[row["by"]]
    axes.plot(good(row, row["ratio"]), at, "o", color=colour)
    if row["interval"]:
        axes.plot([good(row, ratio) for ratio in row["interval"]], [at, at], color="tab:gray", alpha=0.5, linewidth=5)
axes.axvline(1, color="black", linewidth=1)
axes.set_xscale("log")
axes.set_yticks(range(len(rows)), [row["bench"] for row in rows])
axes.set_xlabel("times as good as the bar (green: by the ratio, olive: by the interval, red: missed;\n"
                "gray: the reference against itself)")
figure.tight_layout()
figure.savefig(sys.argv[1], dpi=120)
)py";

}  // namespace

Result<void> plot(const std::vector<Row>& rows, const std::filesystem::path& file, const std::string& python) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const Row& row : rows) json.push_back(to_json(row));
  return picture::draw(kScript, json.dump(), file, python);
}

}  // namespace terrace::bench
