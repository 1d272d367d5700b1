// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../models/option_text.hpp"
#include "espalier/concepts/regime.hpp"

namespace generate {

struct assignment;
struct chosen_policy;
struct written_text;
class text_verifier;

//! A tree policy of the program, under its name, with the options that flags set; without its type.
class method {
 public:
  std::string_view name;
  std::string_view summary;  //!< a few words
  espalier::regime sampling;
  bool drafts;      //!< true if it asks a drafter
  bool takes_rows;  //!< true if it can grow from probabilities by node

  virtual ~method() = default;
  virtual std::unique_ptr<method> copy() const = 0;

  //! True if its trees are drawn, false if they are chosen.
  bool draws() const { return !espalier::compatible(sampling, espalier::regime::deterministic); }

  //! True if its trees can be merged with others: they are chosen from probabilities by node.
  bool merges() const { return drafts && takes_rows && sampling == espalier::regime::deterministic; }

  //! Its options, which read their texts into this method.
  virtual std::vector<models::text_option> options() = 0;

  //! Makes the policy, and returns the number of drafted tokens that its trees have at most.
  //!
  //! Errors      option_error of the policy
  virtual std::int32_t max_nodes() const = 0;

  //! Writes a text on the host, over the drafter that the arguments name.
  //!
  //! Errors      those of the parts
  virtual written_text write(const assignment& work) const = 0;

  //! Returns its policy, made for drafts from the text itself. Pre: merges()
  virtual std::shared_ptr<const chosen_policy> over_text(const assignment& work) const = 0;

 protected:
  method(std::string_view its_name, std::string_view its_summary, espalier::regime its_sampling, bool asks, bool rows)
      : name(its_name), summary(its_summary), sampling(its_sampling), drafts(asks), takes_rows(rows) {}
  method(const method&) = default;
};

//! A verifier of the program, under its name, with the options that flags set; without its type.
class verifier {
 public:
  std::string_view name;
  std::string_view summary;   //!< a few words
  espalier::regime lossless;  //!< regimes of the trees that it judges, without loss unless changes_text is true
  bool argmax_only;           //!< true if it is for temperature 0 alone
  bool changes_text;          //!< true if the text is not distributed as the target's

  virtual ~verifier() = default;
  virtual std::unique_ptr<verifier> copy() const = 0;

  //! Its options, which read their texts into this object.
  virtual std::vector<models::text_option> options() = 0;

  //! Makes the verifier.
  //!
  //! Errors      option_error of the verifier
  virtual std::unique_ptr<text_verifier> make() const = 0;

 protected:
  verifier(std::string_view its_name, std::string_view its_summary, espalier::regime its_lossless, bool argmax,
           bool changes)
      : name(its_name), summary(its_summary), lossless(its_lossless), argmax_only(argmax), changes_text(changes) {}
  verifier(const verifier&) = default;
};

//! A list of methods or of verifiers. Its copies have options of their own.
template <class PartT>
class part_list {
 public:
  part_list() = default;
  part_list(const part_list& other) { add(other); }
  part_list(part_list&&) noexcept = default;
  part_list& operator=(part_list other) noexcept {
    list_ = std::move(other.list_);
    return *this;
  }
  ~part_list() = default;

  void add(std::unique_ptr<PartT> part) { list_.push_back(std::move(part)); }
  void add(const part_list& others) {
    for (const auto& part : others.list_)
      add(part->copy());
  }

  //! The part of this name; null if there is none.
  PartT* find(std::string_view name) const {
    const auto found = std::find_if(list_.begin(), list_.end(), [&](const auto& part) { return part->name == name; });
    return found == list_.end() ? nullptr : found->get();
  }

  std::size_t size() const { return list_.size(); }
  auto begin() const { return list_.begin(); }
  auto end() const { return list_.end(); }

 private:
  std::vector<std::unique_ptr<PartT>> list_;
};

//! The parts that a program offers.
struct parts {
  part_list<method> methods;
  part_list<verifier> verifiers;
};

//! The library's parts, in the order of its registry; after its verifiers the rules that change the text.
parts library_parts();

//! The library's parts, and then these of one's own.
//!
//! Errors      usage_error for a name that does not consist of a to z, 0 to 9 and hyphens, or that is another part's
parts all_parts(const parts& own);

}  // namespace generate
