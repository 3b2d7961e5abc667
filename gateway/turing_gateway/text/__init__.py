"""Tokens to text and back: tokenizer, template, detokenizer, stops, stream."""
