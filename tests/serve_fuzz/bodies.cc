#include "bodies.h"

#include <utility>
#include <vector>

namespace gsa::serve_fuzz {
namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;  // names and values, as JSON has them

std::string quoted(const std::string& text) { return "\"" + text + "\""; }
std::string number(std::size_t value) { return std::to_string(value); }

std::string word(Random& random) {
  return random.pick({"a", "the", "Zebra", "1", "\\n", "\\\"", "\\\\", "\\u00e9", "\xc3\xa9",
                      "\\ud83d\\ude00", "\xf0\x9f\x98\x80", "\xe6\xbc\xa2", " ", "\\t", "<|im_end|>",
                      "User:", "\\u0000"});
}

std::string text(Random& random, std::size_t words) {
  std::string all;
  for (std::size_t i = random.below(words + 1); i > 0; --i) all += word(random);
  return quoted(all);
}

template <typename Make>
std::string list(std::size_t count, const Make& make) {
  std::string all = "[";
  for (std::size_t i = 0; i < count; ++i) all += (i == 0 ? "" : ",") + make();
  return all + "]";
}

std::string ids(Random& random, std::size_t most) {
  return list(random.between(1, most), [&] { return number(random.below(258)); });
}

std::string join(const Fields& fields) {
  std::string all = "{";
  for (const auto& [name, value] : fields) all += (all.size() == 1 ? "" : ",") + quoted(name) + ":" + value;
  return all + "}";
}

// ---- Right values

// Prompts share beginnings: the prefix cache has something to do.
std::string prompt(Random& random) {
  const std::string shared = "A text that many requests begin with, ";
  switch (random.below(8)) {
    case 0:
      return ids(random, 60);
    case 1:
      return list(random.between(1, 3), [&] { return text(random, 10); });
    case 2:
      return list(random.between(1, 3), [&] { return ids(random, 20); });
    case 3:
      return text(random, 30);
    case 4:
      return quoted("b");
    default:
      return quoted(shared.substr(0, random.below(shared.size() + 1)) + word(random));
  }
}

void add_sampling(Random& random, Fields& fields) {
  const auto maybe = [&](const char* name, const std::string& value) {
    if (random.one_in(4)) fields.emplace_back(name, value);
  };
  maybe("temperature", random.pick({"0", "0.7", "1", "2", "1e-9", "null"}));
  maybe("top_p", random.pick({"1", "0.5", "1e-12", "null"}));
  maybe("top_k", random.pick({"-1", "0", "1", "40", "9223372036854775807"}));
  maybe("min_p", random.pick({"0", "0.1", "1"}));
  maybe("repetition_penalty", random.pick({"1", "0.5", "1.3", "10", "1e-30"}));
  maybe("seed", random.pick({"1", "-9223372036854775808", "9223372036854775807", "null"}));
  maybe("ignore_eos", random.pick({"true", "false"}));
  maybe("stop",
        random.pick({"\"a\"", "[\"zz\",\"q\"]", "[]", "\"\\u00e9\"", "[\"ab\",\"abc\",\"b\"]", "null"}));
  maybe("user", "\"someone\"");
  maybe("model", quoted(kModel));
  if (random.one_in(6)) {
    const std::string n = number(random.between(1, 4));
    fields.emplace_back("n", n);
    if (random.one_in(3)) fields.emplace_back("best_of", n);
  }
  if (random.one_in(2)) {
    fields.emplace_back("stream", "true");
    if (random.one_in(3)) {
      const char* usage = random.pick({"true", "false", "null"});
      fields.emplace_back("stream_options", join({{"include_usage", usage}}));
    }
  }
  for (const auto& [name, value] :
       {std::pair("frequency_penalty", "0"), std::pair("logit_bias", "{}"), std::pair("tools", "[]"),
        std::pair("response_format", "{\"type\":\"text\"}")}) {
    if (random.one_in(12)) fields.emplace_back(name, value);
  }
}

Fields completion(Random& random) {
  Fields fields = {{"prompt", prompt(random)}};
  add_sampling(random, fields);
  if (random.one_in(3)) fields.emplace_back("logprobs", number(random.below(21)));
  if (random.one_in(4)) {
    fields.emplace_back("echo", "true");
    fields.emplace_back("max_tokens", number(random.below(20)));
  } else if (!random.one_in(4)) {
    const char* name = random.pick({"max_tokens", "max_completion_tokens"});
    fields.emplace_back(name, number(random.between(1, random.one_in(8) ? 120 : 16)));
  }
  return fields;
}

std::string message(Random& random) {
  const std::string role = quoted(random.pick({"system", "developer", "user", "assistant"}));
  std::string content = text(random, 6);
  if (random.one_in(4)) {
    content = list(random.between(1, 3), [&] {
      return join({{"type", quoted("text")}, {"text", text(random, 4)}});
    });
  }
  return join({{"role", role}, {"content", content}});
}

Fields chat(Random& random) {
  Fields fields = {{"messages", list(random.between(1, 4), [&] { return message(random); })}};
  add_sampling(random, fields);
  if (random.one_in(3)) {
    fields.emplace_back("logprobs", "true");
    if (random.one_in(2)) fields.emplace_back("top_logprobs", number(random.below(21)));
  }
  if (!random.one_in(10)) fields.emplace_back("max_tokens", number(random.between(1, 24)));
  return fields;
}

Fields tokenize(Random& random) {
  Fields fields;
  if (random.one_in(3)) {
    fields.emplace_back("messages", list(random.between(1, 3), [&] { return message(random); }));
  } else {
    fields.emplace_back("prompt", text(random, 40));
    if (random.one_in(2)) fields.emplace_back("add_special_tokens", random.pick({"true", "false"}));
  }
  if (random.one_in(2)) fields.emplace_back("return_token_strs", random.pick({"true", "false"}));
  return fields;
}

Fields look(Random& random) {
  const std::size_t count = random.between(1, 100);
  return {{"tokens", list(count, [&] { return number(random.below(258)); })},
          {"position", number(random.below(count))}};
}

// ---- Wrong values

std::string hostile_string(Random& random) {
  switch (random.below(9)) {
    case 0:
      return "\"\\ud800\"";
    case 1:
      return "\"\\udc00\\ud83d x\"";
    case 2:
      return quoted(random.pick({"\xff\xfe", "\xc3", "\xed\xa0\x80", "\xf4\x90\x80\x80", "a\xc0\xaf"}));
    case 3:
      return quoted(random.pick({"\x01", "\n", "\x7f", "\\x41", "\\u12"}));
    case 4:
      return "\"open";
    case 5:
      return quoted(std::string(random.one_in(20) ? random.below(100'000) : random.below(3000), 'x'));
    case 6:
      return quoted(
          random.pick({"nan", "__proto__", "../../etc/passwd", "%s%n", "<script>", "data: [DONE]\\n\\n"}));
    case 7:
      return "\"\"";
    default:
      return text(random, 100);
  }
}

std::string hostile(Random& random, int depth = 0) {
  switch (random.below(depth > 3 ? 4 : 8)) {
    case 0:
      return random.pick({"null", "true", "false", "", "nan", "NaN", "Infinity", "-Infinity", "undefined",
                          "'a'", "/*c*/1", ",", ":", "}", "]"});
    case 1:
      return random.pick({"0",
                          "-1",
                          "-0",
                          "1e308",
                          "1e400",
                          "-1e400",
                          "1e-400",
                          "1.5",
                          "01",
                          "0x10",
                          "+1",
                          ".5",
                          "5.",
                          "1e",
                          "--1",
                          "9223372036854775807",
                          "9223372036854775808",
                          "-9223372036854775809",
                          "18446744073709551615",
                          "18446744073709551616",
                          "2147483648",
                          "4294967296",
                          "1e18"});
    case 2:
      return hostile_string(random);
    case 3:
      return random.one_in(4) ? std::string(random.below(700), '9') : number(random.below(1000));
    case 4:
      return list(random.below(6), [&] { return hostile(random, depth + 1); });
    case 5:
      return "{\"" + std::string(random.pick({"type", "text", "a", "", "include_usage"})) +
             "\":" + hostile(random, depth + 1) + "}";
    case 6: {
      const std::size_t levels = random.one_in(30) ? random.below(30'000) : random.below(80);
      const std::string open = random.pick({"[", "{\"a\":"});
      std::string all;
      for (std::size_t i = 0; i < levels; ++i) all += open;
      all += "1";
      if (!random.one_in(3)) all += std::string(levels, open == "[" ? ']' : '}');
      return all;
    }
    default:
      return random.one_in(10) ? list(random.below(2000), [&] { return number(random.below(400)); })
                               : ids(random, 300);
  }
}

std::string any_name(Random& random) {
  return random.pick({"prompt",
                      "messages",
                      "max_tokens",
                      "temperature",
                      "top_p",
                      "top_k",
                      "min_p",
                      "n",
                      "stop",
                      "stream",
                      "stream_options",
                      "logprobs",
                      "top_logprobs",
                      "echo",
                      "seed",
                      "model",
                      "tokens",
                      "position",
                      "best_of",
                      "repetition_penalty",
                      "ignore_eos",
                      "add_special_tokens",
                      "suffix",
                      "logit_bias",
                      "tools",
                      "response_format",
                      "modalities",
                      "guided_json",
                      "prompt_logprobs",
                      "return_token_strs",
                      "max_completion_tokens",
                      "",
                      "\\u0000",
                      "\xff",
                      "user"});
}

void spoil(Random& random, Fields& fields) {
  const std::size_t at = random.below(fields.size());
  switch (fields.empty() ? 4 : random.below(7)) {
    case 0:
      fields.erase(fields.begin() + static_cast<std::ptrdiff_t>(at));
      break;
    case 1:
      fields.push_back(fields[at]);  // twice
      break;
    case 2:
      fields[at].first = any_name(random);
      break;
    case 3: {  // a byte within the value
      std::string& value = fields[at].second;
      value[random.below(value.size())] = static_cast<char>(random.below(256));
      break;
    }
    case 4:
      fields.emplace_back(any_name(random), hostile(random));
      break;
    default:
      fields[at].second = hostile(random);
  }
}

std::string spoilt_body(Random& random, std::string body) {
  switch (random.below(8)) {
    case 0:
      return body.substr(0, random.below(body.size() + 1));
    case 1:
      return body + random.pick({"x", "{}", ",", "\n\n", "\xff"});
    case 2:
      return "\xef\xbb\xbf" + body;
    case 3:
      return hostile(random);
    case 4:
      return "";
    case 5:
      return "[" + body + "]";
    default:
      for (std::size_t i = random.between(1, 4); i > 0 && !body.empty(); --i)
        body[random.below(body.size())] = static_cast<char>(random.below(256));
      return body;
  }
}

struct Parts {
  Call call;
  Fields fields;
};

Parts parts(Random& random) {
  const std::size_t route = random.below(100);
  if (route < 42) return {{.path = "/v1/completions", .body = ""}, completion(random)};
  if (route < 66) return {{.path = "/v1/chat/completions", .body = ""}, chat(random)};
  if (route < 74) return {{.path = "/tokenize", .body = ""}, tokenize(random)};
  if (route < 80) {
    const std::string tokens = random.one_in(8) ? "[]" : ids(random, 80);
    return {{.path = "/detokenize", .body = ""}, {{"tokens", tokens}}};
  }
  if (route < 90) return {{.path = "/gsa/look", .body = ""}, look(random)};
  const char* path =
      random.pick({"/v1/models", "/v1/models/rule", "/health", "/metrics", "/", "/v1/models/%72ule"});
  return {{.method = random.one_in(8) ? "HEAD" : "GET", .path = path, .body = ""}, {}};
}

}  // namespace

Call good_call(Random& random) {
  Parts made = parts(random);
  if (made.call.method == "POST") made.call.body = join(made.fields);
  return made.call;
}

Call bad_json_call(Random& random) {
  Parts made = parts(random);
  if (made.call.method != "POST") {
    if (random.one_in(2))
      made.call.path += random.pick({"/", "x", "%", "%2", "%ff", "%00", "?a=b", "//", "\xff"});
    return made.call;
  }
  for (std::size_t i = random.between(1, 3); i > 0; --i) spoil(random, made.fields);
  made.call.body = join(made.fields);
  if (random.one_in(5)) made.call.body = spoilt_body(random, made.call.body);
  return made.call;
}

}  // namespace gsa::serve_fuzz
