"""The Hugging Face Hub: what is pushed there, what is pulled from there, and the cards.

Importing this talks to nobody. Tokens come from `HF_TOKEN` or the Hub's own login and stay there.
"""
