// The line of the AI SDK before the newest, over responses; what is promised is the same.

// /// script
// dependencies = ["@ai-sdk/openai@3.0.141", "ai@6.0.326", "zod@4.6.7"]
// ///

import "./check_ai_sdk_responses.mjs";
