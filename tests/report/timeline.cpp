// SPDX-License-Identifier: BSL-1.0
#include "espalier/report/timeline.hpp"

#include <cmath>
#include <cstdio>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "raises.hpp"
#include "xml.hpp"

namespace {

using espalier::timeline_span;
using report_test::complaint;
using report_test::count;

std::string drawn(const std::vector<timeline_span>& spans, const std::string& title = "a < b") {
  std::ostringstream out;
  espalier::write_timeline(out, spans, {.title = title});
  return out.str();
}

struct bar {
  double x, y, width;
};

std::vector<bar> bars(const std::string& picture, const std::string& kind) {
  std::vector<bar> found;
  const std::string mark = "</text><rect class=\"" + kind + "\" x=\"";
  for (std::size_t at = picture.find(mark); at != std::string::npos; at = picture.find(mark, at + 1)) {
    bar b{};
    if (std::sscanf(picture.c_str() + at + mark.size(), "%lf\" y=\"%lf\" width=\"%lf", &b.x, &b.y, &b.width) == 3)
      found.push_back(b);
  }
  return found;
}

}  // namespace

TEST_CASE("a timeline is well-formed and has one bar a station", "[timeline]") {
  const std::string picture =
      drawn({{"top-k & normaliser", 0, 10}, {"tree", 10, 25}, {"verdict <copied>", 5, 50, true}});
  CHECK(complaint(picture) == "");
  CHECK(count(picture, "class=\"span\"") == 3);
  CHECK(bars(picture, "device").size() == 2);
  CHECK(bars(picture, "host").size() == 1);
  CHECK(count(picture, "a &lt; b") == 2);
  CHECK(count(picture, "50 \u00b5s in all") == 2);
}

TEST_CASE("bars of a timeline are as long as their stations, and stand where they begin", "[timeline]") {
  const auto device = bars(drawn({{"one", 0, 10}, {"two", 10, 40}, {"three", 30, 100}}), "device");
  REQUIRE(device.size() == 3);
  CHECK(device[0].x == 0);
  CHECK(std::abs(device[1].x - device[0].width) < 0.2);
  CHECK(std::abs(device[1].width - 3 * device[0].width) < 0.4);
  CHECK(std::abs(device[2].x + device[2].width - 10 * device[0].width) < 1);
  CHECK(device[0].y < device[1].y);
  CHECK(device[1].y < device[2].y);
}

TEST_CASE("a timeline of nothing, of no time, and of any length is a picture", "[timeline]") {
  CHECK(complaint(drawn({})) == "");
  CHECK(complaint(drawn({{"nothing", 0, 0}}, "")) == "");
  for (const double end : {1e-3, 0.7, 1.0, 9.99, 12345.6, 3.3e7}) {
    const std::string picture = drawn({{"all", 0, end}});
    CHECK(complaint(picture) == "");
    const int lines = count(picture, "class=\"grid\"");
    CHECK(lines >= 5);
    CHECK(lines <= 12);
  }
}

TEST_CASE("a timeline refuses spans that end before they begin", "[timeline]") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const timeline_span& wrong : std::vector<timeline_span>{{"verify", 3, 2},
                                                               {"verify", -1, 2},
                                                               {"verify", 0, infinity},
                                                               {"verify", std::nan(""), 1},
                                                               {"verify", 0, std::nan("")}}) {
    CHECK(says(message_of<espalier::input_error>([&] { drawn({wrong}); }), "verify"));
  }
}
