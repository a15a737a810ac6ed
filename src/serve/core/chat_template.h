// Messages of a chat as the tokens that a model was trained to continue. No torch header.
//
//   plain    for models that were trained on no template, and models of bytes:
//              Answer briefly.\n\nUser: What is 2 + 2?\nAssistant:
//            a system message stands first as it is; the text ends before "\nUser:".
//   chatml   Qwen and many others:
//              <|im_start|>user\nWhat is 2 + 2?<|im_end|>\n<|im_start|>assistant\n
//   llama3   Llama 3 (messages are trimmed, as its own template does):
//              <|start_header_id|>user<|end_header_id|>\n\nWhat is 2 + 2?<|eot_id|><|start_header_id|>assistant...
//
// No system message is made up where a chat has none, as some models' own templates do. "developer" is the newer
// name of "system". What the tokenizer wants before a text (bos) comes first.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace gsa::serve {

enum class ChatTemplate { plain, chatml, llama3 };

// "plain", "chatml", "llama3"; throws gsa::Error for another name.
ChatTemplate chat_template_by_name(const std::string& name);
std::string name_of(ChatTemplate chat);

// What a model's folder asks for: chat_template.jinja, or chat_template in tokenizer_config.json.
struct FolderTemplate {
  bool present = false;                              // it has one
  std::optional<ChatTemplate> known = std::nullopt;  // that is one of these
};
FolderTemplate folder_template(const std::filesystem::path& folder);

enum class ChatRole { system, user, assistant };

struct ChatMessage {
  ChatRole role = ChatRole::user;
  std::string content;
  std::string param;  // where the content stands in the request, for messages
};

struct ChatPrompt {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> stop_tokens;  // tokens that end the answer
  std::vector<std::string> stops;         // and texts, where the tokenizer has no such tokens
};

// Marks of the template become the tokenizer's special tokens, those that stand in a message stay text. A tokenizer
// that has no such tokens spells marks out; messages with a mark in them are then refused (RequestError).
ChatPrompt chat_prompt(ChatTemplate chat, const std::vector<ChatMessage>& messages,
                       const data::Tokenizer& tokenizer);

}  // namespace gsa::serve
