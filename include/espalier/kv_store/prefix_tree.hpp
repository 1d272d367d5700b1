// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"

namespace espalier {

//! A radix tree of the tokens of the rows in the pages of a pool; its nodes are pages. Below a page are the pages with
//! the tokens that come next; a page with others below it is full. The caller caches the pages that no sequence uses:
//! evict() takes them in the order in which they were cached.
//!
//! Shapes      tokens(page) [n], with n from 1 to page_size, or 0 if the tree does not know the page. Pages have the
//!             numbers 0 to n_pages - 1; `none` stands above the first page of each text
//! Complexity  find, enter: O(tokens), and for each page on the way O(siblings), of which each is compared up to its
//!             first token that differs; forget: O(pages forgotten); all else O(1). No allocation after construction
//! Law         no two pages directly below one page have the same tokens. If each page is cached after all pages below
//!             it, it is also evicted after them
//! Errors      option_error for sizes out of range
//! Source      Zheng et al., SGLang: efficient execution of structured language model programs, 2024 (RadixAttention)
class prefix_tree {
 public:
  static constexpr std::int32_t none = -1;  //!< no page; as the page above: the beginning of texts

  //! The part of a text, from its beginning on, that the tree knows: its last page, and its number of tokens in all.
  struct beginning {
    std::int32_t page = none;
    std::int32_t n_tokens = 0;
  };

  prefix_tree(std::int32_t n_pages, std::int32_t page_size) : page_size_(page_size) {
    require_option("page size", page_size, 1, 1 << 20);
    require_option("number of pages", n_pages, 1, 1 << 30);
    require_option("slots of all pages", static_cast<double>(n_pages) * page_size, 1.0, static_cast<double>(1 << 30));
    nodes_.resize(static_cast<std::size_t>(n_pages) + 1);
    tokens_.resize(static_cast<std::size_t>(n_pages) * static_cast<std::size_t>(page_size));
  }

  bool knows(std::int32_t page) const { return node(page).n_tokens > 0; }
  bool is_full(std::int32_t page) const { return node(page).n_tokens == page_size_; }
  //! The tokens of a page; valid until the page is entered again.
  std::span<const token_id> tokens(std::int32_t page) const {
    return {tokens_.data() + offset(page), static_cast<std::size_t>(node(page).n_tokens)};
  }
  //! The page whose tokens come directly before the tokens of this page, or `none`.
  //!
  //! Pre         the page is known
  std::int32_t above(std::int32_t page) const { return node(page).above; }
  //! Number of cached pages.
  std::int32_t n_cached() const { return n_cached_; }

  //! The longest beginning of these tokens that the tree knows.
  beginning find(std::span<const token_id> tokens) const {
    beginning found;
    for (;;) {
      const beginning next = find_below(found.page, tokens.subspan(static_cast<std::size_t>(found.n_tokens)));
      if (next.n_tokens == 0) return found;
      found = {next.page, found.n_tokens + next.n_tokens};
      if (next.n_tokens < page_size_) return found;
    }
  }

  //! The page directly below `above` whose tokens begin most like these, and the number of tokens that both share; none
  //! and 0 if not even the first token is the same.
  beginning find_below(std::int32_t above, std::span<const token_id> tokens) const {
    const auto most = static_cast<std::int32_t>((std::min)(tokens.size(), static_cast<std::size_t>(page_size_)));
    beginning best;
    for (std::int32_t page = node(above).first_below; page != none && best.n_tokens < most; page = node(page).next) {
      const std::span<const token_id> its = this->tokens(page);
      const auto same = std::mismatch(its.begin(), its.end(), tokens.begin(), tokens.end()).first - its.begin();
      if (same > best.n_tokens) best = {page, static_cast<std::int32_t>(same)};
    }
    return best;
  }

  //! Enters a page with these tokens below `above`, unless a page there already begins with them. Returns the page that
  //! has these tokens then: the one that was there, or this one.
  //!
  //! Pre         1 to page_size tokens; the page is not known, or is below `above` and has the first ones of these
  //!             tokens; `above` is full, or none
  std::int32_t enter(std::int32_t page, std::int32_t above, std::span<const token_id> tokens) {
    const beginning best = find_below(above, tokens);
    if (static_cast<std::size_t>(best.n_tokens) == tokens.size()) return best.page;
    links& it = node(page);
    if (it.n_tokens == 0) {
      it.above = above;
      it.previous = none;
      it.next = node(above).first_below;
      if (it.next != none) node(it.next).previous = page;
      node(above).first_below = page;
    }
    it.n_tokens = static_cast<std::int32_t>(tokens.size());
    std::copy(tokens.begin(), tokens.end(), tokens_.begin() + offset(page));
    return page;
  }

  //! Removes a page, and all pages below it, from the tree: calls forgotten(page) for each, those below first.
  //!
  //! Pre         the page is known
  template <class ForgottenT>
  void forget(std::int32_t page, const ForgottenT& forgotten) {
    for (std::int32_t at = page;;) {
      while (node(at).first_below != none)
        at = node(at).first_below;
      const std::int32_t next = node(at).above;
      unlink(at);
      forgotten(at);
      if (at == page) return;
      at = next;
    }
  }

  //! Caches a page that is known, or caches it anew: it becomes the last to be evicted.
  void cache(std::int32_t page) {
    use(page);
    links& it = node(page);
    it.is_cached = true;
    it.older = newest();
    it.newer = none;
    node(it.older).newer = page;
    newest() = page;
    ++n_cached_;
  }

  //! Makes a page no longer cached, if it is cached.
  void use(std::int32_t page) {
    links& it = node(page);
    if (!it.is_cached) return;
    node(it.older).newer = it.newer;
    node(it.newer).older = it.older;
    it.is_cached = false;
    --n_cached_;
  }

  //! Forgets the page that has been cached for longest, and returns its number.
  //!
  //! Pre         a page is cached
  std::int32_t evict() {
    const std::int32_t page = oldest();
    forget(page, [](std::int32_t) {});
    return page;
  }

 private:
  struct links {
    std::int32_t n_tokens = 0;  // 0: the tree does not know the page
    std::int32_t above = none;
    std::int32_t first_below = none;
    std::int32_t previous = none;  // siblings below the same page
    std::int32_t next = none;
    std::int32_t older = none;  // neighbours in the order of eviction, while cached
    std::int32_t newer = none;
    bool is_cached = false;
  };

  links& node(std::int32_t page) { return nodes_[static_cast<std::size_t>(page + 1)]; }
  const links& node(std::int32_t page) const { return nodes_[static_cast<std::size_t>(page + 1)]; }
  // Ends of the order of eviction, which is a ring that the node of `none` closes.
  std::int32_t& oldest() { return node(none).newer; }
  std::int32_t& newest() { return node(none).older; }
  std::ptrdiff_t offset(std::int32_t page) const { return static_cast<std::ptrdiff_t>(page) * page_size_; }

  void unlink(std::int32_t page) {
    use(page);
    links& it = node(page);
    (it.previous == none ? node(it.above).first_below : node(it.previous).next) = it.next;
    if (it.next != none) node(it.next).previous = it.previous;
    it.n_tokens = 0;
  }

  std::int32_t page_size_;
  std::int32_t n_cached_ = 0;
  std::vector<links> nodes_;      // [1 + n_pages], the node of `none` first
  std::vector<token_id> tokens_;  // [n_pages][page_size]
};

}  // namespace espalier
