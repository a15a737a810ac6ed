#include "infer/core/look_json.h"

#include <gtest/gtest.h>

#include <limits>

#include "gsa/error.h"

namespace gsa::infer {
namespace {

TEST(LookJson, HasEveryFieldInOrder) {
  const Look look{.position = 7,
                  .sparse = true,
                  .layers = {{.k_t = 2,
                              .positions = {0, 7},
                              .weights = {0.25F, 0.75F},
                              .kept_mass = 0.984,
                              .value_gate = 0.5,
                              .output_gate = 1}}};
  EXPECT_EQ(look_json(look).dump(),
            R"({"position":7,"sparse":true,"layers":[{"k_t":2,"positions":[0,7],"weights":[0.25,0.75],)"
            R"("kept_mass":0.984,"value_gate":0.5,"output_gate":1.0}]})");
}

TEST(LookJson, WritesFourDigits) {
  Look look;
  look.layers.resize(1);
  look.layers[0].weights = {0.1F, 1.0F / 3, 1.23456e-7F, 0};
  EXPECT_EQ(look_json(look)["layers"][0]["weights"].dump(), "[0.1,0.3333,1.235e-07,0.0]");
}

TEST(LookJson, OfNoLayersIsAList) {
  EXPECT_EQ(look_json({}).dump(), R"({"position":0,"sparse":false,"layers":[]})");
}

TEST(LookJson, RefusesWhatJsonCannotSay) {
  Look look;
  look.layers.resize(2);
  look.layers[1].kept_mass = std::numeric_limits<double>::quiet_NaN();
  try {
    look_json(look);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("layers[1].kept_mass"), std::string::npos) << error.what();
  }
}

TEST(TokenText, IsUtf8WhateverTheToken) {
  const auto bytes = data::byte_tokenizer();
  EXPECT_EQ(token_text(*bytes, 'a'), "a");
  EXPECT_EQ(token_text(*bytes, '\n'), "\n");
  EXPECT_EQ(token_text(*bytes, 0xC3), "<0xC3>");
  EXPECT_EQ(token_text(*bytes, bytes->bos()), "");
}

}  // namespace
}  // namespace gsa::infer
