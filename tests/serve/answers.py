"""What an answer says, without what differs from one run to the next (id, time, cached tokens).

    said(reply.json)  -> {"choices": {index: {...}}, "usage": {...}}
    joined(events)    -> the same of a stream's events

Two answers are the same bytes when these are equal: numbers are compared as they are written.
"""


def usage_of(body):
    u = dict(body["usage"])
    u.pop("prompt_tokens_details", None)
    return u


def lists_of(logprobs):
    """Completions have lists side by side, chats one list of objects; both can be joined."""
    return {k: list(v) for k, v in logprobs.items() if v is not None}


def said(body):
    choices = {}
    for c in body["choices"]:
        text = c["text"] if "text" in c else c["message"]["content"]
        assert c["index"] not in choices, "a choice twice"
        choices[c["index"]] = {"text": text, "end": c["finish_reason"],
                               "logprobs": lists_of(c.get("logprobs") or {})}
    return {"choices": choices, "usage": usage_of(body)}


def joined(events):
    choices, usage, ids = {}, None, set()
    for e in events:
        assert "error" not in e, e
        assert usage is None, "an event after usage"
        ids.add(e["id"])
        if not e["choices"]:
            usage = usage_of(e)
        for c in e["choices"]:
            one = choices.setdefault(c["index"], {"text": "", "end": None, "logprobs": {}})
            assert one["end"] is None, "a choice goes on after its end"
            one["text"] += c["text"] if "text" in c else c["delta"].get("content") or ""
            one["end"] = c["finish_reason"]
            for k, v in lists_of(c.get("logprobs") or {}).items():
                one["logprobs"].setdefault(k, []).extend(v)
    assert len(ids) == 1, f"{len(ids)} ids in one stream"
    return {"choices": choices, "usage": usage}
