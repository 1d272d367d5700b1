// SPDX-License-Identifier: BSL-1.0
#include <Eigen/Core>
#include <nlohmann/json.hpp>
#include <range/v3/view/iota.hpp>

#include <espalier/espalier.hpp>

int main() {
  const Eigen::Vector2f ones = Eigen::Vector2f::Ones();
  const auto parsed = nlohmann::json::parse("[1, 1]");
  const auto numbers = ranges::views::iota(0, 2);
  return ones.sum() == 2.0F && parsed.size() == numbers.size() ? 0 : 1;
}
