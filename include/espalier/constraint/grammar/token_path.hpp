// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "espalier/core/token.hpp"

namespace espalier {

//! A sequence of tokens from the beginning of a text, stored as a node in a tree of sequences: longer ones share the
//! nodes of their beginnings. The empty path is the root.
//!
//! Complexity  each member: O(1); the destructor of the last copy of a path frees the nodes that no other path needs,
//!             without recursion
class token_path {
 public:
  token_path() = default;
  token_path(const token_path& before, token_id token) : last_(std::make_shared<const node>(before.last_, token)) {}

  bool empty() const { return !last_; }
  std::int32_t size() const { return last_ ? last_->size : 0; }

  //! The path without its last token; the last token.
  //!
  //! Pre         !empty()
  token_path before() const { return token_path(last_->before); }
  token_id token() const { return last_->token; }

  //! The address of the path's node: equal for copies of a path only. Two paths that were made token by token have
  //! different nodes.
  const void* identity() const { return last_.get(); }
  friend bool operator==(const token_path& a, const token_path& b) { return a.last_ == b.last_; }

 private:
  struct node {
    node(std::shared_ptr<const node> b, token_id t)
        : before(std::move(b)), token(t), size(before ? before->size + 1 : 1) {}
    node(const node&) = delete;
    node& operator=(const node&) = delete;
    // Frees the nodes before this one in a loop instead of by recursion: a node that is freed meanwhile hands the node
    // before it to that loop.
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
