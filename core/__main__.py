"""The command line: `python -m core tokenizer|shards|train|push|fill-mask|generate|runs|...`."""

import sys

from core.cli.main import build_parser, main
from core.messages.redaction import hide_secrets_in_output

__all__ = ["build_parser", "main"]

if __name__ == "__main__":
    hide_secrets_in_output()
    sys.exit(main())
