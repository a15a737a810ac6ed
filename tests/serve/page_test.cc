#include "serve/core/page.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace gsa::serve {
namespace {

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t n = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

std::string source(const std::string& name) {
  const std::filesystem::path tests = std::filesystem::path(__FILE__).parent_path().parent_path();
  std::ifstream file(tests.parent_path() / "src/serve/core" / name, std::ios::binary);
  EXPECT_TRUE(file) << name;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST(Page, IsItsFilesWhole) {
  std::string expected = source("page.html");
  for (const std::string part : {"page.css", "page.js"}) {
    const std::string line = "@" + part + "@\n";
    ASSERT_EQ(count(expected, line), 1U) << part;
    expected.replace(expected.find(line), line.size(), source(part));
  }
  EXPECT_EQ(page_html(), expected);
}

TEST(Page, AsksNobodyElse) {
  // Addresses of others: of scripts, styles, pictures, fonts. Names of XML are none.
  EXPECT_EQ(page_html().find("http://"), std::string::npos);
  EXPECT_EQ(page_html().find("https://"), std::string::npos);
  EXPECT_EQ(page_html().find("@import"), std::string::npos);
  EXPECT_EQ(page_html().find("src=\""), std::string::npos);
  EXPECT_EQ(count(page_html(), "href=\""), count(page_html(), "href=\"data:"));
}

TEST(Page, WithDataHoldsItAndNothingInItEndsTheScript) {
  const std::string hostile = R"({"token_strs":["</script><script>alert(1)</script>","<!--"]})";
  const std::string page = page_with_data(hostile);
  EXPECT_EQ(count(page, "</script"), count(page_html(), "</script"));
  EXPECT_EQ(count(page, "<!--"), count(page_html(), "<!--"));
  EXPECT_NE(
      page.find(
          R"({"token_strs":["\u003c/script>\u003cscript>alert(1)\u003c/script>","\u003c!--"]}</script>)"),
      std::string::npos);
  EXPECT_EQ(count(page_html(), R"(<script id="data" type="application/json"></script>)"), 1U);
}

}  // namespace
}  // namespace gsa::serve
