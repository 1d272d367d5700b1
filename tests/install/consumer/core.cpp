// SPDX-License-Identifier: BSL-1.0
#include <espalier/espalier.hpp>
#include <espalier/testing.hpp>

int main() {
  espalier::tree<8> tree;
  tree.reset(1);
  const espalier::node_id child = tree.append(0, 2, -0.5F);
  return tree.view().depth[child] == 1 ? 0 : 1;
}
