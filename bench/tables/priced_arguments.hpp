// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "price_table.hpp"
#include "report_file.hpp"
#include "svg_page.hpp"
#include "table_arguments.hpp"

namespace bench {

//! The arguments of a program of tables whose seconds can be counted at the prices of another machine.
struct priced_arguments : table_arguments {
  std::string price;  //!< file of a table of prices; empty: seconds are the clock's

  void add_to(program& to) {
    table_arguments::add_to(to);
    to.add("--price", price,
           "count seconds as passes cost on another machine, by a table of bench/prices; methods that weigh time "
           "believe it");
  }

  //! Returns the table that was named, or null. `drafts`: whether the program has a draft, so that the table needs one.
  //!
  //! Errors      those of price_table::load; model_error for a table that lacks the draft
  std::shared_ptr<const models::price_table> load_price(bool drafts = true) const {
    if (price.empty()) return nullptr;
    const auto table = std::make_shared<models::price_table>(models::price_table::load(price));
    if (drafts && !table->has_draft())
      espalier::raise<espalier::model_error>(price, " has no prices of a draft, which this program's methods need.");
    return table;
  }
};

//! Returns what passes cost by a table of prices. `file` is the file of costs that was named beside it, if any.
//!
//! Errors      input_error if one was named
inline const espalier::cost_model& costs_of(const models::price_table& price, const std::string& file) {
  if (!file.empty())
    espalier::raise<espalier::input_error>("--price is what passes cost: --costs does not go with it.");
  return price.costs;
}

//! Prints a report's tables, and writes the files that were asked for. Each of them says whose seconds were counted, if
//! they are not the clock's.
//!
//! Errors      input_error for a file that cannot be written
template <class ReportT>
void deliver(const ReportT& made, const priced_arguments& asked, const models::price_table* price) {
  report((price ? "**" + price->in_words() + "**\n\n" : std::string()) + made.markdown(), asked.markdown);
  if (!asked.json.empty()) {
    nlohmann::json all = made.json();
    if (price) all["price"] = price->json();
    write_file(asked.json, all.dump(1));
  }
}

//! Likewise, and draws the plot of a report that has one to a file, if one is named.
template <class ReportT>
void deliver(const ReportT& made, const priced_arguments& asked, const std::string& plot,
             const models::price_table* price) {
  deliver(made, asked, price);
  if (!plot.empty())
    write_file(plot, price ? svg_with_note(made.plot(), "Seconds at the prices of " + price->file) : made.plot());
}

}  // namespace bench
