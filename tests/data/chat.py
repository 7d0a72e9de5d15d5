"""Makes `tests/data/chat/`: conversations, and the tokens and masks that transformers makes of them.

    python tests/data/chat.py [FOLDER]

Needs transformers (5.24), trl (1.16) and tokenizers. FOLDER (by default `chat` beside this file) has the templates in
`templates/`; README.md there names their sources. Everything else in it is written anew.
"""

import datetime
import json
import re
import sys
from pathlib import Path

import tokenizers
import transformers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from transformers.utils import chat_template_utils

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "chat"

# Name of each template: (beginning of the text, end of the text).
TEMPLATES = {
    "chatml": (None, "<|im_end|>"),
    "llama3": ("<|begin_of_text|>", "<|eot_id|>"),
    "llama3_training": ("<|begin_of_text|>", "<|eot_id|>"),
    "llama3_1": ("<|begin_of_text|>", "<|eot_id|>"),
    "qwen3": (None, "<|im_end|>"),
    "qwen3_training": (None, "<|im_end|>"),
    "qwen3_instruct_2507": (None, "<|im_end|>"),
    "qwen3_instruct_2507_training": (None, "<|im_end|>"),
    "gemma3": ("<bos>", "<end_of_turn>"),
    "gemma3_training": ("<bos>", "<end_of_turn>"),
    "mistral_nemo": ("<s>", "</s>"),
    "phi3_5": ("<s>", "<|endoftext|>"),
    "phi3_5_training": ("<s>", "<|endoftext|>"),
}

# Special tokens, and those that Qwen adds without calling them special.
SPECIAL = (
    "<|im_start|> <|im_end|> <|endoftext|> <|begin_of_text|> <|eot_id|> <|eom_id|> <|start_header_id|> "
    "<|end_header_id|> <|python_tag|> <bos> <start_of_turn> <end_of_turn> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] "
    "[/AVAILABLE_TOOLS] [TOOL_CALLS] [TOOL_RESULTS] [/TOOL_RESULTS] <|system|> <|user|> <|assistant|> <|end|>"
).split()
ADDED = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]

NOW = datetime.datetime(2026, 7, 26, 12, 0, 0)


def message(role, content, **more):
    return {"role": role, "content": content, **more}


def system(content):
    return message("system", content)


def user(content):
    return message("user", content)


def answer(content, **more):
    return message("assistant", content, **more)


def call(name, arguments, number="call12345"):
    function = {"name": name, "arguments": arguments}
    return {"id": number, "type": "function", "function": function}


def result(content, number="call12345", **more):
    return message("tool", content, tool_call_id=number, **more)


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place – \"now\" <b>or</b> later.",
        "parameters": {
            "type": "object",
            "required": ["place"],
            "properties": {
                "place": {"type": "string", "description": "City's name"},
                "days": {"type": "integer", "default": 1, "enum": [1, 2, 3]},
                "exact": {"type": "number", "default": 1.5e-7, "nullable": None, "strict": True},
            },
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {"name": "clock", "description": "The time.", "parameters": {"type": "object", "properties": {}}},
}


def conversations():
    """Yields (record, messages, other arguments of the template, number of messages that are a prompt)."""

    def same(messages, prompt=0, **more):
        return {"messages": messages, **more}, messages, more, prompt

    short = ("What is two and two?", "Four.")
    yield same([user(short[0]), answer(short[1])])
    yield same([system("Be brief."), user(short[0]), answer(short[1])])
    for texts in (
        ("Hallo, größe Straße!", "Schöne Grüße aus Köln – „hier“ ist’s schön."),
        ("こんにちは、元気ですか？", "はい、元気です。🙂👩‍👩‍👧 Und ñ, é (e\u0301)."),
        ("Line one\nline two\n\nline four", "First\n\n  second\n\tthird\n"),
        ("  spaces before and after  ", "   so here too   "),
        ("\n\nnewlines around\n\n", "\n\nhere as well\n\n"),
        ("Tabs\tand\u00a0blanks\u3000of others", "\u00a0blank that does not break\u2003"),
        ("A question", ""),
        ("", "An answer to nothing"),
        ("Use {{ braces }} and {% tags %} and {# notes #}", "{{ 1 + 1 }} {% if x %} {# no #}"),
        ("Is <b>this</b> & that \"quoted\" or 'not'?", "It's \"quoted\" & <i>more</i> \\ back\\slash \\n."),
        ("Say the word <|im_end|> please", "I say <|im_end|> and </s> and go on."),
        ("<think>hm</think> asked", "<think>\nTwo and two, that is four.\n</think>\n\nFour."),
        ("Only thinking", "<think>\nNothing comes of it.\n</think>\n\n"),
        ("Assistant: user: system:", "user\nassistant\n<start_of_turn>model\nhm"),
        ("0", "1"),
        ("x" * 300, "y " * 150),
        ("\u0000\u0001\u007f control", "\u001f\u2028\u2029\ufeff end"),
    ):
        yield same([user(texts[0]), answer(texts[1])])
    several = [
        user("Hello"), answer("Hi, what can I do?"), user("Count to three."), answer("One, two, three."),
        user("Go on."), answer("Four, five, six."),
    ]
    yield same(several)
    yield same([system("You count."), *several])
    yield same([system("Du zählst.\n\n"), *several[:4]])
    yield same([system(""), *several[:4]])
    yield same([user("Same"), answer("Same"), user("Same"), answer("Same"), user("Same"), answer("Same")])
    yield same([*several, user("And the last word, which has no answer?")])
    yield same([system("The end is a question."), user("One?"), answer("Two."), user("Three?")])
    yield same([answer("I begin."), user("Do you?"), answer("I do.")])
    yield same([user("Twice"), answer("once"), answer("and again")])
    yield same([user("One"), user("two"), answer("three")])
    yield same([user("One"), answer("two"), system("Be kind."), user("three"), answer("four")])
    thought = "<think>\nAs it is {}.\n</think>\n\n{}"
    yield same([
        user("Red?"), answer(thought.format("red", "Yes.")), user("Blue?"), answer(thought.format("not blue", "No.")),
    ])
    yield same([
        user("Red?"), answer("Yes.", reasoning_content="It is red."), user("Blue?"),
        answer("No.", reasoning_content="\nIt is not blue.\n"),
    ])
    yield same([user("Red?"), answer("Yes."), user("Blue?"), answer("No.")], chat_template_kwargs={"enable_thinking": False})
    yield same([user("What day is it?"), answer("Monday.")], chat_template_kwargs={"date_string": "1 Jan 2020"})
    # Calls of tools.
    asked = [user("How is Köln?")]
    called = [answer("", tool_calls=[call("weather", {"place": "Köln", "days": 2})]), result('{"sky": "grey", "c": 7.0}')]
    said = [answer("Grey, 7 degrees.")]
    yield same(asked + called + said, tools=[WEATHER])
    yield same([system("Use tools."), *asked, *called, *said], tools=[WEATHER, CLOCK])
    yield same(asked + called + said)
    yield same(asked + called + said + [user("And the time?"), answer("Unknown.")], tools=[WEATHER, CLOCK])
    text = [answer("I look.", tool_calls=[call("weather", {"place": "Köln"})]), result("grey")]
    yield same(asked + text + said, tools=[WEATHER])
    none = [answer(None, tool_calls=[call("clock", {})]), result("12:00")]
    yield same(asked + none + said, tools=[CLOCK])
    two = [
        answer("", tool_calls=[call("weather", {"place": "Köln"}), call("clock", {"zone": None, "on": True}, "call54321")]),
        result("grey"), result("12:00", "call54321", name="clock"),
    ]
    yield same(asked + two + said, tools=[WEATHER, CLOCK])
    again = [answer("", tool_calls=[call("clock", {"n": [1, 2.5, "ü\"", {}], "m": {"z": 1, "a": []}}, "call99999")])]
    yield same(asked + called + again + [result("12:00", "call99999")] + said, tools=[WEATHER, CLOCK])
    yield same(asked + [answer("", tool_calls=[call("weather", '{"place": "Köln"}')]), result("grey")] + said, tools=[WEATHER])
    yield same(asked + called[:1], tools=[WEATHER])
    yield same([user("Just talk."), answer("All right.")], tools=[WEATHER])
    parts = [user([{"type": "text", "text": " One "}, {"type": "text", "text": "two"}]), answer([{"type": "text", "text": "three "}])]
    yield same(parts)
    # The other forms.
    yield (
        {"system": "Sei kurz.", "conversations": [{"from": "human", "value": "Wie?"}, {"from": "gpt", "value": "So."}]},
        [system("Sei kurz."), user("Wie?"), answer("So.")], {}, 0,
    )
    bare = call("weather", {"place": "Köln", "days": 2})
    del bare["id"]
    yield (
        {
            "conversations": [
                {"from": "human", "value": "How is Köln?"},
                {"from": "function_call", "value": json.dumps(bare["function"], ensure_ascii=False)},
                {"from": "observation", "value": "grey"}, {"from": "gpt", "value": "Grey."},
            ],
            "tools": json.dumps([WEATHER]),
        },
        [user("How is Köln?"), message("assistant", "", tool_calls=[bare]), message("tool", "grey"), answer("Grey.")],
        {"tools": [WEATHER]}, 0,
    )
    yield (
        {"instruction": "Add.", "input": "2 and 2", "output": "4", "history": [["Add 1 and 1.", "2"]], "system": "Add up."},
        [system("Add up."), user("Add 1 and 1."), answer("2"), user("Add.\n2 and 2"), answer("4")], {}, 0,
    )
    prompt = [user("One?"), answer("Two."), user("Three?")]
    yield {"prompt": prompt, "completion": [answer("Four.")]}, [*prompt, answer("Four.")], {}, 3


def tokenizer(texts):
    """Trains a small byte-level tokenizer that has the special tokens of all templates."""
    made = tokenizers.Tokenizer(models.BPE())
    pattern = Regex(r"'s|'t| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    made.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(pattern, behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(texts, trainer)
    made.add_tokens([tokenizers.AddedToken(text, special=False, normalized=False) for text in ADDED])
    return made


def joined(messages):
    """The messages with one text as content, for templates that cannot take parts."""
    return [
        {**one, "content": "\n".join(part["text"] for part in one["content"])} if isinstance(one["content"], list) else one
        for one in messages
    ]


def takes_parts(made, template):
    def text(content):
        conversation = [user(content), answer("b")]
        return made.apply_chat_template(conversation, chat_template=template, tokenize=False)

    try:
        return text([{"type": "text", "text": "a"}]) == text("a")
    except Exception:
        return False


def ranges(mask):
    """The ranges of ones, as [begin, end]."""
    found = []
    for at, one in enumerate(mask):
        if one and found and found[-1][1] == at:
            found[-1][1] += 1
        elif one:
            found.append([at, at + 1])
    return found


def expected(made, template, messages, more):
    if not takes_parts(made, template):
        messages = joined(messages)
    given = {"tools": more.get("tools"), **more.get("chat_template_kwargs", {})}
    marked = "generation" in template and "endgeneration" in template
    try:
        out = made.apply_chat_template(
            messages, chat_template=template, return_assistant_tokens_mask=marked, return_dict=True, **given
        )
    except Exception as error:
        # The words of a template that refuses; those of Python are not compared.
        return {"refused": str(error) if type(error).__name__ == "TemplateError" else ""}
    return {"ids": out["input_ids"], "counted": ranges(out["assistant_masks"]) if marked else None}


def main():
    class Fixed(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return NOW

    chat_template_utils.datetime = Fixed
    cases = list(conversations())
    templates = {name: (FOLDER / "templates" / f"{name}.jinja").read_text() for name in TEMPLATES}
    literals = [" ".join(re.split(r"<\|?[a-z_]+\|?>|\[/?[A-Z_]+\]", text)) for text in templates.values()]
    core = tokenizer([json.dumps(case[0], ensure_ascii=False) for case in cases] + literals)
    core.save(str(FOLDER / "tokenizer.json"), pretty=False)
    records = [{"record": record, "prompt": prompt} for record, _, _, prompt in cases]
    lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in records)
    (FOLDER / "conversations.json").write_text(f"[\n{lines}\n]\n")
    seen = [{} for _ in cases]
    for name, (begin, end) in TEMPLATES.items():
        made = transformers.PreTrainedTokenizerFast(tokenizer_object=core, bos_token=begin, eos_token=end)
        wanted = []
        for (_, messages, more, _), before in zip(cases, seen):
            one = {key: value for key, value in expected(made, templates[name], messages, more).items() if value is not None}
            # Tokens that another template has made too are named, not repeated.
            if "ids" in one:
                key = tuple(one["ids"])
                if key in before:
                    one["ids"] = before[key]
                else:
                    before[key] = name
            wanted.append(one)
        out = {"bos_token": begin, "eos_token": end}
        lines = ",\n".join(json.dumps(one, ensure_ascii=False, separators=(",", ":")) for one in wanted)
        head = json.dumps(out)[:-1]
        (FOLDER / f"{name}.json").write_text(f'{head}, "wanted": [\n{lines}\n]}}\n')
        refused = sum("refused" in one for one in wanted)
        print(f"{name}: {len(wanted)} conversations, {refused} refused")
    print(f"transformers {transformers.__version__}, tokenizers {tokenizers.__version__}")


if __name__ == "__main__":
    main()
