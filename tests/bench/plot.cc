// SPDX-License-Identifier: Apache-2.0
#include "bench/plot.h"

#include "picture/picture.h"

namespace terrace::bench {
namespace {

// Every row on one scale: how far it is on the good side of its bar (1: on it), on a logarithmic axis. What lies beyond
// the axis is at its end, as an arrow. A bar of 0 is reached by 0 and by nothing else.
constexpr const char* kScript = R"py(
import json, sys
import matplotlib
matplotlib.use("Agg")
from matplotlib import pyplot

LOW, HIGH = 0.5, 4
rows = json.load(sys.stdin)[::-1]


def good(row, ratio):
    above, below = (ratio, row["bar"]) if row["better"] == "higher" else (row["bar"], ratio)
    return 1 if above == below else above / max(1e-9, below)


def clipped(place):
    return min(max(place, LOW), HIGH)


figure, axes = pyplot.subplots(figsize=(10, 1 + 0.32 * len(rows)))
for at, row in enumerate(rows):
    colour = {"ratio": "tab:green", "interval": "tab:olive", None: "tab:red"}[row["by"]]
    place = good(row, row["ratio"])
    marker = "<" if place < LOW else ">" if place > HIGH else "o"
    axes.plot(clipped(place), at, marker, color=colour, clip_on=False, zorder=3)
    if row["interval"]:
        low, high = (clipped(good(row, ratio)) for ratio in row["interval"])
        if low != high:
            axes.plot([low, high], [at, at], color="tab:gray", alpha=0.5, linewidth=5)
axes.axvline(1, color="black", linewidth=1)
axes.set_xscale("log")
axes.set_xlim(LOW, HIGH)
axes.set_xticks([LOW, 0.7, 1, 1.5, 2, 3, HIGH], ["0.5", "0.7", "1", "1.5", "2", "3", "4"])
axes.minorticks_off()
axes.set_yticks(range(len(rows)), [row["bench"] for row in rows])
axes.set_xlabel("times as good as the bar (green: by the ratio, olive: by the interval, red: missed; an arrow: beyond;\n"
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
