// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <ostream>
#include <span>
#include <string>

#include "espalier/core/error.hpp"
#include "espalier/report/xml_escaped.hpp"

namespace espalier {

//! The time that one part of a round took, for example a pass. Times are in microseconds from the beginning of the
//! round.
struct timeline_span {
  std::string name;
  double begin = 0;
  double end = 0;
  bool on_host = false;  //!< work of the host, for which the device's stream does not wait; drawn in another colour
};

struct timeline_options {
  std::string title{};  //!< shown above the picture
};

namespace detail {

// Draws one timeline. Lengths are in pixels.
class svg_timeline {
 public:
  svg_timeline(std::span<const timeline_span> spans, const timeline_options& options)
      : spans_(spans), options_(options) {
    std::size_t longest = 0;
    for (const timeline_span& s : spans) {
      if (!(s.begin >= 0) || !(s.end >= s.begin) || !std::isfinite(s.end))
        raise<input_error>("the span ", s.name, " of a timeline goes from ", s.begin, " to ", s.end,
                           "; spans begin at 0 or later and end no earlier than they begin.");
      last_ = (std::max)(last_, s.end);
      (s.on_host ? has_host_ : has_device_) = true;
      longest = (std::max)(longest, s.name.size());
    }
    left_ = margin + 16 + character * static_cast<double>(longest);
    step_ = round_step(last_);
    scale_ = plot / (last_ > 0 ? last_ : 1);
  }

  void write(std::ostream& out) const {
    const int top = options_.title.empty() ? margin : margin + 30;
    const int rows = static_cast<int>(spans_.size()) * row_height;
    const double width = left_ + plot + value_width + margin;
    const int height = top + rows + 62;
    const std::string round = number(last_) + " \u00b5s in all";
    out << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << number(width) << "\" height=\"" << height
        << "\" viewBox=\"0 0 " << number(width) << ' ' << height << "\" role=\"img\" aria-label=\""
        << xml_escaped(options_.title.empty() ? round : options_.title + ": " + round) << "\">\n"
        << style << "<rect class=\"paper\" width=\"" << number(width) << "\" height=\"" << height << "\" rx=\"8\"/>\n";
    if (!options_.title.empty()) {
      out << "<text class=\"title\" x=\"" << margin << "\" y=\"" << margin + 8 << "\">" << xml_escaped(options_.title)
          << "<tspan class=\"note\" dx=\"10\">" << round << "</tspan></text>\n";
    }
    out << "<g transform=\"translate(" << number(left_) << ' ' << top << ")\">\n";
    write_axis(out, rows);
    for (std::size_t i = 0; i < spans_.size(); ++i)
      write_span(out, spans_[i], static_cast<int>(i) * row_height);
    out << "</g>\n<g transform=\"translate(" << margin << ' ' << top + rows + 34 << ")\">\n";
    write_legend(out);
    out << "</g>\n</svg>\n";
  }

 private:
  static constexpr int margin = 20;
  static constexpr int row_height = 24;
  static constexpr int bar_height = 14;
  static constexpr double plot = 620;
  static constexpr double value_width = 66;
  static constexpr double character = 7.2;  // width of a character of a name

  static constexpr const char* style =
      "<style>\n"
      ".paper{fill:#fff}.grid{stroke:#d0d7de}.device{fill:#1a7f37}.host{fill:#8250df}\n"
      "text{font-family:system-ui,'Segoe UI','DejaVu Sans',sans-serif;font-size:13px;fill:#1f2328}\n"
      "text.title{font-size:15px;font-weight:600}.note{font-size:12px;font-weight:400;fill:#656d76}\n"
      "@media (prefers-color-scheme:dark){\n"
      ".paper{fill:#0d1117}.grid{stroke:#30363d}.device{fill:#2ea043}.host{fill:#a371f7}text{fill:#e6edf3}"
      ".note{fill:#8d96a0}\n"
      "}\n</style>\n";

  static std::string number(double value) {
    const auto tenths = std::lround(value * 10);
    std::string text = std::to_string(tenths / 10);
    if (tenths % 10 != 0) text.append(1, '.').append(std::to_string(tenths % 10));
    return text;
  }

  // A step between the marks of the axis, in microseconds: 1, 2 or 5 times a power of ten. The whole has 5 to 12.5
  // steps.
  static double round_step(double whole) {
    if (!(whole > 0)) return 1;
    const double power = std::pow(10, std::floor(std::log10(whole / 5)));
    const double digit = whole / 5 / power;
    return power * (digit >= 5 ? 5 : digit >= 2 ? 2 : 1);
  }

  void write_axis(std::ostream& out, int rows) const {
    for (int i = 0; i * step_ <= last_ * (1 + 1e-9); ++i) {
      const std::string x = number(i * step_ * scale_);
      out << "<line class=\"grid\" x1=\"" << x << "\" x2=\"" << x << "\" y1=\"-4\" y2=\"" << rows
          << "\"/><text class=\"note\" x=\"" << x << "\" y=\"" << rows + 16 << "\" text-anchor=\"middle\">"
          << number(i * step_) << "</text>\n";
    }
  }

  void write_span(std::ostream& out, const timeline_span& s, int top) const {
    const std::string name = xml_escaped(s.name);
    const double x = s.begin * scale_, width = (std::max)(1.0, (s.end - s.begin) * scale_);
    const std::string taken = number(s.end - s.begin) + " \u00b5s";
    out << "<g class=\"span\"><title>" << name << ": " << number(s.begin) << " to " << number(s.end)
        << " \u00b5s</title><text x=\"-12\" y=\"" << top + 15 << "\" text-anchor=\"end\">" << name
        << "</text><rect class=\"" << (s.on_host ? "host" : "device") << "\" x=\"" << number(x) << "\" y=\"" << top + 4
        << "\" width=\"" << number(width) << "\" height=\"" << bar_height << "\" rx=\"3\"/><text class=\"note\" x=\""
        << number(x + width + 6) << "\" y=\"" << top + 15 << "\">" << taken << "</text></g>\n";
  }

  void write_legend(std::ostream& out) const {
    int x = 0;
    const auto entry = [&](const char* kind, const char* words, int width) {
      out << "<rect class=\"" << kind << "\" x=\"" << x
          << "\" y=\"4\" width=\"20\" height=\"12\" rx=\"3\"/><text class=\"note\" x=\"" << x + 27 << "\" y=\"14\">"
          << words << "</text>\n";
      x += width;
    };
    if (has_device_) entry("device", "in the device's stream", 174);
    if (has_host_) entry("host", "on the host, beside it", 174);
    out << "<text class=\"note\" x=\"" << x << "\" y=\"14\">\u00b5s from the beginning of the round</text>\n";
  }

  std::span<const timeline_span> spans_;
  const timeline_options& options_;
  bool has_device_ = false, has_host_ = false;
  double last_ = 0;  // microseconds
  double left_ = 0;
  double step_ = 1;   // microseconds
  double scale_ = 1;  // pixels per microsecond
};

}  // namespace detail

//! Writes the timeline of one round as an SVG picture that needs no other file. It has a line for each span, in the
//! order given, with a bar from the span's beginning to its end. The picture follows the reader's choice of a light or
//! dark background.
//!
//! Errors      input_error for a span that ends before it begins, begins before 0, or has a time that is NaN or
//!             infinite
inline void write_timeline(std::ostream& out, std::span<const timeline_span> spans,
                           const timeline_options& options = {}) {
  detail::svg_timeline(spans, options).write(out);
}

}  // namespace espalier
