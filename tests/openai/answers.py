"""Asks for answers and reads them, streamed or whole, in one line of a test."""

from conftest import MODEL


def messages(text):
    return [{"role": "user", "content": text}]


def whole(client, prompt, **options):
    """The text and the finish reason of an answer that comes in one piece."""
    answer = client.chat.completions.create(
        model=MODEL, messages=messages(prompt), **options
    )
    [choice] = answer.choices
    return choice.message.content, choice.finish_reason


def open_stream(client, prompt, **options):
    return client.chat.completions.create(
        model=MODEL, messages=messages(prompt), stream=True, **options
    )


def read_stream(stream):
    """The text of a stream and its finish reasons: one of them, when all is well."""
    text, reasons = "", []
    for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            if choice.finish_reason is not None:
                reasons.append(choice.finish_reason)
    return text, reasons


def streamed(client, prompt, **options):
    """The text and the finish reason of a streamed answer."""
    text, reasons = read_stream(open_stream(client, prompt, **options))
    [reason] = reasons
    return text, reason
