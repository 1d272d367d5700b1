// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <string_view>

namespace serve {

//! The two kinds of request for text.
enum class endpoint { completions, chat };

//! A field that requests may have, by its name in OpenAI's API, vLLM's or llama.cpp's. A field that is not known is refused.
struct known_field {
  enum class use { honoured, without_effect, unsupported };

  std::string_view name;
  use is = use::honoured;
  //! Values of an unsupported field that change nothing, as a JSON array; all others are refused.
  std::string_view neutral = "[]";
  bool of_completions = true, of_chat = true;

  constexpr bool belongs_to(endpoint to) const { return to == endpoint::chat ? of_chat : of_completions; }
};

namespace detail {

constexpr auto without_effect = known_field::use::without_effect, unsupported = known_field::use::unsupported;

constexpr known_field of_completions(known_field field) {
  field.of_chat = false;
  return field;
}

constexpr known_field of_chat(known_field field) {
  field.of_completions = false;
  return field;
}

}  // namespace detail

//! The fields of a request; docs/serving.md lists them, too.
inline constexpr std::array request_fields = {
    detail::of_completions({"prompt"}),
    detail::of_chat({"messages"}),
    known_field{"model"},
    known_field{"max_tokens"},
    known_field{"max_completion_tokens"},
    known_field{"n_predict"},
    known_field{"min_tokens"},
    known_field{"ignore_eos"},
    known_field{"temperature"},
    known_field{"top_p"},
    known_field{"top_k"},
    known_field{"min_p"},
    known_field{"seed"},
    known_field{"stop"},
    known_field{"stop_token_ids"},
    known_field{"presence_penalty"},
    known_field{"frequency_penalty"},
    known_field{"repetition_penalty"},
    known_field{"logit_bias"},
    known_field{"allowed_token_ids"},
    known_field{"bad_words"},
    known_field{"response_format"},
    known_field{"structured_outputs"},
    known_field{"json_schema"},
    known_field{"guided_json"},
    known_field{"guided_regex"},
    known_field{"guided_choice"},
    known_field{"guided_grammar"},
    known_field{"grammar"},
    known_field{"ignore_formats"},
    known_field{"json_lines"},
    known_field{"n"},
    detail::of_completions({"best_of"}),
    known_field{"stream"},
    known_field{"stream_options"},
    known_field{"logprobs"},
    detail::of_chat({"top_logprobs"}),
    detail::of_completions({"echo"}),
    detail::of_chat({"tools"}),
    detail::of_chat({"tool_choice"}),
    detail::of_chat({"parallel_tool_calls"}),
    detail::of_chat({"continue_final_message"}),
    detail::of_chat({"add_generation_prompt"}),
    detail::of_chat({"chat_template_kwargs"}),
    detail::of_chat({"documents"}),
    detail::of_chat({"reasoning_effort"}),

    known_field{"user", detail::without_effect},
    known_field{"metadata", detail::without_effect},
    known_field{"store", detail::without_effect},
    known_field{"service_tier", detail::without_effect},
    known_field{"safety_identifier", detail::without_effect},
    known_field{"prompt_cache_key", detail::without_effect},
    known_field{"prompt_cache_retention", detail::without_effect},
    known_field{"prompt_cache_options", detail::without_effect},
    known_field{"cache_prompt", detail::without_effect},
    known_field{"cache_salt", detail::without_effect},
    known_field{"id_slot", detail::without_effect},
    known_field{"session_id", detail::without_effect},
    known_field{"request_id", detail::without_effect},
    known_field{"spaces_between_special_tokens", detail::without_effect},
    detail::of_chat({"prediction", detail::without_effect}),

    detail::of_chat({"echo", detail::unsupported, "[false]"}),
    detail::of_completions({"suffix", detail::unsupported, "[\"\"]"}),
    detail::of_chat({"functions", detail::unsupported, "[[]]"}),
    detail::of_chat({"function_call", detail::unsupported, "[\"none\", \"auto\"]"}),
    detail::of_chat({"modalities", detail::unsupported, "[[\"text\"]]"}),
    detail::of_chat({"audio", detail::unsupported}),
    detail::of_chat({"verbosity", detail::unsupported, "[\"medium\"]"}),
    detail::of_chat({"web_search_options", detail::unsupported}),
    detail::of_chat({"chat_template", detail::unsupported}),
    detail::of_chat({"add_special_tokens", detail::unsupported, "[false]"}),
    detail::of_completions({"add_special_tokens", detail::unsupported, "[true]"}),
    known_field{"skip_special_tokens", detail::unsupported, "[true]"},
    known_field{"truncate_prompt_tokens", detail::unsupported},
    known_field{"include_stop_str_in_output", detail::unsupported, "[false]"},
    known_field{"typical_p", detail::unsupported, "[1]"},
    known_field{"length_penalty", detail::unsupported, "[1]"},
    known_field{"use_beam_search", detail::unsupported, "[false]"},
    known_field{"logits_processors", detail::unsupported, "[[]]"},
    known_field{"prompt_logprobs", detail::unsupported},
    known_field{"return_token_ids", detail::unsupported, "[false]"},
    known_field{"return_tokens_as_token_ids", detail::unsupported, "[false]"},
    known_field{"guided_whitespace_pattern", detail::unsupported},
    known_field{"guided_decoding_backend", detail::unsupported},
    known_field{"priority", detail::unsupported, "[0]"},
    known_field{"truncation_side", detail::unsupported},
    known_field{"logprob_token_ids", detail::unsupported, "[[]]"},
    known_field{"watermarking", detail::unsupported, "[false]"},
    known_field{"vllm_xargs", detail::unsupported, "[{}]"},
    known_field{"kv_transfer_params", detail::unsupported, "[{}]"},
    known_field{"return_prompt_text", detail::unsupported, "[false]"},
    detail::of_completions({"prompt_embeds", detail::unsupported}),
    detail::of_chat({"moderation", detail::unsupported}),
    detail::of_chat({"thinking_token_budget", detail::unsupported}),
    detail::of_chat({"include_reasoning", detail::unsupported, "[true]"}),
    detail::of_chat({"reasoning_format", detail::unsupported, "[\"none\"]"}),
    detail::of_chat({"parse_tool_calls", detail::unsupported, "[true]"}),
    detail::of_chat({"media_io_kwargs", detail::unsupported, "[{}]"}),
    detail::of_chat({"mm_processor_kwargs", detail::unsupported, "[{}]"}),
    known_field{"repeat_penalty", detail::unsupported, "[1]"},
    known_field{"repeat_last_n", detail::unsupported, "[-1]"},
    known_field{"dynatemp_range", detail::unsupported, "[0]"},
    known_field{"dynatemp_exponent", detail::unsupported, "[1]"},
    known_field{"dry_multiplier", detail::unsupported, "[0]"},
    known_field{"dry_base", detail::unsupported},
    known_field{"dry_allowed_length", detail::unsupported},
    known_field{"dry_penalty_last_n", detail::unsupported},
    known_field{"dry_sequence_breakers", detail::unsupported},
    known_field{"xtc_probability", detail::unsupported, "[0]"},
    known_field{"xtc_threshold", detail::unsupported},
    known_field{"mirostat", detail::unsupported, "[0]"},
    known_field{"mirostat_tau", detail::unsupported},
    known_field{"mirostat_eta", detail::unsupported},
    known_field{"samplers", detail::unsupported},
    known_field{"min_keep", detail::unsupported, "[0]"},
    known_field{"n_keep", detail::unsupported, "[0]"},
    known_field{"n_indent", detail::unsupported, "[0]"},
    known_field{"n_probs", detail::unsupported, "[0]"},
    known_field{"n_cmpl", detail::unsupported, "[1]"},
    known_field{"post_sampling_probs", detail::unsupported, "[false]"},
    known_field{"return_tokens", detail::unsupported, "[false]"},
    known_field{"return_progress", detail::unsupported, "[false]"},
    known_field{"timings_per_token", detail::unsupported, "[false]"},
    known_field{"response_fields", detail::unsupported, "[[]]"},
    known_field{"t_max_predict_ms", detail::unsupported, "[0]"},
    known_field{"lora", detail::unsupported, "[[]]"},
};

//! The fields of a request to /tokenize: of a chat if it has messages.
inline constexpr std::array tokenize_fields = {
    known_field{"model"},
    detail::of_completions({"prompt"}),
    detail::of_completions({"content"}),
    detail::of_completions({"add_special_tokens"}),
    detail::of_completions({"add_special"}),
    detail::of_completions({"parse_special"}),
    detail::of_completions({"with_pieces"}),
    known_field{"return_token_strs"},
    detail::of_chat({"messages"}),
    detail::of_chat({"tools"}),
    detail::of_chat({"tool_choice"}),
    detail::of_chat({"continue_final_message"}),
    detail::of_chat({"add_generation_prompt"}),
    detail::of_chat({"chat_template_kwargs"}),
    detail::of_chat({"documents"}),
    detail::of_chat({"reasoning_effort"}),
    detail::of_chat({"add_special_tokens", detail::unsupported, "[false]"}),
    detail::of_chat({"chat_template", detail::unsupported}),
};

//! The fields of a request to /detokenize.
inline constexpr std::array detokenize_fields = {known_field{"model"}, known_field{"tokens"}};

//! The members of a message of a chat.
inline constexpr std::array message_fields = {
    known_field{"role"},
    known_field{"content"},
    known_field{"name"},
    known_field{"tool_calls"},
    known_field{"tool_call_id"},
    known_field{"annotations", detail::without_effect},
    known_field{"function_call", detail::unsupported},
    known_field{"refusal", detail::unsupported},
    known_field{"audio", detail::unsupported},
    known_field{"reasoning", detail::unsupported},
    known_field{"reasoning_content", detail::unsupported},
};

//! The members of a call in a message of the assistant.
inline constexpr std::array call_fields = {known_field{"id"}, known_field{"type"}, known_field{"function"},
                                           known_field{"index", detail::without_effect}};

//! The members of the function of such a call.
inline constexpr std::array called_fields = {known_field{"name"}, known_field{"arguments"}};

//! The members of a tool.
inline constexpr std::array tool_fields = {known_field{"type"}, known_field{"function"}};

//! The members of the function of a tool. Where it must be called, its schema is always enforced, be it strict or not.
inline constexpr std::array function_fields = {
    known_field{"name"},
    known_field{"description"},
    known_field{"parameters"},
    known_field{"strict", detail::without_effect},
};

//! The members of stream_options.
inline constexpr std::array stream_fields = {
    known_field{"include_usage"},
    known_field{"include_obfuscation", detail::without_effect},
    known_field{"continuous_usage_stats", detail::unsupported, "[false]"},
};

//! The members of response_format.
inline constexpr std::array format_fields = {known_field{"type"}, known_field{"json_schema"}, known_field{"schema"}};

//! The members of response_format.json_schema. A schema is always enforced, be it strict or not.
inline constexpr std::array schema_fields = {
    known_field{"schema"},
    known_field{"name", detail::without_effect},
    known_field{"description", detail::without_effect},
    known_field{"strict", detail::without_effect},
};

//! The members of structured_outputs.
inline constexpr std::array structured_fields = {
    known_field{"json"},
    known_field{"regex"},
    known_field{"choice"},
    known_field{"grammar"},
    known_field{"json_object"},
    known_field{"structural_tag", detail::unsupported},
    known_field{"whitespace_pattern", detail::unsupported},
    known_field{"disable_fallback", detail::without_effect},
    known_field{"disable_any_whitespace", detail::unsupported, "[false]"},
    known_field{"disable_additional_properties", detail::unsupported, "[false]"},
};

}  // namespace serve
