"""Answers tasks by reading the prompt, as a model should: with the eyes of regular expressions."""

from __future__ import annotations

import json
import re
from collections import Counter

NEEDLE = re.compile(r"A secret code of (\S+) is (\S+)\.")


def answer(task: str, prompt: str) -> str:
    if task.startswith("niah"):
        asked = re.findall(r"secret codes? of (.*) in the text above\?", prompt)[-1]
        return ", ".join(code for name, code in NEEDLE.findall(prompt) if name in re.split(r", | and ", asked))
    if task.startswith("kv"):
        listed = json.loads(re.findall(r"\{.*\}", prompt, re.DOTALL)[-1])
        return listed.get(re.findall(r'Key: "(.*)"', prompt)[-1], "")
    if task == "vt":
        value = re.findall(r"have the value (\d+)\?", prompt)[-1]
        same = {value}
        for name, source in re.findall(r"Let (\w+) = (\w+)\.", prompt):
            same |= {name} if source in same else set()
        return " ".join(same)
    words = re.split(r"\n\n", prompt)[-2].split()
    if task == "cwe":
        words = [word for word in words if not re.fullmatch(r"\d+\.", word)]
    return " ".join(word for word, _ in Counter(words).most_common(10 if task == "cwe" else 3))
