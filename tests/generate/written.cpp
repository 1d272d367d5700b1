// SPDX-License-Identifier: BSL-1.0
#include "written.hpp"

#include "catch.hpp"
#include "espalier/cost/hardware_name.hpp"
#include "espalier/model/files/cost_file.hpp"
#include "program.hpp"

nlohmann::json written(const std::string& arguments, const std::string& program) {
  const outcome result = run("--json " + arguments, "", program);
  INFO(arguments);
  REQUIRE(result.err == "");
  REQUIRE(result.status == 0);
  REQUIRE(nlohmann::json::accept(result.out));
  return nlohmann::json::parse(result.out);
}

std::string text_of(const nlohmann::json& object) {
  return object.at("texts").at(0).at("text");
}

const std::string& quickly() {
  static const std::string arguments = [] {
    const std::string path = scratch() + "/costs.json";
    espalier::cost_model costs = espalier::load_costs(GENERATE_MODELS "/selector/costs.json");
    costs.hardware = espalier::hardware_name(1);
    espalier::save_costs(costs, path);
    return "--threads 1 --costs '" + path + "' ";
  }();
  return arguments;
}
