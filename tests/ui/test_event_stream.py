"""An event that joins while its page's stream ends is answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ui.browser import Visitor, find_chromium, running_app, running_browser

pytestmark = pytest.mark.slow(10)

# The page hears late that its stream has ended, as in a busy browser.
LATE_END = """
(() => {
  const original = window.fetch;
  window.hasEnded = false;
  window.fetch = async (...all) => {
    const answer = await original(...all);
    if (!String(all[0]?.url ?? all[0]).includes("/queue/data")) return answer;
    let unread = "";
    const late = new TransformStream({
      async transform(text, controller) {
        // A read may end within a message.
        const messages = (unread + text).split(/(?<=\\n\\n)/);
        unread = messages.at(-1).endsWith("\\n\\n") ? "" : messages.pop();
        for (const message of messages) {
          if (message.includes('"close_stream"')) {
            window.hasEnded = true;
            await new Promise((resolve) => setTimeout(resolve, 1500));
          }
          controller.enqueue(message);
        }
      },
    });
    const texts = answer.body.pipeThrough(new TextDecoderStream()).pipeThrough(late);
    return new Response(texts.pipeThrough(new TextEncoderStream()), answer);
  };
})();
"""


def test_event_that_joins_a_stream_at_its_end_is_answered(tmp_path: Path) -> None:
    find_chromium()
    with running_app(tmp_path / "workspace") as url, running_browser() as browser:
        context = browser.new_context()
        context.set_default_timeout(60_000)
        context.add_init_script(LATE_END)
        visitor = Visitor(context, url)
        visitor.open("Tokenizer")
        visitor.settle(60)
        for algorithm in ("WordPiece", "Unigram", "WordPiece"):
            visitor.page.evaluate("window.hasEnded = false")
            visitor.pick("tokenizer-algorithm", algorithm)
            visitor.page.wait_for_function("window.hasEnded", polling=20)
            # The server has closed the stream; the page hears of it a second later.
            visitor.type("tokenizer-name", f"for-{algorithm.lower()}")
            visitor.field("tokenizer-name").blur()
            assert visitor.settle(20) == []
        assert visitor.errors == []
        context.close()
