// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "espalier/core/token.hpp"

namespace espalier {

//! Tokens from a text's beginning, as a place in the tree of those that are known: longer ones share what they begin
//! with. The empty path is the root.
//!
//! Complexity  each member: O(1); the last copy of a path frees what no other path begins with, without recursion
class token_path {
 public:
  token_path() = default;
  token_path(const token_path& before, token_id token) : last_(std::make_shared<const node>(before.last_, token)) {}

  bool empty() const { return !last_; }
  std::int32_t size() const { return last_ ? last_->size : 0; }

  //! The path without its last token, and that token.
  //!
  //! Pre         !empty()
  token_path before() const { return token_path(last_->before); }
  token_id token() const { return last_->token; }

  //! Names the place: the same for copies of a path alone. Those that were made one by one are two.
  const void* identity() const { return last_.get(); }
  friend bool operator==(const token_path& a, const token_path& b) { return a.last_ == b.last_; }

 private:
  struct node {
    node(std::shared_ptr<const node> b, token_id t)
        : before(std::move(b)), token(t), size(before ? before->size + 1 : 1) {}
    node(const node&) = delete;
    node& operator=(const node&) = delete;
    // What frees a node frees those before it one by one: a node freed meanwhile leaves what is before it there.
    ~node() {
      static thread_local std::shared_ptr<const node>* next = nullptr;
      if (next != nullptr) {
        *next = std::move(before);
        return;
      }
      std::shared_ptr<const node> last = std::move(before), left;
      for (next = &left; last; last = std::move(left))
        last.reset();
      next = nullptr;
    }

    std::shared_ptr<const node> before;
    token_id token;
    std::int32_t size;
  };

  explicit token_path(std::shared_ptr<const node> last) : last_(std::move(last)) {}

  std::shared_ptr<const node> last_;
};

}  // namespace espalier
