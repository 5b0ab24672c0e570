"""Ask the quickstart server one question through the OpenAI API, with nothing but the standard library."""

from __future__ import annotations

import json
import sys
import urllib.request

URL = "http://127.0.0.1:18135/v1/chat/completions"


def main() -> None:
    question = sys.argv[1]
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": 48, "temperature": 0}
    request = urllib.request.Request(URL, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:  # noqa: S310
        answer = json.load(response)["choices"][0]["message"]["content"]
    sys.stdout.write(f"Q: {question}\nA: {answer.strip()}\n")


if __name__ == "__main__":
    main()
