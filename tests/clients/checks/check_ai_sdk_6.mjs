// The line of the AI SDK before the newest; what is promised is the same.

// /// script
// dependencies = ["@ai-sdk/openai-compatible@2.0.92", "ai@6.0.325"]
// ///

import "./check_ai_sdk.mjs";
