"""gezelctl: plan, review and apply for local LLM servers."""

__version__ = "0.1.0"
